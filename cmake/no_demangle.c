/* The C++ runtime spells out the name of an exception that nobody caught, with a parser of 100 KB. libkvc lets no
 * exception out, so inside it the name stays as it is. */
#include <stddef.h>

char* __cxa_demangle(const char* name, char* buffer, size_t* length, int* status);

char* __cxa_demangle(const char* name, char* buffer, size_t* length, int* status) {
  (void)name, (void)buffer, (void)length;
  if (status) *status = -2; /* no mangled name */
  return NULL;
}
