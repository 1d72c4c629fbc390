/* Uses every struct that the previous release had, with the size that the header this is compiled with gives
 * it, and shouts when the library reads or writes behind it. every_struct MODEL.kvc: prints what must not
 * depend on the header. */
#include <kvc/kvc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kGuard = 64 };

/* A struct of n bytes, struct_size set, the rest zero; behind it bytes that nobody may touch, and none may
 * understand. */
static void* guarded(int32_t n) {
  unsigned char* bytes = malloc((size_t)n + kGuard);
  if (bytes == NULL) exit(2);
  memset(bytes, 0, (size_t)n);
  memset(bytes + n, 0xA5, kGuard);
  memcpy(bytes, &n, sizeof n);
  return bytes;
}

static void check_guard(const void* at, int32_t n, const char* what) {
  const unsigned char* bytes = at;
  int i;
  for (i = 0; i < kGuard; ++i) {
    if (bytes[n + i] != 0xA5) {
      printf("the library wrote behind %s\n", what);
      exit(1);
    }
  }
}

static void expect(kvc_status status, const char* what) {
  if (status == KVC_OK) return;
  printf("%s: %s (%s)\n", what, kvc_last_error(), kvc_status_name(status));
  exit(1);
}

static void answer(kvc_session* session, int n) {
  uint8_t text[64];
  int32_t token = 0, n_text = 0;
  while (n-- > 0) {
    expect(kvc_session_step(session, &token), "step");
    if (token == KVC_TOKEN_NONE) break;
    expect(kvc_session_read_text(session, text, sizeof text, &n_text), "read_text");
    printf("%d %.*s|", (int)token, (int)n_text, (const char*)text);
  }
  printf("\n");
}

static void one_batch(kvc_session* session) {
  kvc_batch_params* params = guarded(sizeof *params);
  int32_t token = 0;
  kvc_status status = KVC_OK;
  kvc_session* const sessions[] = {session};
  params->prompt_tokens = 16;
  expect(kvc_batch_step(sessions, 1, params, &token, &status), "batch_step");
  printf("%d %d\n", (int)token, (int)status);
  check_guard(params, sizeof *params, "kvc_batch_params");
  free(params);
}

int main(int argc, char** argv) {
  static const char kPrompt[] = "Ada lives in Paris. Ada lives in";
  kvc_model_params* open = guarded(sizeof *open);
  kvc_model_info* info = guarded(sizeof *info);
  kvc_session_params* start = guarded(sizeof *start);
  kvc_sampling* sampling = guarded(sizeof *sampling);
  kvc_session_stats* stats = guarded(sizeof *stats);
  kvc_plan* plan = guarded(sizeof *plan);
  kvc_model* model = NULL;
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  int32_t tokens[64], n = 0;
  if (argc < 2) return 2;
  open->n_threads = 2;
  expect(kvc_model_open(argv[1], "cpu", open, &model), "open");
  expect(kvc_model_get_info(model, info), "get_info");
  printf("%d %d %d %lld\n", (int)info->n_layers, (int)info->n_kv_heads, (int)info->vocab_size,
         (long long)info->n_parameters);
  expect(kvc_policy_create("snapkv:budget=8,window=4", &policy), "policy");
  start->max_tokens = 100;
  expect(kvc_session_plan(model, policy, start, 50, plan, NULL, 0, NULL), "plan");
  printf("%d %lld\n", (int)plan->n_prompt, (long long)plan->cache_bytes_full);
  expect(kvc_session_create(model, policy, start, &session), "create");
  expect(
      kvc_tokenize(model, (const uint8_t*)kPrompt, (int32_t)sizeof kPrompt - 1, KVC_ADD_BOS, tokens, 64, &n),
      "tokenize");
  expect(kvc_session_prefill(session, tokens, n), "prefill");
  answer(session, 6);
  sampling->top_k = 3;
  sampling->temperature = 0.9f;
  sampling->seed = 7;
  expect(kvc_session_set_sampling(session, sampling), "set_sampling");
  answer(session, 6);
  one_batch(session);
  expect(kvc_session_get_stats(session, stats), "get_stats");
  printf("%d %d %lld\n", (int)stats->n_prompt, (int)stats->n_answer, (long long)stats->cache_bytes);
  check_guard(open, sizeof *open, "kvc_model_params");
  check_guard(info, sizeof *info, "kvc_model_info");
  check_guard(start, sizeof *start, "kvc_session_params");
  check_guard(sampling, sizeof *sampling, "kvc_sampling");
  check_guard(stats, sizeof *stats, "kvc_session_stats");
  check_guard(plan, sizeof *plan, "kvc_plan");
  free(open), free(info), free(start), free(sampling), free(stats), free(plan);
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
  return 0;
}
