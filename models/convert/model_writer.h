// Writes a .kvc file, one tensor at a time, atomically: a temporary file beside the target, fsync, rename. On
// any failure, or when Finish was not reached, the temporary file is removed and the old target stays.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/base/thread_pool.h"
#include "lib/model/model_file.h"

namespace kvc {

struct ModelFileContent {
  ModelConfig config;
  TokenizerSpec tokenizer;
  TurnFormat turn_format;
  std::vector<HeadScoreTable> head_scores;
  std::string created_by, source;  // source: what it was converted from, for people
};

// A tensor to come: role, layer (-1 none), type, shape, group (int8, int4), and how the file will have it.
struct TensorPlan {
  TensorRole role{};
  int32_t layer = -1;
  WeightType type = WeightType::kF32;
  int32_t rows = 0, cols = 0, group = 0;
  WeightLayout layout = WeightLayout::kRowMajor;
  // In panels, of the tensor in row major. 0: the tensor comes in row major and is packed here; else it comes
  // in panels.
  uint64_t plain_checksum = 0;
};

// What no reader would take is refused: kBadModel, kUnsupported; the message names the field, and no file. A
// tokenizer with fewer pieces than the vocabulary is filled up with unused pieces.
Status CompleteContent(ModelFileContent* content, const std::vector<TensorPlan>& tensors);

class ModelWriter {
 public:
  // All tensors are announced first, in the order they will be written; the directory's size then is known.
  // CompleteContent is called. pool, which lives longer, packs panels; null: the caller does. kIo: the file
  // cannot be created.
  static Result<std::unique_ptr<ModelWriter>> Create(const std::string& path, ModelFileContent content,
                                                     std::vector<TensorPlan> tensors,
                                                     ThreadPool* pool = nullptr);
  virtual ~ModelWriter() = default;
  // Appends to the tensor now being written, in pieces of any size: first all codes or elements [rows, cols]
  // in file form, then (int8, int4) all scales f16 [rows, cols / group]. The next tensor starts when this one
  // is complete. A tensor that is packed here is held in memory until it is complete. NaN or infinity among
  // values or scales is kBadModel, at the tensor's end.
  virtual Status Append(const void* data, int64_t n_bytes) = 0;
  Status Finish() { return Finish(/*durable=*/true); }
  // Not durable: AtomicFile::Commit.
  virtual Status Finish(bool durable) = 0;
};

// Replaces the head-score tables of an existing file (same atomic rule; the paths may be equal); weights are
// copied, their checksums kept. Sections and fields of the file that this version does not know are not.
Status RewriteHeadScores(const std::string& in_path, const std::string& out_path,
                         const std::vector<HeadScoreTable>& tables);

}  // namespace kvc
