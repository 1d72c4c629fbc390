/* Tests under QEMU's user mode run as on a machine of 1 GiB. Of physical memory the cache makes the range of
 * addresses that it reserves; QEMU 7.2 writes 24 bytes for every page of it, and never gives them back: with
 * 24 GiB of memory that are 300 MB and seconds for each model, and 7 GB in one test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

long sysconf(int name) {
  union {
    void* pointer;
    long (*function)(int);
  } system;
  system.pointer = dlsym(RTLD_NEXT, "sysconf");
  if (name == _SC_PHYS_PAGES) return (1L << 30) / system.function(_SC_PAGESIZE);
  return system.function(name);
}
