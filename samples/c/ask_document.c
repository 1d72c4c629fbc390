/* Reads a document once, keeps a compressed cache of it, and answers any number of questions from that:
 * ask_document MODEL.kvc POLICY DOCUMENT QUESTION...
 * for example: ask_document recall.kvc cokv-document:budget=24 text.txt "The code of Zachary is"
 * text.txt: a text with such facts, as the first context of samples/data/recall_demo.jsonl:
 * head -1 recall_demo.jsonl | python3 -c "print(__import__('json').loads(input())['context'])" > text.txt */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

enum { ANSWER_TOKENS = 6 };

static int failed(const char* doing, kvc_status status) {
  if (status == KVC_OK) return 0;
  fprintf(stderr, "cannot %s: %s (%s)\n", doing, kvc_last_error(), kvc_status_name(status));
  return 1;
}

static int no_memory(void) {
  fprintf(stderr, "no memory\n");
  return 1;
}

/* The bytes of a file, NUL behind them, which the caller frees; NULL when it cannot be read. */
static char* read_file(const char* path, int32_t* n_bytes) {
  FILE* file = fopen(path, "rb");
  char* text = NULL;
  long size = -1;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) size = ftell(file);
  if (size >= 0 && size < INT32_MAX) text = malloc((size_t)size + 1);
  if (text != NULL && (fseek(file, 0, SEEK_SET) != 0 || fread(text, 1, (size_t)size, file) != (size_t)size)) {
    free(text);
    text = NULL;
  }
  if (file != NULL) fclose(file);
  if (text == NULL) return NULL;
  text[size] = '\0';
  *n_bytes = (int32_t)size;
  return text;
}

/* Text to ids behind what the session has, or from the beginning with BOS, and into the session. */
static int feed(kvc_session* session, const kvc_model* model, const char* text, int32_t n_text, int begins) {
  const uint8_t* bytes = (const uint8_t*)text;
  const int32_t flags = begins ? KVC_ADD_BOS : KVC_CONTINUE;
  int32_t* tokens = NULL;
  int32_t n = 0;
  /* A capacity of 0 asks for the number, which may be above that of the bytes. */
  int bad = failed("read the text", kvc_tokenize(model, bytes, n_text, flags, NULL, 0, &n));
  if (!bad && (tokens = malloc(((size_t)n + 1) * sizeof *tokens)) == NULL) bad = no_memory();
  if (!bad) bad = failed("read the text", kvc_tokenize(model, bytes, n_text, flags, tokens, n, &n));
  if (!bad && begins) bad = failed("process the document", kvc_session_prefill(session, tokens, n));
  if (!bad && !begins) bad = failed("process the question", kvc_session_append(session, tokens, n));
  free(tokens);
  return bad;
}

/* A fork shares the cache of the document, and what is asked of one the others do not see. */
static int ask(kvc_session* document, const kvc_model* model, const char* question) {
  kvc_session* fork = NULL;
  const size_t n_asked = strlen(question) + 1;
  char* asked = malloc(n_asked + 1); /* a space parts it from the document */
  uint8_t text[64];
  int32_t token = 0, n_text = 0;
  int bad;
  if (asked == NULL) return no_memory();
  snprintf(asked, n_asked + 1, " %s", question);
  bad = failed("fork", kvc_session_fork(document, &fork)) || feed(fork, model, asked, (int32_t)n_asked, 0);
  free(asked);
  printf("%s", question);
  for (int i = 0; !bad && i < ANSWER_TOKENS && token != KVC_TOKEN_NONE; ++i) {
    bad = failed("generate", kvc_session_step(fork, &token)) ||
          failed("read the text", kvc_session_read_text(fork, text, sizeof text, &n_text));
    if (bad || memchr(text, '.', (size_t)n_text) != NULL) break; /* the end of the answer */
    fwrite(text, 1, (size_t)n_text, stdout);
  }
  putchar('\n');
  kvc_session_close(fork);
  return bad;
}

int main(int argc, char** argv) {
  kvc_model* model = NULL;
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  kvc_session_stats stats;
  char* text;
  int32_t n_text = 0;
  if (argc < 5) {
    fprintf(stderr, "usage: %s MODEL.kvc POLICY DOCUMENT QUESTION...\n", argv[0]);
    return 2;
  }
  kvc_params_init(&stats, (int32_t)sizeof stats);
  text = read_file(argv[3], &n_text);
  if (text == NULL) fprintf(stderr, "cannot read %s\n", argv[3]);
  int bad = text == NULL || failed("open the model", kvc_model_open(argv[1], "cpu", NULL, &model)) ||
            failed("use the policy", kvc_policy_create(argv[2], &policy)) ||
            failed("start a session", kvc_session_create(model, policy, NULL, &session)) ||
            feed(session, model, text, n_text, 1) ||
            failed("read the statistics", kvc_session_get_stats(session, &stats));
  if (!bad) {
    printf("%d tokens in %lld KiB instead of %lld\n", (int)stats.n_prompt, (long long)stats.cache_bytes >> 10,
           (long long)stats.cache_bytes_full >> 10);
  }
  for (int i = 4; !bad && i < argc; ++i) bad = ask(session, model, argv[i]);
  free(text);
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
  return bad;
}
