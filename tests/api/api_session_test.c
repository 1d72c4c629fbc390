/* Sessions of kvc.h: prompts, steps, buffers, limits; each call once right and once wrong. */
#include "tests/api/check.h"
#include "tests/api/fixture.h"

static void create(kvc_model* model) {
  kvc_session_params params = {sizeof params, 0, 0, 0, 0, 0, 0};
  kvc_session* session = (kvc_session*)model;
  CHECK_FAILS(kvc_session_create(NULL, NULL, NULL, &session), KVC_E_INVALID, "model is NULL");
  CHECK(session == NULL);
  CHECK_FAILS(kvc_session_create(model, NULL, NULL, NULL), KVC_E_INVALID, "out_session is NULL");
  params.struct_size = 0;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "struct_size is 0");
  params.struct_size = sizeof params;
  params.max_tokens = -1;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "max_tokens is -1");
  params.max_tokens = INT32_MAX;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "max_tokens");
  params.max_tokens = 0;
  params.on_full = 3;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "on_full is 3");
  params.on_full = -1;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "on_full is -1");
  params.on_full = 0;
  params.top_k = -1;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "top_k is -1");
  params.top_k = 0;
  params.top_p = 1.5f;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "top_p");
  params.top_p = 0;
  params.temperature = -0.5f;
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "temperature");
  memset(&params.temperature, 0xff, sizeof params.temperature); /* a NaN */
  CHECK_FAILS(kvc_session_create(model, NULL, &params, &session), KVC_E_INVALID, "temperature");
  CHECK(session == NULL);
  params.struct_size = 12; /* an older caller that knows on_full and no more: what follows is not read */
  CHECK_OK(kvc_session_create(model, NULL, &params, &session));
  kvc_session_close(session);
  kvc_session_close(NULL);
}

static void bad_prompts(kvc_model* model) {
  int32_t tokens[101], token = 77, n = -1;
  kvc_session* session = new_session(model, NULL, 100);
  fill_tokens(tokens, 101, 3);
  CHECK_FAILS(kvc_session_prefill(NULL, tokens, 1), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_prefill(session, NULL, 4), KVC_E_INVALID, "tokens is NULL");
  CHECK_FAILS(kvc_session_prefill(session, tokens, 0), KVC_E_INVALID, "no tokens");
  CHECK_FAILS(kvc_session_prefill(session, NULL, 0), KVC_E_INVALID, "no tokens");
  CHECK_FAILS(kvc_session_prefill(session, tokens, -3), KVC_E_INVALID, "-3");
  CHECK_FAILS(kvc_session_append(session, tokens, 0), KVC_E_INVALID, "no tokens");
  CHECK_FAILS(kvc_session_append(NULL, tokens, 1), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_step(session, &token), KVC_E_INVALID, "before any prompt");
  CHECK_INT(token, 77);
  CHECK_FAILS(kvc_session_get_logits(session, NULL, 0, &n), KVC_E_INVALID, "before the first prompt");
  CHECK_FAILS(kvc_session_compress(session), KVC_E_INVALID, "nothing to compress");
  CHECK_FAILS(kvc_session_compress(NULL), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_prefill(session, tokens, 101), KVC_E_CONTEXT_FULL, "max_tokens=100");
  tokens[5] = FIXTURE_VOCAB;
  CHECK_FAILS(kvc_session_prefill(session, tokens, 10), KVC_E_INVALID, "token 5 is 262; ids are 0 to 261");
  tokens[5] = -1;
  CHECK_FAILS(kvc_session_prefill(session, tokens, 10), KVC_E_INVALID, "token 5 is -1");
  tokens[5] = INT32_MIN;
  CHECK_FAILS(kvc_session_append(session, tokens, 10), KVC_E_INVALID, "token 5");
  tokens[5] = 5;
  CHECK_OK(kvc_session_prefill(session, tokens, 60)); /* none of the failures left anything */
  CHECK_FAILS(kvc_session_prefill(session, tokens, 41), KVC_E_CONTEXT_FULL, "41 more tokens after 60");
  CHECK_OK(kvc_session_append(session, tokens, 40));
  CHECK_OK(kvc_session_step(session, &token)); /* picked from the prompt's logits, not yet fed */
  CHECK_FAILS(kvc_session_step(session, &token), KVC_E_CONTEXT_FULL, "max_tokens=100");
  CHECK_FAILS(kvc_session_step(session, &token), KVC_E_CONTEXT_FULL, "max_tokens=100");
  CHECK_OK(kvc_session_get_kept(session, 0, 0, NULL, 0, &n));
  CHECK_INT(n, 100);
  kvc_session_close(session);
}

static void stats_and_kept(kvc_model* model) {
  kvc_session* session = fed_session(model, "snapkv:budget=32,window=8,kv=f32", 200);
  kvc_session_stats stats = {0}, part = {0};
  int32_t positions[200], n = -1, i;
  int64_t sum = 0;
  CHECK_FAILS(kvc_session_get_stats(session, &stats), KVC_E_INVALID, "struct_size is 0");
  CHECK_FAILS(kvc_session_get_stats(session, NULL), KVC_E_INVALID, "out_stats is NULL");
  CHECK_FAILS(kvc_session_get_stats(NULL, &stats), KVC_E_INVALID, "session is NULL");
  stats.struct_size = sizeof stats;
  CHECK_OK(kvc_session_get_stats(session, &stats));
  CHECK_INT(stats.n_prompt, 200);
  CHECK_INT(stats.n_answer, 0);
  CHECK_INT(stats.n_compactions, 1);
  CHECK_INT(stats.n_slots_full, 4 * 200);
  CHECK_INT(stats.n_slots, 4 * 32);
  CHECK(stats.cache_bytes >= 4 * 32 * 2 * 16 * 4 && stats.cache_bytes < stats.cache_bytes_full / 4);
  CHECK(stats.cache_bytes_peak > stats.cache_bytes);
  CHECK(stats.workspace_bytes > 0 && stats.weight_bytes > 0);
  CHECK(stats.prefill_seconds > 0 && stats.compress_seconds <= stats.prefill_seconds);
  part.struct_size = 12;
  part.n_compactions = 99;
  CHECK_OK(kvc_session_get_stats(session, &part));
  CHECK_INT(part.n_prompt, 200);
  CHECK_INT(part.n_compactions, 99);

  CHECK_OK(kvc_session_get_kept(session, 1, 1, positions, 200, &n));
  CHECK_INT(n, 32);
  for (i = 1; i < n; ++i) CHECK(positions[i] > positions[i - 1]);
  for (i = 0; i < 8; ++i) CHECK_INT(positions[n - 1 - i], 199 - i);
  for (i = 0; i < 4; ++i) {
    CHECK_OK(kvc_session_get_kept(session, i / 2, i % 2, NULL, 0, &n));
    sum += n;
  }
  CHECK_INT(sum, stats.n_slots);
  CHECK_FAILS(kvc_session_get_kept(session, 2, 0, positions, 200, &n), KVC_E_INVALID, "layer 2");
  CHECK_FAILS(kvc_session_get_kept(session, -1, 0, positions, 200, &n), KVC_E_INVALID, "layer -1");
  CHECK_FAILS(kvc_session_get_kept(session, 0, 2, positions, 200, &n), KVC_E_INVALID, "KV head 2");
  CHECK_FAILS(kvc_session_get_kept(session, 0, 0, positions, 31, &n), KVC_E_BUFFER_TOO_SMALL,
              "32 elements, room for 31");
  CHECK_FAILS(kvc_session_get_kept(session, 0, 0, NULL, 31, &n), KVC_E_INVALID, "no buffer");
  CHECK_FAILS(kvc_session_get_kept(NULL, 0, 0, positions, 200, &n), KVC_E_INVALID, "session is NULL");
  kvc_session_close(session);
}

static void steps_and_logits(kvc_model* model) {
  kvc_session* session = fed_session(model, NULL, 50);
  float* logits = malloc(FIXTURE_VOCAB * sizeof *logits);
  int32_t n = -1, token = -5, i, best;
  for (i = 0; i < 20; ++i) {
    CHECK_OK(kvc_session_get_logits(session, logits, FIXTURE_VOCAB, &n));
    CHECK_INT(n, FIXTURE_VOCAB);
    for (best = 0, n = 1; n < FIXTURE_VOCAB; ++n) best = logits[n] > logits[best] ? n : best;
    CHECK_OK(kvc_session_step(session, &token));
    if (token == KVC_TOKEN_NONE) break;
    CHECK_INT(token, best); /* greedy: the step takes the best of exactly these */
  }
  CHECK(i > 0);
  CHECK_OK(kvc_session_get_logits(session, NULL, 0, &n));
  CHECK_INT(n, FIXTURE_VOCAB);
  CHECK_FAILS(kvc_session_get_logits(session, logits, 10, &n), KVC_E_BUFFER_TOO_SMALL,
              "262 elements, room for 10");
  CHECK_FAILS(kvc_session_get_logits(session, logits, -1, &n), KVC_E_INVALID, "capacity of -1");
  CHECK_FAILS(kvc_session_get_logits(session, logits, FIXTURE_VOCAB, NULL), KVC_E_INVALID, "n_out is NULL");
  CHECK_FAILS(kvc_session_get_logits(NULL, logits, FIXTURE_VOCAB, &n), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_step(session, NULL), KVC_E_INVALID, "out_token is NULL");
  CHECK_FAILS(kvc_session_step(NULL, &token), KVC_E_INVALID, "session is NULL");
  free(logits);
  kvc_session_close(session);
}

/* What read_text gives in pieces of `cap` bytes. */
static int32_t read_all(kvc_session* session, int32_t cap, uint8_t* text, int32_t room) {
  int32_t got = 0, n = 0;
  while (got + cap <= room) {
    CHECK_OK(kvc_session_read_text(session, text + got, cap, &n));
    if (n == 0) break;
    got += n;
  }
  return got;
}

static void text(kvc_model* model) {
  kvc_session *a = fed_session(model, NULL, 30), *b = fed_session(model, NULL, 30);
  uint8_t first[512], second[512];
  int32_t n = -1, m, i, token, available = -1;
  for (i = 0; i < 60; ++i) {
    CHECK_OK(kvc_session_step(a, &token));
    CHECK_OK(kvc_session_step(b, &token));
  }
  CHECK_OK(kvc_session_read_text(a, NULL, 0, &available));
  CHECK(available > 0);
  n = read_all(a, 512, first, 512);
  CHECK_INT(n, available);
  m = read_all(b, 4, second, 512); /* 4 bytes hold any character */
  CHECK_INT(m, n);
  CHECK(memcmp(first, second, (size_t)n) == 0);
  CHECK_FAILS(kvc_session_read_text(a, first, -1, &n), KVC_E_INVALID, "capacity of -1");
  CHECK_FAILS(kvc_session_read_text(a, NULL, 5, &n), KVC_E_INVALID, "capacity of 5");
  CHECK_FAILS(kvc_session_read_text(a, first, 5, NULL), KVC_E_INVALID, "n_out is NULL");
  CHECK_FAILS(kvc_session_read_text(NULL, first, 5, &n), KVC_E_INVALID, "session is NULL");
  kvc_session_close(a);
  kvc_session_close(b);
}

static void compress_trim_reset(kvc_model* model) {
  kvc_session *session = new_session(model, "snapkv:budget=64,window=8", 0),
              *whole = fed_session(model, NULL, 100);
  SIZED(kvc_session_stats, stats);
  int32_t tokens[300], n = 0, token = 0;
  int64_t freed = -1;
  fill_tokens(tokens, 300, 7);
  CHECK_OK(kvc_session_append(session, tokens, 150));
  CHECK_OK(kvc_session_append(session, tokens + 150, 150));
  CHECK_OK(kvc_session_get_kept(session, 0, 0, NULL, 0, &n));
  CHECK_INT(n, 300);
  CHECK_OK(kvc_session_compress(session));
  CHECK_OK(kvc_session_get_kept(session, 0, 0, NULL, 0, &n));
  CHECK_INT(n, 64);
  CHECK_OK(kvc_session_trim(session, 24, &freed));
  CHECK(freed > 0);
  CHECK_OK(kvc_session_get_kept(session, 0, 0, NULL, 0, &n));
  CHECK_INT(n, 24);
  CHECK_OK(kvc_session_trim(session, 20, NULL));
  freed = -1;
  CHECK_FAILS(kvc_session_trim(session, 0, &freed), KVC_E_INVALID, "budget is 0");
  CHECK_FAILS(kvc_session_trim(session, -7, &freed), KVC_E_INVALID, "budget is -7");
  CHECK_FAILS(kvc_session_trim(session, 4, &freed), KVC_E_INVALID, "newest 8"); /* below the window */
  CHECK_FAILS(kvc_session_trim(NULL, 24, &freed), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_trim(whole, 24, &freed), KVC_E_UNSUPPORTED, "keeps everything");
  CHECK_INT(freed, -1);
  CHECK_OK(kvc_session_step(session, &token));

  CHECK_OK(kvc_session_reset(session));
  CHECK_OK(kvc_session_get_stats(session, &stats));
  CHECK_INT(stats.n_prompt + stats.n_answer + stats.n_compactions, 0);
  CHECK_INT(stats.cache_bytes, 0);
  CHECK_INT(stats.n_slots, 0);
  CHECK_FAILS(kvc_session_step(session, &token), KVC_E_INVALID, "before any prompt");
  CHECK_FAILS(kvc_session_reset(NULL), KVC_E_INVALID, "session is NULL");
  CHECK_OK(kvc_session_cancel(session)); /* withdrawn: nothing happens */
  CHECK_OK(kvc_session_clear_cancel(session));
  CHECK_FAILS(kvc_session_clear_cancel(NULL), KVC_E_INVALID, "session is NULL");
  CHECK_FAILS(kvc_session_cancel(NULL), KVC_E_INVALID, "session is NULL");
  CHECK_OK(kvc_session_prefill(session, tokens, 10));
  CHECK_OK(kvc_session_step(session, &token));
  kvc_session_close(session);
  kvc_session_close(whole);
}

static void on_full(kvc_model* model) {
  int32_t how;
  for (how = KVC_ON_FULL_EVICT; how <= KVC_ON_FULL_SLIDE; ++how) {
    kvc_session_params params = {sizeof params, 64, 0, 0, 0, 0, 0};
    kvc_session* session = NULL;
    SIZED(kvc_session_stats, stats);
    int32_t tokens[64], token, n = 0, i, positions[65];
    params.on_full = how;
    fill_tokens(tokens, 64, 7);
    CHECK_OK(kvc_session_create(model, NULL, &params, &session));
    CHECK_OK(kvc_session_prefill(session, tokens, 60));
    for (i = 0; i < 200; ++i) CHECK_OK(kvc_session_step(session, &token));
    CHECK_OK(kvc_session_get_stats(session, &stats));
    CHECK_INT(stats.n_answer, 200);
    CHECK_INT(stats.n_slots, 4 * 64);
    CHECK_OK(kvc_session_get_kept(session, 0, 0, positions, 65, &n));
    for (i = 0; i < 4; ++i) CHECK_INT(positions[i], i); /* the first stay */
    kvc_session_close(session);
  }
}

/* Budgets at and above the prompt keep everything and compute the same. */
static void large_budgets(kvc_model* model) {
  static const char* const specs[] = {"snapkv:budget=50,window=8,kv=f32", "h2o:budget=5000,kv=f32",
                                      "cokv:budget=200,window=8,kv=f32", "streaming:budget=51,kv=f32",
                                      "ada-snapkv:budget_ratio=1,window=8,kv=f32"};
  kvc_session* full = fed_session(model, "full:kv=f32", 50);
  float expected[FIXTURE_VOCAB], logits[FIXTURE_VOCAB];
  int32_t n = 0;
  size_t i;
  CHECK_OK(kvc_session_get_logits(full, expected, FIXTURE_VOCAB, &n));
  for (i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
    kvc_session* session = fed_session(model, specs[i], 50);
    CHECK_OK(kvc_session_get_kept(session, 0, 0, NULL, 0, &n));
    CHECK_INT(n, 50);
    CHECK_OK(kvc_session_get_logits(session, logits, FIXTURE_VOCAB, &n));
    CHECK(memcmp(logits, expected, sizeof logits) == 0);
    kvc_session_close(session);
  }
  kvc_session_close(full);
}

static void stop_token(void) {
  kvc_model* model = open_model(TEST_MODEL_STOPPING);
  kvc_session* session = fed_session(model, NULL, 30);
  int32_t token = 0, n = 0, m = 0, i, more[3] = {1, 2, 3};
  for (i = 0; i < 500 && token != KVC_TOKEN_NONE; ++i) CHECK_OK(kvc_session_step(session, &token));
  CHECK_INT(token, KVC_TOKEN_NONE);
  CHECK_OK(kvc_session_read_text(session, NULL, 0, &n));
  CHECK_OK(kvc_session_step(session, &token)); /* again and again */
  CHECK_INT(token, KVC_TOKEN_NONE);
  CHECK_OK(kvc_session_read_text(session, NULL, 0, &m));
  CHECK_INT(m, n);
  CHECK_OK(kvc_session_prefill(session, more, 3)); /* the next turn */
  CHECK_OK(kvc_session_step(session, &token));
  kvc_session_close(session);
  kvc_model_close(model);
}

static void closing_order(void) {
  kvc_model* model = open_model(TEST_MODEL_TINY);
  kvc_session *a = fed_session(model, "h2o:budget=32", 100), *b = fed_session(model, NULL, 20), *fork = NULL;
  int32_t token = 0, i;
  CHECK_OK(kvc_session_fork(a, &fork));
  kvc_model_close(model);
  kvc_session_close(a);
  for (i = 0; i < 20; ++i) CHECK_OK(kvc_session_step(fork, &token));
  kvc_session_close(fork);
  CHECK_OK(kvc_session_step(b, &token));
  kvc_session_close(b);
}

int main(void) {
  kvc_model* model = open_model(TEST_MODEL_TINY);
  create(model);
  bad_prompts(model);
  stats_and_kept(model);
  steps_and_logits(model);
  text(model);
  compress_trim_reset(model);
  on_full(model);
  large_budgets(model);
  kvc_model_close(model);
  stop_token();
  closing_order();
  return CHECK_END();
}
