// A pointer and a count. Does not own.
#pragma once
#include <cassert>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace kvc {

template <typename T>
class Span {
 public:
  Span() = default;
  Span(T* data, size_t size) : data_(data), size_(size) {}
  Span(std::vector<std::remove_const_t<T>>& v) : data_(v.data()), size_(v.size()) {}  // NOLINT: implicit
  template <typename U = T, typename = std::enable_if_t<std::is_const_v<U>>>
  Span(const std::vector<std::remove_const_t<T>>& v)
      : data_(v.data()), size_(v.size()) {}  // NOLINT: implicit
  template <typename U, typename = std::enable_if_t<std::is_same_v<const U, T>>>
  Span(Span<U> s) : data_(s.data()), size_(s.size()) {}  // NOLINT: implicit
  T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) const {
    assert(i < size_);
    return data_[i];
  }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  Span subspan(size_t offset, size_t count) const {
    assert(offset + count <= size_);
    return Span(data_ + offset, count);
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvc
