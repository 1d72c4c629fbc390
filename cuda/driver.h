// The driver, and whose its contexts are. Its functions are asked for at run time: a build with this backend
// starts on machines that have none.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "lib/base/status.h"

namespace kvc::cuda {

constexpr int kOldestDriver = 12000;          // CUDA 12.0
constexpr int kOldestWithEarlyEdges = 12030;  // in graphs

struct Driver {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*device)(CUdevice*, int) = nullptr;
  CUresult (*attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*push)(CUcontext) = nullptr;
  CUresult (*pop)(CUcontext*) = nullptr;
  CUresult (*exchange_capture_mode)(CUstreamCaptureMode*) = nullptr;
  // Virtual memory.
  CUresult (*reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) = nullptr;
  CUresult (*free)(CUdeviceptr, size_t) = nullptr;
  CUresult (*create)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                     unsigned long long) = nullptr;
  CUresult (*release)(CUmemGenericAllocationHandle) = nullptr;
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) = nullptr;
  CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) = nullptr;
  CUresult (*unmap)(CUdeviceptr, size_t) = nullptr;
  CUresult (*granularity)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) = nullptr;
};

// Null: it lacks some of them.
const Driver* FindDriver();

// A switch in the environment, to measure what something gives: off where it is "0".
bool IsOn(const char* name);

// An error of the runtime as one of ours; those of the driver have the same numbers.
Status Check(cudaError_t e, const char* what);
inline Status Check(CUresult e, const char* what) { return Check(static_cast<cudaError_t>(e), what); }

// The primary context of a device, which the runtime of every part of a process works in.
struct Context {
  const Driver* driver = nullptr;
  CUcontext handle = nullptr;
  // Retained for good, as the runtime does it: what it has loaded lies in there.
  static Status Retain(const Driver* driver, int device, Context* out);
};

// In front of the first call that starts the driver in this process.
void NoteUse();
// Whether the process that used the driver first was a parent of this one: CUDA does not work in a child, so
// contexts are all of that process.
bool ForkedFromUser();

// For the time of its life the context is the thread's, whose own one it has again afterwards, or none:
// programs around the library use other devices, and a context costs some hundred MiB where nobody had one.
// What we do on streams of our own is no part of a graph that another thread captures, and may not break it:
// the thread says so for as long. A context without a driver: whatever the thread has. In a child of the
// process that retained it, none.
class Current {
 public:
  explicit Current(const Context& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  bool ok() const { return error_ == CUDA_SUCCESS; }
  Status status() const;

 private:
  const Driver* const driver_;
  CUresult error_ = CUDA_SUCCESS;
  CUstreamCaptureMode own_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace kvc::cuda
