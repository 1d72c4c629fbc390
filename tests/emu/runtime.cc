// The runtime of the emulated device. Streams are queues: nothing in them happens before somebody waits for
// it, which is the latest that a device may take; what relied on more would see memory that was never
// written. Memory is the host's, so AddressSanitizer sees every byte that a kernel has no business with.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/emu/emulator.h"
#include "tests/emu/races.h"
#include "tests/support/heap_pause.h"

struct CUctx_st {
  int device;
};
struct CUstream_st {
  struct Task {
    std::function<void()> run;
    bool kernel;
    std::shared_ptr<const kvc::emu::races::Ended> known;  // to the host when it was issued
  };
  std::deque<Task> tasks;
  uint64_t issued = 0, done = 0;
  int device = 0;
  kvc::emu::races::Order order;
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t at = 0;
  std::shared_ptr<kvc::emu::races::Ended> ended;  // when it was reached
};

namespace kvc::emu {
namespace {

// Physical memory lives until nobody holds it and nothing is mapped to it.
struct Physical {
  size_t bytes;
  bool held = true;
  int maps = 0;
};
struct Mapping {
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};

constexpr int kMostDevices = 8, kMostContexts = 8;

// A thread's: contexts are a stack, and where it is empty the runtime makes that of `device`.
struct Contexts {
  CUctx_st* at[kMostContexts] = {};
  int n = 0, device = 0;
  int Device() const { return n > 0 ? at[n - 1]->device : device; }
};
thread_local Contexts contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUctx_st* PrimaryOf(int device) {
  static CUctx_st all[kMostDevices];
  all[device].device = device;
  return &all[device];
}

struct Machine {
  std::recursive_mutex mutex;
  std::map<CUstream_st*, int> streams;
  std::map<uintptr_t, size_t> device, pinned;  // blocks by address
  std::map<CUmemGenericAllocationHandle, Physical> physical;
  std::map<CUdeviceptr, size_t> reserved;
  std::map<CUdeviceptr, Mapping> mapped;
  CUmemGenericAllocationHandle next_handle = 1;
  int64_t used = 0;
  cudaError_t error = cudaSuccess;
  pid_t process = 0;  // that has contexts: a child of it cannot go on with them
  CUstream_st null_stream;
};

Machine& The() {
  static Machine* machine = new Machine();  // sessions may be closed as the process ends
  return *machine;
}
// A call of the runtime: one at a time. What it takes from the heap is a driver's business.
class Lock {
 public:
  explicit Lock(std::recursive_mutex& mutex) : guard_(mutex) {}

 private:
  const std::lock_guard<std::recursive_mutex> guard_;
  const test::HeapPause pause_;
};

bool Forked() { return The().process != 0 && The().process != ::getpid(); }

// Such a call that needs a context: the thread has one from then on.
class InContext {
 public:
  InContext() : lock_(The().mutex) {
    if (Forked()) The().error = cudaErrorInitializationError;
    if (The().process == 0) The().process = ::getpid();
    if (contexts.n == 0) contexts.at[contexts.n++] = PrimaryOf(contexts.device);
  }

 private:
  const Lock lock_;
};

CUstream_st* Of(cudaStream_t s) {
  if (s != nullptr) return s;
  ++GetCalls().unnamed;
  return &The().null_stream;
}

void DrainTo(CUstream_st* s, uint64_t at) {
  while (s->done < at) {
    const CUstream_st::Task task = std::move(s->tasks.front());
    s->tasks.pop_front();
    if constexpr (races::kOn) races::BeginTask(&s->order, task.known);
    task.run();
    ++s->done;
    if constexpr (races::kOn) {
      if (!task.kernel) races::EndChain(&s->order);
    }
  }
}
void Drain(CUstream_st* s) { DrainTo(s, s->issued); }
void WaitFor(CUstream_st* s) {
  Drain(s);
  if constexpr (races::kOn) races::HostWaitsFor(races::SoFar(s->order));
}
void DrainAll() {
  for (auto& s : The().streams) Drain(s.first);
  Drain(&The().null_stream);
}
void WaitForAll() {
  DrainAll();
  if constexpr (races::kOn) races::HostWaitsForAll();
}
// Nobody has accessed memory that is new.
void NoteNew([[maybe_unused]] const void* at, [[maybe_unused]] size_t bytes) {
  if constexpr (races::kOn) races::Forget(at, bytes);
}

// What a call that takes or frees memory or asks how far streams are says first: such calls are barred from
// every thread while one captures, but for threads that have said that it does not concern them.
cudaError_t MayDisturb() {
  if (GetOptions().capturing && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    ++GetCalls().disturbing;
    return cudaErrorStreamCaptureUnsupported;
  }
  return The().error;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> run, bool kernel = false) {
  CUstream_st* s = Of(stream);
  s->tasks.push_back({std::move(run), kernel, {}});
  if constexpr (races::kOn) s->tasks.back().known = races::KnownToHost();
  ++s->issued;
  if (GetOptions().eager) Drain(s);
  return The().error;
}

// What has ended where the event is, for those who wait for it. It parts no chain of kernels.
void NoteOrder(CUevent_st* e) {
  if constexpr (races::kOn) {
    CUstream_st* s = e->stream;
    e->ended = std::make_shared<races::Ended>();
    s->tasks.push_back(
        {[s, ended = e->ended] { *ended = races::SoFar(s->order); }, true, races::KnownToHost()});
    e->at = ++s->issued;
    if (GetOptions().eager) Drain(s);
  }
}

bool Within(const std::map<uintptr_t, size_t>& blocks, const void* at) {
  const uintptr_t p = reinterpret_cast<uintptr_t>(at);
  auto it = blocks.upper_bound(p);
  if (it == blocks.begin()) return false;
  --it;
  return p < it->first + it->second;
}

CUresult Init(unsigned) { return Forked() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS; }
CUresult DeviceGet(CUdevice* out, int number) {
  if (number < 0 || number >= GetOptions().devices) return CUDA_ERROR_INVALID_DEVICE;
  *out = number;
  return CUDA_SUCCESS;
}
CUresult PrimaryRetain(CUcontext* out, CUdevice device) {
  *out = PrimaryOf(device);
  return CUDA_SUCCESS;
}
CUresult PushCurrent(CUcontext context) {
  if (Forked()) return CUDA_ERROR_NOT_INITIALIZED;
  if (context == nullptr || contexts.n == kMostContexts) return CUDA_ERROR_INVALID_CONTEXT;
  contexts.at[contexts.n++] = context;
  return CUDA_SUCCESS;
}
CUresult PopCurrent(CUcontext* out) {
  if (contexts.n == 0) return CUDA_ERROR_INVALID_CONTEXT;
  *out = contexts.at[--contexts.n];
  return CUDA_SUCCESS;
}
CUresult ExchangeCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}
CUresult AddressReserve(CUdeviceptr* out, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  const Lock lock(The().mutex);
  size_t reserved = bytes;
  for (const auto& range : The().reserved) reserved += range.second;
  if (reserved > static_cast<size_t>(GetOptions().addresses)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(at);
  The().reserved[*out] = bytes;
  return CUDA_SUCCESS;
}
// Nothing may be mapped there any more.
CUresult AddressFree(CUdeviceptr at, size_t bytes) {
  const Lock lock(The().mutex);
  const auto range = The().reserved.find(at);
  if (range == The().reserved.end() || range->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = The().mapped.lower_bound(at);
  if (mapped != The().mapped.end() && mapped->first < at + bytes) return CUDA_ERROR_INVALID_VALUE;
  The().reserved.erase(range);
  ::munmap(reinterpret_cast<void*>(at), bytes);
  return CUDA_SUCCESS;
}
CUresult Create(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  const Lock lock(The().mutex);
  if (The().error != cudaSuccess) return CUDA_ERROR_LAUNCH_FAILED;
  if (!Admits(Call::kCommit) || The().used + static_cast<int64_t>(bytes) > GetOptions().memory)
    return CUDA_ERROR_OUT_OF_MEMORY;
  The().used += static_cast<int64_t>(bytes);
  *out = The().next_handle++;
  The().physical[*out] = {bytes};
  return CUDA_SUCCESS;
}
void FreeIfUnused(CUmemGenericAllocationHandle handle) {
  const auto it = The().physical.find(handle);
  if (it->second.held || it->second.maps > 0) return;
  The().used -= static_cast<int64_t>(it->second.bytes);
  The().physical.erase(it);
}
CUresult Release(CUmemGenericAllocationHandle handle) {
  const Lock lock(The().mutex);
  The().physical[handle].held = false;
  FreeIfUnused(handle);
  return CUDA_SUCCESS;
}
CUresult Map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  const Lock lock(The().mutex);
  auto range = The().reserved.upper_bound(at);
  if (range == The().reserved.begin() || The().mapped.count(at) != 0) return CUDA_ERROR_INVALID_VALUE;
  --range;
  if (at + bytes > range->first + range->second) return CUDA_ERROR_INVALID_VALUE;
  void* fixed = ::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (fixed == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  NoteNew(fixed, bytes);
  The().mapped[at] = {handle, bytes};
  ++The().physical[handle].maps;
  return CUDA_SUCCESS;
}
CUresult SetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc*, size_t) {
  const Lock lock(The().mutex);
  for (CUdeviceptr part = at; part < at + bytes;) {
    const auto it = The().mapped.find(part);
    if (it == The().mapped.end()) return CUDA_ERROR_INVALID_VALUE;
    part += it->second.bytes;
  }
  return ::mprotect(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE) == 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult Unmap(CUdeviceptr at, size_t bytes) {
  const Lock lock(The().mutex);
  const auto it = The().mapped.find(at);
  if (it == The().mapped.end() || it->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  // The driver waits for nobody: a kernel that comes later and reads it ends the process.
  ::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  --The().physical[it->second.handle].maps;
  FreeIfUnused(it->second.handle);
  The().mapped.erase(it);
  return CUDA_SUCCESS;
}
CUresult Granularity(size_t* out, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  if (!GetOptions().virtual_memory) return CUDA_ERROR_NOT_SUPPORTED;
  *out = static_cast<size_t>(GetOptions().granule);
  return CUDA_SUCCESS;
}

Options Read() {
  Options o;
  if (const char* order = std::getenv("KVC_EMU_ORDER")) o.order = std::atoi(order);
  if (const char* eager = std::getenv("KVC_EMU_EAGER")) o.eager = std::atoi(eager) != 0;
  if (const char* memory = std::getenv("KVC_EMU_MEMORY")) o.memory = std::atoll(memory);
  if (const char* granule = std::getenv("KVC_EMU_GRANULE")) o.granule = std::atoll(granule);
  if (const char* many = std::getenv("KVC_EMU_MULTIPROCESSORS")) o.multiprocessors = std::atoi(many);
  return o;
}

}  // namespace

int UsualCapability() {
  const char* capability = std::getenv("KVC_EMU_CAPABILITY");
  return capability == nullptr ? 90 : std::atoi(capability);
}

Options& GetOptions() {
  static Options options = Read();
  return options;
}

void Break() {
  const Lock lock(The().mutex);
  The().error = cudaErrorLaunchFailure;
}

int CaptureMode() { return capture_mode; }

int CurrentContext() { return contexts.n == 0 ? -1 : contexts.Device(); }

void Recover() {
  const Lock lock(The().mutex);
  WaitForAll();
  The().error = cudaSuccess;
}

bool Refuses(const char* name, dim3 grid, dim3 dim, size_t shared, size_t most_shared) {
  if (dim.x * dim.y * dim.z <= 1024 && grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y <= 65535 &&
      grid.z <= 65535 && shared <= most_shared)
    return false;
  std::fprintf(stderr, "emulator: %s: a device would refuse this launch\n", name);
  return true;
}

cudaError_t Launch(cudaStream_t stream, std::function<bool()> grid) {
  const InContext call;
  if (stream != nullptr && stream->device != contexts.Device()) return cudaErrorInvalidResourceHandle;
  auto run = [grid = std::move(grid)] {
    if (The().error == cudaSuccess && !grid()) The().error = cudaErrorLaunchFailure;
  };
  return Enqueue(stream, std::move(run), true);
}
cudaError_t Launch(const Started& started, cudaStream_t stream, std::function<void()> kernel) {
  return Launch(stream, [=] { return RunGrid(started, kernel); });
}

}  // namespace kvc::emu

using kvc::emu::Enqueue;
using kvc::emu::GetOptions;
using kvc::emu::InContext;
using kvc::emu::The;

extern "C" {

const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInitializationError:
      return "initialization error";
    case cudaErrorInvalidKernelImage:
      return "device kernel image is invalid";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorUnsupportedPtxVersion:
      return "the provided PTX was compiled with an unsupported toolchain.";
    case cudaErrorSystemNotReady:
      return "system not yet initialized";
    default:
      return "error of the emulated device";
  }
}
cudaError_t cudaGetDeviceCount(int* n) {
  *n = GetOptions().devices;
  if (kvc::emu::Forked()) return cudaErrorInitializationError;
  if (GetOptions().count_error != cudaSuccess) return GetOptions().count_error;
  return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= GetOptions().devices) return cudaErrorInvalidDevice;
  kvc::emu::contexts.device = d;
  const int top = kvc::emu::contexts.n == 0 ? kvc::emu::contexts.n++ : kvc::emu::contexts.n - 1;
  kvc::emu::contexts.at[top] = kvc::emu::PrimaryOf(d);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  *d = kvc::emu::contexts.Device();
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
  *v = GetOptions().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = GetOptions().runtime;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated");
  p->totalGlobalMem = static_cast<size_t>(GetOptions().memory);
  p->major = GetOptions().capability / 10, p->minor = GetOptions().capability % 10,
  p->multiProcessorCount = GetOptions().multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return The().error; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const InContext call;
  *total = static_cast<size_t>(GetOptions().memory);
  *free = *total - static_cast<size_t>(The().used);
  return The().error;
}
cudaError_t cudaMalloc(void** out, size_t bytes) {
  const InContext call;
  if (const cudaError_t e = kvc::emu::MayDisturb(); e != cudaSuccess) return e;
  if (!kvc::emu::Admits(kvc::emu::Call::kAllocate) ||
      The().used + static_cast<int64_t>(bytes) > GetOptions().memory)
    return cudaErrorMemoryAllocation;
  void* at = ::operator new (bytes, std::align_val_t{256}, std::nothrow);
  if (at == nullptr) return cudaErrorMemoryAllocation;
  std::memset(at, 0xff, bytes);
  The().used += static_cast<int64_t>(bytes);
  kvc::emu::NoteNew(at, bytes);
  The().device[reinterpret_cast<uintptr_t>(at)] = bytes;
  *out = at;
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  if (at == nullptr) return cudaSuccess;
  const InContext call;
  if (kvc::emu::MayDisturb() == cudaErrorStreamCaptureUnsupported) return cudaErrorStreamCaptureUnsupported;
  kvc::emu::DrainAll();
  const auto it = The().device.find(reinterpret_cast<uintptr_t>(at));
  if (it == The().device.end()) return cudaErrorInvalidValue;
  The().used -= static_cast<int64_t>(it->second);
  The().device.erase(it);
  ::operator delete (at, std::align_val_t{256});
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  const InContext call;
  if (const cudaError_t e = kvc::emu::MayDisturb(); e != cudaSuccess) return e;
  if (!kvc::emu::Admits(kvc::emu::Call::kPin)) return cudaErrorMemoryAllocation;
  void* at = ::operator new (bytes, std::align_val_t{256}, std::nothrow);
  if (at == nullptr) return cudaErrorMemoryAllocation;
  kvc::emu::NoteNew(at, bytes);
  The().pinned[reinterpret_cast<uintptr_t>(at)] = bytes;
  *out = at;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) {
  if (at == nullptr) return cudaSuccess;
  const InContext call;
  if (kvc::emu::MayDisturb() == cudaErrorStreamCaptureUnsupported) return cudaErrorStreamCaptureUnsupported;
  kvc::emu::DrainAll();
  The().pinned.erase(reinterpret_cast<uintptr_t>(at));
  ::operator delete (at, std::align_val_t{256});
  return cudaSuccess;
}
// As the programming guide has it: from pageable memory the source may be reused when the call returns, to
// pageable memory the call waits, everything else happens with the stream.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const InContext call;
  if (bytes == 0) return The().error;
  if (!kvc::emu::Admits(kvc::emu::Call::kCopy)) return cudaErrorUnknown;
  if (kind == cudaMemcpyHostToDevice && !kvc::emu::Within(The().pinned, from)) {
    const std::string copy(static_cast<const char*>(from), bytes);
    return Enqueue(stream, [=] { std::memcpy(to, copy.data(), bytes); });
  }
  const cudaError_t e = Enqueue(stream, [=] { std::memmove(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && !kvc::emu::Within(The().pinned, to)) {
    kvc::emu::WaitFor(kvc::emu::Of(stream));
    return The().error;
  }
  return e;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  const InContext call;
  return Enqueue(stream, [=] { std::memset(at, value, bytes); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  const InContext call;
  return Enqueue(stream, [=] { function(data); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  const InContext call;
  *out = new (std::nothrow) CUstream_st();
  if (*out == nullptr) return cudaErrorMemoryAllocation;
  (*out)->device = kvc::emu::contexts.Device();
  The().streams[*out] = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  return cudaStreamCreateWithFlags(out, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  const InContext call;
  CUstream_st* waits = s == nullptr ? &The().null_stream : s;
  return Enqueue(s, [waits, stream = e->stream, at = e->at, ended = e->ended] {
    if (stream != nullptr) kvc::emu::DrainTo(stream, at);
    if constexpr (kvc::emu::races::kOn) {
      if (ended != nullptr) waits->order.ended.Join(*ended);
    }
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  const InContext call;
  kvc::emu::Drain(s);
  The().streams.erase(s);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  const InContext call;
  kvc::emu::WaitFor(kvc::emu::Of(s));
  return kvc::emu::MayDisturb();
}
cudaError_t cudaDeviceSynchronize() {
  const InContext call;
  kvc::emu::WaitForAll();
  return The().error;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = new (std::nothrow) CUevent_st();
  return *out == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  const InContext call;
  e->stream = kvc::emu::Of(s), e->at = e->stream->issued;
  kvc::emu::NoteOrder(e);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  const InContext call;
  if (e->stream != nullptr) kvc::emu::DrainTo(e->stream, e->at);
  if constexpr (kvc::emu::races::kOn) {
    if (e->ended != nullptr) kvc::emu::races::HostWaitsFor(*e->ended);
  }
  return kvc::emu::MayDisturb();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete e;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  static const std::map<std::string, void*> kAll = {
      {"cuInit", reinterpret_cast<void*>(kvc::emu::Init)},
      {"cuDeviceGet", reinterpret_cast<void*>(kvc::emu::DeviceGet)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(kvc::emu::PrimaryRetain)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(kvc::emu::PushCurrent)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(kvc::emu::PopCurrent)},
      {"cuThreadExchangeStreamCaptureMode", reinterpret_cast<void*>(kvc::emu::ExchangeCaptureMode)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(kvc::emu::AddressReserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(kvc::emu::AddressFree)},
      {"cuMemCreate", reinterpret_cast<void*>(kvc::emu::Create)},
      {"cuMemRelease", reinterpret_cast<void*>(kvc::emu::Release)},
      {"cuMemMap", reinterpret_cast<void*>(kvc::emu::Map)},
      {"cuMemSetAccess", reinterpret_cast<void*>(kvc::emu::SetAccess)},
      {"cuMemUnmap", reinterpret_cast<void*>(kvc::emu::Unmap)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(kvc::emu::Granularity)},
  };
  const auto it = kAll.find(name);
  *function = it == kAll.end() ? nullptr : it->second;
  *status = cudaDriverEntryPointSuccess;
  return it == kAll.end() ? cudaErrorInvalidValue : cudaSuccess;
}

}  // extern "C"
