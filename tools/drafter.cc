#include "tools/drafter.h"

namespace kvc::tool {

void Drafter::Took(const TokenList& draft, const TokenList& tokens, bool complete) {
  if (complete) length_ = 0;
  if (length_ == 0) return;
  const auto end = std::mismatch(draft.begin(), draft.end(), tokens.begin(), tokens.end()).first;
  const int32_t same = static_cast<int32_t>(end - draft.begin());
  // A pass that looked at its draft gives one token more than was right.
  if (static_cast<size_t>(same) == tokens.size()) {
    End("steps of this session do more than append to its cache, and look at none");
    return;
  }
  if (!draft.empty()) length_ = std::min(most_, 2 * same + 1);
  GoOn(draft, tokens, same);
}

TokenList LookupDrafter::Make(int32_t most) {
  constexpr int32_t kGram = 3;
  TokenList draft(static_cast<size_t>(most));
  int32_t n = 0;
  Check(kvc_draft_lookup(text_.data(), static_cast<int32_t>(text_.size()), kGram, draft.data(), most, &n),
        "look a draft up");
  draft.resize(static_cast<size_t>(n));
  return draft;
}

void LookupDrafter::GoOn(const TokenList&, const TokenList& tokens, int32_t) {
  text_.insert(text_.end(), tokens.begin(), tokens.end());
}

TokenList SessionDrafter::Make(int32_t most) {
  TokenList draft;
  try {
    while (static_cast<int32_t>(draft.size()) < most) {
      const std::optional<int32_t> token = session_->Step();
      if (!token) break;
      draft.push_back(*token);
    }
  } catch (const StatusFailure& failure) {
    if (failure.status() != KVC_E_CONTEXT_FULL) throw;  // the answer may end before its context does
  }
  return draft;
}

// The session is to hold what the answer holds. A rewind leaves it nothing to step from but what is accepted.
void SessionDrafter::GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) {
  const int32_t wrong = static_cast<int32_t>(draft.size()) - same;
  try {
    if (wrong > 0) session_->Rewind(wrong);
  } catch (const StatusFailure& failure) {
    if (failure.status() != KVC_E_UNSUPPORTED) throw;
    End(std::string("the cache of --draft-policy ") + failure.what());
    return;
  }
  for (size_t i = static_cast<size_t>(same); i < tokens.size(); ++i) session_->Accept(tokens[i]);
}

}  // namespace kvc::tool
