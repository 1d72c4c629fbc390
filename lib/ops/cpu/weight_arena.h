// Memory of the weights that a device packs, matrix after matrix in large pages. A page of 4 KiB costs a walk
// through the page tables every 64 lines, which a step that streams all weights past feels
// (docs/performance.md, "How weights are read"); blocks of their own lose what does not fill a large page,
// a sixth of a model of 1B.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace kvc::cpu {

// Thread rule: any thread.
class WeightArena {
 public:
  WeightArena() = default;
  WeightArena(const WeightArena&) = delete;
  WeightArena& operator=(const WeightArena&) = delete;
  ~WeightArena();

  // Aligned to 64 bytes. Null: the system has no large pages or no memory; any other memory will do.
  uint8_t* Take(int64_t bytes);
  // False: it is not from here. Memory goes back to the system when nothing of its chunk is in use.
  bool Return(const uint8_t* at, int64_t bytes);

 private:
  struct Chunk {
    uint8_t *block = nullptr, *begin = nullptr, *end = nullptr;  // begin: of the first large page
    int64_t used = 0, live = 0;                                  // bytes
  };
  static bool Map(int64_t least, Chunk* out);

  std::mutex mutex_;
  std::vector<Chunk> chunks_;
};

}  // namespace kvc::cpu
