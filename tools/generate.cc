#include "tools/generate.h"

#include <algorithm>

#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"
#include "tools/failure.h"
#include "tools/output.h"
#include "tools/watch.h"

namespace kvc::tool {

namespace {

// The next tokens, at most cap; none: the answer is complete.
TokenList NextTokens(Session* session, int32_t cap, Drafter* drafter, int32_t* n_drafted) {
  constexpr int32_t kMost = 32;
  cap = std::min(cap, kMost);
  const TokenList draft = drafter != nullptr ? drafter->Draft(cap - 1) : TokenList{};
  *n_drafted += static_cast<int32_t>(draft.size());
  TokenList tokens = session->StepDraft(draft, cap);
  if (drafter != nullptr) drafter->Took(draft, tokens, session->Stats().stop_token >= 0);
  return tokens;
}

}  // namespace

Generation Generate(Session* session, int32_t max_tokens, const TextSink& sink, const CancelOnSignal* cancel,
                    Drafter* drafter) {
  Generation out;
  try {
    while (static_cast<int32_t>(out.tokens.size()) < max_tokens) {
      out.cancelled = cancel != nullptr && cancel->received();
      if (out.cancelled) break;
      const TokenList tokens =
          NextTokens(session, max_tokens - static_cast<int32_t>(out.tokens.size()), drafter, &out.n_drafted);
      const std::string text = session->ReadText();  // behind the end too, for a character that was cut off
      out.text += text;
      if (sink && !text.empty()) sink(text);
      if (tokens.empty()) break;
      ++out.n_passes;
      out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
    }
  } catch (const StatusFailure& failure) {
    if (failure.status() != KVC_E_CANCELLED) throw;
    out.cancelled = true;
  }
  out.stats = session->Stats();
  return out;
}

std::string FirstLine(const std::string& answer) {
  const size_t begin = std::min(answer.find_first_not_of('\n'), answer.size());
  return answer.substr(begin, std::min(answer.find('\n', begin), answer.size()) - begin);
}

PromptOnce::PromptOnce(const Model& model, const Policy& policy, const kvc_session_params& params)
    : base_(model, policy, params) {}

PromptOnce::PromptOnce(Session read) : base_(std::move(read)), prompt_stats_(base_.Stats()) {}

void PromptOnce::Start(const TokenList& prompt) {
  fork_.reset();
  if (!prompt_.empty()) base_.Reset();
  prompt_ = prompt;
  {
    const Watch watch("reading the prompt", [this] { return base_.Progress(); });
    base_.Prefill(prompt_);
  }
  prompt_stats_ = base_.Stats();
  base_used_ = false;
}

void PromptOnce::StartTogether(const std::vector<PromptOnce*>& prompts, const TokenList& prompt) {
  std::vector<kvc_session*> sessions;
  for (PromptOnce* p : prompts) {
    p->fork_.reset();
    if (!p->prompt_.empty()) p->base_.Reset();
    sessions.push_back(p->base_.get());
  }
  constexpr size_t kMost = 256;  // of one call
  for (size_t i = 0; i < sessions.size(); i += kMost) {
    const size_t n = std::min(kMost, sessions.size() - i);
    Check(kvc_session_prefill_together(sessions.data() + i, static_cast<int32_t>(n), prompt.data(),
                                       static_cast<int32_t>(prompt.size())),
          "process the prompt");
  }
  for (PromptOnce* p : prompts) {
    p->prompt_ = prompt;
    p->prompt_stats_ = p->base_.Stats();
    p->base_used_ = false;
  }
}

Session* PromptOnce::Ask(const TokenList& question) {
  fork_.reset();
  if (can_fork_ && !base_used_) {
    fork_ = base_.Fork();
    can_fork_ = fork_.has_value();
  }
  Session* session = fork_ ? &*fork_ : &base_;
  if (!fork_ && base_used_) {
    base_.Reset();
    base_.Prefill(prompt_);
  }
  base_used_ = base_used_ || !fork_;
  if (!question.empty()) session->Append(question);
  return session;
}

Json StatsJson(const kvc_session_stats& stats) {
  return Json{{"n_prompt", stats.n_prompt},
              {"n_answer", stats.n_answer},
              {"n_compactions", stats.n_compactions},
              {"cache_bytes", stats.cache_bytes},
              {"cache_bytes_peak", stats.cache_bytes_peak},
              {"cache_bytes_full", stats.cache_bytes_full},
              {"workspace_bytes", stats.workspace_bytes},
              {"weight_bytes", stats.weight_bytes},
              {"n_slots", stats.n_slots},
              {"n_slots_full", stats.n_slots_full},
              {"prefill_seconds", stats.prefill_seconds},
              {"compress_seconds", stats.compress_seconds},
              {"decode_seconds", stats.decode_seconds}};
}

}  // namespace kvc::tool
