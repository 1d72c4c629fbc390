// One KV cache, one sampler, one stream of text. Used by one thread at a time; sessions of a model are
// independent.
#pragma once
#include <memory>
#include <vector>

#include "lib/engine/model.h"
#include "lib/engine/sampler.h"
#include "lib/engine/text_stream.h"

namespace kvc {

enum class OnFull : int32_t { kError = 0, kEvict = 1, kSlide = 2 };

struct SessionParams {
  int32_t max_tokens = 0;  // 0 = trained context (no limit for endless policies)
  OnFull on_full = OnFull::kError;
  SamplerParams sampler;
};

struct SessionStats {
  int32_t n_prompt = 0, n_answer = 0, n_compactions = 0, stop_token = -1;
  int64_t cache_bytes = 0, cache_bytes_peak = 0, cache_bytes_full = 0, workspace_bytes = 0, weight_bytes = 0,
          n_slots = 0, n_slots_full = 0;
  double prefill_seconds = 0, compress_seconds = 0, decode_seconds = 0;
};

struct SessionPlan {
  int64_t weight_bytes = 0, workspace_bytes = 0, cache_bytes_peak = 0, cache_bytes_prompt = 0,
          cache_bytes_end = 0, cache_bytes_full = 0, total_bytes_peak = 0;
  std::vector<int32_t> slots;  // [L, G] after the prompt
};

class Session final : public PrefillSink, public DecodeSink {
 public:
  // policy null: keep everything.
  static Result<std::unique_ptr<Session>> Create(std::shared_ptr<const Model> model, const Policy* policy,
                                                 const SessionParams& params);
  static Result<SessionPlan> Plan(const std::shared_ptr<const Model>& model, const Policy* policy,
                                  const SessionParams& params, int32_t n_prompt);

  // Appends tokens and, with compress, applies the policy. Strong: on any failure the session is as before.
  Status Prefill(Span<const int32_t> tokens, bool compress);
  // One token, or -1 when the answer is complete. The token is fed to the network by the next call that needs
  // it.
  Status Step(int32_t* token);
  // The answer goes on with a token of the caller's choice, as if Step had given it. Also a stop token, and
  // also after one.
  Status Accept(int32_t token);
  // How the following steps choose.
  Status SetSampling(const SamplerParams& params);
  // Feeds the token of the last Step, if it still waits. Afterwards logits() are those of the newest token.
  Status FeedPending();
  Span<const float> logits() const {
    return {logits_.data(), static_cast<size_t>(n_tokens_ > 0 ? logits_.size() : 0)};
  }
  // The same cache and place in the answer, own sampler and text from here on. Costs no cache bytes until one
  // of the two writes.
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
  // Keeps the attention of every fed token from now on; Attention gives that of the newest, [entries of the
  // head], by rank.
  void ObserveAttention(bool on) { observe_ = on; }
  Status Attention(int layer, int32_t head, std::vector<float>* p) const;
  Status Save(const std::string& path);
  static Result<std::unique_ptr<Session>> Restore(std::shared_ptr<const Model> model,
                                                  const std::string& path);
  // Whether the newest token was taken back and nothing came since: there are no logits then.
  bool rewound() const { return rewound_; }
  // Whether the end of the context was reached, and entries leave for those that come (on_full).
  bool makes_room() const { return compressor_->keeps_lengths(); }
  const SessionParams& params() const { return params_; }
  TextStream& text() { return text_; }
  SessionStats Stats() const;
  // Some of it, at no price: takes no memory.
  struct Figures {
    int32_t n_tokens, n_compactions;
    int64_t n_slots, cache_bytes;
  };
  Figures figures() const { return {n_tokens_, n_compactions_, cache_->TotalEntries(), cache_->bytes()}; }
  void Kept(int layer, int32_t kv_head, std::vector<int32_t>* positions) const;
  void Reset();
  CallState& call() { return call_; }
  const Model& model() const { return *model_; }

  // PrefillSink and DecodeSink: called by the forward pass.
  Status BeginLayer(int layer, LayerKv* kv) override;
  Status EndLayer(int layer, LayerKv* kv, Observation* observed) override;
  bool KeysRotated(int layer) const override { return compressor_->KeysRotated(layer); }
  void Attend(int layer, const float* q, const float* k, const float* v, float* out) override;

 private:
  friend class SharedPrompt;
  Session(std::shared_ptr<const Model> model, const SessionParams& params);
  Status CheckTokens(Span<const int32_t> tokens) const;
  Status CheckTokenIds(Span<const int32_t> tokens) const;
  Status ReserveStep(int32_t ahead);
  Status ReserveScratch(int32_t longest, int32_t n_tokens, MemoryMeter* meter);
  Status Feed(int32_t token);
  Status MakeRoom();
  Status CheckCancel(const char* what) const;
  void TakeToken(int32_t token);
  void Fed(int32_t token);
  void Remember(Span<const int32_t> tokens);
  // Side values hold what every token looked at, and entries that are quantised when they leave the residual
  // stay so.
  bool CanTakeBack() const { return compressor_->n_aux() == 0 && !cache_->HasTails(); }
  int32_t held() const { return n_tokens_ + (pending_ >= 0); }
  Status RunPrompt(const std::vector<int32_t>& tokens, std::unique_ptr<KvCache> cache,
                   std::unique_ptr<Compressor> compressor, int32_t first_position, bool compress,
                   std::vector<float>* logits);
  Status BeginPrompt(std::unique_ptr<KvCache> cache, std::unique_ptr<Compressor> compressor, int32_t n_tokens,
                     bool compress, PromptNeeds* needs);
  void TakePrompt(const std::vector<int32_t>& tokens, int32_t n_given, const float* logits);
  Status PrefillWhole(Span<const int32_t> tokens, bool compress);
  Status PrefillInParts(Span<const int32_t> tokens, bool compress, int32_t first, int32_t step);
  void TakeStateOf(Session& other);
  void CopyCounters(const Session& from);
  Status ReduceBySideValues(std::unique_ptr<KvCache> cache, std::unique_ptr<Compressor> compressor);
  // Everything is taken from meter: the model's, or one that only counts (Plan).
  static Result<std::unique_ptr<Session>> CreateOn(std::shared_ptr<const Model> model, const Policy* policy,
                                                   const SessionParams& params,
                                                   std::shared_ptr<MemoryMeter> meter);
  // page_slots: of a saved session; 0 = by the budget.
  static Result<std::unique_ptr<Session>> CreateWithScores(std::shared_ptr<const Model> model,
                                                           const Policy& policy, HeadScores scores,
                                                           const SessionParams& params,
                                                           std::shared_ptr<MemoryMeter> shared_meter,
                                                           int32_t page_slots);
  template <typename Archive>
  Status ArchiveFields(Archive& archive, uint32_t version);
  Status CheckRestored() const;
  static Result<std::unique_ptr<Session>> ReadFrom(std::shared_ptr<const Model> model,
                                                   Span<const uint8_t> bytes);
  void Commit();
  int64_t WorkspaceBytes() const;
  Status PlanPrompt(int32_t n, std::vector<int32_t>* slots, int64_t* workspace, int64_t* layer_bytes);
  Status PlanSteps(const std::vector<int32_t>& slots, int32_t longest, int32_t n_prompt, int32_t n_steps,
                   int64_t* workspace);
  static Status CheckPolicy(const Model& model, const Policy& policy);
  // One head of an uncompressed cache of the same element type.
  static CacheConfig FullCacheConfig(const Model& model, const Policy& policy, int32_t page_slots);
  static CompressorShape Shape(const Model& model) { return model.compressor_shape(); }

  std::shared_ptr<const Model> model_;
  SessionParams params_;
  Sampler sampler_;
  TextStream text_;
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<KvCache> cache_;
  ForwardWorkspace forward_;
  AttendWorkspace attend_;
  AngleTable angles_;
  Buffer<float> logits_, rotated_q_;
  bool observe_ = false;
  std::vector<std::vector<float>> attention_;  // [L * H] of the newest token, when observed
  CallState call_;
  int32_t n_tokens_ = 0, n_prompt_ = 0, n_answer_ = 0,
          n_compactions_ = 0;  // n_tokens_: fed, the logical length
  int32_t pending_ = -1, stop_token_ = -1;
  int32_t changed_at_ =
      0;  // logical length when an entry was last dropped, merged or quantised: Rewind stops there
  // The newest tokens fed, when the policy may have to run some again (Recompress).
  std::vector<int32_t> tokens_;
  bool keeps_tokens_ = false,
       rewound_ = false;  // rewound: logits are those of a token that is gone
  bool finished_ = false;
  int64_t cache_bytes_peak_ = 0, workspace_peak_ = 0;
  double prefill_seconds_ = 0, compress_seconds_ = 0, decode_seconds_ = 0;
  // While a prompt is worked on: the caches it will leave.
  struct Prompt {
    std::unique_ptr<Compressor> compressor;
    std::unique_ptr<KvCache> cache;
    std::vector<int32_t> first_new;  // [G] of the layer at hand
    int32_t n_new = 0;               // tokens
    bool compress = false;
    double compress_seconds = 0;
    int64_t peak = 0;
  };
  Prompt prompt_;
  // However a prompt ends, its buffers go; what it leaves stays only when Keep was called.
  class PromptScope {
   public:
    explicit PromptScope(Session* session) : session_(session) {}
    ~PromptScope() {
      session_->forward_.FreePrefill();
      if (!kept_) session_->prompt_ = Prompt();
    }
    PromptScope(const PromptScope&) = delete;
    PromptScope& operator=(const PromptScope&) = delete;
    void Keep() { kept_ = true; }

   private:
    Session* session_;
    bool kept_ = false;
  };
};

}  // namespace kvc
