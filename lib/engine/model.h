// An open model: file, weights, tokenizer, threads. Immutable; shared by its sessions, which keep it alive.
#pragma once
#include <memory>
#include <string>

#include "lib/base/memory_meter.h"
#include "lib/compress/compressor.h"
#include "lib/model/forward.h"
#include "lib/model/tokenizer.h"

namespace kvc {

struct ModelParams {
  int32_t n_threads = 0;     // 0 = all online processors
  int64_t memory_limit = 0;  // 0 = none
};

class Model {
 public:
  static Result<std::shared_ptr<const Model>> Open(const std::string& path, const ModelParams& params);
  static Result<std::shared_ptr<const Model>> OpenFd(int fd, int64_t offset, int64_t n_bytes,
                                                     const ModelParams& params);
  static Result<std::shared_ptr<const Model>> OpenMemory(const uint8_t* data, int64_t n_bytes,
                                                         const ModelParams& params);

  const ModelFile& file() const { return *file_; }
  const ModelConfig& config() const { return file_->config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // What opening took through the meter beside the weights: the tokenizer's tables, texts and scores.
  int64_t overhead_bytes() const { return overhead_bytes_; }
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }
  OpContext ops() const { return {kernels_, pool_.get()}; }
  Network network() const { return {file_->config(), weights_, rope_, ops()}; }
  CompressorShape compressor_shape() const;
  // The scores a policy asks for: the caller's, or the named or first fitting table of the file; empty when
  // it needs none.
  Result<HeadScores> ScoresFor(const Policy& policy) const;

 private:
  Model() = default;
  static Result<std::shared_ptr<const Model>> Build(Result<std::unique_ptr<ModelFile>> file,
                                                    std::shared_ptr<MemoryMeter> meter,
                                                    const ModelParams& params);
  Status Init(const ModelParams& params);

  std::shared_ptr<MemoryMeter> meter_;
  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t overhead_bytes_ = 0;
  std::unique_ptr<ThreadPool> pool_;
  const KernelTable* kernels_ = nullptr;
  Weights weights_;
  Rope rope_;
};

}  // namespace kvc
