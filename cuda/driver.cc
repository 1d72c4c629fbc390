#include "cuda/driver.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda/loaded_library.h"
#include "lib/base/system_thread.h"

namespace kvc::cuda {
namespace {

#if CUDART_VERSION < 12050
// These runtimes ask for functions as of their own version, which an older driver of CUDA 12 refuses. It has
// them under the names that cuda.h gives them.
void* EntryPoint(const char* name) {
#if defined(_WIN32)
  static void* const library = LoadSystemLibrary("nvcuda.dll");
#else
  static void* const library = LoadSystemLibrary("libcuda.so.1");
#endif
  if (library == nullptr) return nullptr;
  const std::string renamed = std::string(name) + "_v2";
  const bool is_renamed = std::strncmp(name, "cuCtxP", 6) == 0;  // cuCtxPushCurrent, cuCtxPopCurrent
  return SymbolOf(library, is_renamed ? renamed.c_str() : name);
}
#else
void* EntryPoint(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  const cudaError_t e =
      cudaGetDriverEntryPointByVersion(name, &found, kOldestDriver, cudaEnableDefault, &status);
  return e == cudaSuccess ? found : nullptr;
}
#endif

template <typename F>
bool Find(const char* name, F* function) {
  *function = reinterpret_cast<F>(EntryPoint(name));
  return *function != nullptr;
}

std::atomic<int64_t> used_at{-1};  // ForkCount() when the driver was first used; -1: it was not

}  // namespace

const Driver* FindDriver() {
  static Driver driver;
  static const bool found =
      Find("cuInit", &driver.init) && Find("cuDeviceGet", &driver.device) &&
      Find("cuDeviceGetAttribute", &driver.attribute) && Find("cuDevicePrimaryCtxRetain", &driver.retain) &&
      Find("cuCtxPushCurrent", &driver.push) && Find("cuCtxPopCurrent", &driver.pop) &&
      Find("cuThreadExchangeStreamCaptureMode", &driver.exchange_capture_mode) &&
      Find("cuMemAddressReserve", &driver.reserve) && Find("cuMemAddressFree", &driver.free) &&
      Find("cuMemCreate", &driver.create) && Find("cuMemRelease", &driver.release) &&
      Find("cuMemMap", &driver.map) && Find("cuMemSetAccess", &driver.access) &&
      Find("cuMemUnmap", &driver.unmap) && Find("cuMemGetAllocationGranularity", &driver.granularity);
  return found ? &driver : nullptr;
}

bool IsOn(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || std::strcmp(value, "0") != 0;
}

Status Check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return {};
  cudaGetLastError();  // the host program's next look at it is not to find ours
  const Code code = e == cudaErrorMemoryAllocation ? Code::kMemory : Code::kDevice;
  return Error(code, "%s: %s", what, cudaGetErrorString(e));
}

void NoteUse() {
  int64_t none = -1;
  used_at.compare_exchange_strong(none, ForkCount());
}

bool ForkedFromUser() {
  const int64_t at = used_at.load();
  return at >= 0 && at != ForkCount();
}

Status Context::Retain(const Driver* driver, int number, Context* out) {
  CUdevice device = 0;
  CUresult e = driver->init(0);
  if (e == CUDA_SUCCESS) e = driver->device(&device, number);
  if (e == CUDA_SUCCESS) e = driver->retain(&out->handle, device);
  if (e == CUDA_SUCCESS) out->driver = driver;
  return Check(e, "the device");
}

Current::Current(const Context& context) : driver_(context.driver) {
  if (driver_ == nullptr) return;
  error_ = ForkedFromUser() ? CUDA_ERROR_NOT_INITIALIZED : driver_->push(context.handle);
  if (ok()) driver_->exchange_capture_mode(&own_mode_);
}

Current::~Current() {
  if (driver_ == nullptr || !ok()) return;
  CUcontext own = nullptr;
  driver_->exchange_capture_mode(&own_mode_);
  driver_->pop(&own);
}

Status Current::status() const {
  if (!ok() && ForkedFromUser())
    return Error(Code::kDevice, "a process cannot go on with a GPU that its parent opened");
  return Check(error_, "the device");
}

}  // namespace kvc::cuda
