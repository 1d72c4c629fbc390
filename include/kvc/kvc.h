/* kvc.h - stable C API of libkvc. C99, also valid C++11. Needs <stdint.h> only.
 *
 * status   A function that can fail returns kvc_status: KVC_OK or one negative KVC_E_*.
 *          kvc_last_error() has the text of this thread's last failure.
 * outputs  Outputs come last. On failure out handles are NULL and other outputs keep their
 *          value, except *n_out, which KVC_E_BUFFER_TOO_SMALL sets to the count needed.
 * buffers  At most cap elements are written, *n_out is the number there are; cap 0 asks for it.
 *          Text comes as n_out bytes of UTF-8 without a NUL behind them (of kvc_detokenize, as the
 *          tokens have them).
 * owner    *_open and *_create hand the caller one reference; *_close gives it back.
 *          Closing NULL does nothing. Close in any order: a session keeps its model alive.
 * inputs   Read during the call, never kept. Strings: UTF-8 with NUL. Text: UTF-8 bytes + count.
 * numbers  Counts are int32_t elements, sizes int64_t bytes. No bool, no size_t, no unsigned.
 * structs  struct_size first (caller stores sizeof); 0 in any other field means "default".
 * threads  [any]  any thread, any time.     [model] any thread while the model is open.
 *          [sess] one thread at a time for one session; sessions are independent. A second
 *          call on a session that is working returns KVC_E_BUSY and changes nothing.
 * fork()   A child process may go on with what its parent opened if no call was running then;
 *          with a model on a GPU it cannot: KVC_E_DEVICE, and closing frees nothing there. */
#ifndef KVC_KVC_H
#define KVC_KVC_H
#include <stdint.h>
#include "kvc/kvc_export.h"          /* KVC_API */
#define KVC_VERSION 100              /* major*10000 + minor*100 + patch */
#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t kvc_status;          /* values are never renumbered or reused */
enum { KVC_OK = 0, KVC_E_INVALID = -1, KVC_E_MEMORY = -2, KVC_E_IO = -3, KVC_E_BAD_MODEL = -4,
       KVC_E_UNSUPPORTED = -5, KVC_E_NOT_FOUND = -6, KVC_E_BUFFER_TOO_SMALL = -7,
       KVC_E_CONTEXT_FULL = -8, KVC_E_CANCELLED = -9, KVC_E_DEVICE = -10, KVC_E_BUSY = -11,
       KVC_E_INTERNAL = -99 };
enum { KVC_TOKEN_NONE = -1,          /* kvc_session_step: the answer is complete */
       KVC_TOKEN_READING = -2 };     /* kvc_batch_step: the session's prompt is still being read */
enum { KVC_ADD_BOS = 1, KVC_PARSE_SPECIAL = 2, KVC_CONTINUE = 4 };  /* kvc_tokenize flags */
enum { KVC_ON_FULL_ERROR = 0, KVC_ON_FULL_EVICT = 1, KVC_ON_FULL_SLIDE = 2 };
enum { KVC_ROLE_SYSTEM = 0, KVC_ROLE_USER = 1, KVC_ROLE_ASSISTANT = 2 };
enum { KVC_ANSWER = 1, KVC_QUEUE = 2 };                             /* kvc_session_say flags */
enum { KVC_LOG_DEBUG = 0, KVC_LOG_INFO = 1, KVC_LOG_WARNING = 2, KVC_LOG_ERROR = 3 };

typedef struct kvc_model   kvc_model;    /* weights + tokenizer; immutable after open */
typedef struct kvc_policy  kvc_policy;   /* a compression method and its options      */
typedef struct kvc_session kvc_session;  /* one KV cache, one sampler, one stream     */
typedef struct kvc_loader  kvc_loader;   /* opens models while other threads watch it */

/* Threads of the program's own (a job system, an engine's pool) instead of libkvc's. Copied by the call that opens
 * the model; what context stands for must live until the model and its sessions are closed. */
typedef struct kvc_executor {
  int32_t struct_size;
  int32_t n_threads;       /* calls of work that may run at the same time, 1 to 1024 */
  void*   context;         /* handed to run */
  /* Calls work(job, i) for every i in [0, n), n <= n_threads, on any threads, at the same time or one after another,
   * and returns when all have returned. They share out the parts of one job among themselves: results depend neither
   * on who runs nor on how many, and what is not called for the caller of run does. Called on the thread that called
   * libkvc, for one model never twice at a time, some hundred times a token: microseconds count. Must not throw. */
  void (*run)(void* context, int32_t n, void (*work)(void* job, int32_t i), void* job);
} kvc_executor;

/* How a model is opened. */
typedef struct kvc_model_params {
  int32_t struct_size;
  int32_t n_threads;       /* CPU threads, the caller's included; 0 = one for each processor that the process may use
                              (affinity, control groups), slow ones of big.LITTLE not counted */
  int64_t memory_limit;    /* bytes of weights, tokenizer, caches, workspace; 0 = none. Past it: KVC_E_MEMORY */
  const kvc_executor* executor;  /* NULL = libkvc makes threads; else n_threads must be 0 */
  int32_t trusted;         /* 0 = everything in the file is verified; 1 = all but the bytes of the weights, which would
                              be read once for that: for a file that was verified before and that nobody else writes.
                              Opening takes no time in proportion to its size then; what is damaged there makes
                              wrong numbers, or KVC_E_BAD_MODEL of a later call, and nothing worse */
  int32_t plan_only;       /* 1 = weights are neither read nor prepared nor counted: for plans, which say what they say
                              of a model with weights, texts and descriptions. Sessions: KVC_E_UNSUPPORTED */
} kvc_model_params;

/* What a model is. */
typedef struct kvc_model_info {
  int32_t struct_size;
  int32_t n_layers, n_heads, n_kv_heads, head_dim, hidden_size, ffn_size, vocab_size;  /* its shape */
  int32_t max_tokens;      /* trained context */
  int32_t bos_token, eos_token;                      /* -1 = the model has none */
  int32_t n_head_scores;   /* head-score tables in the file */
  int64_t weight_bytes, n_parameters;                /* of all tensors together */
} kvc_model_info;

/* How a session is created. */
typedef struct kvc_session_params {
  int32_t struct_size;
  int32_t max_tokens;      /* prompt + answer, to 2^26, and one token of the answer more, which has no place in the
                              cache; 0 = trained context of the model, or 2^26 where the policy drops at steps and
                              counts positions in slots (streaming): longer prompts in parts, each compressed */
  int32_t on_full;         /* past max_tokens: KVC_ON_FULL_ERROR (0) fail with KVC_E_CONTEXT_FULL; _EVICT an entry of
                              each head leaves for each new one, by the policy's own rule where it drops at steps, else
                              the oldest behind the first four; positions go on counting; _SLIDE the same, and positions
                              count in slots, so that none leaves a max_tokens within the trained context
                              (StreamingLLM). Both for steps and for prompts, up to 2^30 tokens. Prompts are read in
                              parts, each compressed when prefill is */
  int32_t top_k;           /* as in kvc_sampling */
  float   top_p;           /* as in kvc_sampling */
  float   temperature;     /* as in kvc_sampling */
  int64_t seed;            /* as in kvc_sampling */
} kvc_session_params;

/* How a step chooses its token. */
typedef struct kvc_sampling {
  int32_t struct_size;
  int32_t top_k;           /* 0 = off */
  float   top_p;           /* 0 = off, else in (0, 1] */
  float   temperature;     /* 0 = greedy, the reproducible mode; to 100 */
  int64_t seed;            /* the same seed and input give the same text on any number of threads */
  float   min_p;           /* 0 = off, else in (0, 1]: tokens of at least this share of the likeliest's probability */
  float   repeat_penalty;  /* 0 or 1 = off, else to 100: logits of tokens among the newest repeat_window are divided by
                              it where positive and multiplied where negative (CTRL, section 4.1), also when greedy */
  int32_t repeat_window;   /* tokens of prompt and answer, at most 512; 0 = 64 */
  int32_t reserved;        /* 0 */
} kvc_sampling;

/* What a session did and holds. */
typedef struct kvc_session_stats {
  int32_t struct_size;
  int32_t n_prompt, n_answer, n_compactions;         /* tokens fed, tokens generated, times compressed */
  int64_t cache_bytes, cache_bytes_peak;             /* held now, at most */
  int64_t cache_bytes_full;                          /* if nothing had been dropped or quantised */
  int64_t workspace_bytes, weight_bytes;             /* buffers beside the cache (most so far), weights */
  int64_t n_slots, n_slots_full;                     /* cached entries over all heads, under policy full */
  double  prefill_seconds, compress_seconds, decode_seconds; /* compress is part of prefill */
  int32_t stop_token;      /* that ended the answer with KVC_TOKEN_NONE, until the next input is read; else -1 */
  int32_t n_tokens;        /* of its text, the last step's included: what a rewind takes from; max_tokens and one at
                              most unless on_full makes room; n_prompt and n_answer count what was taken back too */
  double  prompt_progress; /* share that is read of a prompt that kvc_session_enqueue queued, 0 to 1; 1 = none waits */
} kvc_session_stats;

/* How sessions step together. */
typedef struct kvc_batch_params {
  int32_t struct_size;
  int32_t prompt_tokens;   /* of queued prompts that a call reads before its step, about so many; 0 = 256. A prompt
                              that arrives among running sessions delays each of their steps by no more than that */
} kvc_batch_params;

/* What a session would take. */
typedef struct kvc_plan {
  int32_t struct_size;
  int32_t n_prompt;        /* tokens planned for */
  int64_t weight_bytes, workspace_bytes;  /* as in kvc_session_stats */
  int64_t cache_bytes_peak;     /* during prefill: one full layer and the compressed ones */
  int64_t cache_bytes_prompt;   /* after prefill */
  int64_t cache_bytes_end;      /* at max_tokens */
  int64_t cache_bytes_full;     /* at max_tokens without compression */
  int64_t total_bytes_peak;     /* weights, workspace and cache at the worst moment, or while the model is opened */
} kvc_plan;

KVC_API int32_t     kvc_version(void);                    /* [any] of the library, at run time */
KVC_API int32_t     kvc_schema_version(void);             /* [any] newest model file it reads  */
KVC_API const char *kvc_status_name(kvc_status status);   /* [any] static, never NULL */
KVC_API const char *kvc_last_error(void);                 /* [any] until this thread's next call that fails */
#ifndef SWIG                          /* bindings make their structs so */
/* Makes any params struct of this header one of defaults: zeros, and struct_size, the sizeof of your header. [any] */
KVC_API void        kvc_params_init(void *params, int32_t struct_size);
#endif

/* Kinds of devices this build knows, whether this machine has them or not.  [any] */
KVC_API int32_t     kvc_device_count(void);
/* One as JSON: name (for kvc_model_open), summary, available; where it is not: reason; where it is: description,
 * instruction_sets (best first), threads (of this process, when n_threads is 0), deterministic, batch_invariant.
 * KVC_E_NOT_FOUND past the end.  [any] */
KVC_API kvc_status  kvc_device_describe(int32_t index, char *json, int32_t cap_json, int32_t *n_out);
/* Bytes per second that its processors read from its memory together: what bounds a step. Takes up to a second and
 * 256 MiB, of a GPU's own memory up to 2 GiB. KVC_E_UNSUPPORTED where this machine has no such device.  [any] */
KVC_API kvc_status  kvc_device_measure(int32_t index, double *out_bytes_per_second);

/* Opens a model file. device: "auto" (or NULL, or ""), "cpu", "cuda" or "cuda:N". params may be NULL. Everything in the
 * file is verified before use (see trusted). KVC_E_IO cannot read; KVC_E_BAD_MODEL damaged or newer file; KVC_E_INVALID
 * a name of no device; KVC_E_UNSUPPORTED a device that this build or machine has not, or a weight type it has no kernel
 * for; KVC_E_MEMORY.  [any] */
KVC_API kvc_status  kvc_model_open(const char *path, const char *device,
                                   const kvc_model_params *params, kvc_model **out_model);
/* The same from a part of an open file (an asset inside a package): n_bytes from offset; 0 = to its end. It is mapped
 * where offset is a multiple of 64; else it is read into memory, which counts against memory_limit, and the log warns.
 * The descriptor stays the caller's and may be closed after the call. */
KVC_API kvc_status  kvc_model_open_fd(int32_t fd, int64_t offset, int64_t n_bytes, const char *device,
                                      const kvc_model_params *params, kvc_model **out_model);
/* The same from memory, 64-byte aligned, which must stay unchanged until the last session and the model are closed. */
KVC_API kvc_status  kvc_model_open_memory(const uint8_t *data, int64_t n_bytes, const char *device,
                                          const kvc_model_params *params, kvc_model **out_model);
/* The same through a loader, which other threads can ask how far it is, and stop. One model at a time
 * (KVC_E_BUSY), any number one after the other.  [any] */
KVC_API kvc_status  kvc_loader_create(kvc_loader **out_loader);
KVC_API kvc_status  kvc_loader_open(kvc_loader *loader, const char *path, const char *device,
                                    const kvc_model_params *params, kvc_model **out_model);
KVC_API kvc_status  kvc_loader_open_fd(kvc_loader *loader, int32_t fd, int64_t offset, int64_t n_bytes,
                                       const char *device, const kvc_model_params *params, kvc_model **out_model);
/* Share of the open that runs, 0 to 1: reading and verifying, then preparing the weights. 1 = none runs.  [any] */
KVC_API kvc_status  kvc_loader_get_progress(const kvc_loader *loader, double *out_share);
/* The running open, or else the next one, returns KVC_E_CANCELLED (or another error of its own), which answers the
 * request; clear_cancel withdraws one that came too late.  [any] */
KVC_API kvc_status  kvc_loader_cancel(kvc_loader *loader);
KVC_API kvc_status  kvc_loader_clear_cancel(kvc_loader *loader);
KVC_API void        kvc_loader_close(kvc_loader *loader); /* not while it opens; models stay open */
KVC_API void        kvc_model_close(kvc_model *model);    /* [any] */
KVC_API kvc_status  kvc_model_get_info(const kvc_model *model, kvc_model_info *out_info);     /* [model] */
/* All that the file says about itself, as JSON: config, tokenizer, turn format, head scores, tensors. [model] */
KVC_API kvc_status  kvc_model_describe(const kvc_model *model, char *json, int32_t cap_json, int32_t *n_out);
/* Head-score table `index` of the file, [L, G] (per query head [L, H] for estimator headkv-r2).  [model] */
KVC_API kvc_status  kvc_model_get_head_scores(const kvc_model *model, int32_t index,
                                              float *scores, int32_t cap_scores, int32_t *n_out);

/* Text to token ids and back. Invalid UTF-8 is kept byte for byte where the vocabulary can, else replaced by U+FFFD.
 * Special tokens in text are text unless KVC_PARSE_SPECIAL. A token id out of range is KVC_E_INVALID.
 * KVC_ADD_BOS: what begins a text comes first, bos_token or, in some models, several tokens of which that is one.
 * KVC_CONTINUE (not with KVC_ADD_BOS): the text goes on behind one that was tokenized before, so no space is put
 * before it. The ids of both are those of the whole text where no token spans the border, as before a space behind a
 * letter. Spaces that a tokenizer trims from the end of the text before are lost: begin the new one with them.
 * Takes time in proportion to the text; a pattern of the model that needs more steps is KVC_E_INVALID.  [model] */
KVC_API kvc_status  kvc_tokenize(const kvc_model *model, const uint8_t *text, int32_t n_text,
                                 int32_t flags, int32_t *tokens, int32_t cap_tokens, int32_t *n_out);
KVC_API kvc_status  kvc_detokenize(const kvc_model *model, const int32_t *tokens, int32_t n_tokens,
                                   uint8_t *text, int32_t cap_text, int32_t *n_out);

/* spec: "cokv:budget=128,window=8": a method and its options, docs/methods.md. A method is a name, so a new one
 * changes no constant and no struct. Unknown method: KVC_E_NOT_FOUND. Unknown key, or a value out of range:
 * KVC_E_INVALID, and the text names the key, the range and the nearest known key.  [any] */
KVC_API kvc_status  kvc_policy_create(const char *spec, kvc_policy **out_policy);
/* The canonical spec with all defaults written out; parses back to the same policy. [any] */
KVC_API kvc_status  kvc_policy_describe(const kvc_policy *policy, char *text, int32_t cap_text, int32_t *n_out);
/* Head scores other than the model's ([L, G], higher = more important; headkv: or [L, H]), and slots for method
 * "table" ([L, G], window included). In layer order, copied; scores within +-1e30. Unused ones are ignored.  [any] */
KVC_API kvc_status  kvc_policy_set_head_scores(kvc_policy *policy, const float *scores, int32_t n_scores);
KVC_API kvc_status  kvc_policy_set_table(kvc_policy *policy, const int32_t *slots, int32_t n_slots);
KVC_API void        kvc_policy_close(kvc_policy *policy);  /* [any] sessions made with it stay as they are */
KVC_API int32_t     kvc_method_count(void);                /* [any] */
KVC_API const char *kvc_method_name(int32_t index);        /* [any] static; NULL past the end */
/* One method as JSON: name, summary, source, options with key, kind, range, default, help.  [any] */
KVC_API kvc_status  kvc_method_describe(int32_t index, char *json, int32_t cap_json, int32_t *n_out);

/* What a session would take, without taking it: bytes for a first prompt of n_prompt tokens (1 .. max_tokens) and steps
 * to max_tokens, and the slots of every KV head behind the prompt, [L, G] (methods that split by the prompt: what is to
 * be expected; where heads share bytes by score, the least of it). policy may be NULL: keep everything. cap_slots 0
 * with slots NULL skips them. Real use stays within 5 %; where the text says how much leaves at once (codebooks,
 * scissorhands, decode=reobserve), it is the most. Prompts behind it or past max_tokens may take more. Needs no
 * weights: see plan_only.  [model] */
KVC_API kvc_status  kvc_session_plan(const kvc_model *model, const kvc_policy *policy,
                                     const kvc_session_params *params, int32_t n_prompt, kvc_plan *out_plan,
                                     int32_t *slots, int32_t cap_slots, int32_t *n_out);
/* policy (copied) may be NULL: keep everything. params may be NULL. KVC_E_INVALID also when the policy does not fit
 * the model (score table of another shape), KVC_E_NOT_FOUND when it needs scores the file has not, KVC_E_UNSUPPORTED
 * when it cannot go on past max_tokens as on_full wants. [model] */
KVC_API kvc_status  kvc_session_create(kvc_model *model, const kvc_policy *policy,
                                       const kvc_session_params *params, kvc_session **out_session);
KVC_API void        kvc_session_close(kvc_session *session);    /* [sess] frees its cache; forks stay */
/* Appends n_tokens (>= 1) and, when the policy asks, compresses. May be called again to go on: the new tokens attend
 * to what is cached. Any failure, KVC_E_CONTEXT_FULL, KVC_E_CANCELLED and KVC_E_MEMORY included, leaves the
 * session as it was; but behind KVC_E_DEVICE, of up to 32 tokens, it may be that only reset and close are left, as
 * behind a step.  [sess] */
KVC_API kvc_status  kvc_session_prefill(kvc_session *session, const int32_t *tokens, int32_t n_tokens);
/* As prefill, but keeps everything: for prompts fed in parts. kvc_session_compress then applies the policy, by the
 * newest rows of all parts; prefill of fewer tokens than a method's window looks at those only. Entries of a policy
 * with once=1 remember no score: compress is KVC_E_UNSUPPORTED then. So are compress and trim behind a rewind in a
 * model with windows, by methods that look at newest rows, until layers hold what those see. Both feed the token of the
 * last step first where there is room for it, also where they fail behind that.  [sess] */
KVC_API kvc_status  kvc_session_append(kvc_session *session, const int32_t *tokens, int32_t n_tokens);
KVC_API kvc_status  kvc_session_compress(kvc_session *session);
/* As prefill (compress not 0) or append, but the tokens are only queued: calls of kvc_batch_step read them on, and any
 * other call on the session that needs them reads the rest first, also one that is refused then. One that fails takes
 * the whole prompt back; reset drops it. What can be refused beforehand is refused here.  [sess] */
KVC_API kvc_status  kvc_session_enqueue(kvc_session *session, const int32_t *tokens, int32_t n_tokens,
                                        int32_t compress);
/* One message of a conversation, n_text bytes (0 ..), between the marks that the model file has for its role. The marks
 * are trusted and become special tokens, the text never does. Before it comes BOS where the session is empty and the
 * model wants one, and the end of an answer that was begun before. Several messages may follow each other.
 * KVC_ANSWER: the assistant's mark comes behind it, and steps give the answer; the tokens are read as by prefill, so
 * what is kept of the conversation stays within the budget. Without it they are read as by append. KVC_QUEUE: they are
 * only queued (kvc_session_enqueue). max_tokens bounds a conversation unless on_full lets it go on for ever.
 * KVC_E_UNSUPPORTED: the file has no marks (kvc_model_describe, turn_format), or none for a system text here. A failure
 * changes nothing.  [sess] */
KVC_API kvc_status  kvc_session_say(kvc_session *session, int32_t role, const uint8_t *text, int32_t n_text,
                                    int32_t flags);
/* Marks of the caller's for a role instead of the file's, at most 64 KiB each: for files without, and for templates of
 * your own. Special tokens in them count as such. Both NULL: the file's again. Forks and saved sessions have them too.
 * A role without marks of the caller's in a file without is said unmarked.  [sess] */
KVC_API kvc_status  kvc_session_set_turn_marks(kvc_session *session, int32_t role, const char *prefix,
                                               const char *suffix);
/* Makes `budget` (1 .. 2^24) slots per KV head the policy's, as budget=N in its text, and compresses to it; one of
 * bytes stays where it is the smaller. It stays with the session, through reset too. A larger budget than before holds
 * for what comes: what is gone does not come back, but for rows that are run again. *out_freed (may be NULL) gets the
 * bytes. KVC_E_UNSUPPORTED: as compress; the policy keeps everything or has a table of slots.  [sess] */
KVC_API kvc_status  kvc_session_trim(kvc_session *session, int32_t budget, int64_t *out_freed);
/* Generates one token, or KVC_TOKEN_NONE at a stop token: that one is in the statistics and not in the cache (accept
 * it, or begin the next prompt with it, where the next turn should see it). When max_tokens are held and one more was
 * given: KVC_E_CONTEXT_FULL, unless on_full says what makes room. The token is fed to the network by the next call that
 * needs it. KVC_E_BAD_MODEL: no logit is a finite number.  [sess] */
KVC_API kvc_status  kvc_session_step(kvc_session *session, int32_t *out_token);
/* As step called *n_out times, 1 to cap_tokens, or 0 where the answer is complete: the same tokens, text and cache,
 * greedy and sampled. Where the answer ends behind them that may be seen already, as by one more step: stop_token of
 * the statistics says so, and the next call gives none. The draft, tokens that the answer may go on with (n_draft 0 ..,
 * of which 31 are looked at), decides only how many come from one pass over the weights: as many as it foresaw, and
 * one more. What it foresaw wrongly leaves no trace. A draft comes from kvc_draft_lookup, or from steps of a session
 * that holds the same in a smaller cache; a wrong one costs time only. On a device that is not batch_invariant
 * (kvc_device_describe) rounding may turn a near tie, as it may in batches there. It is not looked at, and one token
 * comes, where a step does more than append: methods that evict or watch at steps, quantised caches, max_tokens
 * reached. What step may fail with, this may, with *n_out 0; KVC_E_INVALID also for cap_tokens below 1 and ids that
 * are none.  [sess] */
KVC_API kvc_status  kvc_session_step_draft(kvc_session *session, const int32_t *draft, int32_t n_draft,
                                           int32_t *tokens, int32_t cap_tokens, int32_t *n_out);
/* A draft from the text itself (prompt lookup): the tokens, at most cap_draft, that followed the newest earlier place
 * of the last n_gram tokens (1 .. 64; 3 is usual), or of fewer, two at least, where so many stood nowhere before. Good
 * where an answer repeats its prompt. *n_out is what was written; 0: none. Allocates nothing; time n_tokens * n_gram.
 * [any] */
KVC_API kvc_status  kvc_draft_lookup(const int32_t *tokens, int32_t n_tokens, int32_t n_gram, int32_t *draft,
                                     int32_t cap_draft, int32_t *n_out);
/* The answer goes on with the caller's token, as if step had given it, its text included: for samplers of your own
 * (get_logits, choose, accept) at the price of a step. Also a stop token (which has no text), also after
 * KVC_TOKEN_NONE or rewind.  [sess] */
KVC_API kvc_status  kvc_session_accept(kvc_session *session, int32_t token);
/* How the following steps choose. A fork begins with its parent's. NULL: greedy.  [sess] */
KVC_API kvc_status  kvc_session_set_sampling(kvc_session *session, const kvc_sampling *sampling);
/* Added to the logits of these tokens before a step chooses: n (0 ..) pairs instead of those before; 0 = none. Biases
 * are finite, or -INFINITY: never. A fork begins with its parent's.  [sess] */
KVC_API kvc_status  kvc_session_set_logit_bias(kvc_session *session, const int32_t *tokens, const float *biases,
                                               int32_t n);
/* The only tokens that the following steps may choose: bit t % 32 of mask[t / 32] is token t, in (V + 31) / 32 words as
 * grammar engines give them; until the next mask. n_words 0: all. A stop token is chosen only where its bit is set, and
 * where mask and biases leave none a step is KVC_E_INVALID before it feeds anything. Penalty, bias and mask come in
 * this order, before top_k, temperature, top_p and min_p; get_logits does not see them, nor do saved sessions keep bias
 * and mask.  [sess] */
KVC_API kvc_status  kvc_session_set_token_mask(kvc_session *session, const int32_t *mask, int32_t n_words);
/* A step of each of n (1 .. 256) sessions of one model in one pass over its weights: n tokens for little more than the
 * price of one. Sessions join and leave between calls as they like; each answers exactly as it would alone. Before,
 * queued prompts are read on, in the order of the sessions; one that is complete then steps with the others. params may
 * be NULL.
 * out_tokens [n]: as kvc_session_step gives it, or KVC_TOKEN_READING. out_statuses [n] (may be NULL): what
 * kvc_session_step would have returned for each; a session that cannot go on (its token is KVC_TOKEN_NONE, as behind a
 * complete answer) does not stop the others, and kvc_last_error has the text of the last such. The call itself
 * fails, and no session has changed, where the batch cannot be: a session twice (KVC_E_BUSY) or of another model
 * (KVC_E_INVALID).  [sess] each */
KVC_API kvc_status  kvc_batch_step(kvc_session *const *sessions, int32_t n, const kvc_batch_params *params,
                                   int32_t *out_tokens, kvc_status *out_statuses);
/* The same for samplers of your own: logits [n, V] instead of tokens, to choose from and kvc_session_accept.
 * cap_logits: n * V or more. out_tokens [n]: KVC_TOKEN_READING where a prompt is still being read (its row is not
 * written), else KVC_TOKEN_NONE.  [sess] each */
KVC_API kvc_status  kvc_batch_logits(kvc_session *const *sessions, int32_t n, const kvc_batch_params *params,
                                     float *logits, int64_t cap_logits, int32_t *out_tokens, kvc_status *out_statuses);
/* Moves out text that is complete UTF-8; the bytes of a split character wait inside. What cannot be completed, because
 * the answer stopped (KVC_TOKEN_NONE), is U+FFFD then: read once more; a prompt drops it. KVC_E_BUFFER_TOO_SMALL: not
 * even the next character fits, *n_out has its bytes (at most 4).  [sess] */
KVC_API kvc_status  kvc_session_read_text(kvc_session *session, uint8_t *text, int32_t cap_text, int32_t *n_out);
/* Logits [V] after the newest token, that the next step samples from. Feeds the last step's token first, as a step of
 * its own; a prompt that follows steps takes it in with its own tokens, and may keep others then.  [sess] */
KVC_API kvc_status  kvc_session_get_logits(kvc_session *session, float *logits, int32_t cap_logits, int32_t *n_out);
KVC_API kvc_status  kvc_session_get_stats(const kvc_session *session, kvc_session_stats *out_stats);     /* [sess] */
/* Share of the running prefill, append or say that has been read, 0 to 1; 1 = none runs.  [any] */
KVC_API kvc_status  kvc_session_get_progress(const kvc_session *session, double *out_share);
/* Token positions still cached for one head, ascending: shape [n_out]. With reducer=rest the first may be -n: an entry
 * that stands for n dropped tokens. A queued prompt is not read for it.  [sess] */
KVC_API kvc_status  kvc_session_get_kept(const kvc_session *session, int32_t layer, int32_t kv_head,
                                         int32_t *positions, int32_t cap_positions, int32_t *n_out);
/* Empty again; mends KVC_E_DEVICE. What stays: policy, trim's budget, sampling, bias, mask, marks, a cancel.  [sess] */
KVC_API kvc_status  kvc_session_reset(kvc_session *session);
/* The running call, or else the next one that computes or queues (prefill, append, enqueue, say, step, accept,
 * compress, trim, get_logits, a batch, what reads a queued prompt), returns KVC_E_CANCELLED, which answers the request,
 * and has changed nothing but what compress and trim feed and a queued prompt that was read to its end. A step that has
 * begun ends as ever, and the request finds the next call. clear_cancel withdraws one that came too late.  [any], also
 * from a signal handler */
KVC_API kvc_status  kvc_session_cancel(kvc_session *session);
KVC_API kvc_status  kvc_session_clear_cancel(kvc_session *session);
/* Same cache, sampling, bias and mask; own from then on. Text that waits to be read stays the parent's. Costs no cache
 * bytes until one of them writes.  [sess] */
KVC_API kvc_status  kvc_session_fork(kvc_session *session, kvc_session **out_session);
/* Removes the newest n_tokens exactly, while no older one was evicted or left its window since, no side value (h2o;
 * without once=1 kvzip, reconstruct, cokv-document) watched them, and the cache is not quantised; else
 * KVC_E_UNSUPPORTED and nothing changes. Next comes a prompt, queued or said or not, or an accept where a token is
 * left: whose turn it is goes back too, to what it was behind the last message that is there whole. Queries do not
 * come back: with decode=reobserve the next reduction at a step looks with n_tokens fewer. Text of these tokens that is
 * complete and was not read yet can be read still, before what comes instead.  [sess] */
KVC_API kvc_status  kvc_session_rewind(kvc_session *session, int32_t n_tokens);
/* A session in a file: atomic, versioned, checksummed, bound to the model. A damaged or foreign file is an error and
 * changes nothing; a restored session continues bit-identically, on the same device with the same instruction set
 * (kvc_device_describe). A link at path is followed, also to a file that is not there yet, and stays a link; what is
 * there and no regular file is KVC_E_IO.  [sess], [model] */
KVC_API kvc_status  kvc_session_save(kvc_session *session, const char *path);
KVC_API kvc_status  kvc_session_restore(kvc_model *model, const char *path, kvc_session **out_session);
/* The same in memory: n_bytes of it, which may become a file or come from one. cap_data: the rule of buffers, in bytes;
 * the size is known after the session has been gone through once, as it is each time.  [sess], [model] */
KVC_API kvc_status  kvc_session_save_memory(kvc_session *session, uint8_t *data, int64_t cap_data, int64_t *n_out);
KVC_API kvc_status  kvc_session_restore_memory(kvc_model *model, const uint8_t *data, int64_t n_bytes,
                                               kvc_session **out_session);
#ifndef SWIG                          /* a function pointer: each binding has its own log hook */
/* fn gets a line of text during the call that it tells of, on that call's thread, from several threads at once; NULL =
 * silent (the default). fn must not call libkvc or throw; one that has begun may end after kvc_set_log has returned.
 * DEBUG: what compression left of a prompt. INFO: a model opened; a session saved, restored; one that is full and from
 * now on drops entries (on_full); whether cuBLASLt multiplies prompts. WARNING: fewer threads than asked for, an
 * unknown instruction set in KVC_ISA, a cuBLASLt that fails, a GPU that takes kernels one by one, max_tokens beyond the
 * trained context, a policy that merges values of four bits, a model that is read as its offset cannot be mapped, a
 * call that fails with KVC_E_MEMORY. ERROR: nothing so far; what fails is in the status and kvc_last_error(). Names and
 * figures, never text or tokens; for people: the words may change. */
typedef void (*kvc_log_fn)(void *user, int32_t level, const char *text);
KVC_API void        kvc_set_log(int32_t min_level, kvc_log_fn fn, void *user);  /* [any] */
#endif
#ifdef __cplusplus
}
#endif
#endif
