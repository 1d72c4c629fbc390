/* kvc_experimental.h - calls that may change or go. Not exported from the shared library: link the static one
 * and define KVC_EXPERIMENTAL. The rules at the top of kvc.h hold. */
#ifndef KVC_KVC_EXPERIMENTAL_H
#define KVC_KVC_EXPERIMENTAL_H
#ifndef KVC_EXPERIMENTAL
#error "kvc_experimental.h: define KVC_EXPERIMENTAL to use calls that may change"
#endif
#include "kvc/kvc.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Heads with keep[layer * G + kv_head] == 0 keep only their newest `window` entries (1 ..); the others
 * everything. n_keep = L * G. For head scores (methods.md 3.1): a fork of one prefilled session is masked for
 * every coalition. KVC_E_UNSUPPORTED for caches whose policy stores late or evicts.  [sess] */
kvc_status kvc_session_mask_heads(kvc_session* session, const uint8_t* keep, int32_t n_keep, int32_t window);
/* Feeds tokens[i] to sessions[i]: one pass over the weights for all n (1 .. 256). Sessions of one model, each
 * once, used by no one else meanwhile. On failure none has changed. Logits: kvc_session_get_logits.  [sess]
 * each */
kvc_status kvc_session_feed_batch(kvc_session* const* sessions, const int32_t* tokens, int32_t n);
/* The same first prompt for n (1 .. 256) empty sessions of one model, whatever their policies: the network
 * runs once for all. On failure none has changed.  [sess] each */
kvc_status kvc_session_prefill_together(kvc_session* const* sessions, int32_t n, const int32_t* tokens,
                                        int32_t n_tokens);
/* on != 0: from now on the attention of every fed token is kept for kvc_session_get_attention.  [sess] */
kvc_status kvc_session_observe_attention(kvc_session* session, int32_t on);
/* Attention probabilities of the newest fed token over what its query head's KV head held when it was fed and
 * its own entry, ascending position: those of kvc_session_get_kept before it, less what leaves a layer's
 * window with it, and its own. What was dropped behind it is there. Shape [n_out].  [sess] */
kvc_status kvc_session_get_attention(kvc_session* session, int32_t layer, int32_t head, float* p,
                                     int32_t cap_p, int32_t* n_out);
/* Keys of a KV head as attention reads them (decoded, with the rotation of their position, or of their place
 * among the entries where the policy counts in slots), ascending position: [entries][D], f32, the entries
 * those of kvc_session_get_kept. n_out counts floats.  [sess] */
kvc_status kvc_session_get_keys(kvc_session* session, int32_t layer, int32_t kv_head, float* keys,
                                int32_t cap_keys, int32_t* n_out);
/* Values of a KV head as attention reads them (merged, decoded), ascending position: [entries][D], f32, the
 * entries those of kvc_session_get_kept. n_out counts floats.  [sess] */
kvc_status kvc_session_get_values(kvc_session* session, int32_t layer, int32_t kv_head, float* values,
                                  int32_t cap_values, int32_t* n_out);

/* The tokens of one message of a conversation as kvc_session_say feeds them, by the marks of the model file.
 * The message is the first of its conversation, or the first behind a system text. Its text may come in two
 * parts, of which the first ends and the second begins where the border is, as texts do that KVC_CONTINUE
 * joins.  [model] */
#define KVC_TURN_ANSWER 1         /* the assistant's mark comes behind it */
#define KVC_TURN_AFTER_SYSTEM 2   /* a system text is before it */
#define KVC_TURN_HEAD 4           /* up to the end of the text: more of it follows */
#define KVC_TURN_TAIL 8           /* from the beginning of the text: what a head began */
#define KVC_TURN_PARSE_SPECIAL 16 /* special tokens written in the text become their ids */
kvc_status kvc_model_encode_turn(const kvc_model* model, int32_t role, const uint8_t* text, int32_t n_text,
                                 int32_t flags, int32_t* tokens, int32_t cap_tokens, int32_t* n_out);
/* What the model runs on, as JSON: name, description, instruction_sets, threads as in kvc_device_describe.
 * [model] */
kvc_status kvc_model_describe_device(const kvc_model* model, char* json, int32_t cap_json, int32_t* n_out);

/* Bytes per second that the model's device reads from its memory, measured now: the limit that its steps
 * have. The processor reads the model's weights where they lie, with the model's threads, the median of
 * several passes; a GPU copies within its memory, both ways counted, the best of several, which takes up to
 * 2 GiB outside of memory_limit. Takes up to a second; no call of the model's sessions may run.
 * KVC_E_UNSUPPORTED: the model was opened with plan_only.  [any] */
kvc_status kvc_model_measure(kvc_model* model, double* out_bytes_per_second);

/* What codebooks leave of the cache, as a share of the vectors of all tokens: by the formula that SpindleKV's
 * paper reports (its equation 15), and exactly; cache_bytes / cache_bytes_full of the statistics is what it
 * takes. KVC_E_UNSUPPORTED where the policy has no codebooks.  [sess] */
kvc_status kvc_session_get_code_ratios(kvc_session* session, double* paper, double* exact);

#ifdef __cplusplus
}
#endif
#endif
