// A model of someone else's format into a .kvc file.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/ops/tensor.h"
#include "models/convert/rope_extension.h"

namespace kvc {

// How matrices are stored. Norms and biases are f32 always.
//   kKeep   as the source has them: F32, F16, BF16, Q4_K, Q6_K unchanged; other blocks of GGUF become codes
//   of
//           the same values where int8 or int4 holds them (scales of Q3_K and IQ4_XS round to f16), those
//           with a least value int8
//   kInt8   groups of `group` columns, or of the largest smaller power of two from 32 on that divides them; a
//   matrix
//           that none divides stays as kKeep has it
//   kInt4   as kInt8, except that embedding and output head become int8: they are few of the weights and the
//   first to suffer
//   The matrix that chooses experts stays as kKeep has it in both.
enum class WeightChoice { kKeep, kF32, kBf16, kInt8, kInt4 };

struct ConvertPlan;  // convert_plan.h

struct ConvertProgress {
  int32_t tensors_done = 0, tensors_total = 0;
  int64_t bytes_done = 0, bytes_total = 0;  // of the source's tensors
};

// An adapter that is added to the weights, times strength: a folder of PEFT, or GGUF (lora.h).
struct LoraChoice {
  std::string path;
  float strength = 1;  // -100 to 100
};

struct ConvertOptions {
  WeightChoice weights = WeightChoice::kKeep;
  int32_t group = 32;                             // 32, 64 or 128
  WeightLayout layout = WeightLayout::kRowMajor;  // panels: of every matrix that is multiplied and fits
  std::vector<std::string> head_score_files;      // JSON (head_scores_json.h), stored in this order
  int32_t context = 0;  // tokens the model is wanted for, at most those it was trained for; 0: all
  RopeExtension rope;   // more than it was trained for; with kDynamic, context tokens or the factor's
  std::vector<LoraChoice> adapters;  // what they change is rounded again, codes become int8 in groups of 32
  std::string name;                  // empty: the source's own, or that of the file or directory
  bool dry_run = false;              // reads what there is to know, tells it to `planned`, and writes nothing
  // Told once, before anything is written. May be null.
  std::function<void(const ConvertPlan&)> planned;
  // Called often; false stops with kCancelled. May be null.
  std::function<bool(const ConvertProgress&)> progress;
};

// Matrices of one type of the source that became one type of the model file.
struct ConvertedType {
  std::string source, stored;  // "Q4_K", "int8"
  int32_t group = 0;
  int32_t n_tensors = 0;
  int64_t bytes_read = 0, bytes_written = 0;
  double squares = 0, lost_squares = 0;
  bool exact() const { return lost_squares == 0; }
  // Root of the mean square of what was lost, by that of the values.
  double Loss() const { return squares > 0 ? std::sqrt(lost_squares / squares) : 0; }
};

struct ConvertReport {
  std::string kind, architecture, name;  // kind: "hugging face", "gguf", "llama2.c"
  int32_t n_tensors = 0;
  int64_t bytes_read = 0, bytes_written = 0;  // tensors alone
  int64_t peak_buffer_bytes = 0;              // taken at once for tensor data
  int32_t n_packed = 0;                       // tensors in panels
  std::vector<int32_t> n_adapted;             // matrices changed, one number an adapter
  std::vector<ConvertedType> types;
  std::vector<std::string> warnings;
};

// For which processors weights can be packed: "none", "native" (this one), instruction sets. kInvalid:
// another name.
std::vector<std::string> PackTargets();
Result<WeightLayout> LayoutFor(const std::string& target);

// source: a Hugging Face directory, a GGUF file or a llama2.c checkpoint, told apart by content. Memory stays
// below the largest tensor plus 64 MiB. On any failure out_path is as it was. kNotFound, kIo: a file that is
// missing or cannot be read or written; kBadModel: the source is damaged; kUnsupported: names what it holds
// that this version does not know; kInvalid: options, or head scores of another model; kCancelled. report may
// be null.
Status Convert(const std::string& source, const std::string& out_path, const ConvertOptions& options,
               ConvertReport* report);

}  // namespace kvc
