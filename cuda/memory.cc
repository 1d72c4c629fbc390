// A device is found, and its memory. Blocks by cudaMalloc; arenas by the driver's virtual memory, whose
// addresses stay while what is behind them comes and goes.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "cuda/cuda_device.h"
#include "cuda/kernels.h"
#include "lib/base/clock.h"
#include "lib/ops/devices.h"

namespace kvc::cuda {

namespace {

CUmemAllocationProp Properties(int number) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = number;
  return p;
}

Status Unsupported(const std::string& spec, const std::string& why) {
  return Error(Code::kUnsupported, "device \"%.32s\": %s; use \"cpu\"", spec.c_str(), why.c_str());
}

Status NumberIn(const std::string& spec, int* number) {
  *number = 0;
  const size_t colon = spec.find(':');
  if (colon == std::string::npos) return {};
  const std::string digits = spec.substr(colon + 1);
  if (digits.empty() || digits.size() > 3 || digits.find_first_not_of("0123456789") != std::string::npos)
    return Error(Code::kInvalid, "device \"%.32s\": write \"cuda\" or \"cuda:N\"", spec.c_str());
  *number = std::atoi(digits.c_str());
  return {};
}

// A runtime works with every driver of its major version, and with later ones.
int OldestDriverOfRuntime() {
  int runtime = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) return kOldestDriver;
  return std::max(kOldestDriver, runtime / 1000 * 1000);
}

Status FindDevice(const std::string& spec, int number) {
  int version = 0, count = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
    return Unsupported(spec, "this machine has no NVIDIA driver");
  const int oldest = OldestDriverOfRuntime();
  if (version < oldest)
    return Unsupported(spec, Format("the NVIDIA driver is of CUDA %d.%d, and this build needs %d.0 or later",
                                    version / 1000, version % 1000 / 10, oldest / 1000));
  if (ForkedFromUser())
    return Unsupported(spec,
                       "a parent of this process used a GPU before it forked, and CUDA works in no child");
  NoteUse();
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e != cudaSuccess && e != cudaErrorNoDevice)
    return Unsupported(spec, Format("the NVIDIA driver says \"%s\"", cudaGetErrorString(e)));
  if (e == cudaErrorNoDevice || count == 0) return Unsupported(spec, "the NVIDIA driver has no device");
  if (number >= count)
    return Error(Code::kUnsupported, "device \"%.32s\": there are %d, counted from 0", spec.c_str(), count);
  return {};
}

// Of what lies behind addresses; 0: the device has no virtual memory.
size_t GranuleOf(const Driver& driver, int number) {
  int has = 0;
  size_t granule = 0;
  const CUmemAllocationProp p = Properties(number);
  const bool known =
      driver.attribute(&has, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, number) == CUDA_SUCCESS;
  if (!known || has == 0 ||
      driver.granularity(&granule, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
    return 0;
  return granule;
}

// In the thread's context. *compiled_for: KernelLoader's.
Status LoadKernels(const std::string& spec, int* compiled_for) {
  KernelLoader loader;
  loader.AddAll();
  const cudaError_t e = loader.error();
  if (e != cudaSuccess) cudaGetLastError();
  constexpr cudaError_t kCannotRun[] = {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction,
                                        cudaErrorInvalidKernelImage,     cudaErrorInvalidPtx,
                                        cudaErrorUnsupportedPtxVersion,  cudaErrorJitCompilerNotFound,
                                        cudaErrorJitCompilationDisabled};
  if (std::find(std::begin(kCannotRun), std::end(kCannotRun), e) != std::end(kCannotRun))
    return Unsupported(spec, Format("this build's kernels do not run there: %s", cudaGetErrorString(e)));
  *compiled_for = loader.compiled_for();
  return Check(e, loader.last());
}

// Of prompts up to here rows between layers are f32, which costs nothing there: of the 8B shape 128 MiB.
// Tests choose others.
int32_t MostFloatRows() {
  const char* value = std::getenv("KVC_CUDA_FLOAT_ROWS");
  return value == nullptr || *value == '\0' ? 8192 : std::max(0, std::atoi(value));
}

// Bytes of freed memory that are kept: as much as a short prompt's scratch, 360 MB of the 8B shape, where
// that is little of what the device has. Of a longer prompt the time to take memory is none.
int64_t MostKeptBytes(size_t total) {
  const int64_t usual = std::min<int64_t>(512 << 20, static_cast<int64_t>(total / 64));
  return IsOn("KVC_CUDA_KEEP") ? usual : 0;
}

// The shortest time of a copy of so many bytes to `to` from those behind them, once copies have gone on for
// `warm` seconds; 0: none was measured.
cudaError_t BestCopy(uint8_t* to, int64_t bytes, double warm, float* best) {
  constexpr int kMeasured = 7;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = cudaEventCreateWithFlags(&begin, 0);
  if (e == cudaSuccess) e = cudaEventCreateWithFlags(&end, 0);
  const double start = Seconds();
  for (int copies = 0, measured = 0; measured < kMeasured && e == cudaSuccess; ++copies) {
    float ms = 0;
    cudaEventRecord(begin, stream);
    e = cudaMemcpyAsync(to, to + bytes, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream);
    cudaEventRecord(end, stream);
    if (e == cudaSuccess) e = cudaEventSynchronize(end);
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, begin, end);
    if (copies == 0 || Seconds() - start < warm) continue;
    ++measured;
    if (ms > 0 && (*best == 0 || ms < *best)) *best = ms;
  }
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  if (stream != nullptr) cudaStreamDestroy(stream);
  return e;
}

// What a call for memory said, if it failed: kMemory promises that it can be had later.
Status NoMemory(cudaError_t e, const char* what, int64_t bytes) {
  if (e != cudaErrorMemoryAllocation) return Check(e, what);
  cudaGetLastError();
  return Error(Code::kMemory, "no memory on the device for %s: %lld bytes", what,
               static_cast<long long>(bytes));
}

}  // namespace

}  // namespace kvc::cuda

namespace kvc {

Result<std::unique_ptr<Device>> CreateCuda(const std::string& spec, const ThreadOptions&) {
  return cuda::CudaDevice::Create(spec);
}

}  // namespace kvc

namespace kvc::cuda {

Result<std::unique_ptr<Device>> CudaDevice::Create(const std::string& spec) {
  int number = 0;
  KVC_RETURN_IF_ERROR(NumberIn(spec, &number));
  KVC_RETURN_IF_ERROR(FindDevice(spec, number));
  cudaDeviceProp properties;
  KVC_RETURN_IF_ERROR(Check(cudaGetDeviceProperties(&properties, number), "the device"));
  if (properties.major < 8) return Unsupported(spec, "it is older than compute capability 8.0");
  const Driver* driver = FindDriver();
  if (driver == nullptr) return Unsupported(spec, "the NVIDIA driver has no virtual memory");
  Context context;
  KVC_RETURN_IF_ERROR(Context::Retain(driver, number, &context));
  const Current current(context);
  KVC_RETURN_IF_ERROR(current.status());
  size_t free = 0, total = 0;
  // A context in which a kernel failed says so with every call, and cannot be had anew in this process.
  KVC_RETURN_IF_ERROR(
      Check(cudaMemGetInfo(&free, &total), "the device, which may have failed earlier in this process"));
  const size_t granule = GranuleOf(*driver, number);
  if (granule == 0) return Unsupported(spec, "it has no virtual memory");
  int compiled_for = 0;
  KVC_RETURN_IF_ERROR(LoadKernels(spec, &compiled_for));
  LaunchTraits traits;
  traits.graphs = IsOn("KVC_CUDA_GRAPHS");
  traits.rounds = IsOn("KVC_CUDA_ROUND");
  traits.multiprocessors = properties.multiProcessorCount;
  int version = 0;
  KVC_RETURN_IF_ERROR(Check(cudaDriverGetVersion(&version), "the driver"));
  const TunedDevice tuned = TunedDeviceOf(properties.name, version);
  traits.tuning = TuningFor(properties.major * 10 + properties.minor, properties.multiProcessorCount);
  KVC_RETURN_IF_ERROR(LoadTuning(tuned, &traits.tuning));
  // Kernels for older devices run there too, and do not wait by themselves (gpu.h).
  traits.early = std::min(10 * properties.major, compiled_for) >= 90 && version >= kOldestWithEarlyEdges &&
                 traits.tuning.early != 0 && IsOn("KVC_CUDA_EARLY");
  std::unique_ptr<CudaDevice> device(
      new CudaDevice(number, context, traits, MostKeptBytes(properties.totalGlobalMem)));
  device->info_.name = Format("%s:%d", spec.substr(0, spec.find(':')).c_str(), number);
  device->info_.description =
      Format("%.80s, %d multiprocessors, compute capability %d.%d, %.1f GiB", properties.name,
             properties.multiProcessorCount, properties.major, properties.minor,
             static_cast<double>(properties.totalGlobalMem) / (1 << 30));
  device->info_.batch_invariant = false;
  device->info_.sample_rows = std::numeric_limits<int32_t>::max();
  device->info_.prompt_rows = traits.tuning.prompt_rows;
  device->info_.tuning = TuningText(tuned, traits.tuning);
  device->info_.half_layers = IsOn("KVC_CUDA_F16_LAYERS");
  device->info_.most_float_rows = MostFloatRows();
  device->info_.granule = static_cast<int64_t>(granule);
  device->info_.recommits = true;
  KVC_RETURN_IF_ERROR(device->CreateStreams());
  return std::unique_ptr<Device>(std::move(device));
}

CudaDevice::~CudaDevice() {
  const Current current(context_);
  blas_.reset();
  if (current.ok()) kept_.Close();
  for (cudaStream_t stream : {stream_, side_}) {
    if (stream != nullptr && current.ok()) cudaStreamDestroy(stream);
  }
}

// Blocks of the first go in front of those of the second that have not begun: small kernels, one after the
// other, would each wait for the end of a large product there otherwise.
Status CudaDevice::CreateStreams() {
  int least = 0, greatest = 0;
  const char* what = "a stream of the device";
  KVC_RETURN_IF_ERROR(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), what));
  KVC_RETURN_IF_ERROR(Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), what));
  if (IsOn("KVC_CUDA_BESIDE"))
    KVC_RETURN_IF_ERROR(Check(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, least), what));
  kept_.Watch(stream_, side_);
  return {};
}

Result<std::unique_ptr<Stream>> CudaDevice::NewStreamOn(cudaStream_t stream) {
  KVC_ENTER();
  std::unique_ptr<CudaStream> made(new CudaStream(traits_, context_, &kept_));
  KVC_RETURN_IF_ERROR(made->Create(stream));
  return std::unique_ptr<Stream>(std::move(made));
}

Result<std::unique_ptr<Stream>> CudaDevice::NewStream() { return NewStreamOn(stream_); }

Result<std::unique_ptr<Stream>> CudaDevice::NewSideStream() {
  return side_ == nullptr ? std::unique_ptr<Stream>() : NewStreamOn(side_);
}

Status CudaDevice::Allocate(int64_t bytes, const char* what, DeviceBytes* out) {
  KVC_ENTER();
  void* at = nullptr;
  *out = {};
  const cudaError_t e = kept_.Take(bytes, &at);
  if (e != cudaSuccess) return NoMemory(e, what, bytes);
  *out = AddressOf(static_cast<uint8_t*>(at));
  return {};
}

void CudaDevice::Free(DeviceBytes at, int64_t bytes) {
  const Current current(context_);
  if (current.ok()) kept_.Free(At(at), bytes);
}

void CudaDevice::GiveBackFreed() {
  const Current current(context_);
  if (current.ok()) kept_.FreeAll();
}

void CudaDevice::KeepNothing() {
  const Current current(context_);
  if (current.ok()) kept_.KeepNothing();
}

// ---- arenas ----

int64_t CudaDevice::Reserve(int64_t bytes, DeviceBytes* out) {
  *out = {};
  const Current current(context_);
  if (!current.ok()) return 0;
  const int64_t granule = info_.granule;
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess && total > 0)
    bytes = std::min<int64_t>(bytes, static_cast<int64_t>(total));
  const auto half = [granule](int64_t n) { return n / 2 / granule * granule; };
  const int64_t wanted = (bytes + granule - 1) / granule * granule;
  for (bytes = wanted; bytes >= granule; bytes = half(bytes)) {
    CUdeviceptr at = 0;
    if (driver_.reserve(&at, static_cast<size_t>(bytes), 0, 0, 0) != CUDA_SUCCESS) continue;
    // Where addresses are scarce (a Jetson has some ten GiB of them) the next arena wants its part too.
    if (bytes < wanted && half(bytes) >= granule) {
      driver_.free(at, static_cast<size_t>(bytes));
      bytes = half(bytes);
      if (driver_.reserve(&at, static_cast<size_t>(bytes), 0, 0, 0) != CUDA_SUCCESS) continue;
    }
    *out = DeviceBytes::FromNumber(static_cast<uintptr_t>(at));
    return bytes;
  }
  return 0;
}

void CudaDevice::Unreserve(DeviceBytes at, int64_t bytes) {
  const Current current(context_);
  if (current.ok()) driver_.free(static_cast<CUdeviceptr>(at.number()), static_cast<size_t>(bytes));
}

Status CudaDevice::Commit(DeviceBytes at, int64_t bytes) {
  KVC_ENTER();
  const Status status = CommitAll(at, bytes);
  return status.code() == Code::kMemory && kept_.FreeAll() ? CommitAll(at, bytes) : status;
}

// One physical block a granule, so that any part can be given back.
Status CudaDevice::CommitAll(DeviceBytes at, int64_t bytes) {
  const CUmemAllocationProp p = Properties(number_);
  CUmemAccessDesc access = {};
  access.location = p.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const size_t granule = static_cast<size_t>(info_.granule);
  for (int64_t done = 0; done < bytes; done += info_.granule) {
    const CUdeviceptr to = static_cast<CUdeviceptr>(at.number()) + static_cast<CUdeviceptr>(done);
    CUmemGenericAllocationHandle handle = 0;
    CUresult e = driver_.create(&handle, granule, &p, 0);
    if (e == CUDA_SUCCESS) {
      const CUresult mapped = driver_.map(to, granule, 0, handle, 0);
      driver_.release(handle);  // it lives while it is mapped
      e = mapped == CUDA_SUCCESS ? driver_.access(to, granule, &access, 1) : mapped;
      if (mapped == CUDA_SUCCESS && e != CUDA_SUCCESS) driver_.unmap(to, granule);
    }
    if (e == CUDA_SUCCESS) continue;
    Decommit(at, done);
    return NoMemory(static_cast<cudaError_t>(e), "the KV cache", bytes);
  }
  return {};
}

bool CudaDevice::Decommit(DeviceBytes at, int64_t bytes) {
  const Current current(context_);
  if (!current.ok()) return false;
  // Kernels that are on their way may still read it: of this stream, as only those touch pages. The whole
  // device may not be waited for while some other part of the process captures a graph.
  cudaStreamSynchronize(stream_);
  bool unmapped = true;
  for (int64_t done = 0; done < bytes; done += info_.granule)
    unmapped &= driver_.unmap(static_cast<CUdeviceptr>(at.number()) + static_cast<CUdeviceptr>(done),
                              static_cast<size_t>(info_.granule)) == CUDA_SUCCESS;
  return unmapped;
}

// ---- copies ----

Status CudaDevice::Write(Stream* s, DeviceBytes to, const void* from, int64_t bytes) {
  KVC_ENTER();
  const char* what = "writing to the device";
  KVC_RETURN_IF_ERROR(StreamOf(s).Copy(At(to), from, bytes, cudaMemcpyHostToDevice, what));
  return StreamOf(s).Wait(what);  // the caller's memory, pageable: it may be read until then
}

Status CudaDevice::Read(Stream* s, DevicePtr<const uint8_t> from, void* to, int64_t bytes) {
  KVC_ENTER();
  return StreamOf(s).Fetch(At(from), to, bytes);
}

Status CudaDevice::Zero(Stream* s, DeviceBytes at, int64_t bytes) {
  KVC_ENTER();
  return StreamOf(s).Clear(At(at), bytes, "clearing on the device");
}

// A large copy moves every byte twice; the best of several, behind others which bring clocks up: a device
// that nothing was asked of yet gets more of them. Many times what the caches hold is copied, for the end of
// what is written stays in them, and events add to what a copy takes: 1 GiB, less where that is much of the
// device or more than it has left.
Result<double> CudaDevice::MeasureBandwidth(Span<const Matrix* const>) {
  KVC_ENTER();
  constexpr int64_t kMost = 1 << 30, kLeast = 1 << 20;
  constexpr double kWarmSeconds = 0.05;
  size_t free = 0, total = 0;
  KVC_RETURN_IF_ERROR(Check(cudaMemGetInfo(&free, &total), "the device's memory"));
  int64_t bytes = std::clamp(static_cast<int64_t>(total / 64) / kLeast * kLeast, kLeast, kMost);
  void* memory = nullptr;
  cudaError_t taken = kept_.Allocate(2 * bytes, &memory);
  while (taken == cudaErrorMemoryAllocation && bytes > kLeast) {
    cudaGetLastError();
    bytes /= 2;
    taken = kept_.Allocate(2 * bytes, &memory);
  }
  if (taken != cudaSuccess) return NoMemory(taken, "a measurement", 2 * bytes);
  float ms = 0;
  const cudaError_t e =
      BestCopy(static_cast<uint8_t*>(memory), bytes, measured_.exchange(true) ? 0 : kWarmSeconds, &ms);
  cudaFree(memory);
  KVC_RETURN_IF_ERROR(Check(e, "measuring the device"));
  return ms > 0 ? 2.0 * static_cast<double>(bytes) / (static_cast<double>(ms) * 1e-3) : 0.0;
}

}  // namespace kvc::cuda
