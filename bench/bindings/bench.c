/* Nanoseconds of a call that does nothing, and of a step: bench STORIES.kvc */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>

#include "kvc/kvc.h"

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char** argv) {
  kvc_model* model = NULL;
  kvc_session* session = NULL;
  int32_t tokens[32], n_tokens = 0, token = 0;
  double share = 0, call = 1e9, step = 1e9, start = Now();
  if (argc < 2 || kvc_model_open(argv[1], NULL, NULL, &model) != KVC_OK) return 1;
  const double open = (Now() - start) / 1e6;
  if (kvc_session_create(model, NULL, NULL, &session) != KVC_OK) return 1;
  if (kvc_tokenize(model, (const uint8_t*)"Once upon a time", 16, KVC_ADD_BOS, tokens, 32, &n_tokens) !=
      KVC_OK)
    return 1;
  for (int round = 0; round < 20; ++round) {
    start = Now();
    for (int i = 0; i < 20000; ++i) kvc_session_get_progress(session, &share);
    const double each_call = (Now() - start) / 20000;
    kvc_session_reset(session);
    kvc_session_prefill(session, tokens, n_tokens);
    start = Now();
    for (int i = 0; i < 200; ++i) kvc_session_step(session, &token);
    const double each_step = (Now() - start) / 200;
    if (each_call < call) call = each_call;
    if (each_step < step) step = each_step;
  }
  printf("%.0f %.0f %.1f\n", call, step, open);
  kvc_session_close(session);
  kvc_model_close(model);
  return 0;
}
