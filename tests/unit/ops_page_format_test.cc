// Where the parts of an entry lie in a page: nothing overlaps, vectors begin where processors read them, and
// small pages of usual heads have nothing between their parts.
#include "lib/ops/page_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvc {
namespace {

struct Part {
  int64_t begin, bytes, step;
};

std::vector<Part> PartsOf(const PageFormat& f) {
  const int64_t n = f.slots;
  const bool channels = f.coding == EntryCoding::kKeyChannels;
  const int64_t numbers = f.packed ? 4 : 16;
  std::vector<Part> parts = {{f.keys, n * f.key_bytes, 16}, {f.values, n * f.value_bytes, 16}};
  if (!channels) parts.push_back({f.key_scales, n * f.scale_bytes, numbers});
  parts.push_back({f.value_scales, n * f.scale_bytes, numbers});
  if (channels) parts.push_back({f.channel_scales, int64_t{2} * f.d, numbers});
  parts.push_back({f.positions, 4 * n, numbers});
  if (f.ranks) parts.push_back({f.rank, 4 * n, numbers});
  if (f.seen_masks) parts.push_back({f.seen, 4 * n, numbers});
  parts.push_back({f.aux, 4 * n * f.n_aux, numbers});
  if (f.key_bounds) parts.push_back({f.bounds, 2 * CodeBytes(f.bound_format().type, f.d), 16});
  return parts;
}

TEST(PageFormat, PartsFollowEachOther) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const int32_t value_bits : {0, 8, 4, 2}) {
      for (const int32_t d : {8, 24, 32, 64, 80, 128}) {
        for (const int32_t slots : {1, 3, 4, 16, 64}) {
          for (const int flags : {0, 1, 2, 4, 8, 15, 16}) {
            PageFormat f;
            f.type = type, f.d = d, f.slots = slots, f.packed = slots <= 4;
            if (f.coded()) f.group = 8, f.value_bits = value_bits;
            f.ranks = (flags & 1) != 0, f.seen_masks = (flags & 2) != 0, f.n_aux = (flags & 4) != 0 ? 3 : 0,
            f.key_bounds = (flags & 8) != 0;
            if ((flags & 16) != 0 && f.coded()) f.coding = EntryCoding::kKeyChannels;
            f.Lay();
            SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + ", values of " +
                         std::to_string(value_bits) + " bits, head size " + std::to_string(d) + ", " +
                         std::to_string(slots) + " slots, flags " + std::to_string(flags));
            int64_t end = 0;
            for (const Part& part : PartsOf(f)) {
              ASSERT_EQ(part.begin % part.step, 0);
              ASSERT_GE(part.begin, end);
              ASSERT_LT(part.begin, end + part.step);
              end = part.begin + part.bytes;
            }
            ASSERT_EQ(f.bytes % (f.packed ? 16 : 64), 0);
            ASSERT_GE(f.bytes, end);
            ASSERT_LT(f.bytes, end + (f.packed ? 16 : 64));
          }
        }
      }
    }
  }
}

// Against every byte of every slot by itself.
TEST(PageFormat, WhatIsNotOfTheSlotsCanBeCleared) {
  for (const EntryCoding coding :
       {EntryCoding::kVectors, EntryCoding::kKeyChannels, EntryCoding::kCodebook, EntryCoding::kDirections}) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
      for (const bool all : {false, true}) {
        for (const int32_t slots : {1, 4, 7, 16}) {
          PageFormat f;
          f.coding = coding, f.type = type, f.d = 24, f.slots = slots, f.packed = slots == 4;
          if (f.coded()) f.group = 8, f.value_bits = all ? 2 : 0;
          if (coding == EntryCoding::kKeyChannels && !f.coded()) continue;
          if (all && coding != EntryCoding::kDirections)
            f.ranks = f.seen_masks = true, f.n_aux = 3, f.key_bounds = coding == EntryCoding::kVectors;
          f.Lay();
          for (int32_t first = 0; first < slots; ++first) {
            for (int32_t n = 0; n <= slots; ++n) {
              SCOPED_TRACE(testing::Message()
                           << "coding " << static_cast<int>(coding) << " type " << static_cast<int>(type)
                           << " slots " << slots << " first " << first << " n " << n);
              std::vector<uint8_t> page(static_cast<size_t>(f.bytes), 0xEE), expected(page.size(), 0);
              const auto keep = [&](int64_t begin, int64_t bytes) {
                std::fill_n(expected.begin() + begin, bytes, uint8_t{0xEE});
              };
              for (int32_t i = 0; i < n; ++i) {
                const int32_t slot = (first + i) % slots;
                keep(f.keys + slot * f.key_bytes, f.key_bytes);
                if (coding == EntryCoding::kDirections) continue;
                keep(f.values + slot * f.value_bytes, f.value_bytes);
                if (coding == EntryCoding::kVectors) keep(f.key_scales + slot * f.scale_bytes, f.scale_bytes);
                keep(f.value_scales + slot * f.scale_bytes, f.scale_bytes);
                keep(f.positions + 4 * slot, 4);
                if (f.ranks) keep(f.rank + 4 * slot, 4);
                if (f.seen_masks) keep(f.seen + 4 * slot, 4);
                for (int32_t a = 0; a < f.n_aux; ++a) keep(f.aux + 4 * (a * slots + slot), 4);
              }
              if (coding == EntryCoding::kKeyChannels) keep(f.channel_scales, 2 * f.d);
              if (f.key_bounds && n == slots) keep(f.bounds, 2 * CodeBytes(f.bound_format().type, f.d));
              ClearOthers(f, first, n, page.data());
              ASSERT_EQ(page, expected);
            }
          }
        }
      }
    }
  }
}

// What a slot costs where budgets are small, in bytes: its codes, 2 for the scale of each vector of 32, its
// position, and 4 a side value.
TEST(PageFormat, SmallPagesAreWhatTheirEntriesAre) {
  const struct {
    KvType type;
    int32_t value_bits, d, n_aux, slot;
  } cases[] = {
      {KvType::kF16, 0, 32, 0, 132}, {KvType::kInt8, 0, 32, 0, 72},  {KvType::kInt4, 0, 32, 0, 40},
      {KvType::kInt4, 0, 32, 1, 44}, {KvType::kInt4, 2, 32, 0, 32},  {KvType::kInt4, 2, 32, 1, 36},
      {KvType::kInt4, 2, 64, 1, 64}, {KvType::kInt8, 4, 64, 0, 108}, {KvType::kInt4, 2, 128, 0, 116}};
  for (const auto& c : cases) {
    PageFormat f;
    f.type = c.type, f.value_bits = c.value_bits, f.d = c.d, f.n_aux = c.n_aux;
    f.group = f.coded() ? 32 : 0, f.slots = 4, f.packed = true;
    f.Lay();
    EXPECT_EQ(f.bytes, int64_t{4} * c.slot) << "head size " << c.d << ", " << c.slot << " bytes a slot";
  }
}

}  // namespace
}  // namespace kvc
