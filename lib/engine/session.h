// One KV cache, one sampler, one stream of text: the promises of the API. The work is done by others: a
// prompt by a PromptJob, a token by the step of a batch (step_batch.h). Between calls a session holds its
// records, its pages and the residual of its newest token. Used by one thread at a time; sessions of a model
// are independent.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "lib/engine/model.h"
#include "lib/engine/prompt_job.h"
#include "lib/engine/sampler.h"
#include "lib/engine/text_stream.h"
#include "lib/engine/turns.h"

namespace kvc {

enum class OnFull : int32_t { kError = 0, kEvict = 1, kSlide = 2 };

struct SessionParams {
  int32_t max_tokens = 0;  // 0 = trained context (no limit for endless policies)
  OnFull on_full = OnFull::kError;
  SamplerParams sampler;
};

struct SessionStats {
  int32_t n_prompt = 0, n_answer = 0, n_compactions = 0, stop_token = -1, n_tokens = 0;
  int64_t cache_bytes = 0, cache_bytes_peak = 0, cache_bytes_full = 0, workspace_bytes = 0, weight_bytes = 0,
          n_slots = 0, n_slots_full = 0;
  double prefill_seconds = 0, compress_seconds = 0, decode_seconds = 0;
  double prompt_progress = 1;  // below 1: of a prompt that is still being read
};

struct SessionPlan {
  int64_t weight_bytes = 0, workspace_bytes = 0, cache_bytes_peak = 0, cache_bytes_prompt = 0,
          cache_bytes_end = 0, cache_bytes_full = 0, total_bytes_peak = 0;
  std::vector<int32_t> slots;  // [L, G] after the prompt
};

class Session;

// What is wanted of one session in a step of several, and what came of it.
struct StepWish {
  static constexpr int32_t kNone = -1,
                           kReading = -2;  // beside tokens: the answer is complete; its prompt is being read
  Session* session = nullptr;
  Span<const int32_t> tokens;  // fed, in order; at most StepRunner::kMostRows
  bool chooses = false;        // a token is chosen from the logits behind them
  float* logits = nullptr;     // [V] on the host, or null: not wanted
  bool rests = false;          // nothing is to be done for it
  // So many of the tokens, the last ones, are a draft (Session::StepDraft): of a wish that comes alone, and
  // chooses.
  int32_t n_drafted = 0;
  int32_t* chosen = nullptr;    // [1 + n_drafted] room for what was chosen instead of `token`
  int32_t* n_chosen = nullptr;  // counted up with each, so that nothing that is thrown loses one
  int32_t token = kNone;        // that was chosen
  Status status;
};

class Session {
 public:
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  static constexpr int64_t kAllChunks = INT64_MAX;
  // As ReadOn counts them: so many prompt tokens through all layers, at least one.
  static int64_t ChunksOf(const Model& model, int32_t n_tokens) {
    const int64_t rows = model.device().info().prompt_rows, all = int64_t{n_tokens} * model.config().n_layers;
    return std::max<int64_t>((all + rows - 1) / rows, 1);
  }
  // policy null: keep everything.
  static Result<std::unique_ptr<Session>> Create(std::shared_ptr<const Model> model, const Policy* policy,
                                                 const SessionParams& params);
  static Result<SessionPlan> Plan(const std::shared_ptr<const Model>& model, const Policy* policy,
                                  const SessionParams& params, int32_t n_prompt);

  // Appends tokens and, with compress, applies the policy. Strong: on any failure the session is as before.
  Status Prefill(Span<const int32_t> tokens, bool compress);
  // The same, read by later calls of RunBatch or ReadOn; calls of this session that compute read the rest
  // first.
  Status Enqueue(Span<const int32_t> tokens, bool compress);
  // Up to *chunks chunks of the prompt that waits, of which so many are left then. A failure takes the whole
  // prompt back.
  Status ReadOn(int64_t* chunks);
  bool reads_prompt() const { return waiting_ != nullptr; }

  // One step of each of several sessions of one model, in one pass over the weights; prompts that wait are
  // read on before, in order, by `chunks` chunks in all. A session that cannot go on says so in its row and
  // does not stop the others. Callers name the sessions, and where logits go instead of a choice.
  static void RunBatch(Span<StepWish> rows, int64_t chunks);
  // One token, or -1 when the answer is complete. The token is fed to the network by the next call that needs
  // it.
  Status Step(int32_t* token);
  // As Step called *n times, 0 (the answer is complete) to cap: the tokens that come are those of plain steps
  // whatever `draft` says, and it decides only how many of them one pass gives: one more than it foresaw. On
  // failure *n is 0.
  Status StepDraft(Span<const int32_t> draft, int32_t* tokens, int32_t cap, int32_t* n);
  static constexpr int32_t kMostDrafted = 31;  // of a pass; what is longer is cut
  // The answer goes on with a token of the caller's choice, as if Step had given it. Also a stop token, and
  // also after one.
  Status Accept(int32_t token);
  // A message of a conversation, between the marks of its role (turns.h). With `answer` the assistant's turn
  // begins behind it, and the policy is applied; with `queue` it is only queued.
  Status Say(Role role, Span<const uint8_t> text, bool answer, bool queue);
  Status SetTurnMarks(Role role, const char* prefix, const char* suffix);
  // How the following steps choose.
  Status SetSampling(const SamplerParams& params) { return sampler_.Set(params); }
  Status SetBias(Span<const int32_t> tokens, const float* biases);
  Status SetMask(Span<const int32_t> words);
  // kInvalid where there is nothing an answer, or `what`, could go on from; where there are no logits.
  Status CanGoOn(const char* what) const;
  Status HasLogits() const;
  // Feeds the token of the last step, if it still waits. No prompt does (reads_prompt): its first token comes
  // next.
  Status FeedPending();
  // [V] after the newest token, which is fed if it still waits; null: that is all.
  Status ReadLogits(float* logits);

  // The same cache and place in the answer, also within a character; own sampler and text from here on. Costs
  // no cache bytes until one of the two writes.
  Result<std::unique_ptr<Session>> Fork();
  // Removes the newest n tokens (a token that Step gave and nothing fed yet is one of them). kUnsupported and
  // nothing changed when an older entry was dropped, merged or quantised since they came.
  Status Rewind(int32_t n);
  // Applies the policy to what is cached, with `budget` slots per KV head instead of its own when > 0.
  // *freed: bytes given back.
  Status Recompress(int32_t budget, int64_t* freed);
  // Heads with keep[layer * G + head] == 0 keep their newest `window` entries only.
  Status MaskHeads(Span<const uint8_t> keep, int32_t window);
  // Feeds tokens[i] to sessions[i], all of one model; the weights are read once for all. On failure none has
  // changed.
  static Status FeedBatch(Span<Session* const> sessions, const int32_t* tokens);
  // The same first prompt for several empty sessions of one model, whatever their policies: one pass of the
  // network serves all, since compression never changes it (methods.md 1.5). On failure none has changed.
  static Status PrefillTogether(Span<Session* const> sessions, Span<const int32_t> tokens);
  // Keeps the attention of every fed token from now on; Attention gives that of the newest, over what its
  // head held when it came and its own entry, by ascending position, whatever has left since.
  void ObserveAttention(bool on) { observe_ = on; }
  Status Attention(int layer, int32_t head, std::vector<float>* p) const;
  // Keys, with the rotation they are attended with, or values of a KV head as attention reads them,
  // [entries, D], ascending position.
  Status Keys(int32_t layer, int32_t kv_head, std::vector<float>* keys) const {
    return Vectors(layer, kv_head, &LayerView::keys, keys);
  }
  Status Values(int32_t layer, int32_t kv_head, std::vector<float>* values) const {
    return Vectors(layer, kv_head, &LayerView::values, values);
  }
  Status Save(const std::string& path);
  Status SaveTo(ByteSink* sink);
  static Result<std::unique_ptr<Session>> Restore(std::shared_ptr<const Model> model,
                                                  const std::string& path);
  static Result<std::unique_ptr<Session>> RestoreFrom(std::shared_ptr<const Model> model,
                                                      Span<const uint8_t> bytes);
  // name goes in front of what is wrong with the bytes; what the source says of itself stays as it is.
  static Result<std::unique_ptr<Session>> RestoreFrom(std::shared_ptr<const Model> model, ByteSource* source,
                                                      const char* name);
  // Whether the end of the context was reached, and entries leave for those that come (on_full).
  bool makes_room() const { return compressor_->keeps_lengths(); }
  const SessionParams& params() const { return params_; }
  TextStream& text() { return text_; }
  SessionStats Stats() const;
  // kUnsupported where the policy has no codebooks.
  Result<CodeRatios> Ratios() const;
  // Some of it, at no price: takes no memory.
  struct Figures {
    int32_t n_tokens, n_compactions;
    int64_t n_slots, cache_bytes;
  };
  Figures figures() const { return {n_tokens_, n_compactions_, cache_->TotalEntries(), cache_->bytes()}; }
  Status Kept(int layer, int32_t kv_head, std::vector<int32_t>* positions) const;
  void Reset();
  CallState& call() { return call_; }
  const Model& model() const { return *model_; }
  static constexpr int32_t kPromptRows = 32;  // tokens of a prompt that are read as rows of a step at once

 private:
  friend class StepRunner;
  friend class CachePlanner;
  // kAnswer: the assistant's turn was begun, and nothing was said since. kAfterSystem: what was read last is
  // a system text. As saved sessions have it.
  enum class Turn : uint8_t { kNobodys = 0, kAnswer = 1, kAfterSystem = 2 };
  struct TurnSpan {
    int32_t from;
    Turn turn;
  };
  struct TextSpan {
    int32_t from;
    bool at_start;
  };
  // An answer that ended with the stop token `token`, the last of the first `at` tokens.
  struct AnswerEnd {
    int32_t at, token;
  };
  // A prompt that is being read: in one part, or in several, each compressed before the next when that is
  // asked (methods.md 1.9).
  struct WaitingPrompt {
    std::vector<int32_t> tokens;
    bool compress = false, by_rows = false;  // by_rows: parts behind the first are steps
    int32_t first = 0, step = 0;             // tokens of the first part, of the others
    int32_t at = 0;                          // tokens that were read
    Turn turn = Turn::kNobodys;              // of the session, once it has been read
    AnswerEnd behind{0, -1};                 // what it comes behind
    std::unique_ptr<Session> before;         // what was, where there are several parts
    std::unique_ptr<PromptJob> job;          // the part at hand
    int32_t n_part = 0;                      // tokens of the caller in it
    double prefill_seconds = 0, compress_seconds = 0, decode_seconds = 0;  // of the session, before it
    ~WaitingPrompt();
    double Progress() const;
  };
  Session(std::shared_ptr<const Model> model, const SessionParams& params);
  static Result<std::unique_ptr<Session>> CreateWithScores(std::shared_ptr<const Model> model,
                                                           const Policy& policy, HeadScores scores,
                                                           const SessionParams& params, int32_t page_slots);
  static Status CheckParams(const SessionParams& params);
  static ModelShape ShapeOf(const ModelConfig& config, const Policy& policy, const SessionParams& params);
  static Policy ChosenPolicy(const Policy* policy);
  static int32_t EffectiveMaxTokens(const ModelConfig& config, const Policy& policy,
                                    const SessionParams& params);
  static Result<CacheLayout> LayoutOf(const StoragePlan& plan, const SessionParams& params);
  Status CheckTokens(Span<const int32_t> tokens) const;
  Status CheckTokenIds(Span<const int32_t> tokens) const;
  Status CheckCancel(const char* what) const;
  Executor* executor() const { return model_->executor(); }
  // One of the two kinds of vectors of a layer at full length.
  Status Vectors(int32_t layer, int32_t kv_head, DeviceBytes LayerView::*which,
                 std::vector<float>* vectors) const;
  int32_t held() const { return n_tokens_ + (pending_ >= 0); }
  Turn turn() const { return turns_.empty() ? Turn::kNobodys : turns_.back().turn; }
  void ReserveTurn();
  void SetTurn(Turn turn);
  void ReserveTexts(size_t more);  // NoteText takes no memory so many times
  void NoteText(int32_t from);
  void BeginText(int32_t n_given);
  // What ends before the next token; `at` 0: no answer does. And those that no rewind reaches any more.
  AnswerEnd AnswerEndHere() const;
  void ForgetAnswerEnds();
  // The newest token there is; -1: unknown, and no end of an answer.
  int32_t NewestToken() const;
  // Side values hold what every token looked at, and entries that are quantised when they leave the residual
  // stay so.
  bool CanTakeBack() const { return compressor_->plan().n_aux() == 0 && !cache_->HasRings(); }
  // Whether a step does nothing but append, so that rows of a draft that was wrong can be taken back without
  // a trace.
  bool TakesDrafts() const { return CanTakeBack() && !compressor_->writes_all() && !observe_; }

  static void Count(int32_t* n, int32_t more) { *n = std::min(*n, kMaxPosition - more) + more; }
  Status FeedWhatHasRoom();
  size_t NewestTextBytes(int32_t n) const;

  // prompts (session_prompt.cc)
  Status FinishPrompt();
  bool FitsAsRows(int32_t n, bool compress) const;
  Status CheckFirst(size_t number, Span<const int32_t> tokens) const;
  static Status ReadTogether(Span<Session* const> sessions, Span<const int32_t> tokens);
  Status CheckSlots(const WaitingPrompt& prompt) const;
  int32_t NextPart(const WaitingPrompt& prompt) const;
  Status ReadRows(int64_t* chunks);
  Status ReadPart(int64_t* chunks);
  Status NameTheChoice(Status failed) const;
  Status BeginPart(Workspace* workspace);
  Status MakeTaker(Stream* stream, int32_t n_new, bool compress, PromptJob::Taker* taker);
  void DropPrompt();
  void TakePart(PromptJob* job, size_t taker, int32_t n_given);
  void TakeStateOf(Session& other);
  void CopyCounters(const Session& from);
  Status RowsToRunAgain(Stream* stream, const KvCache& cache, int32_t* rows) const;
  Status ReduceBySideValues(Workspace* workspace, int32_t n_tokens, PromptJob::Taker* taker);
  Status EndWholePrompt(Workspace* workspace, int32_t n_tokens, PromptJob::Taker* taker);
  void Commit(PromptJob::Taker* taker);

  // steps
  Status PrepareRow(StepWish* row, int64_t* chunks);
  Status CheckRoom() const;
  // For a step that comes next; LeaveRoom: it did not come.
  Status MakeRoom(Stream* stream);
  void LeaveRoom();
  Status CheckDraft(Span<const int32_t> draft, int32_t* tokens, int32_t* n);
  Status FeedRows(Span<const int32_t> tokens);
  void Fed(Span<const int32_t> tokens, bool dropped);
  void Took(int32_t* token);
  void TakeToken(int32_t token);
  void Remember(Span<const int32_t> tokens);
  void ReserveTokens(size_t more);
  void FreeTokenRoom();
  Status ReserveHidden();

  template <typename Archive>
  Status ArchiveHidden(Archive& archive, Stream* stream);
  template <typename Archive>
  Status ArchiveFields(Archive& archive, Stream* stream);
  Status CheckRestored() const;
  template <typename Archive>
  Status ArchiveConversation(Archive& archive, uint32_t version);
  Status TakeTurns(Span<const int32_t> spans);
  Status TakeTexts(Span<const int32_t> texts);
  void TakeNewestText();
  bool RewindsToTexts() const;
  Status TakeAnswerEnds(Span<const int32_t> ends);
  static Result<std::unique_ptr<Session>> ReadFrom(std::shared_ptr<const Model> model, ByteSource* source);
  void NotePeaks(int64_t cache_bytes, int64_t workspace_bytes);
  // Of n tokens, uncompressed (of layers with windows what those hold), in pages as this session has them:
  // what is compared is what was dropped, not how much of a page is empty.
  int64_t FullCacheBytes(int64_t n) const;

  std::shared_ptr<const Model> model_;
  const Executor::User user_;  // of what the members below need: goes after them
  SessionParams params_;       // as it was made; what is chosen by now is the sampler's
  Sampler sampler_;
  std::unique_ptr<TurnMarks> marks_;  // null: the file's
  TextStream text_;
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<KvCache> cache_;
  DeviceBuffer<float> hidden_;  // [hidden] residual of the newest token: its logits are one product away
  bool observe_ = false;
  DeviceBuffer<float> attention_;  // [L, H, stride] of the newest token, when observed
  int64_t attention_stride_ = 0;
  std::vector<int32_t> attention_len_;  // [L * G] entries it is over; empty: none
  CallState call_;
  // n_tokens_: fed, the logical length. The others count what is taken back, too, up to kMaxPosition.
  int32_t n_tokens_ = 0, n_prompt_ = 0, n_answer_ = 0, n_compactions_ = 0;
  int32_t pending_ = -1, stop_token_ = -1;
  int32_t changed_at_ =
      0;  // logical length when an entry was last dropped, merged or quantised: Rewind stops there
  // The newest tokens fed, when the policy may have to run some again (Recompress), however far Rewind goes.
  std::vector<int32_t> tokens_;
  bool keeps_tokens_ = false,
       rewound_ = false;  // rewound: hidden_ is that of a token that is gone
  bool finished_ = false;
  bool made_room_ = false;  // since the last step
  bool torn_ = false;       // a step or a rewind failed in its middle: layers hold different tokens
  // Whose turn it was from so many tokens on, ascending; nobody's before the first. Rewind goes back in it.
  std::vector<TurnSpan> turns_;
  std::vector<AnswerEnd> answer_ends_;  // ascending, those that a rewind can reach
  // Whether from so many tokens on the next piece is the first of a text, ascending; it is before the first.
  std::vector<TextSpan> texts_;
  int64_t cache_bytes_peak_ = 0, workspace_peak_ = 0;
  double prefill_seconds_ = 0, compress_seconds_ = 0, decode_seconds_ = 0;
  std::unique_ptr<WaitingPrompt> waiting_;
};

}  // namespace kvc
