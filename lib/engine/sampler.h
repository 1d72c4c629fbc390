// How a session chooses its tokens.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/archive.h"
#include "lib/base/memory_meter.h"
#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/ops/network_ops.h"

namespace kvc {

struct SamplerParams {
  float temperature = 0;  // 0: greedy, the lowest id among equals
  float top_p = 0;        // 0: off
  int32_t top_k = 0;      // 0: off
  int64_t seed = 0;
  float min_p = 0;            // 0: off
  float repeat_penalty = 0;   // 0 or 1: off
  int32_t repeat_window = 0;  // tokens, at most kMaxRepeatWindow; 0: kRepeatWindow
};

constexpr int32_t kRepeatWindow = 64, kMaxRepeatWindow = 512;

// kInvalid with the range when a parameter is out of it.
Status CheckSampling(const SamplerParams& params);
// Of a token that a device gave (Device::Sample). kBadModel: no logit that may be chosen was a finite number.
Status CheckChosen(int32_t token);

// Of one session; copied to its forks.
class Sampler {
 public:
  explicit Sampler(const SamplerParams& params) : params_(params) {}
  // kInvalid, and nothing changes, when a parameter is out of its range.
  Status Set(const SamplerParams& params);
  // The same; empty: none. meter: of the model, whose forks share what is taken.
  Status SetBias(Span<const int32_t> tokens, const float* biases, int32_t vocab, MemoryMeter* meter);
  Status SetMask(Span<const int32_t> words, int32_t vocab, MemoryMeter* meter);

  // Tokens that were fed. ReserveTokens makes room for all there will ever be.
  void Saw(Span<const int32_t> tokens);
  void ReserveTokens();
  void Rewind(int32_t n);  // takes the newest n out
  void Forget() { recent_.clear(); }
  // Of the fed tokens the newest, or the one so many before it; -1: none is remembered.
  int32_t newest(int32_t before = 0) const {
    const size_t at = static_cast<size_t>(before);
    return at < recent_.size() ? recent_[recent_.size() - 1 - at] : -1;
  }
  // Takes the tokens of a sampler that is not needed any more. Takes no memory.
  void TakeTokens(Sampler* other) { recent_.swap(other->recent_); }

  // kInvalid when biases and mask leave no token: before anything is changed.
  Status CheckLeft() const;
  // Whether chance has a part, so that Device::Sample needs weights.
  bool draws() const { return params_.temperature > 0; }
  // How many of the newest tokens are made less likely; 0: none.
  size_t penalized() const;
  // What Device::Sample takes for logits behind the tokens seen so far and `more`; valid as long as the
  // sampler and *lists stay as they are, which has room for penalized() more. draw: its number in the
  // session.
  SampleRow RowOf(DevicePtr<float> logits, int64_t draw, Span<const int32_t> more,
                  std::vector<int32_t>* lists) const;

  // Parameters and tokens; not what a caller sets for the next steps.
  template <typename A>
  Status Archive(A& archive, int32_t vocab) {
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, params_.min_p));
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, params_.repeat_penalty));
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, params_.repeat_window));
    KVC_RETURN_IF_ERROR(ArchiveSequence(archive, recent_, kKept));
    if (A::kReading) KVC_RETURN_IF_ERROR(CheckRestored(vocab));
    return {};
  }
  const SamplerParams& params() const { return params_; }

 private:
  // Enough for every window, also after a rewind of up to 128 tokens.
  static constexpr int64_t kKept = kMaxRepeatWindow + 128;
  template <typename T>
  struct List {
    std::vector<T> items;
    MeterCharge charge;
  };
  template <typename T>
  using SharedList = std::shared_ptr<const List<T>>;
  template <typename T>
  static Result<SharedList<T>> Take(std::vector<T> items, MemoryMeter* meter, const char* what);
  void TakeLists(SharedList<TokenBias> biases, SharedList<uint32_t> mask, int32_t vocab);
  Status CheckRestored(int32_t vocab) const;

  SamplerParams params_;
  std::vector<int32_t> recent_;   // the newest tokens that were fed, at most kKept
  SharedList<TokenBias> biases_;  // null: none
  SharedList<uint32_t> mask_;     // null: every token may be chosen
  bool leaves_none_ = false;      // of biases_ and mask_
};

}  // namespace kvc
