// Drafts of an answer for kvc_session_step_draft: from the text, or from a session with a smaller cache.
#pragma once
#include <algorithm>
#include <string>

#include "tools/kvc_handles.h"

namespace kvc::tool {

class Drafter {
 public:
  // most: tokens of a draft. Less are made where drafts turn out wrong early.
  explicit Drafter(int32_t most) : most_(most), length_(most) {}
  virtual ~Drafter() = default;
  // At most `cap` tokens: a pass gives one more than it checks.
  TokenList Draft(int32_t cap) { return Make(std::min(length_, cap)); }
  // What came of a draft: the tokens of the answer. complete: it ends behind them, and no more are drafted.
  void Took(const TokenList& draft, const TokenList& tokens, bool complete);
  // Not empty: why there are no more drafts of an answer that goes on.
  const std::string& ended() const { return ended_; }

 protected:
  virtual TokenList Make(int32_t most) = 0;
  // same: how many tokens from the first on are those of the draft, fewer than came.
  virtual void GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) = 0;
  void End(const std::string& why) { length_ = 0, ended_ = why; }

 private:
  const int32_t most_;
  int32_t length_;
  std::string ended_;
};

// What followed the newest tokens of prompt and answer where they stood before.
class LookupDrafter final : public Drafter {
 public:
  LookupDrafter(int32_t most, TokenList prompt) : Drafter(most), text_(std::move(prompt)) {}

 private:
  TokenList Make(int32_t most) override;
  void GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) override;
  TokenList text_;
};

// What another session of the model answers, which holds the same text in a smaller cache. Where that cannot
// go back over what it foresaw wrongly, it drafts no more.
class SessionDrafter final : public Drafter {
 public:
  SessionDrafter(int32_t most, Session* session) : Drafter(most), session_(session) {}

 private:
  TokenList Make(int32_t most) override;
  void GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) override;
  Session* const session_;
};

}  // namespace kvc::tool
