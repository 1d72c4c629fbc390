/* Opens a model once, then eight times more, and prints by how many bytes the anonymous memory of the process
 * grew over the eight, and the bytes of the weights: opening_test.py. Usage: opening_c MODEL */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvc/kvc.h"

enum { AGAIN = 8 };

static void must(kvc_status status) {
  if (status == KVC_OK) return;
  fprintf(stderr, "%s (%s)\n", kvc_last_error(), kvc_status_name(status));
  exit(1);
}

static int64_t anonymous_bytes(void) {
  char line[256];
  int64_t kibibytes = -1;
  FILE* file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "RssAnon: %" SCNd64, &kibibytes) == 1) break;
  }
  if (!file || kibibytes < 0) exit(1);
  fclose(file);
  return kibibytes * 1024;
}

int main(int argc, char** argv) {
  kvc_model* models[1 + AGAIN];
  kvc_model_info info = {0};
  int64_t before = 0;
  if (argc != 2) return 2;
  info.struct_size = sizeof info;
  for (int i = 0; i <= AGAIN; ++i) {
    must(kvc_model_open(argv[1], NULL, NULL, &models[i]));
    if (i == 0) before = anonymous_bytes();
  }
  must(kvc_model_get_info(models[0], &info));
  printf("%" PRId64 " %" PRId64 "\n", anonymous_bytes() - before, info.weight_bytes);
  for (int i = 0; i <= AGAIN; ++i) kvc_model_close(models[i]);
  return 0;
}
