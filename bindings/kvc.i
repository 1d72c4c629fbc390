/* The one SWIG interface of libkvc, for every language. It makes the flat layer: one function of the target language
 * for one function of kvc.h. People use the facade over it. For another language write <language>/typemaps.i, with the
 * patterns that stand below in capitals, and add it to the list.
 *
 *   swig -java -module kvc -I. -Iinclude ... bindings/kvc.i
 *
 * A flat call that fails brings its status and the text of the error in the same native call: the text belongs to a
 * thread, and a goroutine or a task may be on another one when it comes to ask. */
%module kvc
%{
#include <stdlib.h>
#include <string.h>

#include "bindings/log_ring.h"
#include "kvc/kvc.h"
%}
#ifdef SWIGCSHARP
%{
#include "bindings/error_record.h"
%}
#endif
%include <stdint.i>

/* Patterns that <language>/typemaps.i defines. Arrays and their counts are one argument, but in C# (one each).
 *   TYPE *, TYPE **OUT                                   a handle; one that a function makes
 *   const char *                                         UTF-8 with NUL; NULL where the header allows it
 *   (const T *IN, int32_t N)                             an array of int32_t, float or uint8_t that is read
 *   (const int32_t *WORDS, int32_t N)                    words of 32 bits that are read
 *   const int32_t *IN_ROW, const float *IN_ROW           arrays whose count is a parameter of its own
 *   (const uint8_t *IN, int64_t N)                       bytes that are read during the call
 *   (const uint8_t *KEPT, int64_t N)                     bytes that must stay where they are after it
 *   (T *BUF, int32_t CAP)                                a buffer of int32_t, float, uint8_t or char that is filled
 *   (T *BUF, int64_t CAP)                                the same of uint8_t or float, a long one
 *   int32_t *N_OUT, int64_t *N_OUT                       how many there are; the parameter behind a buffer
 *   (kvc_session *const *SESSIONS, int32_t N)            handles
 *   int32_t *OUT_ROW, kvc_status *OUT_ROW                arrays of as many as the sessions; the second may be NULL
 *   int32_t *OUT, int64_t *OUT, double *OUT              one number
 *   kvc_status (returned)                                the error, with its text
 *   const TYPE *, TYPE *out_* of KVC_STRUCT              a struct below; const may be NULL */
#if defined(SWIGJAVA)
%include "bindings/java/typemaps.i"
#elif defined(SWIGCSHARP)
%include "bindings/csharp/typemaps.i"
#elif defined(SWIGGO)
%include "bindings/go/typemaps.i"
#elif defined(SWIGPYTHON)
%include "bindings/python/typemaps.i"
#endif

%apply kvc_model **OUT { kvc_model **out_model };
%apply kvc_policy **OUT { kvc_policy **out_policy };
%apply kvc_session **OUT { kvc_session **out_session };
%apply kvc_loader **OUT { kvc_loader **out_loader };
%apply int32_t *OUT { int32_t *out_token, int32_t *out_level };
%apply int64_t *OUT { int64_t *out_freed };
%apply int32_t *N_OUT { int32_t *n_out };
%apply int64_t *N_OUT { int64_t *n_out };
%apply double *OUT { double *out_share, double *out_bytes_per_second };
%apply int32_t *OUT_ROW { int32_t *out_tokens };
%apply kvc_status *OUT_ROW { kvc_status *out_statuses };
%apply const int32_t *IN_ROW { const int32_t *tokens };
%apply const float *IN_ROW { const float *biases };
#ifndef SWIGCSHARP
%apply (const int32_t *IN, int32_t N) { (const int32_t *tokens, int32_t n_tokens),
                                        (const int32_t *slots, int32_t n_slots),
                                        (const int32_t *draft, int32_t n_draft) };
%apply (const int32_t *WORDS, int32_t N) { (const int32_t *mask, int32_t n_words) };
%apply (const float *IN, int32_t N) { (const float *scores, int32_t n_scores) };
%apply (const uint8_t *IN, int32_t N) { (const uint8_t *text, int32_t n_text) };
%apply (const uint8_t *IN, int64_t N) { (const uint8_t *data, int64_t n_bytes) };
%apply (int32_t *BUF, int32_t CAP) { (int32_t *tokens, int32_t cap_tokens), (int32_t *slots, int32_t cap_slots),
                                     (int32_t *draft, int32_t cap_draft), (int32_t *positions, int32_t cap_positions) };
%apply (float *BUF, int32_t CAP) { (float *scores, int32_t cap_scores), (float *logits, int32_t cap_logits) };
%apply (float *BUF, int64_t CAP) { (float *logits, int64_t cap_logits) };
%apply (uint8_t *BUF, int32_t CAP) { (uint8_t *text, int32_t cap_text) };
%apply (uint8_t *BUF, int64_t CAP) { (uint8_t *data, int64_t cap_data) };
%apply (char *BUF, int32_t CAP) { (char *json, int32_t cap_json), (char *text, int32_t cap_text) };
%apply (kvc_session *const *SESSIONS, int32_t N) { (kvc_session *const *sessions, int32_t n) };
#endif

/* Every struct is made of zeros with its size in it; what is no choice of the caller's is not shown. */
%define KVC_STRUCT(TYPE)
%ignore TYPE::struct_size;
%ignore TYPE::reserved;
%extend TYPE {
  TYPE() {
    TYPE *made = (TYPE *)calloc(1, sizeof(TYPE));
    if (made) made->struct_size = (int32_t)sizeof(TYPE);
    return made;
  }
}
%enddef
%ignore kvc_executor; /* no callbacks across languages */
%ignore kvc_model_params::executor;
KVC_STRUCT(kvc_model_params)
KVC_STRUCT(kvc_model_info)
KVC_STRUCT(kvc_session_params)
KVC_STRUCT(kvc_sampling)
KVC_STRUCT(kvc_session_stats)
KVC_STRUCT(kvc_batch_params)
KVC_STRUCT(kvc_plan)

%ignore kvc_last_error; /* travels with the status */

/* Its memory is kept, that of kvc_session_restore_memory is not, and the names of the parameters are the same. */
%ignore kvc_model_open_memory;
%rename(kvc_model_open_memory) kvc_flat_open_memory;
#ifndef SWIGCSHARP
%apply (const uint8_t *KEPT, int64_t N) { (const uint8_t *kept, int64_t n_kept) };
#endif
%inline %{
static kvc_status kvc_flat_open_memory(const uint8_t *kept, int64_t n_kept, const char *device,
                                       const kvc_model_params *params, kvc_model **out_model) {
  return kvc_model_open_memory(kept, n_kept, device, params, out_model);
}
%}

/* A batch gives a status for each session, and kvc_last_error the text of the last that failed: in the same call, as it
 * belongs to the thread. n_out is its bytes, 0 where none failed. */
%ignore kvc_batch_step;
%ignore kvc_batch_logits;
%rename(kvc_batch_step) kvc_flat_batch_step;
%rename(kvc_batch_logits) kvc_flat_batch_logits;
%{
static void kvc_flat_row_text(const kvc_status *statuses, int32_t n, char *text, int32_t cap_text, int32_t *n_out) {
  int failed = 0;
  for (int32_t i = 0; i < n; ++i) failed |= statuses[i] != KVC_OK;
  if (!failed) return;
  const size_t size = strlen(kvc_last_error());
  *n_out = size < (size_t)cap_text ? (int32_t)size : cap_text;
  memcpy(text, kvc_last_error(), (size_t)*n_out);
}
%}
%inline %{
static kvc_status kvc_flat_batch_step(kvc_session *const *sessions, int32_t n, const kvc_batch_params *params,
                                      int32_t *out_tokens, kvc_status *out_statuses, char *text, int32_t cap_text,
                                      int32_t *n_out) {
  const kvc_status status = kvc_batch_step(sessions, n, params, out_tokens, out_statuses);
  *n_out = 0;
  if (status == KVC_OK) kvc_flat_row_text(out_statuses, n, text, cap_text, n_out);
  return status;
}

static kvc_status kvc_flat_batch_logits(kvc_session *const *sessions, int32_t n, const kvc_batch_params *params,
                                        float *logits, int64_t cap_logits, int32_t *out_tokens,
                                        kvc_status *out_statuses, char *text, int32_t cap_text, int32_t *n_out) {
  const kvc_status status = kvc_batch_logits(sessions, n, params, logits, cap_logits, out_tokens, out_statuses);
  *n_out = 0;
  if (status == KVC_OK) kvc_flat_row_text(out_statuses, n, text, cap_text, n_out);
  return status;
}

/* What a status says of a session in a batch whose text is not known. */
static const char *kvc_flat_row_error(int32_t status) {
  switch (status) {
    case KVC_E_INVALID: return "the session cannot step as it is: it has no prompt, or mask and biases leave no token";
    case KVC_E_MEMORY: return "no memory is left for the step, or the model's memory limit is reached";
    case KVC_E_BAD_MODEL: return "no logit of the step is a finite number";
    case KVC_E_UNSUPPORTED: return "the session cannot step with its policy, on this device";
    case KVC_E_CONTEXT_FULL: return "the session holds max_tokens tokens";
    case KVC_E_CANCELLED: return "the step was cancelled; it may be repeated";
    case KVC_E_DEVICE: return "the device failed; reset mends the session, or close it";
    default: return "the session could not step";
  }
}
%}

#ifdef SWIGCSHARP
/* For languages whose kvc_status typemap returns a record: bindings/error_record.h. */
void kvc_error_record_free(kvc_error_record *record);
#endif

#define KVC_API
%include "kvc/kvc.h"
%include "bindings/log_ring.h"
