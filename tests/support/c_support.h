/* What tests in C need from the C++ support: a model in memory and a place for files. */
#ifndef KVC_TESTS_C_SUPPORT_H
#define KVC_TESTS_C_SUPPORT_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Without a stop token unless said, so that answers are as long as a test wants. */
enum {
  TEST_MODEL_TINY =
      0, /* 2 layers, 4 heads, 2 KV heads, head size 16, byte tokenizer, 262 ids, context 4096 */
  TEST_MODEL_FOREIGN = 1,  /* the same shape, other weights */
  TEST_MODEL_UNSCORED = 2, /* as TINY without head scores */
  TEST_MODEL_WIDE = 3, /* 4 layers, 8 heads, 4 KV heads, head size 32, hidden 128: a prompt takes a while */
  TEST_MODEL_STOPPING = 4,      /* as TINY, every second byte and <eos> end the answer */
  TEST_MODEL_INT8 = 5,          /* as TINY with int8 weights */
  TEST_MODEL_WINDOWS = 6,       /* as WIDE, layers 0 and 2 attend to their newest 24 tokens only */
  TEST_MODEL_SMALL_WINDOWS = 7, /* as INT8, layer 0 attends to its newest 24 tokens only */
  TEST_MODEL_COUNT = 8
};

/* 64-byte aligned bytes that live until the end of the process. */
const uint8_t* test_model_bytes(int32_t which, int64_t* n_bytes);
/* Path of `name` in a folder of this process, removed with its content at the end. The text is valid until
 * the next call. */
const char* test_path(const char* name);
/* The sources' models/recall, converted once per process to a file in that folder. */
const char* test_recall_path(const char* source_dir);

#ifdef __cplusplus
}
#endif
#endif
