#include "lib/base/hash.h"

#include <chrono>
#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/base/system_random.h"

namespace kvc {
namespace {

XXH3_state_t* State(unsigned char* bytes) { return std::launder(reinterpret_cast<XXH3_state_t*>(bytes)); }

}  // namespace

uint64_t Hash64(const void* data, size_t n_bytes) { return XXH3_64bits(data, n_bytes); }
uint64_t Hash64(const void* data, size_t n_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, n_bytes, seed);
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  if (SystemRandom(&seed, sizeof seed)) return seed;
  const void* place = &seed;
  const uint64_t now = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return Hash64(&place, sizeof place, now);
}

Hasher64::Hasher64() {
  static_assert(sizeof(XXH3_state_t) <= sizeof(state_) && alignof(XXH3_state_t) <= 64, "the state must fit");
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void Hasher64::Update(const void* data, size_t n_bytes) {
  if (n_bytes > 0) XXH3_64bits_update(State(state_), data, n_bytes);
}

uint64_t Hasher64::Digest() const { return XXH3_64bits_digest(State(const_cast<unsigned char*>(state_))); }

}  // namespace kvc
