// Memory of a device as the layers above the device interface see it: addresses that can be counted on and
// handed to operations. What lies there is read and written by operations alone (device.h); nobody above has
// a pointer to it.
#pragma once
#include <cstdint>
#include <type_traits>

namespace kvc {

struct DeviceAccess;  // lib/ops/cpu/raw.h and other backends: how an address becomes a pointer

// The address of a T. Null by default.
template <typename T>
class DevicePtr {
 public:
  constexpr DevicePtr() = default;
  template <typename U, typename = std::enable_if_t<std::is_same_v<const U, T>>>
  constexpr DevicePtr(DevicePtr<U> p) : at_(p.number()) {}  // NOLINT: as a pointer does
  static constexpr DevicePtr FromNumber(uintptr_t at) {
    DevicePtr p;
    p.at_ = at;
    return p;
  }
  constexpr uintptr_t number() const { return at_; }
  constexpr explicit operator bool() const { return at_ != 0; }
  constexpr DevicePtr operator+(int64_t n) const {
    return FromNumber(at_ + static_cast<uintptr_t>(n * static_cast<int64_t>(sizeof(T))));
  }
  // The same address for elements of another type.
  template <typename U>
  constexpr DevicePtr<U> As() const {
    return DevicePtr<U>::FromNumber(at_);
  }

 private:
  uintptr_t at_ = 0;
};

using DeviceBytes = DevicePtr<uint8_t>;

}  // namespace kvc
