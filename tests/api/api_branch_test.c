/* Fork, rewind, save, restore and plan of kvc.h. */
#include "tests/api/check.h"
#include "tests/api/fixture.h"

enum { STEPS = 12 };

static void answer(kvc_session* session, int32_t* tokens, int32_t n) {
  int32_t i;
  for (i = 0; i < n; ++i) CHECK_OK(kvc_session_step(session, &tokens[i]));
}

static void fork_sessions(kvc_model* model) {
  kvc_session *session = fed_session(model, "snapkv:budget=48,window=8", 200), *fork = NULL, *second = NULL;
  SIZED(kvc_session_stats, before);
  SIZED(kvc_session_stats, after);
  int32_t a[STEPS], b[STEPS], other[10];
  CHECK_OK(kvc_session_get_stats(session, &before));
  CHECK_OK(kvc_session_fork(session, &fork));
  CHECK_OK(kvc_session_fork(fork, &second));
  CHECK_OK(kvc_session_get_stats(second, &after));
  CHECK_INT(after.cache_bytes, before.cache_bytes); /* shared until one writes */
  fill_tokens(other, 10, 99);
  CHECK_OK(kvc_session_prefill(second, other, 10));
  answer(second, a, STEPS);
  answer(session, a, STEPS);
  answer(fork, b, STEPS);
  CHECK(memcmp(a, b, sizeof a) == 0); /* none has seen what the others did */
  kvc_session_close(session);
  kvc_session_close(second);
  answer(fork, b, 1);
  kvc_session_close(fork);
  fork = (kvc_session*)model;
  CHECK_FAILS(kvc_session_fork(NULL, &fork), KVC_E_INVALID, "session is NULL");
  CHECK(fork == NULL);
  session = fed_session(model, NULL, 5);
  CHECK_FAILS(kvc_session_fork(session, NULL), KVC_E_INVALID, "out_session is NULL");
  kvc_session_close(session);
}

static void rewind_session(kvc_model* model) {
  kvc_session *session = fed_session(model, NULL, 80), *twin = fed_session(model, NULL, 60),
              *evicting = fed_session(model, "h2o:budget=32", 100),
              *compressed = fed_session(model, "snapkv:budget=32,window=8", 100),
              *watching = fed_session(model, "kvzip:budget=500", 100);
  int32_t more[20], a[STEPS], b[STEPS], token = 0, n = 0;
  fill_tokens(more, 20, 5);
  CHECK_FAILS(kvc_session_rewind(NULL, 1), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_rewind(session, 0), KVC_E_INVALID, "rewind by 0");
  CHECK_FAILS(kvc_session_rewind(session, -1), KVC_E_INVALID, "rewind by -1");
  CHECK_FAILS(kvc_session_rewind(session, 81), KVC_E_INVALID, "holds 80 tokens");
  CHECK_OK(kvc_session_rewind(session, 20));
  CHECK_FAILS(kvc_session_step(session, &token), KVC_E_INVALID, "after rewind");
  CHECK_FAILS(kvc_session_get_logits(session, NULL, 0, &n), KVC_E_INVALID, "after rewind");
  CHECK_OK(kvc_session_prefill(session, more, 20));
  CHECK_OK(kvc_session_prefill(twin, more, 20));
  answer(session, a, STEPS);
  answer(twin, b, STEPS);
  CHECK(memcmp(a, b, sizeof a) == 0);
  CHECK_FAILS(kvc_session_rewind(compressed, 10), KVC_E_UNSUPPORTED, "dropped");
  CHECK_FAILS(kvc_session_rewind(evicting, 10), KVC_E_UNSUPPORTED, "cannot be taken back");
  CHECK_FAILS(kvc_session_rewind(watching, 10), KVC_E_UNSUPPORTED,
              "a fork from before"); /* nothing left it */
  kvc_session_close(compressed);
  kvc_session_close(watching);
  CHECK_OK(kvc_session_step(evicting, &token));
  CHECK_OK(kvc_session_rewind(evicting, 1));         /* the token of the last step was not fed yet */
  CHECK_OK(kvc_session_rewind(session, 80 + STEPS)); /* all there is */
  CHECK_FAILS(kvc_session_step(session, &token), KVC_E_INVALID, "prompt");
  CHECK_OK(kvc_session_prefill(session, more, 20));
  kvc_session_close(session);
  kvc_session_close(twin);
  kvc_session_close(evicting);
}

static void save_and_restore(kvc_model* model) {
  kvc_model* foreign = open_model(TEST_MODEL_FOREIGN);
  kvc_session *session = fed_session(model, "cokv:budget=48,window=8,kv=int8,quant_group=16", 200),
              *back = NULL;
  char path[1024], folder[1024], text[1100];
  int32_t a[STEPS], b[STEPS];
  FILE* file;
  snprintf(path, sizeof path, "%s", test_path("saved.kvcs"));
  snprintf(folder, sizeof folder, "%s", test_path("."));
  CHECK_FAILS(kvc_session_save(NULL, path), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_save(session, NULL), KVC_E_INVALID, "path is NULL");
  CHECK_FAILS(kvc_session_save(session, ""), KVC_E_INVALID, "empty");
  CHECK_FAILS(kvc_session_save(session, "/no/such/folder/x"), KVC_E_IO, "/no/such/folder/x");
  CHECK_FAILS(kvc_session_save(session, folder), KVC_E_IO, "is a directory");
  answer(session, a, 3);
  CHECK_OK(kvc_session_save(session, path));
  answer(session, a, STEPS);
  CHECK_OK(kvc_session_restore(model, path, &back));
  answer(back, b, STEPS);
  CHECK(memcmp(a, b, sizeof a) == 0);
  kvc_session_close(back);

  back = (kvc_session*)model;
  CHECK_FAILS(kvc_session_restore(foreign, path, &back), KVC_E_BAD_MODEL, "another model");
  CHECK(back == NULL);
  CHECK_FAILS(kvc_session_restore(NULL, path, &back), KVC_E_INVALID, "model is NULL");
  CHECK_FAILS(kvc_session_restore(model, NULL, &back), KVC_E_INVALID, "path is NULL");
  CHECK_FAILS(kvc_session_restore(model, path, NULL), KVC_E_INVALID, "out_session is NULL");
  CHECK_FAILS(kvc_session_restore(model, folder, &back), KVC_E_IO, "directory");
  snprintf(text, sizeof text, "%s/none", folder);
  CHECK_FAILS(kvc_session_restore(model, text, &back), KVC_E_IO, "none");
  file = fopen(text, "wb");
  CHECK(file != NULL);
  CHECK_FAILS(kvc_session_restore(model, text, &back), KVC_E_BAD_MODEL, "truncated");
  fputs("a text that is long enough to be read as a header, but is none", file);
  fclose(file);
  CHECK_FAILS(kvc_session_restore(model, text, &back), KVC_E_BAD_MODEL, "not a saved session");
  kvc_session_close(session);
  kvc_model_close(foreign);
}

/* A session that has seen nothing, one whose answer waits half read, one that was just rewound. */
static void save_odd_moments(kvc_model* model) {
  kvc_session *empty = new_session(model, "h2o:budget=32", 0), *waits = fed_session(model, NULL, 20),
              *back = NULL;
  char path[1024];
  int32_t tokens[40], token = 0, n = -1, m = -1;
  fill_tokens(tokens, 40, 1);
  snprintf(path, sizeof path, "%s", test_path("odd.kvcs"));
  CHECK_OK(kvc_session_save(empty, path));
  CHECK_OK(kvc_session_restore(model, path, &back));
  CHECK_FAILS(kvc_session_step(back, &token), KVC_E_INVALID, "before any prompt");
  CHECK_OK(kvc_session_prefill(back, tokens, 40));
  kvc_session_close(back);
  for (n = 0; n < 10; ++n) CHECK_OK(kvc_session_step(waits, &token));
  CHECK_OK(kvc_session_save(waits, path));
  CHECK_OK(kvc_session_restore(model, path, &back));
  CHECK_OK(kvc_session_read_text(waits, NULL, 0, &n));
  CHECK_OK(kvc_session_read_text(back, NULL, 0, &m));
  CHECK_INT(m, n);
  kvc_session_close(back);
  CHECK_OK(kvc_session_rewind(waits, 5));
  CHECK_OK(kvc_session_save(waits, path));
  CHECK_OK(kvc_session_restore(model, path, &back));
  CHECK_FAILS(kvc_session_step(back, &token), KVC_E_INVALID, "after rewind");
  kvc_session_close(back);
  kvc_session_close(empty);
  kvc_session_close(waits);
}

static void plan(kvc_model* model) {
  kvc_session_params params = {sizeof params, 500, 0, 0, 0, 0, 0};
  kvc_plan p = {0}, part = {0};
  kvc_policy* policy = NULL;
  int32_t slots[4] = {-1, -1, -1, -1}, n = -1, i;
  CHECK_OK(kvc_policy_create("snapkv:budget=48,window=8", &policy));
  CHECK_FAILS(kvc_session_plan(model, policy, &params, 400, &p, slots, 4, &n), KVC_E_INVALID,
              "struct_size is 0");
  CHECK_INT(slots[0], -1);
  CHECK_INT(n, -1);
  p.struct_size = sizeof p;
  CHECK_OK(kvc_session_plan(model, policy, &params, 400, &p, slots, 4, &n));
  CHECK_INT(n, 4);
  for (i = 0; i < 4; ++i) CHECK_INT(slots[i], 48);
  CHECK_INT(p.n_prompt, 400);
  CHECK(p.weight_bytes > 0 && p.workspace_bytes > 0);
  CHECK(p.cache_bytes_prompt < p.cache_bytes_end && p.cache_bytes_end < p.cache_bytes_full);
  CHECK(p.cache_bytes_peak > p.cache_bytes_prompt &&
        p.total_bytes_peak > p.weight_bytes + p.cache_bytes_peak);
  CHECK_OK(kvc_session_plan(model, NULL, NULL, 400, &p, NULL, 0, NULL));
  CHECK_INT(p.cache_bytes_end, p.cache_bytes_full);
  CHECK_OK(kvc_session_plan(model, NULL, NULL, 1, &p, NULL, 0, &n));
  CHECK_INT(n, 4);
  part.struct_size = 8;
  part.weight_bytes = 42;
  CHECK_OK(kvc_session_plan(model, policy, &params, 10, &part, slots, 4, &n));
  CHECK_INT(part.n_prompt, 10);
  CHECK_INT(part.weight_bytes, 42);
  CHECK_INT(slots[0], 10);
  part.n_prompt = 42;
  CHECK_FAILS(kvc_session_plan(model, policy, &params, 400, &part, slots, 3, &n), KVC_E_BUFFER_TOO_SMALL,
              "4 elements, room for 3");
  CHECK_INT(part.n_prompt, 42);
  CHECK_INT(n, 4);
  CHECK_FAILS(kvc_session_plan(NULL, policy, &params, 400, &p, NULL, 0, NULL), KVC_E_INVALID,
              "model is NULL");
  CHECK_FAILS(kvc_session_plan(model, policy, &params, 400, NULL, NULL, 0, NULL), KVC_E_INVALID,
              "out_plan is NULL");
  CHECK_FAILS(kvc_session_plan(model, policy, &params, 0, &p, NULL, 0, NULL), KVC_E_INVALID, "0 tokens");
  CHECK_FAILS(kvc_session_plan(model, policy, &params, 501, &p, NULL, 0, NULL), KVC_E_INVALID,
              "max_tokens=500");
  CHECK_FAILS(kvc_session_plan(model, policy, &params, 400, &p, slots, -1, &n), KVC_E_INVALID,
              "capacity of -1");
  kvc_policy_close(policy);
}

int main(void) {
  kvc_model* model = open_model(TEST_MODEL_TINY);
  fork_sessions(model);
  rewind_session(model);
  save_and_restore(model);
  save_odd_moments(model);
  plan(model);
  kvc_model_close(model);
  return CHECK_END();
}
