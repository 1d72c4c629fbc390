// XXH3-64: the checksum of everything we write, and with a secret seed the hash of tables whose keys others
// choose.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvc {

uint64_t Hash64(const void* data, size_t n_bytes);
uint64_t Hash64(const void* data, size_t n_bytes, uint64_t seed);
// A seed that nobody outside knows: from the system, or, where it has none to give, from what differs between
// runs.
uint64_t RandomSeed();

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
