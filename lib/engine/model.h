// An open model: file, weights, tokenizer, device. Immutable; shared by its sessions, which keep it alive.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/base/host_threads.h"
#include "lib/base/memory_meter.h"
#include "lib/engine/executor.h"
#include "lib/model/tokenizer.h"

namespace kvc {

struct ModelParams {
  std::string device = "auto";
  ThreadOptions threads;
  int64_t memory_limit = 0;    // 0 = none
  bool trusted = false;        // the bytes of the weights are not verified
  bool plan_only = false;      // the weights are neither verified nor prepared: nothing can run
  CallState* watch = nullptr;  // hears how far opening is, and can cancel it; null = nobody
  bool reads_no_weights() const { return trusted || plan_only; }  // to verify them
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
  // kUnsupported where it was opened for plans only, which say what they would if it had been opened to run.
  Status CanRun() const;
  // What opening took through the meter beside the weights: the tokenizer's tables, texts and scores.
  int64_t overhead_bytes() const { return overhead_bytes_; }
  // Held at most while it was opened: a matrix is there twice while it gets the device's form.
  int64_t opening_bytes() const { return opening_bytes_; }
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }
  const Device& device() const { return *device_; }
  Executor* executor() const { return executor_.get(); }
  AttentionRule attention_rule() const;
  // The scores a policy asks for: the caller's, or the named or first fitting table of the file; empty when
  // it needs none, or there is none. Methods that read numbers of query heads (headkv-r2, duo-attention) get
  // those where there are any.
  Result<HeadScores> ScoresFor(const Policy& policy) const;

 private:
  Model() = default;
  // open(meter) -> Result<std::unique_ptr<ModelFile>>, once the device is there.
  template <typename OpenFile>
  static Result<std::shared_ptr<const Model>> Build(const ModelParams& params, OpenFile&& open);
  Status Init(CallState* watch);
  Status PrepareWeights(CallState* watch);
  Status CountWeights();

  std::shared_ptr<MemoryMeter> meter_;
  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  bool can_run_ = true;
  int64_t overhead_bytes_ = 0, opening_bytes_ = 0;
  std::unique_ptr<Device> device_;
  Weights weights_;
  std::vector<Rope> ropes_;                 // those of the config, and none where a layer wants none
  std::vector<const Rope*> rope_of_layer_;  // [L]
  std::vector<DevicePtr<const float>> sinks_of_layer_;  // [L]
  std::unique_ptr<Executor> executor_;
};

}  // namespace kvc
