/* 10,000 sessions opened, fed, stepped and closed, and 200 models: over the second half of them the memory of
 * the process stays where it was, and what is allocated, where malloc's threads keep nothing
 * (kvc_counts_memory). Usage: endurance_c MODEL_OF_SESSIONS OTHER_MODEL */
#include <malloc.h>
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

static long long allocated_bytes(void) {
  const struct mallinfo2 info = mallinfo2();
  return (long long)(info.uordblks + info.hblkhd);
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
  long long resident, allocated;
  if (argc != 3) return 2;
  must(kvc_model_open(argv[1], NULL, NULL, &model));
  must(kvc_policy_create("snapkv:budget=16,window=4", &policy));
  part(model, policy, argv[2], SESSIONS / 2, MODELS / 2); /* what the allocator keeps has come by then */
  resident = resident_bytes();
  allocated = allocated_bytes();
  part(model, policy, argv[2], SESSIONS / 2, MODELS / 2);
  resident = resident_bytes() - resident;
  allocated = allocated_bytes() - allocated;
  printf("grown by %lld KiB, %lld bytes of them allocated, in %d sessions and %d models\n", resident / 1024,
         allocated, SESSIONS / 2, MODELS / 2);
  kvc_policy_close(policy);
  kvc_model_close(model);
  /* A leak of one byte a session, or of 41 a model, is more than that. */
  return resident < 1 << 20 && allocated < 4 << 10 ? 0 : 1;
}
