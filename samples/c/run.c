/* Answers a prompt from a compressed KV cache: run MODEL.kvc POLICY PROMPT [TOKENS]
 * for example: run recall.kvc cokv:budget=8,window=4 "The code of Robin is 386. The code of Robin is" 5 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

/* Says what failed and why; 0 when nothing did. */
static int failed(const char* doing, kvc_status status) {
  if (status == KVC_OK) return 0;
  fprintf(stderr, "cannot %s: %s (%s)\n", doing, kvc_last_error(), kvc_status_name(status));
  return 1;
}

/* The ids of a prompt, BOS first, in memory the caller frees; NULL when that failed. */
static int32_t* tokenize(const kvc_model* model, const char* prompt, int32_t* n_tokens) {
  const uint8_t* text = (const uint8_t*)prompt;
  const int32_t n_text = (int32_t)strlen(prompt);
  int32_t n = 0;
  /* A capacity of 0 asks for the number, which may be above that of the bytes. */
  if (failed("read the prompt", kvc_tokenize(model, text, n_text, KVC_ADD_BOS, NULL, 0, &n))) return NULL;
  int32_t* tokens = malloc(((size_t)n + 1) * sizeof *tokens);
  if (!tokens) {
    fprintf(stderr, "no memory for %d tokens\n", (int)n);
  } else if (failed("read the prompt", kvc_tokenize(model, text, n_text, KVC_ADD_BOS, tokens, n, n_tokens))) {
    free(tokens);
    tokens = NULL;
  }
  return tokens;
}

/* Generates token by token and prints text as soon as it is complete UTF-8. */
static int answer(kvc_session* session, int max_tokens) {
  uint8_t text[512];
  int32_t token = 0, n_text = 0;
  for (int i = 0; i < max_tokens; ++i) {
    if (failed("generate", kvc_session_step(session, &token))) return 1;
    if (failed("read the text", kvc_session_read_text(session, text, sizeof text, &n_text))) return 1;
    fwrite(text, 1, (size_t)n_text, stdout);
    fflush(stdout);
    if (token == KVC_TOKEN_NONE) break;
  }
  putchar('\n');
  return 0;
}

static int run(kvc_session* session, const kvc_model* model, const char* prompt, int max_tokens) {
  kvc_session_stats stats = {.struct_size = sizeof stats};
  int32_t n_tokens = 0;
  int32_t* tokens = tokenize(model, prompt, &n_tokens);
  int bad = !tokens || failed("process the prompt", kvc_session_prefill(session, tokens, n_tokens)) ||
            answer(session, max_tokens) ||
            failed("read the statistics", kvc_session_get_stats(session, &stats));
  free(tokens);
  if (!bad) {
    fprintf(stderr, "%d + %d tokens, cache %lld bytes, uncompressed %lld\n", (int)stats.n_prompt,
            (int)stats.n_answer, (long long)stats.cache_bytes, (long long)stats.cache_bytes_full);
  }
  return bad;
}

int main(int argc, char** argv) {
  kvc_model* model = NULL;
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  if (argc < 4) {
    fprintf(stderr, "usage: %s MODEL.kvc POLICY PROMPT [TOKENS]\n", argv[0]);
    return 2;
  }
  int bad = failed("open the model", kvc_model_open(argv[1], "cpu", NULL, &model)) ||
            failed("use the policy", kvc_policy_create(argv[2], &policy)) ||
            failed("start a session", kvc_session_create(model, policy, NULL, &session)) ||
            run(session, model, argv[3], argc > 4 ? atoi(argv[4]) : 64);
  kvc_session_close(session); /* closing NULL does nothing */
  kvc_policy_close(policy);
  kvc_model_close(model);
  return bad;
}
