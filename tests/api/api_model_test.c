/* Versions, errors, models and text of kvc.h: each call once right and once wrong. */
#include <fcntl.h>

#include "tests/api/check.h"
#include "tests/api/fixture.h"

static void names_and_versions(void) {
  int32_t status;
  CHECK_INT(kvc_version(), KVC_VERSION);
  CHECK(kvc_schema_version() >= 1);
  CHECK(strcmp(kvc_status_name(KVC_OK), "OK") == 0);
  CHECK(strcmp(kvc_status_name(KVC_E_CONTEXT_FULL), "CONTEXT_FULL") == 0);
  CHECK(strcmp(kvc_status_name(12345), "UNKNOWN") == 0);
  for (status = -200; status < 10; ++status) CHECK(kvc_status_name(status) != NULL);
  CHECK(kvc_last_error() != NULL);
}

static void open_memory(void) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  kvc_model* model = NULL;
  CHECK_OK(kvc_model_open_memory(bytes, n, NULL, NULL, &model));
  kvc_model_close(model);
  CHECK_OK(kvc_model_open_memory(bytes, n, "auto", NULL, &model));
  kvc_model_close(model);
  CHECK_OK(kvc_model_open_memory(bytes, n, "cpu", NULL, &model));
  kvc_model_close(model);
  kvc_model_close(NULL);

  model = (kvc_model*)&n; /* a failure must set it to NULL */
  CHECK_FAILS(kvc_model_open_memory(NULL, n, NULL, NULL, &model), KVC_E_INVALID, "data is NULL");
  CHECK(model == NULL);
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, NULL, NULL), KVC_E_INVALID, "out_model is NULL");
  CHECK_FAILS(kvc_model_open_memory(bytes, -1, NULL, NULL, &model), KVC_E_INVALID, "negative");
  CHECK_FAILS(kvc_model_open_memory(bytes + 1, n - 1, NULL, NULL, &model), KVC_E_INVALID, "aligned");
  CHECK_FAILS(kvc_model_open_memory(bytes, 0, NULL, NULL, &model), KVC_E_BAD_MODEL, "truncated");
  CHECK_FAILS(kvc_model_open_memory(bytes, n / 2, NULL, NULL, &model), KVC_E_BAD_MODEL, "truncated");
  CHECK_FAILS(kvc_model_open_memory(bytes, n, "cuda:0", NULL, &model), KVC_E_UNSUPPORTED, "cuda:0");
  CHECK_FAILS(kvc_model_open_memory(bytes, n, "quantum", NULL, &model), KVC_E_INVALID, "quantum");
  CHECK(model == NULL);
}

static void model_params(void) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  kvc_model* model = NULL;
  kvc_model_params params = {sizeof params, 1, 0, NULL, 0, 0};
  struct {
    kvc_model_params known;
    int64_t later;
  } newer = {{0, 1, 0, NULL, 0, 0}, 0};

  params.struct_size = 0;
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &params, &model), KVC_E_INVALID, "struct_size is 0");
  params.struct_size = 4;
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &params, &model), KVC_E_INVALID, "struct_size is 4");
  params.struct_size = -8;
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &params, &model), KVC_E_INVALID, "struct_size");
  params.struct_size = 8; /* an older caller without memory_limit */
  params.memory_limit = 1;
  CHECK_OK(kvc_model_open_memory(bytes, n, NULL, &params, &model));
  kvc_model_close(model);
  params.struct_size = sizeof params;
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &params, &model), KVC_E_MEMORY, "limit");
  params.memory_limit = -1;
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &params, &model), KVC_E_INVALID, "memory_limit");
  params.memory_limit = 0;
  params.n_threads = -1;
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &params, &model), KVC_E_INVALID, "n_threads is -1");
  params.n_threads = 100000;
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &params, &model), KVC_E_INVALID, "n_threads is 100000");

  newer.known.struct_size = sizeof newer;
  CHECK_OK(kvc_model_open_memory(bytes, n, NULL, &newer.known, &model));
  kvc_model_close(model);
  newer.later = (int64_t)1 << 56; /* the last byte alone */
  CHECK_FAILS(kvc_model_open_memory(bytes, n, NULL, &newer.known, &model), KVC_E_INVALID, "does not know");
}

static void open_files(void) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_TINY, &n);
  kvc_model* model = NULL;
  char path[1024];
  FILE* file;
  int fd;
  snprintf(path, sizeof path, "%s", test_path("asset.bin"));
  file = fopen(path, "wb");
  if (!CHECK(file != NULL)) return;
  CHECK_INT(fwrite("some other asset", 1, 16, file), 16); /* an offset that is no multiple of 64 */
  CHECK_INT(fwrite(bytes, 1, (size_t)n, file), n);
  CHECK_INT(fwrite("behind it", 1, 9, file), 9);
  CHECK_INT(fclose(file), 0);

  fd = open(path, O_RDONLY);
  CHECK(fd >= 0);
  CHECK_OK(kvc_model_open_fd(fd, 16, n, NULL, NULL, &model));
  kvc_model_close(model);
  CHECK_FAILS(kvc_model_open_fd(fd, 0, 0, NULL, NULL, &model), KVC_E_BAD_MODEL, "");
  CHECK_FAILS(kvc_model_open_fd(fd, 16, n - 1, NULL, NULL, &model), KVC_E_BAD_MODEL, "truncated");
  CHECK_FAILS(kvc_model_open_fd(fd, 16, n + 1000, NULL, NULL, &model), KVC_E_IO, "outside the file");
  CHECK_FAILS(kvc_model_open_fd(fd, -1, n, NULL, NULL, &model), KVC_E_INVALID, "negative");
  CHECK_FAILS(kvc_model_open_fd(fd, INT64_MAX, INT64_MAX, NULL, NULL, &model), KVC_E_IO, "outside the file");
  CHECK_FAILS(kvc_model_open_fd(-1, 0, 0, NULL, NULL, &model), KVC_E_INVALID, "negative");
  CHECK_FAILS(kvc_model_open_fd(987654, 0, 0, NULL, NULL, &model), KVC_E_IO, "");

  CHECK_FAILS(kvc_model_open(path, NULL, NULL, &model), KVC_E_BAD_MODEL, "asset.bin");
  CHECK_FAILS(kvc_model_open(NULL, NULL, NULL, &model), KVC_E_INVALID, "path is NULL");
  CHECK_FAILS(kvc_model_open("", NULL, NULL, &model), KVC_E_IO, "");
  CHECK_FAILS(kvc_model_open("/no/such/model.kvc", NULL, NULL, &model), KVC_E_IO, "/no/such/model.kvc");
  CHECK_FAILS(kvc_model_open("/", NULL, NULL, &model), KVC_E_IO, "directory");
  snprintf(path, sizeof path, "%s", test_path("model.kvc"));
  file = fopen(path, "wb");
  if (!CHECK(file != NULL)) return;
  CHECK_INT(fwrite(bytes, 1, (size_t)n, file), n);
  CHECK_INT(fclose(file), 0);
  CHECK_OK(kvc_model_open(path, NULL, NULL, &model));
  kvc_model_close(model);
}

static void info(const kvc_model* model) {
  kvc_model_info all = {0}, part = {0};
  CHECK_FAILS(kvc_model_get_info(model, &all), KVC_E_INVALID, "struct_size is 0");
  all.struct_size = sizeof all;
  CHECK_OK(kvc_model_get_info(model, &all));
  CHECK_INT(all.struct_size, sizeof all);
  CHECK_INT(all.n_layers, FIXTURE_LAYERS);
  CHECK_INT(all.n_heads, 4);
  CHECK_INT(all.n_kv_heads, FIXTURE_KV_HEADS);
  CHECK_INT(all.head_dim, 16);
  CHECK_INT(all.vocab_size, FIXTURE_VOCAB);
  CHECK_INT(all.max_tokens, 4096);
  CHECK_INT(all.bos_token, FIXTURE_BOS);
  CHECK_INT(all.n_head_scores, 1);
  CHECK(all.weight_bytes > all.n_parameters);

  part.n_layers = 77;
  part.struct_size = 8; /* room for struct_size and n_layers */
  part.n_heads = 55;
  CHECK_OK(kvc_model_get_info(model, &part));
  CHECK_INT(part.n_layers, FIXTURE_LAYERS);
  CHECK_INT(part.n_heads, 55);
  CHECK_FAILS(kvc_model_get_info(NULL, &all), KVC_E_INVALID, "model is NULL");
  CHECK_FAILS(kvc_model_get_info(model, NULL), KVC_E_INVALID, "out_info is NULL");
}

static void describe(const kvc_model* model) {
  char small[8] = "unread", *json;
  int32_t n = -1, again = -1;
  CHECK_OK(kvc_model_describe(model, NULL, 0, &n));
  CHECK(n > 100);
  CHECK_FAILS(kvc_model_describe(model, small, sizeof small, &again), KVC_E_BUFFER_TOO_SMALL, "room for 8");
  CHECK_INT(again, n);
  CHECK(strcmp(small, "unread") == 0);
  json = malloc((size_t)n + 1);
  json[n] = 'x';
  CHECK_FAILS(kvc_model_describe(model, json, n - 1, &again), KVC_E_BUFFER_TOO_SMALL, "");
  CHECK_OK(kvc_model_describe(model, json, n, &again));
  CHECK_INT(json[n], 'x');
  json[n] = 0;
  CHECK(json[0] == '{' && strstr(json, "tiny-ssv") != NULL);
  free(json);
  CHECK_FAILS(kvc_model_describe(NULL, NULL, 0, &n), KVC_E_INVALID, "model is NULL");
  CHECK_FAILS(kvc_model_describe(model, NULL, 10, &n), KVC_E_INVALID, "no buffer");
  CHECK_FAILS(kvc_model_describe(model, small, -1, &n), KVC_E_INVALID, "capacity of -1");
  CHECK_FAILS(kvc_model_describe(model, small, 8, NULL), KVC_E_INVALID, "n_out is NULL");
}

static void head_scores(const kvc_model* model) {
  float scores[4] = {-1, -1, -1, -1};
  int32_t n = -1, i;
  CHECK_OK(kvc_model_get_head_scores(model, 0, NULL, 0, &n));
  CHECK_INT(n, 4);
  CHECK_OK(kvc_model_get_head_scores(model, 0, scores, 4, &n));
  for (i = 0; i < 4; ++i) CHECK(scores[i] >= 0 && scores[i] < 1);
  CHECK_FAILS(kvc_model_get_head_scores(model, 0, scores, 3, &n), KVC_E_BUFFER_TOO_SMALL,
              "4 elements, room for 3");
  CHECK_FAILS(kvc_model_get_head_scores(model, 1, scores, 4, &n), KVC_E_NOT_FOUND, "the file has 1");
  CHECK_FAILS(kvc_model_get_head_scores(model, -1, scores, 4, &n), KVC_E_NOT_FOUND, "-1");
  CHECK_FAILS(kvc_model_get_head_scores(NULL, 0, scores, 4, &n), KVC_E_INVALID, "model is NULL");
}

static void tokens_and_text(const kvc_model* model) {
  const uint8_t text[] = "h\xC3\xA9!<eos>";
  const int32_t bad[] = {104, 999}, negative[] = {-1};
  int32_t tokens[32], n = -1;
  uint8_t back[32];
  CHECK_OK(kvc_tokenize(model, text, 9, KVC_ADD_BOS, tokens, 32, &n));
  CHECK_INT(n, 10);
  CHECK_INT(tokens[0], FIXTURE_BOS);
  CHECK_INT(tokens[2], 0xC3);
  CHECK_OK(kvc_detokenize(model, tokens + 1, n - 1, back, 32, &n));
  CHECK_INT(n, 9);
  CHECK(memcmp(back, text, 9) == 0);
  CHECK_OK(kvc_tokenize(model, text, 9, KVC_PARSE_SPECIAL, tokens, 32, &n));
  CHECK_INT(n, 5);
  CHECK_INT(tokens[4], 257);
  CHECK_OK(kvc_tokenize(model, NULL, 0, 0, tokens, 32, &n));
  CHECK_INT(n, 0);
  CHECK_OK(kvc_tokenize(model, (const uint8_t*)"\xFF\x80", 2, 0, tokens, 32, &n)); /* kept byte for byte */
  CHECK_INT(n, 2);
  CHECK_INT(tokens[0], 0xFF);
  CHECK_OK(kvc_tokenize(model, text, 9, 0, NULL, 0, &n));
  CHECK_INT(n, 9);
  CHECK_FAILS(kvc_tokenize(model, text, 9, 0, tokens, 8, &n), KVC_E_BUFFER_TOO_SMALL, "");
  CHECK_INT(n, 9);
  CHECK_OK(kvc_tokenize(model, text, 9, 0, tokens, 9, &n));
  CHECK_FAILS(kvc_tokenize(NULL, text, 9, 0, tokens, 9, &n), KVC_E_INVALID, "model is NULL");
  CHECK_FAILS(kvc_tokenize(model, NULL, 9, 0, tokens, 9, &n), KVC_E_INVALID, "9 bytes at NULL");
  CHECK_FAILS(kvc_tokenize(model, text, -1, 0, tokens, 9, &n), KVC_E_INVALID, "-1 bytes");
  CHECK_FAILS(kvc_tokenize(model, text, 9, 64, tokens, 9, &n), KVC_E_INVALID, "0x40");
  CHECK_OK(kvc_tokenize(model, text, 9, KVC_CONTINUE, tokens, 9, &n));
  CHECK_INT(n, 9);
  CHECK_FAILS(kvc_tokenize(model, text, 9, KVC_CONTINUE | KVC_ADD_BOS, tokens, 9, &n), KVC_E_INVALID,
              "a text that continues another has no BOS");
  CHECK_FAILS(kvc_tokenize(model, text, 9, 0, tokens, 9, NULL), KVC_E_INVALID, "n_out is NULL");

  CHECK_OK(kvc_detokenize(model, NULL, 0, back, 32, &n));
  CHECK_INT(n, 0);
  CHECK_FAILS(kvc_detokenize(model, bad, 2, back, 32, &n), KVC_E_INVALID, "token 1 is 999; ids are 0 to 261");
  CHECK_FAILS(kvc_detokenize(model, negative, 1, back, 32, &n), KVC_E_INVALID, "token 0 is -1");
  CHECK_FAILS(kvc_detokenize(model, bad, -2, back, 32, &n), KVC_E_INVALID, "-2");
  CHECK_FAILS(kvc_detokenize(model, NULL, 2, back, 32, &n), KVC_E_INVALID, "NULL");
  CHECK_FAILS(kvc_detokenize(NULL, bad, 1, back, 32, &n), KVC_E_INVALID, "model is NULL");
  CHECK_FAILS(kvc_detokenize(model, bad, 1, NULL, 32, &n), KVC_E_INVALID, "no buffer");
}

static void count_lines(void* user, int32_t level, const char* text) {
  (void)level;
  if (text != NULL) ++*(int*)user;
}

/* Devices of this build: what is said of each is JSON, and one that is there can be measured. */
static void devices(void) {
  const int32_t count = kvc_device_count();
  char json[2048];
  int32_t i, n = 0, cpu = -1;
  double bytes_per_second = -1;
  CHECK(count >= 1);
  for (i = 0; i < count; ++i) {
    CHECK_OK(kvc_device_describe(i, NULL, 0, &n));
    CHECK(n > 0 && n < (int32_t)sizeof json);
    CHECK_OK(kvc_device_describe(i, json, sizeof json - 1, &n));
    json[n] = 0;
    CHECK(json[0] == '{' && json[n - 1] == '}' && strstr(json, "\"name\":") != NULL);
    if (strstr(json, "\"available\":true") == NULL) {
      CHECK(strstr(json, "\"reason\":") != NULL);
      CHECK_FAILS(kvc_device_measure(i, &bytes_per_second), KVC_E_UNSUPPORTED, "");
      continue;
    }
    if (strstr(json, "\"name\":\"cpu\"") != NULL) cpu = i;
    CHECK(strstr(json, "\"threads\":") != NULL && strstr(json, "\"deterministic\":") != NULL);
  }
  CHECK(cpu >= 0);
  CHECK_FAILS(kvc_device_describe(count, json, sizeof json, &n), KVC_E_NOT_FOUND, "device");
  CHECK_FAILS(kvc_device_describe(-1, json, sizeof json, &n), KVC_E_NOT_FOUND, "device");
  CHECK_FAILS(kvc_device_describe(0, json, sizeof json, NULL), KVC_E_INVALID, "n_out is NULL");
  CHECK_FAILS(kvc_device_measure(count, &bytes_per_second), KVC_E_NOT_FOUND, "device");
  CHECK_FAILS(kvc_device_measure(0, NULL), KVC_E_INVALID, "out_bytes_per_second is NULL");
  CHECK(bytes_per_second == -1);
  CHECK_OK(kvc_device_measure(cpu, &bytes_per_second));
  CHECK(bytes_per_second > 1e6);
}

int main(void) {
  int lines = 0;
  kvc_model* model;
  kvc_set_log(KVC_LOG_DEBUG, count_lines, &lines);
  names_and_versions();
  devices();
  open_memory();
  model_params();
  open_files();
  kvc_set_log(KVC_LOG_DEBUG, NULL, NULL);
  model = open_model(TEST_MODEL_TINY);
  info(model);
  describe(model);
  head_scores(model);
  tokens_and_text(model);
  kvc_model_close(model);
  return CHECK_END();
}
