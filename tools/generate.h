// Running a session to an answer: generation, questions after one compressed prompt.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/drafter.h"
#include "tools/kvc_handles.h"
#include "tools/signals.h"

namespace kvc::tool {

// Watches a session for as long as it lives. Throws when a signal came before.
class WatchSession {
 public:
  WatchSession(CancelOnSignal* cancel, const Session& session) : cancel_(cancel) {
    if (cancel_->received()) throw StatusFailure(KVC_E_CANCELLED, "cancelled");
    cancel_->Watch(session.get());
  }
  ~WatchSession() { cancel_->Watch(nullptr); }
  WatchSession(const WatchSession&) = delete;
  WatchSession& operator=(const WatchSession&) = delete;

 private:
  CancelOnSignal* cancel_;
};

using TextSink = std::function<void(const std::string& text)>;

struct Generation {
  TokenList tokens;
  std::string text;
  kvc_session_stats stats{};  // of its session, afterwards
  bool cancelled = false;
  int32_t n_passes = 0;   // over the weights: as many as tokens, fewer with drafts
  int32_t n_drafted = 0;  // tokens of drafts; tokens.size() - n_passes of them were right
};

// Up to max_tokens tokens; each piece of text goes to the sink (may be empty) as soon as it is complete.
// Stops at a signal, also when that came between two steps, where there is no call to cancel; cancel may be
// null. drafter: null, or what drafts the answer, which is the same then.
Generation Generate(Session* session, int32_t max_tokens, const TextSink& sink,
                    const CancelOnSignal* cancel = nullptr, Drafter* drafter = nullptr);

// The first line of an answer that says anything, as LongBench takes it.
std::string FirstLine(const std::string& answer);

// Questions after one prompt. The prompt is processed and compressed once and forked for every question;
// where the library cannot fork it is processed again, with the same answers.
class PromptOnce {
 public:
  PromptOnce(const Model& model, const Policy& policy, const kvc_session_params& params);
  // Of a session that has read its prompt before; there is no Start.
  explicit PromptOnce(Session read);
  void Start(const TokenList& prompt);  // forgets an earlier prompt
  // The same prompt for several, whatever their policies: the network runs once for all.
  static void StartTogether(const std::vector<PromptOnce*>& prompts, const TokenList& prompt);
  const kvc_session_stats& prompt_stats() const { return prompt_stats_; }
  Session* base() { return &base_; }  // right after the prompt until the first Ask
  // The session after the prompt and the question (kept whole), ready to generate. Valid until the next call.
  Session* Ask(const TokenList& question);

 private:
  Session base_;
  std::optional<Session> fork_;
  TokenList prompt_;
  kvc_session_stats prompt_stats_{};
  bool can_fork_ = true, base_used_ = false;
};

Json StatsJson(const kvc_session_stats& stats);

}  // namespace kvc::tool
