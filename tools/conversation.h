// A conversation of `kvc chat`: the session that holds it compressed, and what was said, so that it can be
// told again to another session.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/generate.h"
#include "tools/kvc_handles.h"
#include "tools/options.h"
#include "tools/signals.h"

namespace kvc::tool {

class Conversation {
 public:
  Conversation(const Model& model, const TableOptions& tables, const std::string& policy,
               const SessionOptions& options);
  // Whether the model was made for conversations. If not, what is typed is continued as text.
  bool has_turns() const { return has_turns_; }
  const std::string& policy() const { return policy_; }  // in words where a file brought it
  kvc_session_stats Stats() const { return session_->Stats(); }

  struct Answer {
    Generation generation;
    bool stopped = false;  // by Ctrl-C
  };
  // Reads what the user says, and answers.
  Answer Ask(const std::string& text, int32_t max_tokens, const TextSink& sink, Signals* signals);
  // What the model is to be. Begins the conversation anew.
  void SetSystem(const std::string& text);
  // Everything but the system text. False: that one is not known, it was in a loaded file.
  bool Forget();
  // The same conversation under another policy, in a session of its own: all of it is read again.
  void SetPolicy(const std::string& policy);
  int64_t Trim(int32_t budget) { return session_->Trim(budget); }
  void Save(const std::string& path) const { session_->Save(path); }
  // What was said before a file is not in it: a loaded conversation cannot be told again. It is compressed
  // and sampled as it was saved; options for sampling, where some were given, hold instead.
  void Load(const std::string& path);

 private:
  struct Message {
    int32_t role;
    std::string text;
  };
  std::unique_ptr<Session> NewSession(const std::string& policy) const;
  void Read(Session* session, const Message& message, bool answer) const;
  void TellAgain(std::unique_ptr<Session> session);

  const Model& model_;
  const TableOptions tables_;
  const SessionOptions options_;
  bool has_turns_ = false, loaded_ = false;
  std::string policy_, system_;
  std::vector<Message> said_;
  std::unique_ptr<Session> session_;
};

}  // namespace kvc::tool
