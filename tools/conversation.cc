#include "tools/conversation.h"

#include <optional>

#include "tools/output.h"
#include "tools/watch.h"

namespace kvc::tool {
Conversation::Conversation(const Model& model, const TableOptions& tables, const std::string& policy,
                           const SessionOptions& options)
    : model_(model), tables_(tables), options_(options), has_turns_(model.HasTurns()), policy_(policy) {
  session_ = NewSession(policy);
}

std::unique_ptr<Session> Conversation::NewSession(const std::string& policy) const {
  auto session = std::make_unique<Session>(model_, MakePolicy(policy, tables_), SessionParams(options_));
  session->SetSampling(Sampling(options_));
  return session;
}

void Conversation::Read(Session* session, const Message& message, bool answer) const {
  if (has_turns_) return session->Say(message.role, message.text, answer ? KVC_ANSWER : 0);
  const kvc_session_stats stats = session->Stats();
  TokenList tokens;
  if (stats.n_slots_full == 0) {
    tokens = model_.TokenizePrompt(message.text);
  } else {
    if (stats.stop_token >= 0) tokens.push_back(stats.stop_token);
    const TokenList more = model_.Tokenize(message.text, KVC_CONTINUE);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  if (!tokens.empty()) session->Prefill(tokens);  // an empty line lets the model speak on
}

Conversation::Answer Conversation::Ask(const std::string& text, int32_t max_tokens, const TextSink& sink,
                                       Signals* signals) {
  Answer answer;
  const Message message{KVC_ROLE_USER, text};
  const StopOnInterrupt stop(signals, session_->get());
  try {
    const Watch watch("reading", [this] { return session_->Progress(); });
    Read(session_.get(), message, /*answer=*/true);
  } catch (const StatusFailure& failure) {
    if (failure.status() != KVC_E_CANCELLED) throw;
    answer.stopped = true;  // and nothing was said
    answer.generation.stats = session_->Stats();
    return answer;
  }
  said_.push_back(message);
  answer.generation = Generate(session_.get(), max_tokens, sink);
  answer.stopped = stop.stopped();
  said_.push_back({KVC_ROLE_ASSISTANT, answer.generation.text});
  return answer;
}

void Conversation::SetSystem(const std::string& text) {
  // Tried beside the conversation, with its policy: where it fails, that goes on as if nothing had been
  // asked.
  std::optional<Session> fork = session_->Fork();
  auto session = fork ? std::make_unique<Session>(std::move(*fork)) : NewSession(policy_);
  session->Reset();
  if (!text.empty()) Read(session.get(), {KVC_ROLE_SYSTEM, text}, false);
  session_ = std::move(session);
  system_ = text;
  said_.clear();
  loaded_ = false;
}

bool Conversation::Forget() {
  const bool known = !loaded_;
  SetSystem(std::string(system_));
  return known;
}

void Conversation::TellAgain(std::unique_ptr<Session> session) {
  if (loaded_)
    throw Failure("what was said before a loaded file is not known: /forget begins anew, then /policy works");
  if (!system_.empty()) Read(session.get(), {KVC_ROLE_SYSTEM, system_}, false);
  for (const Message& message : said_) Read(session.get(), message, false);
  if (session->Stats().n_prompt > 0) session->Compress();
  session_ = std::move(session);
}

void Conversation::SetPolicy(const std::string& policy) {
  TellAgain(NewSession(policy));
  policy_ = policy;
}

void Conversation::Load(const std::string& path) {
  auto session = std::make_unique<Session>(Session::Restore(model_, path));
  if (options_.samples) session->SetSampling(Sampling(options_));
  session_ = std::move(session);
  policy_ = "of the loaded file";
  said_.clear();
  system_.clear();  // the file's own is in its cache, its words are not known
  loaded_ = true;
}

}  // namespace kvc::tool
