// The attention of a step over one segment of one head on the tensor cores, for up to eight query heads of
// the group: of pages of codes of eight or four bits whose keys lie turned, of heads of 64 and of 128 numbers
// with a scale for 32 of them or more, and of the rings of f16 beside them (attend_halves.h). attend_step.cu
// does it for all others.
//
// Codes are multiplied as they are, in whole numbers. Queries become whole numbers of 24 bits, in units of
// their head's largest; what probabilities times the scales of values are, of 23 bits, in units of the
// largest of them in a query head's 32 entries and the group of dimensions. Each is three digits of eight
// bits. So nothing of a product is lost and sums are exact, whatever the scales are; they become f32 where a
// group's scale meets them. Codes of four bits are multiplied as 16 times as many: their place is the upper
// half of a byte. Digits are put together in bits: sums begin at numbers whose bits are those of 1.5 * 2^23.
//
// Each of a block's four warps has every fourth 32 entries. They come by copies to shared memory that nobody
// waits for until the round before has been multiplied; from there both factors are read as matrices of rows
// of 16 bytes, of values transposed by two bytes, which a few permutations of bytes finish. A group's
// dimensions lie in products of their own that way. Rows of the left factors are the eight query heads twice:
// two of the digits, then the third and whatever.
//
// Bytes of an entry, with a scale for 32 numbers: 2.125 D in eight bits, 1.125 D in four; products of 16 x 8
// x 32 for 32 entries: D / 2. A warp issues some 900 instructions for 32 entries of 128 numbers in eight
// bits, 940 in four, and 550 and 570 for those of 64; 560 and 620 for 128 numbers with one scale. Code for an
// A100 moves registers in 100 more. By arithmetic a multiprocessor of an H200 has 1,890 and 1,000 (945 and
// 500) while memory gives it the bytes, of an A100 2,590 and 1,370. Codes of four bits are 2.8 times as fast
// as bf16 at 0.79 of the rate of memory that bf16 has.
#include "cuda/append_newest.h"
#include "cuda/attend_halves.h"
#include "cuda/join_segments.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

constexpr int kEntries = 32;  // of a round of a warp

// 1.5 * 2^23: its bits plus n are those of it plus n, up to 2^22 either way.
constexpr int32_t kNumberBits = 0x4b400000;
constexpr float kNumber = 12582912;

// Sums of the products of both left factors: of the upper two digits and of the lowest. All begin where their
// bits are a number's; that of the middle one is left to the lowest, of which it takes what lies above the
// bits of a digit, rounded.
struct DigitSums {
  int32_t upper[4], low[4];

  KVC_DEVICE void Begin() {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i)
      upper[i] = low[i] = i < 2 ? kNumberBits + 128 : kNumberBits - (kNumberBits >> 8);
  }
  template <bool kUnsigned>
  KVC_DEVICE void Add(const uint4& a, const uint4& a_low, const uint32_t (&b)[2]) {
    MmaCodes<kUnsigned>(upper, {a.x, a.y, a.z, a.w}, b, upper);
    MmaCodes<kUnsigned>(low, {a_low.x, a_low.y, a_low.z, a_low.w}, b, low);
  }
  // Of query head u and column 2 v + i, in units of the middle digit.
  KVC_DEVICE float Of(int i) const {
    const float high = NumberOf(upper[i]) - (kNumber + 128 + kNumber / 256);
    return high * 256 + NumberOf(upper[i + 2] + (low[i] >> 8));
  }

 private:
  KVC_DEVICE static float NumberOf(int32_t bits) { return __uint_as_float(static_cast<uint32_t>(bits)); }
};

// Of codes of four bits in a word those with even numbers and those with odd ones, 16 times as large.
KVC_DEVICE uint32_t EvenCodes(uint32_t x) { return x << 4 & 0xf0f0f0f0u; }
KVC_DEVICE uint32_t OddCodes(uint32_t x) { return x & 0xf0f0f0f0u; }

// Codes of 32 entries in shared memory, a row an entry. Its chunks of 16 bytes lie so that those of eight
// rows meet no bank twice.
template <int kBits, int kDims>
struct Rows {
  static constexpr int kBytes = kDims * kBits / 8, kChunks = kBytes / 16, kOfLine = 128 / kBytes;
  static constexpr float kUnit = kBits == 4 ? 1.0f / 16 : 1.0f;  // of what is multiplied, in codes

  KVC_DEVICE static int PlaceOf(int row, int chunk) {
    return row * kBytes + (chunk ^ row / kOfLine % kChunks) * 16;
  }
  // Of rows 8 m + u the bytes 4 v .. 4 v + 3 of a chunk; with kTransposed of rows 8 m + 2 v and the next the
  // bytes 2 u and 2 u + 1.
  template <bool kTransposed>
  KVC_DEVICE static void Load(const uint8_t* rows, int chunk, uint32_t (&m)[4]) {
    LoadMatrices<kTransposed>(m, reinterpret_cast<const uint16_t*>(rows + PlaceOf(Lane(), chunk)));
  }
  // Right factors of keys: of rows 8 m + u, four or eight of 32 dimensions.
  KVC_DEVICE static void LoadKeys(const uint8_t* rows, int step, uint32_t (&b)[4][2]) {
    uint32_t m[4];
    if constexpr (kBits == 4) {
      Load<false>(rows, step, m);
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) b[i][0] = EvenCodes(m[i]), b[i][1] = OddCodes(m[i]);
    } else {
      KVC_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const int row = 8 * i + Lane() / 16 * 8 + Lane() % 8, chunk = 2 * step + Lane() / 8 % 2;
        LoadMatrices<false>(m, reinterpret_cast<const uint16_t*>(rows + PlaceOf(row, chunk)));
        b[i][0] = m[0], b[i][1] = m[1], b[i + 1][0] = m[2], b[i + 1][1] = m[3];
      }
    }
  }
};

// A form of pages: bits of codes, dimensions of a head and of those that share a scale.
template <int kBitsOfKeys, int kBitsOfValues, int kDimensions, int kGroup>
struct CodeForm {
  using Keys = Rows<kBitsOfKeys, kDimensions>;
  using Values = Rows<kBitsOfValues, kDimensions>;
  static constexpr int kKeyBits = kBitsOfKeys, kValueBits = kBitsOfValues, kDims = kDimensions,
                       kOfGroup = kGroup, kGroups = kDims / kGroup;
  static constexpr int kScaleBytes = 2 * kGroups;
  static constexpr int kRoundBytes = kEntries * (Keys::kBytes + Values::kBytes);
  // Blocks of a multiprocessor, by the registers that they take; stages, so that 40 KiB are on their way
  // there.
  static constexpr int kBlocks = kDims == 64 || (kRoundBytes <= 4096 && kGroups == 4) ? 3 : 2,
                       kStages = kBlocks * kAttendWarps * kRoundBytes < 40 << 10 ? 3 : 2;
};

// What a warp reads of 32 entries.
template <typename Form>
struct Stage {
  static constexpr int kScaleWords = (Form::kGroups + 1) / 2;
  alignas(16) uint8_t keys[kEntries * Form::Keys::kBytes];
  uint8_t values[kEntries * Form::Values::kBytes];
  // Of one group: the entry's and that of its neighbour, which together are a word.
  uint32_t key_scales[kEntries][kScaleWords], value_scales[kEntries][kScaleWords];
  int32_t positions[kEntries];
  uint32_t seen[kEntries];

  // Of the lane's entry.
  KVC_DEVICE int32_t Position() const { return positions[Lane()]; }
  KVC_DEVICE uint32_t Seen() const { return seen[Lane()]; }
  KVC_DEVICE static float ScaleOf(const uint32_t (&words)[kScaleWords], int g) {
    const int half = Form::kGroups == 1 ? Lane() % 2 : g % 2;
    return HalfBits(static_cast<uint16_t>(words[g / 2] >> (16 * half)));
  }
};

// A segment's entries as a warp reads them, 32 at a time: lane i finds entry i, in two steps, so that nobody
// waits for the number of a page. Where pages hold whole rounds, rows follow each other.
template <typename Form>
class CodeReader {
 public:
  KVC_DEVICE CodeReader(const Pages& pages, int32_t end)
      : f_(&pages.format()),
        base_(pages.Base()),
        ids_(pages.head().ids),
        page_bytes_(static_cast<uint32_t>(f_->bytes)),
        values_(static_cast<int32_t>(f_->values)),
        key_scales_(static_cast<int32_t>(f_->key_scales)),
        value_scales_(static_cast<int32_t>(f_->value_scales)),
        slots_(static_cast<uint32_t>(f_->slots)),
        of_slots_(~0u / slots_),
        end_(end),
        whole_(slots_ % kEntries == 0) {}

  KVC_DEVICE void LookUp(int32_t at) {
    if (at >= end_) return;
    const auto entry = static_cast<uint32_t>(whole_ ? at + Lane() : min(at + Lane(), end_ - 1));
    const uint32_t page = PageOf(entry, slots_, of_slots_);
    id_ = static_cast<uint32_t>(ids_[page]), index_ = static_cast<int32_t>(entry - page * slots_);
  }
  // Asks for the entries that have been looked up. Behind the last one comes itself, or what is there.
  KVC_DEVICE void Fetch(int32_t at, bool positions, Stage<Form>* to) const {
    if (at >= end_) return;
    const uint8_t* page = base_ + uint64_t{id_} * page_bytes_;
    const uint8_t *keys = page, *values = page + values_;
    if (whole_) {
      const int32_t first = index_ - Lane();
      FetchRound<typename Form::Keys>(keys + first * Form::Keys::kBytes, to->keys);
      FetchRound<typename Form::Values>(values + first * Form::Values::kBytes, to->values);
    } else {
      FetchRows<typename Form::Keys>(keys + index_ * Form::Keys::kBytes, to->keys);
      FetchRows<typename Form::Values>(values + index_ * Form::Values::kBytes, to->values);
    }
    const int32_t scale = (Form::kGroups == 1 ? index_ & ~1 : index_) * Form::kScaleBytes;
    constexpr int kBytes = 4 * Stage<Form>::kScaleWords;
    CopyLater<kBytes>(to->key_scales[Lane()], page + (key_scales_ + scale));
    CopyLater<kBytes>(to->value_scales[Lane()], page + (value_scales_ + scale));
    if (f_->seen_masks) CopyLater<4>(to->seen + Lane(), page + f_->seen + 4 * index_);
    if (positions || at == 0) CopyLater<4>(to->positions + Lane(), page + f_->positions + 4 * index_);
  }

 private:
  // Rows of 32 entries that lie behind each other.
  template <typename Rows>
  KVC_DEVICE static void FetchRound(const uint8_t* from, uint8_t* to) {
    from += 16 * Lane();
    KVC_UNROLL
    for (int i = 0; i < Rows::kChunks; ++i) {
      const int row = i * (kWarp / Rows::kChunks) + Lane() / Rows::kChunks;
      CopyLater<16>(to + Rows::PlaceOf(row, Lane() % Rows::kChunks), from + 16 * kWarp * i);
    }
  }
  // mine: of the lane's entry.
  template <typename Rows>
  KVC_DEVICE static void FetchRows(const uint8_t* mine, uint8_t* to) {
    KVC_UNROLL
    for (int i = 0; i < Rows::kChunks; ++i) {
      const int row = i * (kWarp / Rows::kChunks) + Lane() / Rows::kChunks, chunk = Lane() % Rows::kChunks;
      const auto from = __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(mine), row);
      CopyLater<16>(to + Rows::PlaceOf(row, chunk), reinterpret_cast<const uint8_t*>(from) + 16 * chunk);
    }
  }

  const PageFormat* f_;
  const uint8_t* base_;
  const int32_t* ids_;
  uint32_t page_bytes_;
  int32_t values_, key_scales_, value_scales_;  // of a page
  uint32_t slots_, of_slots_;                   // of_slots_: of 2^32
  int32_t end_;
  uint32_t id_ = 0;
  int32_t index_ = 0;
  bool whole_;
};

// A warp's part of shared memory.
template <typename Form>
struct WarpRoom {
  Stage<Form> stages[Form::kStages];
  alignas(8) float key_scales[Form::kGroups][kEntries], value_scales[Form::kGroups][kEntries];

  // A lane those of its entry, n of which there are: others have no value.
  KVC_DEVICE void UnpackScales(const Stage<Form>& stage, int32_t n) {
    KVC_UNROLL
    for (int g = 0; g < Form::kGroups; ++g) {
      key_scales[g][Lane()] = stage.ScaleOf(stage.key_scales[Lane()], g);
      value_scales[g][Lane()] = Lane() < n ? stage.ScaleOf(stage.value_scales[Lane()], g) : 0.0f;
    }
  }
  // Of the lane's entries 2 m and 2 m + 1 (EntryOfLogit).
  KVC_DEVICE static float2 ScalesOf(const float (&scales)[kEntries], int m) {
    return *reinterpret_cast<const float2*>(scales + 8 * m + 2 * QuadOfLane());
  }
};

// The digits of four numbers in words: the lowest, the middle and the highest of all.
KVC_DEVICE void Transpose(const uint32_t (&x)[4], uint32_t (&digits)[3]) {
  const uint32_t lower[2] = {PickBytes<0x5140>(x[0], x[1]), PickBytes<0x5140>(x[2], x[3])},
                 high[2] = {PickBytes<0x0062>(x[0], x[1]), PickBytes<0x0062>(x[2], x[3])};
  digits[0] = LowHalves(lower[0], lower[1]), digits[1] = HighHalves(lower[0], lower[1]);
  digits[2] = LowHalves(high[0], high[1]);
}

// The queries of a chunk as left factors: what 32 dimensions, four or eight a lane, meet of keys. Where codes
// have four bits, the even ones come first.
template <typename Form>
struct QueryDigits {
  static constexpr int kSteps = Form::kDims / 32;
  static constexpr float kMost = 127 << 16;  // in units
  uint4 upper[kSteps][kWarp], low[kSteps][kWarp];

  // By the warps of a block. Returns the unit of query head u.
  KVC_DEVICE float Load(const Queries<Form::kDims>& queries) {
    constexpr int kNext = Form::kKeyBits == 4 ? 4 : 16, kFirst = Form::kKeyBits == 4 ? 8 : 4;
    float4 x[kSteps][2];
    float most = 0x1p-100f, nothing = 0;
    KVC_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        x[s][i] = queries.Four(RowOfLane(), 32 * s + kFirst * QuadOfLane() + kNext * i);
        const float4 y = x[s][i];
        most = fmaxf(most, fmaxf(fmaxf(fabsf(y.x), fabsf(y.y)), fmaxf(fabsf(y.z), fabsf(y.w))));
        nothing += 0 * y.x + 0 * y.y + 0 * y.z + 0 * y.w;  // what is no number stays none
      }
    }
    most = QuadMax(most), nothing = QuadSum(nothing);
    const float scale = __fdiv_rn(kMost, most);
    KVC_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      if (s != WarpOfBlock()) continue;
      uint32_t a[2][3];
      KVC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float4 y = x[s][i];
        const uint32_t digits[4] = {DigitsOf(y.x * scale), DigitsOf(y.y * scale), DigitsOf(y.z * scale),
                                    DigitsOf(y.w * scale)};
        Transpose(digits, a[i]);
      }
      if constexpr (Form::kKeyBits == 4) {
        KVC_UNROLL
        for (int digit = 0; digit < 3; ++digit) {
          const uint32_t first = a[0][digit], second = a[1][digit];
          a[0][digit] = PickBytes<0x6420>(first, second), a[1][digit] = PickBytes<0x7531>(first, second);
        }
      }
      upper[s][Lane()] = {a[0][2], a[0][1], a[1][2], a[1][1]}, low[s][Lane()] = {a[0][0], 0, a[1][0], 0};
    }
    return __fdiv_rn(most, kMost) + nothing;
  }

  // z: of the lane's entries, the products of query head u with their keys, in units of 256.
  KVC_DEVICE void Times(const WarpRoom<Form>& room, const Stage<Form>& stage, float (&z)[8]) const {
    KVC_UNROLL
    for (int i = 0; i < 8; ++i) z[i] = 0;
    KVC_UNROLL_BY(1)  // more would take registers that values have
    for (int g = 0; g < Form::kGroups; ++g) {
      DigitSums sums[4];
      KVC_UNROLL
      for (int m = 0; m < 4; ++m) sums[m].Begin();
      KVC_UNROLL
      for (int s = g * (Form::kOfGroup / 32); s < (g + 1) * (Form::kOfGroup / 32); ++s) {
        const uint4 a = upper[s][Lane()], a_low = low[s][Lane()];
        uint32_t b[4][2];
        Form::Keys::LoadKeys(stage.keys, s, b);
        KVC_UNROLL
        for (int m = 0; m < 4; ++m) sums[m].template Add<false>(a, a_low, b[m]);
      }
      KVC_UNROLL
      for (int m = 0; m < 4; ++m) {
        const float2 scale = room.ScalesOf(room.key_scales[g], m);
        z[2 * m] += scale.x * sums[m].Of(0), z[2 * m + 1] += scale.y * sums[m].Of(1);
      }
    }
  }

 private:
  // Three signed bytes.
  KVC_DEVICE static uint32_t DigitsOf(float x) {
    const auto n = static_cast<int32_t>(rintf(fminf(fmaxf(x, -kMost), kMost)));
    return static_cast<uint32_t>(n + 0x808080) ^ 0x808080u;
  }
};

// Of a lane's sums [kDims / 16][4], of query head u: the first of four dimensions.
template <typename Form>
KVC_DEVICE int FirstOfSums(int r) {
  return Form::kValueBits == 4 ? r / 2 * 32 + 8 * QuadOfLane() + r % 2 * 4 : r * 16 + 4 * QuadOfLane();
}

// e: exponentials of the lane's entries. The left factors of a product with the values of a group.
struct Weights {
  uint4 upper, low;
  float unit;  // of the middle digit

  template <typename Form>
  KVC_DEVICE Weights(const WarpRoom<Form>& room, int g, const float (&e)[8]) {
    float x[8], most = 0;
    KVC_UNROLL
    for (int m = 0; m < 4; ++m) {
      const float2 scale = room.ScalesOf(room.value_scales[g], m);
      x[2 * m] = e[2 * m] * scale.x, x[2 * m + 1] = e[2 * m + 1] * scale.y;
      most = fmaxf(most, fmaxf(x[2 * m], x[2 * m + 1]));
    }
    // The largest becomes 2^22 and more, below 2^23; to 2^23 added, numbers are their digits.
    const uint32_t power = max(__float_as_uint(QuadMax(most)) & 0x7f800000u, 27u << 23);
    const float scale = __uint_as_float((276u << 23) - power);
    unit = __uint_as_float(power - (14u << 23)) * Form::Values::kUnit;
    uint32_t digits[2][4], a[2][3];
    KVC_UNROLL
    for (int i = 0; i < 8; ++i) digits[i / 4][i % 4] = __float_as_uint(x[i] * scale + 0x1p23f);
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) Transpose(digits[i], a[i]);
    upper = {a[0][2], a[0][1], a[1][2], a[1][1]}, low = {a[0][0], AnyBits(), a[1][0], AnyBits()};
  }
};

// Adds the product's columns 2 v and 2 v + 1.
KVC_DEVICE void AddColumns(const Weights& w, const uint32_t (&b)[2], float* first, float* second) {
  DigitSums product;
  product.Begin();
  product.Add<true>(w.upper, w.low, b);
  *first += w.unit * product.Of(0), *second += w.unit * product.Of(1);
}

// sums += exponentials * values.
template <typename Form>
KVC_DEVICE void AddValues(const WarpRoom<Form>& room, const Stage<Form>& stage, const float (&e)[8],
                          float (&sums)[Form::kDims / 16][4]) {
  constexpr int kChunks = Form::Values::kChunks / Form::kGroups;
  KVC_UNROLL
  for (int g = 0; g < Form::kGroups; ++g) {
    const Weights w(room, g, e);
    KVC_UNROLL
    for (int c = g * kChunks; c < (g + 1) * kChunks; ++c) {
      uint32_t rows[4];
      Form::Values::template Load<true>(stage.values, c, rows);
      KVC_UNROLL
      for (int byte = 0; byte < 2; ++byte) {
        uint32_t b[2];
        KVC_UNROLL
        for (int i = 0; i < 2; ++i)
          b[i] = byte == 0 ? PickBytes<0x6420>(rows[2 * i], rows[2 * i + 1])
                           : PickBytes<0x7531>(rows[2 * i], rows[2 * i + 1]);
        if constexpr (Form::kValueBits == 4) {
          AddColumns(w, {EvenCodes(b[0]), EvenCodes(b[1])}, &sums[2 * c][2 * byte],
                     &sums[2 * c + 1][2 * byte]);
          AddColumns(w, {OddCodes(b[0]), OddCodes(b[1])}, &sums[2 * c][2 * byte + 1],
                     &sums[2 * c + 1][2 * byte + 1]);
        } else {
          AddColumns(w, b, &sums[c][byte], &sums[c][byte + 2]);
        }
      }
    }
  }
}
// A block's shared memory: what its warps read, and what they leave for each other in the end.
template <typename Form>
struct CodesShared {
  QueryDigits<Form> queries;
  union {
    WarpRoom<Form> rooms[kAttendWarps];
    WarpParts<Form::kDims> parts;
  };
};
template <typename Form>
union CodesOrRing {
  CodesShared<Form> codes;
  HalvesShared<F16Halves, Form::kDims> ring;
};

// The attention of a block's item, a part of the pages' entries. waited: as AttendHalves.
template <typename Form>
KVC_DEVICE void AttendCodes(const StepParams& p, const Pages& pages, bool waited, CodesShared<Form>* shared) {
  constexpr int kStages = Form::kStages, kStep = kAttendWarps * kEntries;
  const Work work(p);
  const int32_t end = work.item.end;
  WarpRoom<Form>& room = shared->rooms[WarpOfBlock()];
  CodeReader<Form> reader(pages, end);
  int32_t at = work.item.begin + WarpOfBlock() * kEntries;
  for (int i = 0; i < kStages - 1; ++i) {
    reader.LookUp(at + i * kStep);
    reader.Fetch(at + i * kStep, p.window > 0, room.stages + i);
    CloseCopies();
  }
  reader.LookUp(at + (kStages - 1) * kStep);
  Sight sight(pages.format().seen_masks, p.window, p.rows[work.item.row].position);
  WarpSoftmax softmax;
  float sums[Form::kDims / 16][4] = {};
  if (!waited) WaitForEarlier();
  const float scale = shared->queries.Load(Queries<Form::kDims>(p, work)) * 256 * Form::Keys::kUnit * p.scale;
  __syncthreads();
  for (int i = 0; at < end; at += kStep, i = i + 1 == kStages ? 0 : i + 1) {
    WaitForCopies<kStages - 2>();
    __syncwarp();  // and nobody reads of the round before any more
    reader.Fetch(at + (kStages - 1) * kStep, p.window > 0, room.stages + (i == 0 ? kStages - 1 : i - 1));
    CloseCopies();
    const Stage<Form>& stage = room.stages[i];
    room.UnpackScales(stage, end - at);
    __syncwarp();
    float z[8];
    shared->queries.Times(room, stage, z);
    sight.Fetch(p, stage, at);
    sight.Logits(p, scale, at, end - at, z);
    if (p.logits != nullptr) WriteLogits(p, at, z);
    reader.LookUp(at + kStages * kStep);
    const float keep = softmax.Add(z);
    if (keep != 1) {
      KVC_UNROLL
      for (int j = 0; j < Form::kDims / 4; ++j) sums[j / 4][j % 4] *= keep;
    }
    AddValues<Form>(room, stage, z, sums);
  }
  WaitForCopies<0>();
  __syncthreads();
  JoinWarps<Form::kDims>(p, softmax, sums, 1, FirstOfSums<Form>, &shared->parts);
}

// Block (item, chunk of query heads).
template <typename Form>
__global__ void __launch_bounds__(kAttendThreads, Form::kBlocks) attend_step_codes(const StepParams p) {
  KVC_SHARED(CodesOrRing<Form>, shared);
  LetNextBegin();
  ReadsBeforeItWaits(p.items + blockIdx.x);
  const Work work(p);
  const Pages pages(p.rows[work.item.row].read, work.item.head);
  const bool waited = WaitForEntries(p, work.item, pages, reinterpret_cast<float*>(shared));
  if (work.item.begin >= pages.main_len()) {
    AttendHalves<false>(p, HalvesRun::Ring(pages), waited, &shared->ring);
  } else {
    AttendCodes<Form>(p, pages, waited, &shared->codes);
  }
  JoinIfLast<kHeads, Form::kDims>(p);
}

// f(form) of the pages.
template <int kKeyBits, int kValueBits, typename F>
void WithGroup(int32_t d, int32_t group, F&& f) {
  if (d == 64 && group == 32) f(CodeForm<kKeyBits, kValueBits, 64, 32>());
  if (d == 64 && group == 64) f(CodeForm<kKeyBits, kValueBits, 64, 64>());
  if (d == 128 && group == 32) f(CodeForm<kKeyBits, kValueBits, 128, 32>());
  if (d == 128 && group == 64) f(CodeForm<kKeyBits, kValueBits, 128, 64>());
  if (d == 128 && group == 128) f(CodeForm<kKeyBits, kValueBits, 128, 128>());
}
template <typename F>
void WithForm(const PageFormat& f, F&& then) {
  const bool keys = f.type == KvType::kInt8, values = f.value_type() == KvType::kInt8;
  if (keys && values) WithGroup<8, 8>(f.d, f.group, then);
  if (keys && !values) WithGroup<8, 4>(f.d, f.group, then);
  if (!keys && values) WithGroup<4, 8>(f.d, f.group, then);
  if (!keys && !values) WithGroup<4, 4>(f.d, f.group, then);
}

template <typename Form>
void AddForm(KernelLoader* loader) {
  KVC_ADD_STEP(loader, attend_step_codes<Form>, sizeof(CodesOrRing<Form>));
}
template <int kKeyBits, int kValueBits>
void AddForms(KernelLoader* loader) {
  for (const int32_t d : {64, 128}) {
    for (const int32_t group : {32, 64, 128})
      WithGroup<kKeyBits, kValueBits>(d, group, [loader](auto form) { AddForm<decltype(form)>(loader); });
  }
}

}  // namespace

void AddAttendStepCodesKernels(KernelLoader* loader) {
  AddForms<8, 8>(loader);
  AddForms<8, 4>(loader);
  AddForms<4, 8>(loader);
  AddForms<4, 4>(loader);
}

bool IsForCodes(const PageFormat& f) {
  return f.coding == EntryCoding::kVectors && f.coded() && f.value_type() != KvType::kInt2 &&
         (f.d == 64 || f.d == 128) && f.group % 32 == 0 && f.d % f.group == 0 && f.slots % 2 == 0;
}

cudaError_t AttendSegmentsCodes(const StepParams& p, const PageFormat& f, int32_t n_items,
                                CudaStream& stream) {
  const int32_t group = p.n_heads / p.n_kv_heads;
  const dim3 grid(static_cast<unsigned>(n_items), static_cast<unsigned>((group + kHeads - 1) / kHeads));
  cudaError_t error = cudaErrorInvalidValue;
  WithForm(f, [&](auto form) {
    using Form = decltype(form);
    error = KVC_LAUNCH_EARLY(attend_step_codes<Form>, grid, dim3(kAttendThreads), sizeof(CodesOrRing<Form>),
                             stream, p);
  });
  return error;
}

}  // namespace kvc::cuda
