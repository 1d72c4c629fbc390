#include "lib/engine/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace kvc {
namespace {

int64_t MaskWords(int32_t vocab) { return (int64_t{vocab} + 31) / 32; }

}  // namespace

Status CheckSampling(const SamplerParams& p) {
  if (!(p.temperature >= 0) || p.temperature > 100)
    return Error(Code::kInvalid, "temperature is %g; it is 0 (greedy) to 100",
                 static_cast<double>(p.temperature));
  if (!(p.top_p >= 0) || p.top_p > 1)
    return Error(Code::kInvalid, "top_p is %g; it is 0 (off) to 1", static_cast<double>(p.top_p));
  if (p.top_k < 0) return Error(Code::kInvalid, "top_k is %d; it is 0 (off) or more", p.top_k);
  if (!(p.min_p >= 0) || p.min_p > 1)
    return Error(Code::kInvalid, "min_p is %g; it is 0 (off) to 1", static_cast<double>(p.min_p));
  if (!(p.repeat_penalty >= 0) || p.repeat_penalty > 100)
    return Error(Code::kInvalid, "repeat_penalty is %g; it is 0 (off) to 100, and 1 changes nothing",
                 static_cast<double>(p.repeat_penalty));
  if (p.repeat_window < 0 || p.repeat_window > kMaxRepeatWindow)
    return Error(Code::kInvalid, "repeat_window is %d; it is 0 (%d tokens) to %d", p.repeat_window,
                 kRepeatWindow, kMaxRepeatWindow);
  return {};
}

Status Sampler::Set(const SamplerParams& params) {
  KVC_RETURN_IF_ERROR(CheckSampling(params));
  params_ = params;
  return {};
}

template <typename T>
Result<Sampler::SharedList<T>> Sampler::Take(std::vector<T> items, MemoryMeter* meter, const char* what) {
  if (items.empty()) return SharedList<T>();
  auto list = std::make_shared<List<T>>();
  KVC_RETURN_IF_ERROR(list->charge.Add(meter, static_cast<int64_t>(items.size() * sizeof(T)), what));
  list->items = std::move(items);
  return SharedList<T>(std::move(list));
}

// Whether any token is left is decided here, once, so that a step can be refused before it feeds anything.
void Sampler::TakeLists(SharedList<TokenBias> biases, SharedList<uint32_t> mask, int32_t vocab) {
  const size_t n = static_cast<size_t>(MaskWords(vocab));
  std::vector<uint32_t> left = mask == nullptr ? std::vector<uint32_t>(n, ~uint32_t{0}) : mask->items;
  if (vocab % 32 != 0) left.back() &= (uint32_t{1} << vocab % 32) - 1;
  if (biases != nullptr) {
    for (const TokenBias& b : biases->items) {
      if (b.bias == -INFINITY) left[static_cast<size_t>(b.token / 32)] &= ~(uint32_t{1} << b.token % 32);
    }
  }
  leaves_none_ = std::all_of(left.begin(), left.end(), [](uint32_t word) { return word == 0; });
  biases_ = std::move(biases), mask_ = std::move(mask);
}

Status Sampler::SetBias(Span<const int32_t> tokens, const float* biases, int32_t vocab, MemoryMeter* meter) {
  std::vector<TokenBias> list;
  list.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab)
      return Error(Code::kInvalid, "bias %zu is of token %d; ids are 0 to %d", i, tokens[i], vocab - 1);
    if (!std::isfinite(biases[i]) && biases[i] != -INFINITY)
      return Error(Code::kInvalid, "bias %zu is %g; it is a number or -infinity", i,
                   static_cast<double>(biases[i]));
    list.push_back({tokens[i], biases[i]});
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
  Result<SharedList<TokenBias>> taken = Take(std::move(list), meter, "biases of tokens");
  if (taken.ok()) TakeLists(std::move(taken.value()), mask_, vocab);
  return taken.status();
}

Status Sampler::SetMask(Span<const int32_t> words, int32_t vocab, MemoryMeter* meter) {
  const size_t n = static_cast<size_t>(MaskWords(vocab));
  if (!words.empty() && words.size() != n)
    return Error(Code::kInvalid, "a mask of %zu words; %d tokens take %zu", words.size(), vocab, n);
  Result<SharedList<uint32_t>> taken =
      Take(std::vector<uint32_t>(words.begin(), words.end()), meter, "a mask of tokens");
  if (taken.ok()) TakeLists(biases_, std::move(taken.value()), vocab);
  return taken.status();
}

void Sampler::ReserveTokens() { recent_.reserve(static_cast<size_t>(kKept)); }

void Sampler::Saw(Span<const int32_t> tokens) {
  const size_t most = static_cast<size_t>(kKept), n = std::min(tokens.size(), most);
  if (recent_.size() + n > most)
    recent_.erase(recent_.begin(), recent_.end() - static_cast<std::ptrdiff_t>(most - n));
  recent_.insert(recent_.end(), tokens.end() - n, tokens.end());
}

void Sampler::Rewind(int32_t n) {
  recent_.resize(recent_.size() - std::min(recent_.size(), static_cast<size_t>(n)));
}

Status Sampler::CheckLeft() const {
  if (!leaves_none_) return {};
  return Error(Code::kInvalid, "the token mask and the biases leave no token to choose");
}

size_t Sampler::penalized() const {
  if (params_.repeat_penalty <= 0) return 0;
  return static_cast<size_t>(params_.repeat_window > 0 ? params_.repeat_window : kRepeatWindow);
}

SampleRow Sampler::RowOf(DevicePtr<float> logits, int64_t draw, Span<const int32_t> more,
                         std::vector<int32_t>* lists) const {
  SampleRow row;
  row.logits = logits;
  if (const size_t window = penalized(); window > 0) {
    const size_t n_more = std::min(more.size(), window), n_recent = std::min(recent_.size(), window - n_more);
    const size_t at = lists->size();
    assert(at + n_recent + n_more <= lists->capacity());
    lists->insert(lists->end(), recent_.end() - static_cast<std::ptrdiff_t>(n_recent), recent_.end());
    lists->insert(lists->end(), more.end() - n_more, more.end());
    const auto first = lists->begin() + static_cast<std::ptrdiff_t>(at);
    std::sort(first, lists->end());
    lists->erase(std::unique(first, lists->end()), lists->end());
    row.repeated = {lists->data() + at, lists->size() - at};
    row.repeat_penalty = params_.repeat_penalty;
  }
  if (biases_ != nullptr) row.biases = biases_->items;
  row.allowed = mask_ == nullptr ? nullptr : mask_->items.data();
  row.temperature = params_.temperature, row.top_p = params_.top_p, row.top_k = params_.top_k;
  row.min_p = params_.min_p;
  row.seed = static_cast<uint64_t>(params_.seed), row.draw = draw;
  return row;
}

Status CheckChosen(int32_t token) {
  if (token >= 0) return {};
  return Error(
      Code::kBadModel,
      "no logit is a finite number: the weights of the model, or the session it was restored from, hold "
      "numbers the network cannot compute with");
}

Status Sampler::CheckRestored(int32_t vocab) const {
  KVC_RETURN_IF_ERROR(CheckSampling(params_));
  for (int32_t token : recent_) {
    if (token < 0 || token >= vocab)
      return Error(Code::kBadModel, "damaged: a token that was fed is %d", token);
  }
  return {};
}

}  // namespace kvc
