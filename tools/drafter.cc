#include "tools/drafter.h"

#include <algorithm>

namespace kvc::tool {

void Drafter::Took(const TokenList& draft, const TokenList& tokens) {
  const auto end = std::mismatch(draft.begin(), draft.end(), tokens.begin(), tokens.end()).first;
  const int32_t same = static_cast<int32_t>(end - draft.begin());
  if (!draft.empty()) length_ = std::min(most_, 2 * same + 1);
  GoOn(draft, tokens, same);
}

TokenList LookupDrafter::Draft() {
  constexpr int32_t kGram = 3;
  TokenList draft(static_cast<size_t>(length()));
  int32_t n = 0;
  Check(kvc_draft_lookup(text_.data(), static_cast<int32_t>(text_.size()), kGram, draft.data(), length(), &n),
        "look a draft up");
  draft.resize(static_cast<size_t>(n));
  return draft;
}

void LookupDrafter::GoOn(const TokenList&, const TokenList& tokens, int32_t) {
  text_.insert(text_.end(), tokens.begin(), tokens.end());
}

TokenList SessionDrafter::Draft() {
  TokenList draft;
  while (static_cast<int32_t>(draft.size()) < length()) {
    const std::optional<int32_t> token = session_->Step();
    if (!token) break;
    draft.push_back(*token);
  }
  return draft;
}

// The session is to hold what the answer holds.
void SessionDrafter::GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) {
  const int32_t wrong = static_cast<int32_t>(draft.size()) - same;
  if (wrong > 0) session_->Rewind(wrong);
  for (size_t i = static_cast<size_t>(same); i < tokens.size(); ++i) session_->Accept(tokens[i]);
}

}  // namespace kvc::tool
