/* A conversation that may go on for ever: chat MODEL.kvc POLICY [TOKENS [CONTEXT]], one turn a line on
 * standard input for example: printf 'Ada lives in Paris. Ada lives in\n And Ada likes\n' | chat recall.kvc
 * snapkv:budget=64,window=8 8
 *
 * Every turn goes on behind what was said, so only the first begins a text (KVC_ADD_BOS, then KVC_CONTINUE).
 * A stop token that ended an answer begins the next turn: the model sees its own answer closed. Past CONTEXT
 * tokens old entries leave (KVC_ON_FULL_SLIDE). A model that was trained on turns wants its own marks around
 * each line: the program would write what kvc_model_describe says of them, and add KVC_PARSE_SPECIAL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

enum { LONGEST_LINE = 4096 };

static int failed(const char* doing, kvc_status status) {
  if (status == KVC_OK) return 0;
  fprintf(stderr, "cannot %s: %s (%s)\n", doing, kvc_last_error(), kvc_status_name(status));
  return 1;
}

/* The turn behind everything before. */
static int listen(kvc_session* session, const kvc_model* model, const char* line) {
  int32_t tokens[LONGEST_LINE + 16], n_tokens = 0;
  kvc_session_stats stats = {.struct_size = sizeof stats};
  if (failed("read the statistics", kvc_session_get_stats(session, &stats))) return 1;
  const int begins = stats.n_prompt == 0, stopped = stats.stop_token >= 0;
  if (stopped) tokens[0] = stats.stop_token;
  if (failed("read the turn", kvc_tokenize(model, (const uint8_t*)line, (int32_t)strlen(line),
                                           begins ? KVC_ADD_BOS : KVC_CONTINUE, tokens + stopped,
                                           LONGEST_LINE + 15, &n_tokens)))
    return 1;
  n_tokens += stopped;
  /* an empty line lets the model speak on; an answer that stopped needs something new */
  return n_tokens > 0 && failed("process the turn", kvc_session_prefill(session, tokens, n_tokens));
}

static int answer(kvc_session* session, int max_tokens) {
  uint8_t text[512];
  int32_t token = 0, n_text = 0;
  for (int i = 0; i < max_tokens; ++i) {
    if (failed("generate", kvc_session_step(session, &token))) return 1;
    if (token == KVC_TOKEN_NONE) break;
    if (failed("read the text", kvc_session_read_text(session, text, sizeof text, &n_text))) return 1;
    fwrite(text, 1, (size_t)n_text, stdout);
    fflush(stdout);
  }
  putchar('\n');
  return 0;
}

static int chat(kvc_session* session, const kvc_model* model, int max_tokens) {
  char line[LONGEST_LINE + 1];
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    if (listen(session, model, line) || answer(session, max_tokens)) return 1;
    kvc_session_stats stats = {.struct_size = sizeof stats};
    if (failed("read the statistics", kvc_session_get_stats(session, &stats))) return 1;
    fprintf(stderr, "%d tokens heard, %d said, stop token %d, cache %lld bytes\n", (int)stats.n_prompt,
            (int)stats.n_answer, (int)stats.stop_token, (long long)stats.cache_bytes);
  }
  return 0;
}

int main(int argc, char** argv) {
  kvc_model* model = NULL;
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  if (argc < 3) {
    fprintf(stderr, "usage: %s MODEL.kvc POLICY [TOKENS [CONTEXT]]\n", argv[0]);
    return 2;
  }
  const kvc_session_params params = {
      .struct_size = sizeof params, .max_tokens = argc > 4 ? atoi(argv[4]) : 0, .on_full = KVC_ON_FULL_SLIDE};
  int bad = failed("open the model", kvc_model_open(argv[1], "cpu", NULL, &model)) ||
            failed("use the policy", kvc_policy_create(argv[2], &policy)) ||
            failed("start a session", kvc_session_create(model, policy, &params, &session)) ||
            chat(session, model, argc > 3 ? atoi(argv[3]) : 64);
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
  return bad;
}
