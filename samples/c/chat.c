/* A conversation that may go on for ever: chat MODEL.kvc POLICY [TOKENS [CONTEXT]], one turn a line on
 * standard input; Ctrl-C stops the answer. For example:
 * printf 'The code of Rosa is 115. The code of Nina is 417. The code of Rosa is\n The code of Nina is\n' |
 * chat recall.kvc snapkv:budget=64,window=8 5
 *
 * A model that was trained on turns has its marks around each line (kvc_session_say). Another goes on with
 * the text: only the first line begins one (KVC_ADD_BOS, then KVC_CONTINUE), and a stop token that ended an
 * answer begins the next line, so the model sees its own answer closed. Past CONTEXT tokens old entries leave
 * (KVC_ON_FULL_SLIDE). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

/* Tokens of a line: composing characters (NFC) makes at most three bytes of one; a few begin a text. */
enum { LONGEST_LINE = 4096, MOST_TOKENS = 3 * LONGEST_LINE + 32 };

static int failed(const char* doing, kvc_status status) {
  if (status == KVC_OK) return 0;
  fprintf(stderr, "cannot %s: %s (%s)\n", doing, kvc_last_error(), kvc_status_name(status));
  return 1;
}

static kvc_session* talking; /* what Ctrl-C stops */

static void stop_answer(int signal_number) {
  signal(signal_number, stop_answer); /* some systems take a handler away when it is called */
  kvc_session_cancel(talking);
}

/* The turn behind everything before, as text. */
static kvc_status listen(kvc_session* session, const kvc_model* model, const char* line) {
  static int32_t tokens[1 + MOST_TOKENS];
  int32_t n_tokens = 0;
  kvc_session_stats stats = {.struct_size = sizeof stats};
  kvc_status status = kvc_session_get_stats(session, &stats);
  if (status != KVC_OK) return status;
  const int begins = stats.n_slots_full == 0, stopped = stats.stop_token >= 0;
  if (stopped) tokens[0] = stats.stop_token;
  status = kvc_tokenize(model, (const uint8_t*)line, (int32_t)strlen(line),
                        begins ? KVC_ADD_BOS : KVC_CONTINUE, tokens + stopped, MOST_TOKENS, &n_tokens);
  n_tokens += stopped;
  if (status != KVC_OK || n_tokens == 0) return status; /* an empty line lets the model speak on */
  return kvc_session_prefill(session, tokens, n_tokens);
}

/* The turn of a model that was trained on turns; else as text. */
static kvc_status hear(kvc_session* session, const kvc_model* model, const char* line) {
  const kvc_status status =
      kvc_session_say(session, KVC_ROLE_USER, (const uint8_t*)line, (int32_t)strlen(line), KVC_ANSWER);
  return status == KVC_E_UNSUPPORTED ? listen(session, model, line) : status;
}

static int answer(kvc_session* session, int max_tokens) {
  uint8_t text[512];
  int32_t token = 0, n_text = 0;
  for (int i = 0; i < max_tokens; ++i) {
    const kvc_status status = kvc_session_step(session, &token);
    if (status == KVC_E_CANCELLED) break; /* by Ctrl-C */
    if (failed("generate", status)) return 1;
    if (failed("read the text", kvc_session_read_text(session, text, sizeof text, &n_text))) return 1;
    fwrite(text, 1, (size_t)n_text, stdout);
    fflush(stdout);
    if (token == KVC_TOKEN_NONE) break;
  }
  putchar('\n');
  fflush(stdout);
  return 0;
}

static int chat(kvc_session* session, const kvc_model* model, int max_tokens) {
  char line[LONGEST_LINE + 1];
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    kvc_session_clear_cancel(session); /* a Ctrl-C that came too late for an answer */
    const kvc_status heard = hear(session, model, line);
    if (heard == KVC_E_CANCELLED) continue; /* by Ctrl-C, and nothing was heard */
    if (failed("process the turn", heard) || answer(session, max_tokens)) return 1;
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
            failed("start a session", kvc_session_create(model, policy, &params, &session));
  talking = session;
  if (!bad) signal(SIGINT, stop_answer);
  if (!bad) bad = chat(session, model, argc > 3 ? atoi(argv[3]) : 64);
  signal(SIGINT, SIG_DFL);
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
  return bad;
}
