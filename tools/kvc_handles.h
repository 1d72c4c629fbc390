// The C API as C++ objects: handles that close themselves, vectors and strings for buffers, Failure for an
// error status.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvc/kvc.h"
#include "tools/failure.h"
#include "tools/output.h"

namespace kvc::tool {

using TokenList = std::vector<int32_t>;

// A call of the library that failed: "<doing>: <text of the library> (<status name>)".
class StatusFailure : public Failure {
 public:
  StatusFailure(kvc_status status, const std::string& text) : Failure(text), status_(status) {}
  kvc_status status() const { return status_; }

 private:
  kvc_status status_;
};

// Throws StatusFailure unless status is KVC_OK.
void Check(kvc_status status, const std::string& doing);

struct CloseHandle {
  void operator()(kvc_model* model) const { kvc_model_close(model); }
  void operator()(kvc_policy* policy) const { kvc_policy_close(policy); }
  void operator()(kvc_session* session) const { kvc_session_close(session); }
  void operator()(kvc_loader* loader) const { kvc_loader_close(loader); }
};

// How the texts of a command are read: as they stand, unless it says otherwise (--special, --chat, --system).
struct Framing {
  bool special = false;  // special tokens written in a text become their ids
  bool chat = false;     // a text is said as a user's message, by the turn format of the model file
  std::string system;    // of chat: said before it
  bool plain() const { return !special && !chat; }
};
// What a result says of it, to be repeated.
Json FramingJson(const Framing& framing);

class Model {
 public:
  // Shows how far opening is.
  Model(const std::string& path, const std::string& device, const kvc_model_params& params);
  kvc_model* get() const { return handle_.get(); }
  const std::string& path() const { return path_; }  // of the model file: converted, that of what came of it
  const kvc_model_info& info() const { return info_; }
  int32_t n_kv_heads_total() const { return info_.n_layers * info_.n_kv_heads; }
  Json Describe() const;
  TokenList StopTokens() const;  // an answer ends at any of them; eos_token is one
  std::vector<float> HeadScores(int32_t index) const;
  TokenList Tokenize(const std::string& text, int32_t flags) const;
  // What a text begins with: BOS, or several tokens, or none.
  const TokenList& begin_tokens() const { return begin_; }
  // The same where the tokenizer adds them by itself, else nothing.
  TokenList added_tokens() const { return add_bos_ ? begin_ : TokenList{}; }
  // From now on the four below read texts like this. Throws Failure where the file has no turns for it.
  void SetFraming(const Framing& framing);
  const Framing& framing() const { return framing_; }
  // A prompt as its model expects it: begin_tokens first where the tokenizer adds them and they are not
  // written there; an empty prompt is these. Of chat: a user's message up to where its question follows.
  TokenList TokenizePrompt(const std::string& text) const;
  // A prompt that is answered as it stands. Of chat: the whole message with the assistant's mark.
  TokenList TokenizeWhole(const std::string& text) const;
  // Text behind a prompt: a question. Behind an empty prompt, which is begin_tokens alone, it begins. Of
  // chat: the end of the message, with the assistant's mark.
  TokenList TokenizeAfter(const TokenList& prompt, const std::string& text) const;
  TokenList TokenizeAnswer(const std::string& text) const;  // what the model is to go on with
  // A text by itself, never within a turn: nothing is added, and what a text begins with is taken off where
  // the tokenizer adds it to others.
  TokenList TokenizeText(const std::string& text) const;
  std::string Detokenize(const TokenList& tokens) const;
  bool HasTurns() const;  // whether the file says how turns are marked
  Json Device() const;    // what it runs on: name, description, ... (kvc_device_describe)
  // Head scores beside the checkpoint that the file was converted from just for this program: how to take
  // them, in words; empty: there are none.
  const std::string& scores_beside() const { return scores_beside_; }
  void NoteScoresBeside(const std::string& words) { scores_beside_ = words; }

 private:
  int32_t SpecialFlag() const { return framing_.special ? KVC_PARSE_SPECIAL : 0; }
  // Of special tokens that are written: where begin_tokens stand in a text at `written`, the first of the
  // tokens go, as many as these are.
  void TakeOffBeginning(TokenList* tokens, size_t written) const;
  // The tokens of a message (kvc_model_encode_turn).
  TokenList EncodeTurn(int32_t role, const std::string& text, int32_t flags) const;
  // The system text, if there is one, and a user's message behind it.
  TokenList EncodeMessage(const std::string& text, int32_t flags) const;

  std::string path_;
  std::unique_ptr<kvc_model, CloseHandle> handle_;
  kvc_model_info info_{};
  bool add_bos_ = true;
  TokenList begin_;
  Framing framing_;
  std::string scores_beside_;
};

// "budget=64" and "window=8" of "snapkv:budget=64,window=8".
std::vector<std::string> PolicyOptions(const std::string& spec);

class Policy {
 public:
  explicit Policy(const std::string& spec);  // throws UsageError where it is none
  const kvc_policy* get() const { return handle_.get(); }
  const std::string& spec() const { return spec_; }  // as it was asked for
  std::string Describe() const;                      // canonical text
  void SetHeadScores(const std::vector<float>& scores);
  void SetTable(const std::vector<int32_t>& slots);

 private:
  std::unique_ptr<kvc_policy, CloseHandle> handle_;
  std::string spec_;
};

class Session {
 public:
  Session(const Model& model, const Policy& policy, const kvc_session_params& params);
  kvc_session* get() const { return handle_.get(); }
  void Prefill(const TokenList& tokens);
  void Append(const TokenList& tokens);
  void Enqueue(const TokenList& tokens);                     // a prompt as of Prefill, which StepBatch reads
  std::optional<int32_t> Step();                             // nothing: the answer is complete
  TokenList StepDraft(const TokenList& draft, int32_t cap);  // kvc_session_step_draft
  void Rewind(int32_t n);
  void Accept(int32_t token);                                      // the answer goes on with this one
  void Say(int32_t role, const std::string& text, int32_t flags);  // kvc_session_say
  void SetSampling(const kvc_sampling& sampling);
  void Compress();
  int64_t Trim(int32_t budget);  // bytes that were given back
  void Save(const std::string& path) const;
  static Session Restore(const Model& model, const std::string& path);
  std::string ReadText();
  void GetLogits(std::vector<float>* logits) const;  // [V]
  kvc_session_stats Stats() const;
  double Progress() const;  // kvc_session_get_progress; any thread
  std::vector<int32_t> Kept(int32_t layer, int32_t kv_head) const;
  void Reset();
  std::optional<Session> Fork();  // nothing: this library cannot fork

 private:
  explicit Session(kvc_session* handle) : handle_(handle) {}
  std::unique_ptr<kvc_session, CloseHandle> handle_;
};

// A step of each in one pass over the weights; tokens as kvc_batch_step gives them. Throws when any cannot go
// on.
void StepBatch(const std::vector<kvc_session*>& sessions, TokenList* tokens);

kvc_model_params DefaultModelParams();
kvc_session_params DefaultSessionParams();

// What a plan says: bytes, and slots [L][G].
struct SessionPlan {
  kvc_plan bytes{};
  std::vector<int32_t> slots;
};
SessionPlan PlanSession(const Model& model, const Policy& policy, const kvc_session_params& params,
                        int32_t n_prompt);

std::string DeviceText(const Model& model);  // "cpu, 2 threads, avx2": what it runs on
Json MethodJson(int32_t index);
Json DeviceJson(int32_t index);
std::string LibraryVersion();  // "0.1.0"

}  // namespace kvc::tool
