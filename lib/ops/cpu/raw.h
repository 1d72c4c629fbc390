// Addresses of this processor's memory are pointers. For backends over host memory, and for tests.
#pragma once
#include "lib/ops/device_memory.h"

namespace kvc {

struct DeviceAccess {
  template <typename T>
  static T* Pointer(DevicePtr<T> p) {
    return reinterpret_cast<T*>(p.number());
  }
  template <typename T>
  static DevicePtr<T> Address(T* p) {
    return DevicePtr<T>::FromNumber(reinterpret_cast<uintptr_t>(p));
  }
};

template <typename T>
T* Raw(DevicePtr<T> p) {
  return DeviceAccess::Pointer(p);
}
template <typename T>
DevicePtr<T> AddressOf(T* p) {
  return DeviceAccess::Address(p);
}

}  // namespace kvc
