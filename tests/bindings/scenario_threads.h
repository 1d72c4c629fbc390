/* What the generated scenario in C calls: steps of a session, and threads with a session each. */
#ifndef KVC_TESTS_BINDINGS_SCENARIO_THREADS_H
#define KVC_TESTS_BINDINGS_SCENARIO_THREADS_H
#include <pthread.h>
#include <string.h>

#include "kvc/kvc.h"

enum { SCENARIO_STEPS = 64, SCENARIO_THREADS = 16 };

/* Up to n tokens; KVC_TOKEN_NONE is the last one. */
static kvc_status scenario_steps(kvc_session* session, int32_t n, int32_t* tokens, int32_t* n_out) {
  kvc_status status = KVC_OK;
  for (*n_out = 0; *n_out < n && status == KVC_OK; ++*n_out) {
    status = kvc_session_step(session, &tokens[*n_out]);
    if (status == KVC_OK && tokens[*n_out] == KVC_TOKEN_NONE) n = *n_out;
  }
  return status;
}

typedef struct scenario_thread {
  pthread_t thread;
  kvc_model* model;
  kvc_policy* policy;
  const int32_t* prompt;
  int32_t n_prompt, n_steps, n_tokens;
  int32_t tokens[SCENARIO_STEPS];
  kvc_status status;
} scenario_thread;

static void* scenario_answer(void* argument) {
  scenario_thread* t = argument;
  kvc_session* session = NULL;
  t->status = kvc_session_create(t->model, t->policy, NULL, &session);
  if (t->status == KVC_OK) t->status = kvc_session_prefill(session, t->prompt, t->n_prompt);
  if (t->status == KVC_OK) t->status = scenario_steps(session, t->n_steps, t->tokens, &t->n_tokens);
  kvc_session_close(session);
  return NULL;
}

/* n threads at once; KVC_E_INTERNAL when two answers differ. */
static kvc_status scenario_threads(kvc_model* model, kvc_policy* policy, const int32_t* prompt,
                                   int32_t n_prompt, int32_t n, int32_t n_steps, int32_t* tokens,
                                   int32_t* n_out) {
  static scenario_thread threads[SCENARIO_THREADS];
  kvc_status status = KVC_OK;
  int32_t i;
  if (n > SCENARIO_THREADS || n_steps > SCENARIO_STEPS) return KVC_E_UNSUPPORTED;
  for (i = 0; i < n; ++i) {
    scenario_thread* t = &threads[i];
    t->model = model, t->policy = policy, t->prompt = prompt, t->n_prompt = n_prompt, t->n_steps = n_steps;
    if (pthread_create(&t->thread, NULL, scenario_answer, t) != 0) return KVC_E_MEMORY;
  }
  for (i = 0; i < n; ++i) {
    pthread_join(threads[i].thread, NULL);
    if (threads[i].status != KVC_OK) status = threads[i].status;
  }
  *n_out = threads[0].n_tokens;
  memcpy(tokens, threads[0].tokens, sizeof threads[0].tokens);
  for (i = 1; i < n && status == KVC_OK; ++i) {
    const size_t bytes = (size_t)*n_out * sizeof *tokens;
    if (threads[i].n_tokens != *n_out || memcmp(threads[i].tokens, tokens, bytes) != 0)
      status = KVC_E_INTERNAL;
  }
  return status;
}

static long scenario_sum(const int32_t* numbers, int32_t n) {
  long sum = 0;
  while (n-- > 0) sum += numbers[n];
  return sum;
}

#endif
