/* Policies of kvc.h: the table of methods, specs, head scores and tables of the caller. */
#include <math.h>

#include "tests/api/check.h"
#include "tests/api/fixture.h"

static void methods(void) {
  int32_t i, n = 0, count = kvc_method_count();
  char json[8192];
  CHECK(count >= 6);
  for (i = 0; i < count; ++i) {
    const char* name = kvc_method_name(i);
    if (!CHECK(name != NULL)) continue;
    CHECK_OK(kvc_method_describe(i, NULL, 0, &n));
    CHECK(n > 0 && n < (int32_t)sizeof json);
    CHECK_FAILS(kvc_method_describe(i, json, n - 1, &n), KVC_E_BUFFER_TOO_SMALL, "");
    CHECK_OK(kvc_method_describe(i, json, sizeof json - 1, &n));
    json[n] = 0;
    CHECK(strstr(json, name) != NULL);
  }
  CHECK(kvc_method_name(-1) == NULL);
  CHECK(kvc_method_name(count) == NULL);
  CHECK_FAILS(kvc_method_describe(-1, NULL, 0, &n), KVC_E_NOT_FOUND, "method -1");
  CHECK_FAILS(kvc_method_describe(count, NULL, 0, &n), KVC_E_NOT_FOUND, "there are");
  CHECK_FAILS(kvc_method_describe(0, NULL, 0, NULL), KVC_E_INVALID, "n_out is NULL");
}

static void specs(void) {
  static const struct {
    const char* spec;
    kvc_status status;
    const char* words;
  } bad[] = {
      {"", KVC_E_INVALID, "empty"},
      {"snapvk:budget=128", KVC_E_NOT_FOUND, "snapkv"},
      {"snapkv", KVC_E_INVALID, "budget"},
      {"snapkv:budget=0", KVC_E_INVALID, "budget"},
      {"snapkv:budget=-5", KVC_E_INVALID, "budget"},
      {"snapkv:budget=1", KVC_E_INVALID, "newest 32"},
      {"snapkv:budget=16,window=32", KVC_E_INVALID, "newest 32"},
      {"snapkv:budget=128,budget_ratio=0.5", KVC_E_INVALID, "budget"},
      {"snapkv:budget=128,windw=8", KVC_E_INVALID, "window"},
      {"snapkv:budget=128,window=0", KVC_E_INVALID, "window"},
      {"snapkv:budget=128,window=99999", KVC_E_INVALID, "4096"},
      {"snapkv:budget=128,window=eight", KVC_E_INVALID, "window"},
      {"snapkv:budget=128,kernel=8", KVC_E_INVALID, "kernel"},
      {"snapkv:budget=128,pool=median", KVC_E_INVALID, "max"},
      {"snapkv:budget=128,window=8,window=9", KVC_E_INVALID, "window"},
      {"snapkv:budget_ratio=1.5", KVC_E_INVALID, "budget_ratio"},
      {"snapkv:budget_ratio=nan", KVC_E_INVALID, "budget_ratio"},
      {"snapkv:budget_bytes=1XiB", KVC_E_INVALID, "budget_bytes"},
      {"snapkv:budget=99999999999999999999", KVC_E_INVALID, "budget"},
      {"snapkv:", KVC_E_INVALID, ""},
      {"snapkv:,", KVC_E_INVALID, ""},
      {"snapkv:budget", KVC_E_INVALID, "budget"},
      {"full:budget=128", KVC_E_INVALID, "budget"},
  };
  kvc_policy* policy = NULL;
  size_t i;
  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    policy = (kvc_policy*)&i;
    check_status(kvc_policy_create(bad[i].spec, &policy), bad[i].status, bad[i].words, bad[i].spec, __FILE__,
                 __LINE__);
    CHECK(policy == NULL);
  }
  CHECK_FAILS(kvc_policy_create(NULL, &policy), KVC_E_INVALID, "spec is NULL");
  CHECK_FAILS(kvc_policy_create("full", NULL), KVC_E_INVALID, "out_policy is NULL");
  kvc_policy_close(NULL);
}

/* describe -> create -> describe gives the same text. */
static void round_trip(const char* spec) {
  char first[2048], second[2048];
  int32_t n = 0, m = 0;
  kvc_policy* policy = NULL;
  CHECK_OK(kvc_policy_create(spec, &policy));
  CHECK_OK(kvc_policy_describe(policy, NULL, 0, &n));
  CHECK_FAILS(kvc_policy_describe(policy, first, n - 1, &m), KVC_E_BUFFER_TOO_SMALL, "");
  CHECK_INT(m, n);
  CHECK_OK(kvc_policy_describe(policy, first, sizeof first - 1, &n));
  kvc_policy_close(policy);
  first[n] = 0;
  CHECK_OK(kvc_policy_create(first, &policy));
  CHECK_OK(kvc_policy_describe(policy, second, sizeof second - 1, &m));
  second[m] = 0;
  CHECK(strcmp(first, second) == 0);
  kvc_policy_close(policy);
}

static void head_scores(void) {
  const float good[] = {0.5f, 0.25f, -1.0f, 0.0f}, wide[] = {1, 2, 3, 4, 5, 6, 7, 8}, three[] = {1, 2, 3};
  float bad[] = {0.5f, 0.25f, 0, 0};
  const char* const mixed[] = {"cokv-mixed:quant_group=16", "full:kv=mixed,quant_group=16",
                               "snapkv:budget=32,window=8,kv=mixed,quant_group=16"};
  int32_t tokens[200], n = 0, positions[200], i;
  kvc_policy* policy = NULL;
  kvc_session *session = NULL, *other = NULL;
  kvc_model* model = open_model(TEST_MODEL_UNSCORED);
  CHECK_OK(kvc_policy_create("cokv:budget=32,window=8", &policy));
  CHECK_FAILS(kvc_session_create(model, policy, NULL, &session), KVC_E_NOT_FOUND, "head scores");
  CHECK(session == NULL);
  bad[2] = (float)NAN;
  CHECK_FAILS(kvc_policy_set_head_scores(policy, bad, 4), KVC_E_INVALID, "score 2");
  bad[2] = (float)INFINITY;
  CHECK_FAILS(kvc_policy_set_head_scores(policy, bad, 4), KVC_E_INVALID, "score 2");
  CHECK_FAILS(kvc_policy_set_head_scores(policy, NULL, 4), KVC_E_INVALID, "scores is NULL");
  CHECK_FAILS(kvc_policy_set_head_scores(NULL, good, 4), KVC_E_INVALID, "policy is NULL");
  CHECK_FAILS(kvc_policy_set_head_scores(policy, good, 0), KVC_E_INVALID, "n_scores is 0");
  CHECK_FAILS(kvc_policy_set_head_scores(policy, good, -4), KVC_E_INVALID, "n_scores is -4");
  CHECK_OK(kvc_policy_set_head_scores(policy, three, 3));
  CHECK_FAILS(kvc_session_create(model, policy, NULL, &session), KVC_E_INVALID, "3 numbers");
  CHECK_OK(kvc_policy_set_head_scores(policy, wide, 8)); /* one a query head is for headkv */
  CHECK_FAILS(kvc_session_create(model, policy, NULL, &session), KVC_E_INVALID, "the table has 8");
  CHECK_OK(kvc_policy_set_head_scores(policy, good, 4));
  CHECK_OK(kvc_session_create(model, policy, NULL, &session));
  kvc_policy_close(policy); /* the session has a copy */
  for (i = 0; i < 3; ++i) { /* which heads are stored in more bits, their scores say alone */
    CHECK_OK(kvc_policy_create(mixed[i], &policy));
    CHECK_FAILS(kvc_session_create(model, policy, NULL, &other), KVC_E_NOT_FOUND,
                i < 2 ? "needs head scores" : "kv=mixed needs head scores");
    CHECK_OK(kvc_policy_set_head_scores(policy, three, 3));
    CHECK_FAILS(kvc_session_create(model, policy, NULL, &other), KVC_E_INVALID, "3 numbers");
    CHECK_OK(kvc_policy_set_head_scores(policy, good, 4));
    CHECK_OK(kvc_session_create(model, policy, NULL, &other));
    kvc_session_close(other);
    kvc_policy_close(policy);
  }
  kvc_model_close(model); /* the session keeps it */
  fill_tokens(tokens, 200, 1);
  CHECK_OK(kvc_session_prefill(session, tokens, 200));
  CHECK_OK(kvc_session_get_kept(session, 0, 0, positions, 200, &n));
  CHECK(n > 32 && n < 200); /* the best head has more than the average */
  kvc_session_close(session);
}

static void tables(void) {
  const int32_t slots[] = {20, 30, 40, 50}, zero[] = {20, 0, 40, 50};
  int32_t tokens[200], n = 0, i;
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  kvc_model* model = open_model(TEST_MODEL_TINY);
  CHECK_OK(kvc_policy_create("table:window=8", &policy));
  CHECK_FAILS(kvc_session_create(model, policy, NULL, &session), KVC_E_INVALID, "slots");
  CHECK_FAILS(kvc_policy_set_table(policy, zero, 4), KVC_E_INVALID, "slots 1 is 0");
  CHECK_FAILS(kvc_policy_set_table(policy, NULL, 4), KVC_E_INVALID, "slots is NULL");
  CHECK_FAILS(kvc_policy_set_table(NULL, slots, 4), KVC_E_INVALID, "policy is NULL");
  CHECK_FAILS(kvc_policy_set_table(policy, slots, -1), KVC_E_INVALID, "n_slots is -1");
  CHECK_OK(kvc_policy_set_table(policy, slots, 3));
  CHECK_FAILS(kvc_session_create(model, policy, NULL, &session), KVC_E_INVALID, "it got 3");
  CHECK_OK(kvc_policy_set_table(policy, slots, 4));
  CHECK_OK(kvc_session_create(model, policy, NULL, &session));
  fill_tokens(tokens, 200, 1);
  CHECK_OK(kvc_session_prefill(session, tokens, 200));
  for (i = 0; i < 4; ++i) {
    CHECK_OK(kvc_session_get_kept(session, i / 2, i % 2, NULL, 0, &n));
    CHECK_INT(n, slots[i]);
  }
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
}

/* The size of groups matters only where something has codes: here the head size is 16. */
static void groups(void) {
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  kvc_model* model = open_model(TEST_MODEL_TINY);
  CHECK_OK(kvc_policy_create("cokv-mixed", &policy));
  CHECK_FAILS(kvc_session_create(model, policy, NULL, &session), KVC_E_INVALID,
              "quant_group=32 does not divide");
  kvc_policy_close(policy);
  CHECK_OK(kvc_policy_create("cokv-mixed:bits_levels=16:1", &policy));
  CHECK_OK(kvc_session_create(model, policy, NULL, &session));
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
}

int main(void) {
  methods();
  specs();
  round_trip("full");
  round_trip("full:kv=int4,quant_group=16");
  round_trip("streaming:budget=64,n_sink=2");
  round_trip("snapkv:budget=128,window=8,kernel=5,pool=avg");
  round_trip("ada-snapkv:budget_ratio=0.05");
  round_trip("cokv:budget_bytes=64MiB,window=8");
  round_trip("h2o:budget=64,kv=int8,quant_group=16,residual=8");
  round_trip("cokv-mixed:budget=64,high_bits=16,low_bits=16");
  head_scores();
  tables();
  groups();
  return CHECK_END();
}
