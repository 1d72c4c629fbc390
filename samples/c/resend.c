/* Texts that come whole each time, from a client that keeps the conversation itself: only what is new is
 * read. resend MODEL.kvc POLICY [TOKENS], one text a line on standard input. For example: printf '%s\n' 'The
 * code of Rosa is 115. The code of Nina is 417. The code of Rosa is' 'The code of Rosa is 115. The code of
 * Nina is 417. The code of Rosa is 115. The code of Nina is' | resend recall.kvc full 5
 *
 * What is held and the new text begin with the same tokens. What is held behind them goes, if the policy can
 * go back so far, else all of it. A policy that compresses prompts chose what it kept of a text by the end
 * that the text had then: a client that asks otherwise about the same text is better served by a fork for
 * each question (ask_document.c), or by a policy that does not look at the question. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

/* Tokens of a line: composing characters (NFC) makes at most three bytes of one; a few begin a text. */
enum { LONGEST_LINE = 16384, MOST_TOKENS = 3 * LONGEST_LINE + 32 };

/* The tokens of a session, in order: those that were read and those that it gave. */
typedef struct held {
  int32_t n, tokens[MOST_TOKENS];
} held;

static int failed(const char* doing, kvc_status status) {
  if (status == KVC_OK) return 0;
  fprintf(stderr, "cannot %s: %s (%s)\n", doing, kvc_last_error(), kvc_status_name(status));
  return 1;
}

/* Makes the session one that has read these n (1 ..) tokens and nothing else; *n_read of them are new to it.
 */
static kvc_status become(kvc_session* session, held* holds, const int32_t* tokens, int32_t n,
                         int32_t* n_read) {
  int32_t same = 0; /* the last one is read in any case: the answer goes on from it */
  kvc_status status = KVC_OK;
  while (same < holds->n && same < n - 1 && holds->tokens[same] == tokens[same]) ++same;
  if (same > 0 && same < holds->n) status = kvc_session_rewind(session, holds->n - same);
  if (status == KVC_E_UNSUPPORTED) same = 0; /* the policy cannot take so much back */
  if (same == 0) status = kvc_session_reset(session);
  if (status != KVC_OK) return status;
  holds->n = same;
  status = kvc_session_prefill(session, tokens + same, n - same);
  if (status != KVC_OK) return status;
  memcpy(holds->tokens + same, tokens + same, (size_t)(n - same) * sizeof *tokens);
  holds->n = n;
  *n_read = n - same;
  return KVC_OK;
}

static int answer(kvc_session* session, held* holds, int max_tokens) {
  uint8_t text[512];
  int32_t token = 0, n_text = 0;
  for (int i = 0; i < max_tokens && holds->n < MOST_TOKENS; ++i) {
    if (failed("generate", kvc_session_step(session, &token))) return 1;
    if (failed("read the text", kvc_session_read_text(session, text, sizeof text, &n_text))) return 1;
    fwrite(text, 1, (size_t)n_text, stdout);
    fflush(stdout);
    if (token == KVC_TOKEN_NONE) break; /* what ended it is not held */
    holds->tokens[holds->n++] = token;
  }
  putchar('\n');
  return 0;
}

static int serve(kvc_session* session, const kvc_model* model, int max_tokens) {
  static held holds;
  static char line[LONGEST_LINE + 1];
  static int32_t tokens[MOST_TOKENS];
  while (fgets(line, sizeof line, stdin) != NULL) {
    int32_t n = 0, n_read = 0;
    line[strcspn(line, "\n")] = '\0';
    if (failed("tokenize", kvc_tokenize(model, (const uint8_t*)line, (int32_t)strlen(line), KVC_ADD_BOS,
                                        tokens, MOST_TOKENS, &n)))
      return 1;
    if (n == 0) continue;
    if (failed("read the text", become(session, &holds, tokens, n, &n_read))) return 1;
    fprintf(stderr, "%d of %d tokens read\n", (int)n_read, (int)n);
    if (answer(session, &holds, max_tokens)) return 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  kvc_model* model = NULL;
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  if (argc < 3) {
    fprintf(stderr, "usage: %s MODEL.kvc POLICY [TOKENS]\n", argv[0]);
    return 2;
  }
  int bad = failed("open the model", kvc_model_open(argv[1], "cpu", NULL, &model)) ||
            failed("use the policy", kvc_policy_create(argv[2], &policy)) ||
            failed("start a session", kvc_session_create(model, policy, NULL, &session));
  if (!bad) bad = serve(session, model, argc > 3 ? atoi(argv[3]) : 64);
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
  return bad;
}
