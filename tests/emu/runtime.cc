// The runtime of the emulated device. Streams are queues: nothing in them happens before somebody waits for
// it, which is the latest that a device may take; what relied on more would see memory that was never
// written. Memory is the host's, so AddressSanitizer sees every byte that a kernel has no business with.
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "tests/emu/machine.h"

namespace kvc::emu {

Contexts& GetContexts() {
  thread_local Contexts contexts;
  return contexts;
}
CUstreamCaptureMode& GetCaptureMode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}
CUctx_st* PrimaryOf(int device) {
  constexpr int kMostDevices = 8;
  static CUctx_st all[kMostDevices];
  all[device].device = device;
  return &all[device];
}

Machine& The() {
  static Machine* machine = new Machine();  // sessions may be closed as the process ends
  return *machine;
}
bool Forked() { return The().process != 0 && The().process != ::getpid(); }

namespace {

// Such a call that needs a context: the thread has one from then on.
class InContext {
 public:
  InContext() : lock_(The().mutex) {
    if (Forked()) The().error = cudaErrorInitializationError;
    if (The().process == 0) The().process = ::getpid();
    Contexts& own = GetContexts();
    if (own.n == 0) own.at[own.n++] = PrimaryOf(own.device);
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
  ++GetCalls().waits;
  Drain(s);
  if constexpr (races::kOn) races::HostWaitsFor(races::SoFar(s->order));
}
void DrainAll() {
  for (auto& s : The().streams) Drain(s.first);
  Drain(&The().null_stream);
}
void WaitForAll() {
  ++GetCalls().waits;
  DrainAll();
  if constexpr (races::kOn) races::HostWaitsForAll();
}
// What a call that takes or frees memory or asks how far streams are says first: such calls are barred from
// every thread while one captures, but for threads that have said that it does not concern them.
cudaError_t MayDisturb() {
  if (GetOptions().capturing && GetCaptureMode() != CU_STREAM_CAPTURE_MODE_RELAXED) {
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
}  // namespace

namespace {

void SpoilMemory(void* at, size_t bytes) {
  std::memset(at, 0xff, bytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(at, bytes);
#endif
}

}  // namespace

// Neither stream waits for the other, as cudaFree does: who takes a block too early has it spoilt.
void NoteFreed(void* at, size_t bytes, cudaStream_t first, cudaStream_t second) {
  const Lock lock(The().mutex);
  const auto left = std::make_shared<int>(1);
  const auto pass = [=] {
    if (--*left == 0) SpoilMemory(at, bytes);
  };
  for (CUstream_st* s : {first, second}) {
    if (s == nullptr || s->done == s->issued) continue;
    ++*left;
    s->tasks.push_back({pass, true, {}});
    if constexpr (races::kOn) s->tasks.back().known = races::KnownToHost();
    ++s->issued;
  }
  pass();
}

void NoteTaken(void* at, size_t bytes) {
  const Lock lock(The().mutex);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(at, bytes);
#endif
  std::memset(at, 0xff, bytes);
  NoteNew(at, bytes);
}

void Break() {
  const Lock lock(The().mutex);
  The().error = cudaErrorLaunchFailure;
}

int CaptureMode() { return GetCaptureMode(); }

int CurrentContext() {
  const Contexts& own = GetContexts();
  return own.n == 0 ? -1 : own.Device();
}

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
  if (stream != nullptr && stream->device != GetContexts().Device()) return cudaErrorInvalidResourceHandle;
  auto run = [grid = std::move(grid)] {
    if (The().error == cudaSuccess && !grid()) The().error = cudaErrorLaunchFailure;
  };
  return Enqueue(stream, std::move(run), true);
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
  if (The().process == 0) The().process = ::getpid();  // the driver is in use
  if (GetOptions().count_error != cudaSuccess) return GetOptions().count_error;
  return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= GetOptions().devices) return cudaErrorInvalidDevice;
  kvc::emu::Contexts& own = kvc::emu::GetContexts();
  own.device = d;
  own.at[own.n == 0 ? own.n++ : own.n - 1] = kvc::emu::PrimaryOf(d);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  *d = kvc::emu::GetContexts().Device();
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
  if (kind == cudaMemcpyDeviceToHost) ++kvc::emu::GetCalls().to_host;
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
  (*out)->device = kvc::emu::GetContexts().Device();
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
  ++kvc::emu::GetCalls().waits;
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
}  // extern "C"
