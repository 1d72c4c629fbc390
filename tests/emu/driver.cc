// The driver of the emulated device: contexts, and memory that is mapped to addresses.
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "tests/emu/machine.h"

namespace kvc::emu {
namespace {

CUresult Init(unsigned) { return Forked() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS; }
CUresult DeviceGet(CUdevice* out, int number) {
  if (number < 0 || number >= GetOptions().devices) return CUDA_ERROR_INVALID_DEVICE;
  *out = number;
  return CUDA_SUCCESS;
}
CUresult DeviceGetAttribute(int* out, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
  *out = GetOptions().virtual_memory ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult PrimaryRetain(CUcontext* out, CUdevice device) {
  *out = PrimaryOf(device);
  return CUDA_SUCCESS;
}
CUresult PushCurrent(CUcontext context) {
  if (Forked()) return CUDA_ERROR_NOT_INITIALIZED;
  Contexts& own = GetContexts();
  if (context == nullptr || own.n == kMostContexts) return CUDA_ERROR_INVALID_CONTEXT;
  own.at[own.n++] = context;
  return CUDA_SUCCESS;
}
CUresult PopCurrent(CUcontext* out) {
  Contexts& own = GetContexts();
  if (own.n == 0) return CUDA_ERROR_INVALID_CONTEXT;
  *out = own.at[--own.n];
  return CUDA_SUCCESS;
}
CUresult ExchangeCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, GetCaptureMode());
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
}  // namespace
}  // namespace kvc::emu

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  static const std::map<std::string, void*> kAll = {
      {"cuInit", reinterpret_cast<void*>(kvc::emu::Init)},
      {"cuDeviceGet", reinterpret_cast<void*>(kvc::emu::DeviceGet)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(kvc::emu::DeviceGetAttribute)},
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
