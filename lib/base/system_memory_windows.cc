#include <windows.h>

#include "lib/base/system_memory.h"
#include "lib/base/system_names_windows.h"

namespace kvc {
namespace {

SYSTEM_INFO System() {
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return info;
}

void* Take(int64_t n_bytes, DWORD kind, DWORD protection) {
  void* at = VirtualAlloc(nullptr, static_cast<SIZE_T>(n_bytes), kind, protection);
  if (at == nullptr) SetErrno(GetLastError());
  return at;
}

// Committed pages nobody needs any more. Decommitting them and committing them again could fail in between,
// when other processes take the last of the page file. Reset pages stay committed and are never written to
// it; unlocking pages that are not locked takes them out of the working set, and fails for the rest of its
// duty.
bool Unload(void* at, int64_t n_bytes) {
  return VirtualUnlock(at, static_cast<SIZE_T>(n_bytes)) != 0 || GetLastError() == ERROR_NOT_LOCKED;
}

bool Discard(void* at, int64_t n_bytes) {
  return VirtualAlloc(at, static_cast<SIZE_T>(n_bytes), MEM_RESET, PAGE_READWRITE) != nullptr &&
         Unload(at, n_bytes);
}

}  // namespace

int64_t PageBytes() { return System().dwPageSize; }

int64_t PhysicalBytes() {
  MEMORYSTATUSEX status = {};
  status.dwLength = sizeof status;
  return GlobalMemoryStatusEx(&status) != 0 ? static_cast<int64_t>(status.ullTotalPhys) : 0;
}

void* MapBlock(int64_t n_bytes) {
  if (!kMapsBlocks || n_bytes < kLeastMapBytes) return nullptr;
  return Take(n_bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void UnmapBlock(void* block, int64_t) { VirtualFree(block, 0, MEM_RELEASE); }

// Large pages take a privilege that programs do not have.
int64_t HugePageBytes() { return 0; }
void AskForHugePages(void*, int64_t) {}

bool DropBlockPages(void* at, int64_t n_bytes) { return Discard(at, n_bytes); }

int64_t MapOffsetUnit() { return System().dwAllocationGranularity; }

void* MapFile(int fd, int64_t offset, int64_t n_bytes) {
  const HANDLE file = HandleOf(fd);
  if (file == nullptr) return nullptr;
  const HANDLE mapping = CreateFileMappingW(file, nullptr, PAGE_READONLY, 0, 0, nullptr);
  void* at = nullptr;
  if (mapping != nullptr) {
    at = MapViewOfFile(mapping, FILE_MAP_READ, static_cast<DWORD>(offset >> 32), static_cast<DWORD>(offset),
                       static_cast<SIZE_T>(n_bytes));
  }
  if (at == nullptr) SetErrno(GetLastError());
  if (mapping != nullptr) CloseHandle(mapping);  // the view holds it
  return at;
}

void UnmapFile(void* at, int64_t) { UnmapViewOfFile(at); }

bool DropFilePages(void* at, int64_t n_bytes) { return Unload(at, n_bytes); }

void* ReserveAddresses(int64_t n_bytes) { return Take(n_bytes, MEM_RESERVE, PAGE_NOACCESS); }

void UnreserveAddresses(void* at, int64_t) { VirtualFree(at, 0, MEM_RELEASE); }

bool CommitPages(void* at, int64_t n_bytes) {
  if (VirtualAlloc(at, static_cast<SIZE_T>(n_bytes), MEM_COMMIT, PAGE_READWRITE) != nullptr) return true;
  SetErrno(GetLastError());
  return false;
}

bool DecommitPages(void* at, int64_t n_bytes) { return Discard(at, n_bytes); }

}  // namespace kvc
