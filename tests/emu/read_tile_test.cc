// Tiles of entries as the attention of a step reads them, 16 bytes at a time, are what the cache has number
// by number: the same bits, for every form of a page.
#include "cuda/read_tile.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/emu/launch_at_once.h"

namespace kvc::cuda {
namespace {

// Compares [begin, begin + n) of head 0. found: numbers that differ, and whether whole vectors were read.
__global__ void read_tile(CacheLayer layer, int32_t begin, int32_t n, int32_t* found) {
  KVC_SHARED(float, shared);
  const Pages pages(layer, 0);
  const int32_t d = pages.format().d, stride = TileStride(d);
  float *keys = shared, *values = shared + kTile * stride;
  const TileReader reader(pages, keys, values);
  FetchedBatch fetched;
  if (reader.HasVectors(begin, n)) {
    for (int32_t batch = 0; batch < reader.Batches(); ++batch) {
      reader.Fetch(begin, n, batch, &fetched);
      reader.Put(begin, n, batch, fetched);
    }
    if (ThreadOfBlock() == 0) found[1] = 1;
  } else {
    reader.PutElements(begin, n);
  }
  __syncthreads();
  for (int32_t i = ThreadOfBlock(); i < n * d; i += BlockThreads()) {
    const Slot s = pages.At(begin + i / d);
    const int32_t at = i / d * stride + i % d;
    const bool same = __float_as_uint(keys[at]) == __float_as_uint(pages.Element(s, 0, i % d)) &&
                      __float_as_uint(values[at]) == __float_as_uint(pages.Element(s, 1, i % d));
    if (!same) atomicAdd(found, 1);
  }
}

struct Case {
  EntryCoding coding;
  KvType type;
  int32_t d, group;
  bool vectors;  // whether it has any
  int32_t value_bits = 0;
};

TEST(ReadTile, IsWhatTheCacheHas) {
  constexpr int32_t kSlots = 8, kPages = 9, kMain = 61, kRing = 3;
  constexpr EntryCoding kV = EntryCoding::kVectors, kC = EntryCoding::kKeyChannels;
  std::mt19937 random(7);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const Case& c :
       {Case{kV, KvType::kF32, 6, 0, false},       Case{kV, KvType::kF32, 16, 0, true},
        Case{kV, KvType::kF32, 128, 0, true},      Case{kV, KvType::kF32, 256, 0, true},
        Case{kV, KvType::kF16, 8, 0, true},        Case{kV, KvType::kF16, 20, 0, false},
        Case{kV, KvType::kF16, 64, 0, true},       Case{kV, KvType::kF16, 80, 0, true},
        Case{kV, KvType::kF16, 96, 0, true},       Case{kV, KvType::kF16, 128, 0, true},
        Case{kV, KvType::kBf16, 256, 0, true},     Case{kV, KvType::kBf16, 40, 0, true},
        Case{kV, KvType::kInt8, 64, 16, true},     Case{kV, KvType::kInt8, 128, 64, true},
        Case{kV, KvType::kInt8, 48, 8, false},     Case{kV, KvType::kInt4, 128, 32, true},
        Case{kV, KvType::kInt4, 64, 16, false},    Case{kC, KvType::kInt8, 32, 16, true},
        Case{kC, KvType::kInt4, 96, 32, true},     Case{kV, KvType::kInt8, 128, 32, true, 4},
        Case{kV, KvType::kInt8, 64, 32, true, 4},  Case{kV, KvType::kInt8, 256, 64, true, 4},
        Case{kV, KvType::kInt8, 64, 16, false, 4}, Case{kV, KvType::kInt8, 80, 16, false, 4},
        Case{kV, KvType::kInt4, 128, 32, true, 8}, Case{kC, KvType::kInt8, 96, 32, true, 4},
        Case{kV, KvType::kInt4, 128, 32, true, 2}, Case{kV, KvType::kInt8, 64, 32, true, 2},
        Case{kV, KvType::kInt4, 64, 16, false, 2}, Case{kV, KvType::kInt4, 256, 64, true, 2},
        Case{kC, KvType::kInt8, 96, 32, true, 2},  Case{kV, KvType::kInt8, 80, 16, false, 2}}) {
    PageFormat form, ring;
    form.coding = c.coding, form.type = c.type, form.d = c.d, form.group = c.group, form.slots = kSlots;
    form.value_bits = c.value_bits;
    form.Lay();
    ring.type = KvType::kF32, ring.d = c.d, ring.slots = 5;
    ring.Lay();
    std::vector<uint64_t> memory(static_cast<size_t>(kPages * form.bytes) / 8),
        ring_memory(static_cast<size_t>(ring.bytes) / 8);
    // Halves, codes and numbers of all sizes, none without a value.
    for (auto* bytes : {&memory, &ring_memory}) {
      for (uint64_t& x : *bytes) x = (random() * uint64_t{0x100000001} + random()) & 0x3bff3bff3bff3bff;
    }
    std::vector<int32_t> ids = {4, 0, 8, 2, 7, 1, 3, 6};
    const Format formats[] = {{form, reinterpret_cast<uint8_t*>(memory.data())},
                              {ring, reinterpret_cast<uint8_t*>(ring_memory.data())}};
    Head head{};
    head.len = kMain, head.ring_start = 4, head.ring_len = kRing, head.main = 0, head.ring = 1;
    head.ids = ids.data();
    const CacheLayer layer{-1, 0, 0, &head, formats};
    const size_t shared = 2 * sizeof(float) * static_cast<size_t>(kTile * TileStride(c.d));
    for (int32_t begin = 0; begin < kMain + kRing; begin += kTile - 3) {
      const int32_t n = std::min(kTile, kMain + kRing - begin);
      int32_t found[2] = {0, 0};
      ASSERT_EQ(cudaSuccess, KVC_LAUNCH(read_tile, dim3(1), dim3(kTileThreads), shared, stream, layer, begin,
                                        n, static_cast<int32_t*>(found)));
      ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
      const std::string what = "type " + std::to_string(static_cast<int>(c.type)) + ", values of " +
                               std::to_string(c.value_bits) + " bits, head size " + std::to_string(c.d) +
                               ", from " + std::to_string(begin);
      EXPECT_EQ(0, found[0]) << what;
      EXPECT_EQ(c.vectors && begin + n <= kMain, found[1] == 1) << what;
    }
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace kvc::cuda
