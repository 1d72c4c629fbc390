// One function describes what is saved and what is read back: the same calls run on a writer or on a reader.
#pragma once
#include <cstdint>
#include <type_traits>

#include "lib/base/byte_sink.h"
#include "lib/base/byte_source.h"
#include "lib/base/hash.h"
#include "lib/base/status.h"

namespace kvc {

class ArchiveWriter {
 public:
  static constexpr bool kReading = false;
  explicit ArchiveWriter(ByteSink* sink) : sink_(sink) {}
  Status Bytes(void* data, int64_t n) {
    hasher_.Update(data, static_cast<size_t>(n));
    return sink_->Write(data, n);
  }
  uint64_t Digest() const { return hasher_.Digest(); }

 private:
  ByteSink* sink_;
  Hasher64 hasher_;
};

class ArchiveReader {
 public:
  static constexpr bool kReading = true;
  // The next n bytes of source, which lives longer.
  ArchiveReader(ByteSource* source, int64_t n) : source_(source), left_(n) {}
  Status Bytes(void* data, int64_t n) {
    if (n < 0 || n > left_) return Error(Code::kBadModel, "damaged: a part ends behind the end of the file");
    left_ -= n;
    return source_->Read(data, n);
  }
  int64_t left() const { return left_; }

 private:
  ByteSource* const source_;
  int64_t left_;
};

// A number, an enum or a plain struct without pointers and padding.
template <typename Archive, typename T>
Status ArchiveValue(Archive& archive, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return archive.Bytes(&value, static_cast<int64_t>(sizeof(T)));
}

// A vector or string of such; a count above `most` is damage, and nothing is taken for it.
template <typename Archive, typename Container>
Status ArchiveSequence(Archive& archive, Container& items, int64_t most) {
  using T = typename Container::value_type;
  static_assert(std::is_trivially_copyable_v<T>);
  int64_t n = static_cast<int64_t>(items.size());
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, n));
  if (n < 0 || n > most)
    return Error(Code::kBadModel, "damaged: a count of %lld where at most %lld can be",
                 static_cast<long long>(n), static_cast<long long>(most));
  if constexpr (Archive::kReading) {
    if (n * static_cast<int64_t>(sizeof(T)) > archive.left())
      return Error(Code::kBadModel, "damaged: a part ends behind the end of the file");
    items.resize(static_cast<size_t>(n));
  }
  return n == 0 ? Status() : archive.Bytes(&items[0], n * static_cast<int64_t>(sizeof(T)));
}

// A sequence whose length the reader knows.
template <typename Archive, typename Container>
Status ArchiveFixedSequence(Archive& archive, Container& items) {
  const size_t n = items.size();
  KVC_RETURN_IF_ERROR(ArchiveSequence(archive, items, static_cast<int64_t>(n)));
  return items.size() == n ? Status() : Error(Code::kBadModel, "damaged: a sequence of another length");
}

}  // namespace kvc
