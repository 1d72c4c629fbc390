#include <process.h>
#include <windows.h>

#include "lib/base/system_thread.h"

namespace kvc {
namespace {

unsigned __stdcall Enter(void* thread) {
  static_cast<SystemThread*>(thread)->Run();
  return 0;
}

}  // namespace

bool SystemThread::Start(void (*fn)(void*), void* argument) {
  fn_ = fn, argument_ = argument;
  handle_ = _beginthreadex(nullptr, 0, Enter, this, 0, nullptr);
  return handle_ != 0;
}

void SystemThread::Join() {
  const HANDLE thread = reinterpret_cast<HANDLE>(handle_);
  WaitForSingleObject(thread, INFINITE);
  CloseHandle(thread);
}

uint32_t ForkCount() { return 0; }

}  // namespace kvc
