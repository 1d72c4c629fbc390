/* Answers a prompt with a sampler of the caller's own: sampler MODEL.kvc POLICY PROMPT [TOKENS [MIN_P
 * [SEED]]] for example: sampler stories260k.kvc snapkv:budget=64 "Once upon a time" 100 0.1 7
 * It needs the mathematics of C: cc sampler.c $(pkg-config --cflags --libs kvc) -lm -o sampler
 *
 * Min-p: a token may be chosen when it is at least MIN_P times as likely as the likeliest; 1 is greedy. The
 * library gives the logits, the program chooses, kvc_session_accept makes the choice a part of the answer. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

static int failed(const char* doing, kvc_status status) {
  if (status == KVC_OK) return 0;
  fprintf(stderr, "cannot %s: %s (%s)\n", doing, kvc_last_error(), kvc_status_name(status));
  return 1;
}

/* A number in [0, 1): SplitMix64. */
static double draw(uint64_t* state) {
  uint64_t x = *state += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (double)((x ^ (x >> 31)) >> 11) / 9007199254740992.0;
}

static int32_t choose(const float* logits, int32_t n, double min_p, uint64_t* random) {
  int32_t best = 0, i;
  double sum = 0, at;
  for (i = 1; i < n; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  for (i = 0; i < n; ++i) {
    const double p = exp((double)logits[i] - logits[best]);
    if (p >= min_p) sum += p;
  }
  at = draw(random) * sum;
  for (i = 0; i < n; ++i) {
    const double p = exp((double)logits[i] - logits[best]);
    if (p >= min_p && (at -= p) < 0) return i;
  }
  return best;
}

/* What the model says about itself, as JSON with a NUL behind it, which the caller frees; NULL when that
 * failed. */
static char* describe(const kvc_model* model) {
  char* json = NULL;
  int32_t n = 0;
  if (failed("describe the model", kvc_model_describe(model, NULL, 0, &n))) return NULL;
  json = calloc((size_t)n + 1, 1);
  if (json == NULL || failed("describe the model", kvc_model_describe(model, json, n, &n))) {
    free(json);
    return NULL;
  }
  return json;
}

/* Whether a token ends the answer. Models of conversations have several that do; eos_token is one of them. */
static int is_stop(const char* about, int32_t token) {
  static const char key[] = "\"stop_tokens\":[";
  const char* at = strstr(about, key);
  if (at == NULL) return 0;
  for (at += sizeof key - 1;;) {
    char* end;
    const long stop = strtol(at, &end, 10);
    if (end != at && stop == token) return 1;
    if (*end != ',') return 0; /* the list is at its end */
    at = end + 1;
  }
}

static int answer(kvc_session* session, const char* about, float* logits, int32_t vocab_size, int max_tokens,
                  double min_p, uint64_t random) {
  uint8_t text[512];
  int32_t token, n = 0;
  int i;
  for (i = 0; i < max_tokens; ++i) {
    if (failed("read the logits", kvc_session_get_logits(session, logits, vocab_size, &n))) return 1;
    token = choose(logits, n, min_p, &random);
    if (is_stop(about, token)) break;
    if (failed("accept the token", kvc_session_accept(session, token))) return 1;
    if (failed("read the text", kvc_session_read_text(session, text, sizeof text, &n))) return 1;
    fwrite(text, 1, (size_t)n, stdout);
    fflush(stdout);
  }
  putchar('\n');
  return 0;
}

/* Feeds the prompt, BOS first. */
static int feed(kvc_session* session, const kvc_model* model, const char* prompt) {
  const uint8_t* text = (const uint8_t*)prompt;
  const int32_t n_text = (int32_t)strlen(prompt);
  int32_t* tokens = NULL;
  int32_t n = 0;
  /* A capacity of 0 asks for the number, which may be above that of the bytes. */
  const int bad = failed("read the prompt", kvc_tokenize(model, text, n_text, KVC_ADD_BOS, NULL, 0, &n)) ||
                  (tokens = malloc(((size_t)n + 1) * sizeof *tokens)) == NULL ||
                  failed("read the prompt", kvc_tokenize(model, text, n_text, KVC_ADD_BOS, tokens, n, &n)) ||
                  failed("process the prompt", kvc_session_prefill(session, tokens, n));
  free(tokens);
  return bad;
}

int main(int argc, char** argv) {
  kvc_model* model = NULL;
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  kvc_model_info info = {.struct_size = sizeof info};
  float* logits = NULL;
  char* about = NULL;
  int bad;
  if (argc < 4) {
    fprintf(stderr, "usage: %s MODEL.kvc POLICY PROMPT [TOKENS [MIN_P [SEED]]]\n", argv[0]);
    return 2;
  }
  bad = failed("open the model", kvc_model_open(argv[1], "cpu", NULL, &model)) ||
        failed("ask the model", kvc_model_get_info(model, &info)) || (about = describe(model)) == NULL ||
        failed("use the policy", kvc_policy_create(argv[2], &policy)) ||
        failed("start a session", kvc_session_create(model, policy, NULL, &session)) ||
        feed(session, model, argv[3]) ||
        (logits = malloc((size_t)info.vocab_size * sizeof *logits)) == NULL ||
        answer(session, about, logits, info.vocab_size, argc > 4 ? atoi(argv[4]) : 64,
               argc > 5 ? atof(argv[5]) : 0.1, argc > 6 ? strtoull(argv[6], NULL, 10) : 1);
  free(logits);
  free(about);
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
  return bad;
}
