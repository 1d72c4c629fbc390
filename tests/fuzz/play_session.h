// Any call on a session, and what must hold after it whatever came before: for the fuzz targets that play.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/hash.h"
#include "lib/engine/session.h"
#include "tests/fuzz/require.h"

namespace kvc::test {

// What a caller can see. logits 0: there are none, or no memory to see them.
struct Seen {
  int64_t slots, tokens;
  uint64_t logits;
};

// What would be chosen from next, empty where nothing can be; the session stays as it is.
inline std::vector<float> LogitsOf(Session& s) {
  std::vector<float> logits(static_cast<size_t>(s.model().config().vocab_size));
  auto fork = s.Fork();
  if (!fork.ok() || !fork.value()->ReadLogits(logits.data()).ok()) logits.clear();
  return logits;
}

// Of layers without windows: which page of a window goes when is a matter of the calls that fed its tokens.
inline int64_t SlotsSeen(const Session& s) {
  const ModelConfig& c = s.model().config();
  int64_t slots = s.Stats().n_slots;
  std::vector<int32_t> kept;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    for (int g = 0; c.layers[static_cast<size_t>(layer)].attention_window > 0 && g < c.n_kv_heads; ++g) {
      KVC_REQUIRE(s.Kept(layer, g, &kept).ok());
      slots -= static_cast<int64_t>(kept.size());
    }
  }
  return slots;
}

inline Seen Look(Session& s) {
  const std::vector<float> logits = LogitsOf(s);
  const uint64_t hash = logits.empty() ? 0 : Hash64(logits.data(), logits.size() * sizeof(float));
  return {SlotsSeen(s), s.figures().n_tokens, hash};
}

inline bool Same(const Seen& a, const Seen& b) {
  return a.slots == b.slots && a.tokens == b.tokens &&
         (a.logits == b.logits || a.logits == 0 || b.logits == 0);
}

inline bool HasFiniteLogits(Session& s) {
  const std::vector<float> logits = LogitsOf(s);
  return std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
}

// finite: unless values came from outside. rest: a head's first entry may stand for tokens that are none of
// the others.
inline void CheckCache(Session& s, bool finite = true, bool rest = false) {
  const ModelConfig& c = s.model().config();
  const SessionStats stats = s.Stats();
  const int32_t n_tokens = s.figures().n_tokens;
  KVC_REQUIRE(stats.stop_token >= -1 && stats.stop_token < c.vocab_size);
  int64_t slots = 0;
  std::vector<int32_t> kept;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    for (int g = 0; g < c.n_kv_heads; ++g) {
      KVC_REQUIRE(s.Kept(layer, g, &kept).ok());
      slots += static_cast<int64_t>(kept.size());
      KVC_REQUIRE(n_tokens == 0 || !kept.empty());
      const int32_t window = c.layers[static_cast<size_t>(layer)].attention_window;
      if (window > 0 && window < s.params().max_tokens)  // as the windows of the models here are
        KVC_REQUIRE(static_cast<int32_t>(kept.size()) >= std::min(n_tokens, window - 1) &&
                    (kept.empty() || n_tokens - kept[0] == static_cast<int32_t>(kept.size())));
      const int32_t least = rest ? static_cast<int32_t>(kept.size()) - 1 - n_tokens : 0;
      for (size_t i = 0; i < kept.size(); ++i)
        KVC_REQUIRE(kept[i] >= (i == 0 ? least : std::max(kept[i - 1] + 1, 0)) && kept[i] < n_tokens);
    }
  }
  KVC_REQUIRE(slots == stats.n_slots);
  KVC_REQUIRE(stats.cache_bytes <= stats.cache_bytes_peak);
  if (finite) KVC_REQUIRE(HasFiniteLogits(s));
}

// A copy of the session must answer as the session itself.
inline void CheckSameAnswer(Session& a, Session& b) {
  KVC_REQUIRE(Same(Look(a), Look(b)));
  const auto left = a.Fork(), right = b.Fork();
  for (int i = 0; left.ok() && right.ok() && i < 2; ++i) {
    int32_t x = -1, y = -1;
    if (!left.value()->Step(&x).ok() || !right.value()->Step(&y).ok()) return;
    KVC_REQUIRE(x == y);
  }
}

// A session and the tokens it should hold.
struct Played {
  std::unique_ptr<Session> session;
  std::vector<int32_t> tokens;
  bool whole;  // f32 and nothing dropped so far
};

inline Status SaveAndRestore(const std::string& path, Played* played) {
  Session& s = *played->session;
  const std::shared_ptr<const Model> model(&s.model(), [](const Model*) {});
  Status status = s.SetBias({}, nullptr);  // a file has neither
  if (status.ok()) status = s.SetMask({});
  if (status.ok()) status = s.Save(path);
  if (!status.ok()) return status;
  auto restored = Session::Restore(model, path);
  if (!restored.ok()) {
    KVC_REQUIRE(restored.status().code() == Code::kMemory);
    return restored.status();
  }
  CheckSameAnswer(s, *restored.value());
  return {};
}

inline std::vector<int32_t> Tokens(int n, uint8_t seed) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * 37 + seed * 11) % 256);
  return ids;
}

// Steps that check a draft, of which some is right where there is memory to know: as plain steps of a fork.
inline Status FeedDraft(uint8_t argument, Played* played) {
  Session& s = *played->session;
  std::vector<int32_t> draft;
  const auto oracle = s.Fork();
  for (int i = 0; oracle.ok() && i < argument % 8; ++i) {
    int32_t token = -1;
    if (!oracle.value()->Step(&token).ok() || token < 0) break;
    draft.push_back(token);
  }
  for (int i = 0; i < argument / 64; ++i) draft.push_back((argument * 3 + i) % 256);
  const auto plain = s.Fork();
  std::vector<int32_t> tokens(static_cast<size_t>(argument % 11 + 1));
  int32_t n = -1;
  const Status status = s.StepDraft(draft, tokens.data(), static_cast<int32_t>(tokens.size()), &n);
  KVC_REQUIRE(n >= 0 && n <= static_cast<int32_t>(tokens.size()) && (status.ok() || n == 0));
  played->tokens.insert(played->tokens.end(), tokens.begin(), tokens.begin() + n);
  for (int32_t i = 0; plain.ok() && i < n; ++i) {
    int32_t token = -1;
    const Status one = plain.value()->Step(&token);
    if (one.code() == Code::kMemory) return status;
    KVC_REQUIRE(one.ok() && token == tokens[static_cast<size_t>(i)]);
  }
  if (plain.ok() && status.ok() && n > 0 &&
      s.Stats().stop_token >= 0) {  // the stop behind them was seen, too
    int32_t token = 0;
    const Status one = plain.value()->Step(&token);
    if (one.code() == Code::kMemory) return status;
    KVC_REQUIRE(one.ok() && token == -1);
  }
  if (plain.ok() && status.ok() && n > 0) KVC_REQUIRE(Same(Look(s), Look(*plain.value())));
  return status;
}

inline Status Feed(int operation, uint8_t argument, Played* played) {
  Session& s = *played->session;
  std::vector<int32_t>& tokens = played->tokens;
  if (operation == 1) return FeedDraft(argument, played);
  if (operation == 0) {
    int32_t token = -1;
    const Status status = s.Step(&token);
    if (token >= 0) tokens.push_back(token);
    return status;
  }
  if (operation < 4) {  // now and then more than the context holds
    const std::vector<int32_t> more = Tokens(argument % 16 == 15 ? 150 : argument % 48 + 1, argument);
    const Status status = s.Prefill(more, operation == 2);
    if (status.ok()) tokens.insert(tokens.end(), more.begin(), more.end());
    return status;
  }
  if (operation == 4) {
    const Status status = s.Rewind(argument % 5);
    if (status.ok()) tokens.resize(tokens.size() - std::min<size_t>(tokens.size(), argument % 5));
    return status;
  }
  const Status status = s.Accept(argument);
  if (status.ok()) tokens.push_back(argument);
  return status;
}

// Biases, or a mask of a few tokens, or of none.
inline Status Constrain(uint8_t argument, Session* s) {
  const std::vector<int32_t> tokens = {argument, argument / 2};
  const float biases[] = {3, -INFINITY};
  if (argument % 2 == 0) return s->SetBias(tokens, biases);
  std::vector<int32_t> mask(static_cast<size_t>(s->model().config().vocab_size + 31) / 32);
  if (argument % 16 != 15) mask[argument / 32] = 1 << argument % 31, mask[1] = -1;
  return s->SetMask(mask);
}

inline Status Other(int operation, uint8_t argument, Played* played) {
  Session& s = *played->session;
  if (operation == 12) {
    SamplerParams sampling;
    sampling.temperature = static_cast<float>(argument % 4),
    sampling.top_p = static_cast<float>(argument % 5) / 4;
    sampling.top_k = argument % 7, sampling.seed = argument;
    sampling.min_p = static_cast<float>(argument % 3) / 4;
    sampling.repeat_penalty = argument % 11 == 10 ? 1.25f : 0, sampling.repeat_window = argument * 2;
    if (argument < 128) return s.SetSampling(sampling);
    const Status status = Constrain(argument, &s);
    return status.ok() ? s.SetSampling(sampling) : status;
  }
  if (operation ==
      13) {  // the next call that computes says so and changes nothing; then the request is answered
    s.call().RequestCancel();
    int32_t token = -1;
    const Seen before = Look(s);
    const Status status = argument % 2 == 0 ? s.Prefill(Tokens(5, argument), true) : s.Step(&token);
    s.call().ClearCancel();
    KVC_REQUIRE(token == -1 && Same(Look(s), before));
    return status;
  }
  s.ObserveAttention(argument % 2 == 0);
  return {};
}

// A session that steps in a batch, and a fork of it that does the same alone.
struct Twin {
  Played* played;
  std::unique_ptr<Session> alone;
  bool compares;  // memory may end for one of the two only
};

inline void CheckTwin(Twin* twin, const StepWish& row, const Status& alone, int32_t token) {
  if (row.status.code() == Code::kMemory || alone.code() == Code::kMemory) twin->compares = false;
  if (!twin->compares) return;
  KVC_REQUIRE(row.status.code() == alone.code() && (!alone.ok() || row.token == token));
}

// One token of both sessions in one pass; the first may have a prompt to read before, a chunk of a layer at
// each step of the other. What comes is what each gives alone.
inline Status StepTogether(uint8_t argument, Played* played, Played* other) {
  std::vector<Twin> twins;
  for (Played* p : {played, other}) {
    if (p->session == nullptr) continue;
    auto fork = p->session->Fork();
    twins.push_back({p, fork.ok() ? std::move(fork.value()) : nullptr, fork.ok()});
  }
  if (argument % 2 == 1) {
    const std::vector<int32_t> prompt = Tokens(argument % 40 + 1, argument);
    Status alone;
    if (twins[0].alone != nullptr) alone = twins[0].alone->Prefill(prompt, argument % 4 == 3);
    const Status queued = played->session->Enqueue(prompt, argument % 4 == 3);
    if (!queued.ok()) return queued;
    twins[0].compares = twins[0].compares && alone.ok();
    played->tokens.insert(played->tokens.end(), prompt.begin(), prompt.end());
  }
  StepWish first;
  for (bool reads = true; reads;) {
    std::vector<StepWish> rows;
    for (Twin& twin : twins) {
      rows.emplace_back();
      rows.back().session = twin.played->session.get(), rows.back().chooses = true;
    }
    Session::RunBatch({rows.data(), rows.size()}, 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].status.ok() && rows[i].token == StepWish::kReading) continue;
      int32_t token = StepWish::kNone;
      const Status alone = twins[i].alone == nullptr ? Status() : twins[i].alone->Step(&token);
      CheckTwin(&twins[i], rows[i], alone, token);
      if (rows[i].status.ok() && rows[i].token >= 0) twins[i].played->tokens.push_back(rows[i].token);
    }
    first = rows[0];
    reads = first.status.ok() && first.token == StepWish::kReading;
  }
  for (Twin& twin : twins) {
    if (twin.compares && first.status.ok()) KVC_REQUIRE(Same(Look(*twin.played->session), Look(*twin.alone)));
  }
  // A prompt that could not be read was taken back: what the session holds is for the next call to say.
  if (!first.status.ok()) played->whole = false;
  return first.status;
}

// The same tokens given to both.
inline Status FeedTogether(uint8_t argument, Played* played, Played* other) {
  std::vector<Session*> sessions = {played->session.get()};
  if (other->session != nullptr) sessions.push_back(other->session.get());
  const int32_t tokens[] = {argument, (argument * 7 + 3) % 256};
  const Status status = Session::FeedBatch(sessions, tokens);
  if (!status.ok()) return status;
  played->tokens.push_back(tokens[0]);
  if (other->session != nullptr) other->tokens.push_back(tokens[1]);
  return status;
}

// Bytes below kAlone choose among the first calls, the others among those of several sessions.
constexpr int kAlone = 240, kPlayedAlone = 15, kPlayOperations = kPlayedAlone + 2;
inline int OperationOf(uint8_t byte) {
  return byte < kAlone ? byte % kPlayedAlone : kPlayedAlone + byte % (kPlayOperations - kPlayedAlone);
}

// *strong: a failure leaves everything as it was. The other calls feed the token of the last step first.
inline Status Operate(int operation, uint8_t argument, const std::string& path, Played* played, Played* other,
                      bool* strong) {
  Session& s = *played->session;
  *strong = operation != 5 && operation != 10 && operation != 14 && operation < kPlayedAlone;
  switch (operation) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return Feed(operation, argument, played);
    case 14:
      return Feed(5, argument, played);
    case 5: {
      int64_t freed = -1;
      const Status status = s.Recompress(argument % 64, &freed);
      KVC_REQUIRE(!status.ok() || freed >= 0);
      return status;
    }
    case 6: {
      auto fork = s.Fork();
      if (!fork.ok()) return fork.status();
      CheckSameAnswer(s, *fork.value());
      *other = {std::move(fork.value()), played->tokens, played->whole};
      return {};
    }
    case 7:
      if (other->session != nullptr) std::swap(*played, *other);
      return {};
    case 8:
      return SaveAndRestore(path, played);
    case 9:
      if (argument % 4 != 0) return {};
      s.Reset();
      played->tokens.clear();
      return {};
    case 10: {
      uint8_t keep[4];
      for (int bit = 0; bit < 4; ++bit) keep[bit] = argument >> bit & 1;
      played->whole = false;
      return s.MaskHeads({keep, 4}, argument / 16 + 1);
    }
    case kPlayedAlone:
      return StepTogether(argument, played, other);
    case kPlayedAlone + 1:
      return FeedTogether(argument, played, other);
    default:
      return Other(operation, argument, played);
  }
}

}  // namespace kvc::test
