/* Loaded before the C library: it has no memory for blocks of these sizes, which are those of the arrays of
 * NoMemoryTest, as HotSpot copies them, and of little else. */
#include <errno.h>
#include <stddef.h>

void* __libc_malloc(size_t size);
void* malloc(size_t size);
void* malloc(size_t size) {
  if (size < 4000012 || size >= 4000028) return __libc_malloc(size);
  errno = ENOMEM;
  return NULL;
}
