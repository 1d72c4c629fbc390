/* Serves prompts, one a line on standard input, several at once: batch MODEL.kvc POLICY [TOKENS [AT_ONCE]]
 * for example:
 * printf 'The code of Rosa is 115. The code of Rosa is\nThe code of Nina is 417. The code of Nina is\n' |
 * batch recall.kvc cokv:budget=8,window=4 5 2
 *
 * Each call of kvc_batch_step is a token for every session that has its prompt. One that joins is only queued
 * and is read a part at a call, so a long prompt does not stop the others. One whose answer is complete
 * leaves, and the next line takes its place. Each answers as it would alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

/* Tokens of a line: composing characters (NFC) makes at most three bytes of one; a few begin a text. */
enum { LONGEST_LINE = 65536, MOST_TOKENS = 3 * LONGEST_LINE + 32, MOST_AT_ONCE = 256 };

typedef struct {
  int line;   /* of its prompt */
  int waited; /* calls that read the prompt and gave no token */
  int said;   /* tokens */
} seat;

typedef struct {
  kvc_model* model;
  kvc_policy* policy;
  int max_tokens, at_once;
  kvc_session* sessions[MOST_AT_ONCE]; /* the first n are at work */
  seat seats[MOST_AT_ONCE];
  int n, n_lines;
} service;

static int failed(const char* doing, kvc_status status) {
  if (status == KVC_OK) return 0;
  fprintf(stderr, "cannot %s: %s (%s)\n", doing, kvc_last_error(), kvc_status_name(status));
  return 1;
}

/* The prompt of the next line joins, or is refused; *more becomes 0 when there was none. */
static int join(service* s, int* more) {
  static char line[LONGEST_LINE + 1];
  static int32_t tokens[MOST_TOKENS];
  int32_t n_tokens = 0;
  kvc_session** session = &s->sessions[s->n];
  *more = fgets(line, sizeof line, stdin) != NULL;
  if (!*more) return 0;
  line[strcspn(line, "\n")] = '\0';
  s->seats[s->n] = (seat){.line = ++s->n_lines};
  if (failed("start a session", kvc_session_create(s->model, s->policy, NULL, session))) return 1;
  if (failed("read the prompt", kvc_tokenize(s->model, (const uint8_t*)line, (int32_t)strlen(line),
                                             KVC_ADD_BOS, tokens, MOST_TOKENS, &n_tokens)) ||
      failed("queue the prompt", kvc_session_enqueue(*session, tokens, n_tokens, 1))) {
    kvc_session_close(*session);
    return 0;
  }
  ++s->n;
  return 0;
}

/* Prints the answer of session i, whose seat the last one takes. */
static int leave(service* s, int i) {
  uint8_t text[512];
  int32_t n_text = 0;
  const seat* of = &s->seats[i];
  kvc_session_stats stats = {.struct_size = sizeof stats};
  printf("%d:", of->line);
  do {
    if (failed("read the text", kvc_session_read_text(s->sessions[i], text, sizeof text, &n_text))) return 1;
    fwrite(text, 1, (size_t)n_text, stdout);
  } while (n_text > 0);
  putchar('\n');
  fflush(stdout);
  if (failed("read the statistics", kvc_session_get_stats(s->sessions[i], &stats))) return 1;
  fprintf(stderr, "%d: %d tokens heard, waited %d calls, %d said\n", of->line, (int)stats.n_prompt,
          of->waited, of->said);
  kvc_session_close(s->sessions[i]);
  --s->n;
  s->sessions[i] = s->sessions[s->n];
  s->seats[i] = s->seats[s->n];
  return 0;
}

static int serve(service* s) {
  int32_t tokens[MOST_AT_ONCE];
  kvc_status statuses[MOST_AT_ONCE];
  int more = 1, n_steps = 0;
  for (;; ++n_steps) {
    while (more && s->n < s->at_once) {
      if (join(s, &more)) return 1;
    }
    if (s->n == 0) break;
    if (failed("step", kvc_batch_step(s->sessions, s->n, NULL, tokens, statuses))) return 1;
    for (int i = s->n; i-- > 0;) { /* from behind, as the last one moves when another leaves */
      seat* at = &s->seats[i];
      int done = tokens[i] == KVC_TOKEN_NONE;
      if (statuses[i] != KVC_OK) {
        fprintf(stderr, "%d: ends with %s\n", at->line, kvc_status_name(statuses[i]));
        done = 1;
      } else if (tokens[i] == KVC_TOKEN_READING) {
        ++at->waited;
      } else if (!done) {
        done = ++at->said >= s->max_tokens;
      }
      if (done && leave(s, i)) return 1;
    }
  }
  fprintf(stderr, "%d prompts in %d steps\n", s->n_lines, n_steps);
  return 0;
}

int main(int argc, char** argv) {
  static service s;
  s.max_tokens = argc > 3 ? atoi(argv[3]) : 64;
  s.at_once = argc > 4 ? atoi(argv[4]) : 8;
  if (argc < 3 || s.at_once < 1 || s.at_once > MOST_AT_ONCE) {
    fprintf(stderr, "usage: %s MODEL.kvc POLICY [TOKENS [AT_ONCE, at most %d]]\n", argv[0], MOST_AT_ONCE);
    return 2;
  }
  int bad = failed("open the model", kvc_model_open(argv[1], "cpu", NULL, &s.model)) ||
            failed("use the policy", kvc_policy_create(argv[2], &s.policy)) || serve(&s);
  while (s.n > 0) kvc_session_close(s.sessions[--s.n]);
  kvc_policy_close(s.policy);
  kvc_model_close(s.model);
  return bad;
}
