#include "bindings/log_ring.h"

#include <stdio.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
static SRWLOCK lock = SRWLOCK_INIT;
static void Lock(void) { AcquireSRWLockExclusive(&lock); }
static void Unlock(void) { ReleaseSRWLockExclusive(&lock); }
#else
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void Lock(void) { pthread_mutex_lock(&lock); }
static void Unlock(void) { pthread_mutex_unlock(&lock); }
#endif

enum { N_LINES = 256, LONGEST = 511 };

typedef struct {
  int32_t level, n_text;
  char text[LONGEST + 1];
} log_line;

/* Static, as a callback that has begun may end after kvc_set_log has returned. */
static log_line lines[N_LINES];
static int32_t first, n_lines; /* the oldest, and how many from there on, round the end */
static int64_t n_lost;         /* since the last poll */

/* Bytes of text that fit, without a part of a character at the end. */
static int32_t WholeCharacters(const char* text) {
  size_t n = strlen(text);
  if (n <= LONGEST) return (int32_t)n;
  n = LONGEST;
  while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) --n;
  return (int32_t)n;
}

static void Keep(void* user, int32_t level, const char* text) {
  (void)user;
  Lock();
  if (n_lines == N_LINES) {
    first = (first + 1) % N_LINES;
    --n_lines;
    ++n_lost;
  }
  log_line* line = &lines[(first + n_lines) % N_LINES];
  line->level = level;
  line->n_text = WholeCharacters(text);
  memcpy(line->text, text, (size_t)line->n_text);
  ++n_lines;
  Unlock();
}

void kvc_log_start(int32_t min_level) { kvc_set_log(min_level, Keep, NULL); }

void kvc_log_stop(void) { kvc_set_log(KVC_LOG_ERROR, NULL, NULL); }

kvc_status kvc_log_poll(int32_t* out_level, char* text, int32_t cap_text, int32_t* n_out) {
  char lost[64];
  const char* from = lost;
  int32_t level = -1, n = 0;
  if (!out_level || !n_out || cap_text < 0 || (cap_text > 0 && !text)) return KVC_E_INVALID;
  Lock();
  if (n_lost > 0) {
    level = KVC_LOG_WARNING;
    n = (int32_t)snprintf(lost, sizeof lost, "%lld older lines were not fetched in time", (long long)n_lost);
  } else if (n_lines > 0) {
    level = lines[first].level;
    from = lines[first].text;
    n = lines[first].n_text;
  }
  *n_out = n;
  kvc_status status = n > cap_text ? KVC_E_BUFFER_TOO_SMALL : KVC_OK;
  if (status == KVC_OK) {
    *out_level = level;
    if (n > 0) memcpy(text, from, (size_t)n);
    if (n_lost > 0) {
      n_lost = 0;
    } else if (n_lines > 0) {
      first = (first + 1) % N_LINES;
      --n_lines;
    }
  }
  Unlock();
  return status;
}
