// XXH3-64: the checksum of everything we write, and with a secret seed the hash of tables whose keys others
// choose.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvc {

uint64_t Hash64(const void* data, size_t n_bytes);
uint64_t Hash64(const void* data, size_t n_bytes, uint64_t seed);
// A seed that nobody outside knows: from the system, or, where it has none to give, from what differs between
// runs.
uint64_t RandomSeed();

// Of the standard library's tables, whose own hash everybody knows: no choice of keys makes these slow.
class SecretHash {
 public:
  SecretHash() : seed_(RandomSeed()) {}
  size_t operator()(const std::string& key) const {
    return static_cast<size_t>(Hash64(key.data(), key.size(), seed_));
  }

 private:
  uint64_t seed_;
};

// The same over bytes that come in pieces; any split gives the same value.
class Hasher64 {
 public:
  Hasher64();
  void Update(const void* data, size_t n_bytes);
  uint64_t Digest() const;

 private:
  alignas(64) unsigned char state_[640];  // XXH3_state_t, kept out of this header
};

}  // namespace kvc
