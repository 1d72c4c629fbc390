// Drafts of an answer for kvc_session_step_draft: from the text, or from a session with a smaller cache.
#pragma once
#include "tools/kvc_handles.h"

namespace kvc::tool {

class Drafter {
 public:
  // most: tokens of a draft. Less are made where drafts turn out wrong early.
  explicit Drafter(int32_t most) : most_(most), length_(most) {}
  virtual ~Drafter() = default;
  virtual TokenList Draft() = 0;
  // What came of a draft: the tokens of the answer.
  void Took(const TokenList& draft, const TokenList& tokens);

 protected:
  int32_t length() const { return length_; }
  // same: how many tokens from the first on are those of the draft.
  virtual void GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) = 0;

 private:
  const int32_t most_;
  int32_t length_;
};

// What followed the newest tokens of prompt and answer where they stood before.
class LookupDrafter final : public Drafter {
 public:
  LookupDrafter(int32_t most, TokenList prompt) : Drafter(most), text_(std::move(prompt)) {}
  TokenList Draft() override;

 private:
  void GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) override;
  TokenList text_;
};

// What another session of the model answers, which holds the same text in a smaller cache.
class SessionDrafter final : public Drafter {
 public:
  SessionDrafter(int32_t most, Session* session) : Drafter(most), session_(session) {}
  TokenList Draft() override;

 private:
  void GoOn(const TokenList& draft, const TokenList& tokens, int32_t same) override;
  Session* const session_;
};

}  // namespace kvc::tool
