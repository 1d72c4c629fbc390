/* Checks for test programs in C: each prints what failed and goes on; CHECK_END gives the exit status of
 * main. */
#ifndef KVC_TESTS_API_CHECK_H
#define KVC_TESTS_API_CHECK_H
#include <stdio.h>
#include <string.h>

#include "kvc/kvc.h"

static int check_failures = 0;

static inline int check_true(int holds, const char* what, const char* file, int line) {
  if (!holds) {
    ++check_failures;
    printf("%s:%d: failed: %s\n", file, line, what);
  }
  return holds;
}

static inline void check_number(long long actual, long long expected, const char* what, const char* file,
                                int line) {
  if (actual == expected) return;
  ++check_failures;
  printf("%s:%d: %s is %lld, not %lld\n", file, line, what, actual, expected);
}

/* words: a part of kvc_last_error() that must be there when the call fails. */
static inline void check_status(kvc_status actual, kvc_status expected, const char* words, const char* what,
                                const char* file, int line) {
  if (actual != expected) {
    ++check_failures;
    printf("%s:%d: %s gave %s, not %s (%s)\n", file, line, what, kvc_status_name(actual),
           kvc_status_name(expected), actual == KVC_OK ? "" : kvc_last_error());
  } else if (actual != KVC_OK && strstr(kvc_last_error(), words) == NULL) {
    ++check_failures;
    printf("%s:%d: %s: the message \"%s\" does not say \"%s\"\n", file, line, what, kvc_last_error(), words);
  }
}

#define CHECK(condition) check_true((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_INT(actual, expected) \
  check_number((long long)(actual), (long long)(expected), #actual, __FILE__, __LINE__)
#define CHECK_OK(call) check_status((call), KVC_OK, "", #call, __FILE__, __LINE__)
#define CHECK_FAILS(call, status, words) check_status((call), (status), (words), #call, __FILE__, __LINE__)
#define CHECK_END() \
  (printf("%s\n", check_failures == 0 ? "all checks passed" : "FAILED"), check_failures == 0 ? 0 : 1)

#endif
