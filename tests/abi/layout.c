/* Layout of every public struct: a size or an offset that changes breaks compiled callers. New fields go to
 * the end, in whole 8-byte steps, and get their lines here. */
#include <stddef.h>

#include "kvc/kvc.h"

#define KVC_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " changed size")
#define KVC_AT(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field " moved")

KVC_SIZE(kvc_executor, 24);
KVC_AT(kvc_executor, struct_size, 0);
KVC_AT(kvc_executor, n_threads, 4);
KVC_AT(kvc_executor, context, 8);
KVC_AT(kvc_executor, run, 16);

KVC_SIZE(kvc_model_params, 32);
KVC_AT(kvc_model_params, struct_size, 0);
KVC_AT(kvc_model_params, n_threads, 4);
KVC_AT(kvc_model_params, memory_limit, 8);
KVC_AT(kvc_model_params, executor, 16);
KVC_AT(kvc_model_params, trusted, 24);
KVC_AT(kvc_model_params, plan_only, 28);

KVC_SIZE(kvc_model_info, 64);
KVC_AT(kvc_model_info, struct_size, 0);
KVC_AT(kvc_model_info, n_layers, 4);
KVC_AT(kvc_model_info, n_heads, 8);
KVC_AT(kvc_model_info, n_kv_heads, 12);
KVC_AT(kvc_model_info, head_dim, 16);
KVC_AT(kvc_model_info, hidden_size, 20);
KVC_AT(kvc_model_info, ffn_size, 24);
KVC_AT(kvc_model_info, vocab_size, 28);
KVC_AT(kvc_model_info, max_tokens, 32);
KVC_AT(kvc_model_info, bos_token, 36);
KVC_AT(kvc_model_info, eos_token, 40);
KVC_AT(kvc_model_info, n_head_scores, 44);
KVC_AT(kvc_model_info, weight_bytes, 48);
KVC_AT(kvc_model_info, n_parameters, 56);

KVC_SIZE(kvc_session_params, 32);
KVC_AT(kvc_session_params, struct_size, 0);
KVC_AT(kvc_session_params, max_tokens, 4);
KVC_AT(kvc_session_params, on_full, 8);
KVC_AT(kvc_session_params, top_k, 12);
KVC_AT(kvc_session_params, top_p, 16);
KVC_AT(kvc_session_params, temperature, 20);
KVC_AT(kvc_session_params, seed, 24);

KVC_SIZE(kvc_sampling, 40);
KVC_AT(kvc_sampling, struct_size, 0);
KVC_AT(kvc_sampling, top_k, 4);
KVC_AT(kvc_sampling, top_p, 8);
KVC_AT(kvc_sampling, temperature, 12);
KVC_AT(kvc_sampling, seed, 16);
KVC_AT(kvc_sampling, min_p, 24);
KVC_AT(kvc_sampling, repeat_penalty, 28);
KVC_AT(kvc_sampling, repeat_window, 32);
KVC_AT(kvc_sampling, reserved, 36);

KVC_SIZE(kvc_session_stats, 112);
KVC_AT(kvc_session_stats, struct_size, 0);
KVC_AT(kvc_session_stats, n_prompt, 4);
KVC_AT(kvc_session_stats, n_answer, 8);
KVC_AT(kvc_session_stats, n_compactions, 12);
KVC_AT(kvc_session_stats, cache_bytes, 16);
KVC_AT(kvc_session_stats, cache_bytes_peak, 24);
KVC_AT(kvc_session_stats, cache_bytes_full, 32);
KVC_AT(kvc_session_stats, workspace_bytes, 40);
KVC_AT(kvc_session_stats, weight_bytes, 48);
KVC_AT(kvc_session_stats, n_slots, 56);
KVC_AT(kvc_session_stats, n_slots_full, 64);
KVC_AT(kvc_session_stats, prefill_seconds, 72);
KVC_AT(kvc_session_stats, compress_seconds, 80);
KVC_AT(kvc_session_stats, decode_seconds, 88);
KVC_AT(kvc_session_stats, stop_token, 96);
KVC_AT(kvc_session_stats, n_tokens, 100);
KVC_AT(kvc_session_stats, prompt_progress, 104);

KVC_SIZE(kvc_batch_params, 8);
KVC_AT(kvc_batch_params, struct_size, 0);
KVC_AT(kvc_batch_params, prompt_tokens, 4);

KVC_SIZE(kvc_plan, 64);
KVC_AT(kvc_plan, struct_size, 0);
KVC_AT(kvc_plan, n_prompt, 4);
KVC_AT(kvc_plan, weight_bytes, 8);
KVC_AT(kvc_plan, workspace_bytes, 16);
KVC_AT(kvc_plan, cache_bytes_peak, 24);
KVC_AT(kvc_plan, cache_bytes_prompt, 32);
KVC_AT(kvc_plan, cache_bytes_end, 40);
KVC_AT(kvc_plan, cache_bytes_full, 48);
KVC_AT(kvc_plan, total_bytes_peak, 56);
