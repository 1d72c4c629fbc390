/* A failed call as one value that a flat function can return: the status and the text of this thread's error,
 * taken in the native call that failed. For languages that can throw from C (Java, Python) there is no need
 * of it. */
#ifndef KVC_BINDINGS_ERROR_RECORD_H
#define KVC_BINDINGS_ERROR_RECORD_H
#include <stdlib.h>
#include <string.h>

#include "kvc/kvc.h"

typedef struct kvc_error_record {
  int32_t status; /* KVC_E_* */
  int32_t n_text; /* bytes of text */
  char text[];    /* UTF-8, with a NUL behind it */
} kvc_error_record;

/* What is returned where there is no memory for a record. */
static const struct {
  int32_t status, n_text;
  char text[16];
} kvc_error_record_static = {KVC_E_MEMORY, 13, "out of memory"};

/* NULL for KVC_OK, else a record that the caller gives to kvc_error_record_free. */
static kvc_error_record* kvc_error_record_take(kvc_status status) {
  if (status == KVC_OK) return NULL;
  const char* text = kvc_last_error();
  size_t n_text = strlen(text);
  kvc_error_record* record = (kvc_error_record*)malloc(sizeof *record + n_text + 1);
  if (!record) return (kvc_error_record*)&kvc_error_record_static;
  record->status = status;
  record->n_text = (int32_t)n_text;
  memcpy(record->text, text, n_text + 1);
  return record;
}

static void kvc_error_record_free(kvc_error_record* record) {
  if ((const void*)record != &kvc_error_record_static) free(record);
}
#endif
