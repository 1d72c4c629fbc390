/* 10,000 sessions opened, fed, stepped and closed, and 200 models: the memory of the process stays where it
 * was. Usage: endurance_c MODEL_OF_SESSIONS OTHER_MODEL */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kvc/kvc.h"

enum { SESSIONS = 10000, MODELS = 200 };

static void must(kvc_status status) {
  if (status == KVC_OK) return;
  fprintf(stderr, "%s (%s)\n", kvc_last_error(), kvc_status_name(status));
  exit(1);
}

static long long resident_bytes(void) {
  long long size = 0, resident = -1;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%lld %lld", &size, &resident) != 2) exit(1);
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

static void cycle(kvc_model* model, const kvc_policy* policy, const int32_t* tokens, int32_t n) {
  kvc_session* session = NULL;
  int32_t token = 0, n_text = 0;
  uint8_t text[64];
  must(kvc_session_create(model, policy, NULL, &session));
  must(kvc_session_prefill(session, tokens, n));
  must(kvc_session_step(session, &token));
  must(kvc_session_read_text(session, text, sizeof text, &n_text));
  kvc_session_close(session);
}

static void part(kvc_model* model, const kvc_policy* policy, const char* other, int sessions, int models) {
  static const char prompt[] = "Once upon a time there was a little dog";
  int32_t tokens[64], n = 0;
  must(kvc_tokenize(model, (const uint8_t*)prompt, sizeof prompt - 1, KVC_ADD_BOS, tokens, 64, &n));
  for (int i = 0; i < sessions; ++i) cycle(model, policy, tokens, n);
  for (int i = 0; i < models; ++i) {
    kvc_model* opened = NULL;
    must(kvc_model_open(other, NULL, NULL, &opened));
    kvc_model_close(opened);
  }
}

int main(int argc, char** argv) {
  kvc_model* model = NULL;
  kvc_policy* policy = NULL;
  long long early, grown;
  if (argc != 3) return 2;
  must(kvc_model_open(argv[1], NULL, NULL, &model));
  must(kvc_policy_create("snapkv:budget=16,window=4", &policy));
  part(model, policy, argv[2], SESSIONS / 5, MODELS / 5); /* what the allocator keeps has come by then */
  early = resident_bytes();
  part(model, policy, argv[2], SESSIONS * 4 / 5, MODELS * 4 / 5);
  grown = resident_bytes() - early;
  printf("grown by %lld KiB in %d sessions and %d models\n", grown / 1024, SESSIONS * 4 / 5, MODELS * 4 / 5);
  kvc_policy_close(policy);
  kvc_model_close(model);
  /* A leak of 150 bytes a session, or of 7 KiB a model, is more than that. */
  return grown < 1 << 20 ? 0 : 1;
}
