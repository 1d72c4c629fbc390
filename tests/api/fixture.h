/* Models, sessions and prompts that the C tests share. */
#ifndef KVC_TESTS_API_FIXTURE_H
#define KVC_TESTS_API_FIXTURE_H
#include <stdlib.h>

#include "kvc/kvc.h"
#include "tests/support/c_support.h"

/* A zeroed struct that says its size. */
#define SIZED(type, name) \
  type name;              \
  kvc_params_init(&name, (int32_t)sizeof name)

enum { FIXTURE_LAYERS = 2, FIXTURE_KV_HEADS = 2, FIXTURE_VOCAB = 262, FIXTURE_BOS = 256 };

static inline kvc_model* open_model(int32_t which) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(which, &n);
  kvc_model_params params = {sizeof params, 1, 0, NULL, 0, 0};
  kvc_model* model = NULL;
  if (kvc_model_open_memory(bytes, n, NULL, &params, &model) != KVC_OK) abort();
  return model;
}

/* spec NULL: keep everything. max_tokens 0: the model's context. */
static inline kvc_session* new_session(kvc_model* model, const char* spec, int32_t max_tokens) {
  kvc_session_params params = {sizeof params, 0, 0, 0, 0, 0, 0};
  kvc_policy* policy = NULL;
  kvc_session* session = NULL;
  params.max_tokens = max_tokens;
  if (spec != NULL && kvc_policy_create(spec, &policy) != KVC_OK) abort();
  if (kvc_session_create(model, policy, &params, &session) != KVC_OK) abort();
  kvc_policy_close(policy);
  return session;
}

/* n bytes as tokens, the same for the same seed. */
static inline void fill_tokens(int32_t* tokens, int32_t n, uint32_t seed) {
  int32_t i;
  for (i = 0; i < n; ++i) tokens[i] = (int32_t)(((uint32_t)i * 2654435761u + seed * 40503u) >> 7) & 0xff;
}

static inline kvc_session* fed_session(kvc_model* model, const char* spec, int32_t n) {
  int32_t tokens[1024];
  kvc_session* session = new_session(model, spec, 0);
  fill_tokens(tokens, n, 7);
  if (kvc_session_prefill(session, tokens, n) != KVC_OK) abort();
  return session;
}

#endif
