// The attention of a step on the tensor cores gives what that without them gives, of the same pages of
// numbers of 16 bits or codes, as near as sums in f32 are, and the same bits in every order of blocks and
// warps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda/step_params.h"
#include "tests/emu/emulator.h"
#include "tests/emu/kernel_test.h"

namespace kvc::cuda {
namespace {

constexpr float kScale = 0.11f, kNothing = 12345;
constexpr int32_t kRows = 2, kKvHeads = 3;

// Of pages.
struct Form {
  KvType type;
  int32_t d, codes = 0;  // codes: that share a scale
  int32_t value_bits = 0;

  bool coded() const { return codes > 0; }
  std::string Name() const {
    if (!coded()) return type == KvType::kF16 ? "f16" : "bf16";
    return std::string(type == KvType::kInt8 ? "int8" : "int4") +
           (value_bits > 0 ? ", values int" + std::to_string(value_bits) : "") + " by " +
           std::to_string(codes);
  }
};

struct Case {
  Form form;
  int32_t group, slots;
  std::vector<int32_t> lens;  // of the heads, row after row
  int32_t segment;
  bool seen = false, logits = false, chooses = false, rest = false;
  int32_t window = 0;
  float cap = 0, queries = 1;
  int32_t spread = 0;  // of vectors: values are up to 2^spread times larger and smaller, keys only smaller
  int32_t ring = 0;    // entries of a head that lie in a ring of f16, which begins in the middle
  int32_t hidden = 0;  // so many entries, which nobody sees, have values 2^12 times as large

  std::string Name() const {
    return form.Name() + ", " + std::to_string(group) + " heads of size " + std::to_string(form.d) +
           ", pages of " + std::to_string(slots) + ", segments of " + std::to_string(segment) +
           (seen ? ", masks" : "") + (logits ? ", logits" : "") + (chooses ? ", chosen pages" : "") +
           (rest ? ", rest" : "") + (window > 0 ? ", window" : "") + (cap > 0 ? ", cap" : "") +
           (spread > 0 ? ", spread" : "") + (hidden > 0 ? ", hidden" : "") + (ring > 0 ? ", ring" : "");
  }
};

// Rows whose heads lie in pages that are in no order. Slots without an entry have no numbers, bit by bit.
class Step {
 public:
  explicit Step(const Case& c) : c_(c) {
    form_.type = c.form.type, form_.value_bits = c.form.value_bits, form_.d = c.form.d;
    form_.group = c.form.codes, form_.slots = c.slots, form_.seen_masks = c.seen;
    form_.packed = c.slots == 4;
    form_.Lay();
    int32_t n_pages = 0;
    for (const int32_t len : c.lens) n_pages += PagesOf(len);
    memory_.assign(static_cast<size_t>(n_pages * form_.bytes) / 8, ~uint64_t{0});
    formats_[0] = {form_, reinterpret_cast<uint8_t*>(memory_.data())};
    PageFormat& ring = formats_[1].f;
    ring.d = c.form.d, ring.slots = c.ring + 3, ring.seen_masks = c.seen;
    ring.Lay();
    ring_memory_.assign(static_cast<size_t>(ring.bytes) / 8 * c.lens.size(), ~uint64_t{0});
    formats_[1].base = reinterpret_cast<uint8_t*>(ring_memory_.data());
    std::vector<int32_t> ids(static_cast<size_t>(n_pages));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), random_);
    heads_.resize(c.lens.size()), read_.resize(c.lens.size()), ids_.resize(c.lens.size()),
        pages_.resize(c.lens.size());
    for (size_t h = 0; h < c.lens.size(); ++h) {
      for (int32_t i = 0; i < PagesOf(c.lens[h]); ++i) ids_[h].push_back(ids.back()), ids.pop_back();
      heads_[h] = {};
      heads_[h].len = c.lens[h], heads_[h].rotated = 1, heads_[h].ring = -1, heads_[h].ids = ids_[h].data();
      if (c.ring > 0) {
        heads_[h].ring = 1, heads_[h].ring_page = static_cast<int32_t>(c.lens.size() - 1 - h);
        heads_[h].ring_start = c.ring / 2, heads_[h].ring_len = c.ring;
      }
      Fill(h);
      read_[h] = heads_[h];
      if (c.chooses) Choose(h);
    }
    MakeRows();
    MakeItems();
  }

  std::vector<float> partial, logits;
  // The last block of a head joins its segments, into `out`, beside a sink of each query head.
  void LetJoin() {
    heads_of_items_.assign(heads_.size(), {});
    for (size_t i = 0; i < items_.size(); ++i) {
      HeadSegments& own = heads_of_items_[static_cast<size_t>(items_[i].row * kKvHeads + items_[i].head)];
      if (own.n++ == 0) own.first = static_cast<int32_t>(i);
    }
    const size_t n = static_cast<size_t>(kRows * p_.n_heads);
    arrived_.assign(n, 0), out.assign(n * static_cast<size_t>(c_.form.d), kNothing);
    for (int32_t h = 0; h < p_.n_heads; ++h)
      sinks_.push_back(h % 3 == 0 ? -INFINITY : 0.5f * static_cast<float>(h));
    p_.heads = heads_of_items_.data(), p_.arrived = arrived_.data(), p_.out = out.data();
    p_.sinks = sinks_.data();
  }
  std::vector<float> out;  // [kRows, H, D]
  // What it should be by `partial`, and how large what it is the sum of.
  std::pair<double, double> Joined(int32_t row, int32_t h, int32_t j) const {
    const HeadSegments own = heads_of_items_[static_cast<size_t>(row * kKvHeads + h / c_.group)];
    const int32_t i = h % c_.group;
    double most = sinks_[static_cast<size_t>(h)], all = 0, sum = 0, size = 0;
    const auto end = static_cast<size_t>(own.first + own.n);
    for (auto x = static_cast<size_t>(own.first); x < end; ++x) most = std::max<double>(most, Greatest(x, i));
    for (auto x = static_cast<size_t>(own.first); x < end; ++x) {
      if (Sum(x, i) == 0) continue;
      const double share = std::exp(Greatest(x, i) - most);
      all += share * Sum(x, i), sum += share * double{Values(x, i)[j]},
          size += share * std::fabs(Values(x, i)[j]);
    }
    all += std::exp(sinks_[static_cast<size_t>(h)] - most);
    return {all > 0 ? sum / all : 0, all > 0 ? size / all : 0};
  }
  // The same in f32, in the order in which it is promised: lanes look at every 32nd segment, their sums are
  // added as a tree, and values are added segment by segment.
  float JoinedInOrder(int32_t row, int32_t h, int32_t j) const {
    const HeadSegments own = heads_of_items_[static_cast<size_t>(row * kKvHeads + h / c_.group)];
    const int32_t i = h % c_.group;
    const float sink = sinks_[static_cast<size_t>(h)];
    const auto first = static_cast<size_t>(own.first), n = static_cast<size_t>(own.n);
    float most = sink, lanes[kWarp] = {}, sum = 0;
    for (size_t x = 0; x < n; ++x) most = std::max(most, Greatest(first + x, i));
    const auto share = [&](size_t x) { return std::exp(Greatest(first + x, i) - most); };
    for (size_t x = 0; x < n; ++x) {
      if (Sum(first + x, i) == 0) continue;
      lanes[x % kWarp] += share(x) * Sum(first + x, i);
      sum += share(x) * Values(first + x, i)[j];
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      for (int lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
    }
    if (sink != -INFINITY) lanes[0] += std::exp(sink - most);
    return sum * (lanes[0] > 0 ? 1 / lanes[0] : 0);
  }
  bool AnyEntry(int32_t row, int32_t h) const {
    return heads_of_items_[static_cast<size_t>(row * kKvHeads + h / c_.group)].n > 0;
  }
  int32_t n_heads() const { return p_.n_heads; }
  // From here on the newest entries are still to come: `apart` by a kernel of their own, else by the
  // attention.
  void LetAppend(bool apart, RopePairing pairing) {
    std::mt19937 random(77);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* to, int32_t n) {
      to->resize(static_cast<size_t>(n * c_.form.d));
      for (float& x : *to) x = normal(random);
    };
    fill(&q_, kRows * p_.n_heads), fill(&k_, kRows * kKvHeads), fill(&v_, kRows * kKvHeads);
    fill(&angles_, kRows);
    query_rings.assign(q_.size(), kNothing);
    for (int32_t r = 0; r < kRows; ++r) {
      RowParams& row = rows_[static_cast<size_t>(r)];
      row.angles = angles_.data() + r * c_.form.d;
      if (r == 1) row.query_ring = query_rings.data() + r * p_.n_heads * c_.form.d;
    }
    p_.q = q_.data(), p_.k = k_.data(), p_.v = v_.data(), p_.turn.pairing = pairing;
    p_.turned = apart ? turned_.data() : nullptr;
    p_.entries_lie = !apart && pairing == RopePairing::kHalf;
    appends_apart_ = apart;
  }
  std::vector<float> query_rings;  // [kRows, H, D]
  std::vector<float>& queries() { return turned_; }
  const std::vector<uint64_t>& pages() const { return memory_; }
  const std::vector<uint64_t>& rings() const { return ring_memory_; }
  // By one of both kernels.
  void Run(bool mma, CudaStream* stream) {
    ASSERT_EQ(cudaSuccess, appends_apart_ ? AppendToHeads(p_, *stream) : cudaSuccess);
    partial.assign(items_.size() * static_cast<size_t>(c_.group * (c_.form.d + 2)), kNothing);
    logits.assign(static_cast<size_t>(kRows * p_.n_heads) * static_cast<size_t>(p_.stride), kNothing);
    p_.partial = partial.data(), p_.logits = c_.logits ? logits.data() : nullptr;
    const auto n = static_cast<int32_t>(items_.size());
    ASSERT_TRUE(c_.form.coded() ? IsForCodes(form_) : IsForMma(form_));
    ASSERT_EQ(cudaSuccess, !mma              ? AttendSegments(p_, n, *stream)
                           : c_.form.coded() ? AttendSegmentsCodes(p_, form_, n, *stream)
                                             : AttendSegmentsMma(p_, form_, n, *stream));
    ASSERT_TRUE(stream->Wait("test").ok());
  }
  // Of a query head of an item: greatest logit, sum of exponentials, sums of values.
  float Greatest(size_t item, int32_t h) const { return Part(item)[h]; }
  float Sum(size_t item, int32_t h) const { return Part(item)[c_.group + h]; }
  const float* Values(size_t item, int32_t h) const { return Part(item) + 2 * c_.group + h * c_.form.d; }
  size_t n_items() const { return items_.size(); }
  // What a logit may be off: sums in f32, of products that a bit or two below its last one are lost from.
  double LogitBound() const { return std::ldexp(kScale * most_product_, -18); }
  double most_value() const { return most_value_; }

 private:
  int32_t PagesOf(int32_t len) const { return (len + c_.slots - 1) / c_.slots; }
  const float* Part(size_t item) const {
    return partial.data() + item * static_cast<size_t>(c_.group * (c_.form.d + 2));
  }
  void Fill(size_t h) {
    const CacheLayer layer{-1, 0, 0, &heads_[h], formats_};
    const Pages pages(layer, 0);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> power(-c_.spread, c_.spread);
    std::vector<float> key(static_cast<size_t>(c_.form.d)), value = key;
    for (int32_t i = 0; i < pages.len(); ++i) {
      const Slot s = pages.At(pages.Physical(i));
      const int of_key = -std::abs(power(random_)), of_value = power(random_) + (i < c_.hidden ? 12 : 0);
      for (size_t j = 0; j < key.size(); ++j)
        key[j] = std::ldexp(normal(random_), of_key), value[j] = std::ldexp(normal(random_), of_value);
      WriteKey(s, key.data(), 0, 1);
      WriteValue(s, value.data(), 0, 1);
      for (int32_t j = 0; j < c_.form.d && i >= c_.hidden; ++j)
        most_value_ = std::max(most_value_, std::fabs(double{pages.Element(s, 1, j)}));
      s.position() = c_.rest && i == 0 ? -17 : 3 * i;
      // Every third query head sees nothing of the first head.
      if (c_.seen) s.seen() = static_cast<uint32_t>(random_()) & (h == 0 ? 0xb6db6db6u : ~0u);
    }
  }
  // Every other page, and the last one.
  void Choose(size_t h) {
    const int32_t n = PagesOf(heads_[h].len);
    for (int32_t i = 0; i + 1 < n; i += 2) pages_[h].push_back(i);
    pages_[h].push_back(n - 1);
    for (const int32_t page : pages_[h]) chosen_ids_.push_back(ids_[h][static_cast<size_t>(page)]);
    read_[h].len = heads_[h].len - (n - static_cast<int32_t>(pages_[h].size())) * c_.slots;
  }
  void MakeRows() {
    int32_t most_pages = 1, longest = 1;
    for (size_t h = 0; h < heads_.size(); ++h)
      most_pages = std::max(most_pages, PagesOf(heads_[h].len)), longest = std::max(longest, heads_[h].len);
    p_.n_rows = kRows, p_.n_kv_heads = kKvHeads, p_.n_heads = kKvHeads * c_.group, p_.d = c_.form.d;
    p_.window = c_.window, p_.scale = kScale, p_.cap = c_.cap;
    p_.stride = (longest + formats_[1].f.slots + 3) / 4 * 4, p_.choice.stride = most_pages;
    choice_.assign(heads_.size() * static_cast<size_t>(most_pages), 0);
    size_t id = 0;
    for (size_t h = 0; h < heads_.size(); ++h) {
      if (!c_.chooses) continue;
      std::copy(pages_[h].begin(), pages_[h].end(), choice_.begin() + static_cast<int64_t>(h) * most_pages);
      read_[h].ids = chosen_ids_.data() + id, id += pages_[h].size();
      n_pages_.push_back(static_cast<int32_t>(pages_[h].size()));
    }
    p_.choice.pages = choice_.data();
    rows_.resize(kRows);
    for (int32_t r = 0; r < kRows; ++r) {
      RowParams& row = rows_[static_cast<size_t>(r)];
      row = {};
      row.cache = {-1, 0, 0, heads_.data() + r * kKvHeads, formats_};
      row.read = {-1, 0, 0, read_.data() + r * kKvHeads, formats_};
      if (c_.chooses) row.n_pages = n_pages_.data() + r * kKvHeads;
      row.position = 3 * longest / 2;
    }
    p_.rows = rows_.data();
    std::normal_distribution<float> normal(0, c_.queries);
    turned_.resize(static_cast<size_t>(kRows * p_.n_heads * c_.form.d));
    for (float& x : turned_) x = normal(random_);
    p_.turned = turned_.data();
  }
  void MakeItems() {
    for (int32_t h = 0; h < kRows * kKvHeads; ++h) {
      const int32_t len = read_[static_cast<size_t>(h)].len;
      const RowParams& row = rows_[static_cast<size_t>(h / kKvHeads)];
      const Pages pages(row.read, h % kKvHeads);
      for (int32_t b = 0; b < len; b += c_.segment)
        items_.push_back({h / kKvHeads, h % kKvHeads, b, std::min(b + c_.segment, len)});
      // Of a ring that has come round, its beginning lies first.
      const int32_t start = len + c_.ring / 2, slots = pages.ring_slots(), end = start + c_.ring - len;
      if (c_.ring > 0 && end > slots) items_.push_back({h / kKvHeads, h % kKvHeads, len, len + end - slots});
      if (c_.ring > 0) items_.push_back({h / kKvHeads, h % kKvHeads, start, len + std::min(end, slots)});
      for (int32_t i = 0; i < pages.len(); ++i) {
        for (int32_t q = 0; q < c_.group; ++q) {
          double sum = 0;
          for (int32_t j = 0; j < c_.form.d; ++j)
            sum += std::fabs(double{pages.Element(pages.At(pages.Physical(i)), 0, j)} *
                             double{turned_[static_cast<size_t>((h * c_.group + q) * c_.form.d + j)]});
          most_product_ = std::max(most_product_, sum);
        }
      }
    }
    p_.items = items_.data();
  }

  const Case c_;
  std::mt19937 random_{31};
  PageFormat form_;
  Format formats_[2] = {};  // of pages, of rings
  std::vector<uint64_t> memory_, ring_memory_;
  std::vector<Head> heads_, read_;
  std::vector<std::vector<int32_t>> ids_, pages_;
  std::vector<int32_t> chosen_ids_, n_pages_, choice_;
  std::vector<RowParams> rows_;
  std::vector<Segment> items_;
  std::vector<HeadSegments> heads_of_items_;
  std::vector<int32_t> arrived_;
  std::vector<float> sinks_;
  std::vector<float> turned_, q_, k_, v_, angles_;
  bool appends_apart_ = false;
  StepParams p_{};
  double most_product_ = 0, most_value_ = 0;
};

class AttendStepTest : public KernelTest {
 protected:
  void ExpectNear(const Case& c) {
    SCOPED_TRACE(c.Name());
    Step a(c), b(c);
    a.Run(false, stream_.get()), b.Run(true, stream_.get());
    const double off = a.LogitBound();
    for (size_t i = 0; i < a.logits.size(); ++i) {
      if (a.logits[i] == b.logits[i]) continue;  // -infinity, and what is not written
      ASSERT_LE(std::fabs(double{a.logits[i]} - double{b.logits[i]}), off) << "logit " << i;
    }
    for (size_t item = 0; item < a.n_items(); ++item) {
      for (int32_t h = 0; h < c.group; ++h) {
        const std::string where = "item " + std::to_string(item) + ", query head " + std::to_string(h);
        const double l = double{a.Sum(item, h)};
        if (std::isinf(a.Greatest(item, h))) {
          ASSERT_EQ(a.Greatest(item, h), b.Greatest(item, h)) << where;
          ASSERT_EQ(l, 0) << where;
        } else {
          ASSERT_LE(std::fabs(double{a.Greatest(item, h)} - double{b.Greatest(item, h)}), off) << where;
          ASSERT_GE(l, 1 - 1e-6) << where;
        }
        ASSERT_LE(std::fabs(l - double{b.Sum(item, h)}), l * (2 * off + 0x1p-18)) << where;
        for (int32_t j = 0; j < c.form.d; ++j)
          ASSERT_LE(std::fabs(double{a.Values(item, h)[j]} - double{b.Values(item, h)[j]}),
                    l * a.most_value() * (2 * off + 0x1p-16))
              << where << ", number " << j;
      }
    }
  }
};

// Lengths around those of a product and of a block's products, and long ones.
const std::vector<int32_t> kLens = {1, 77, 130, 16, 17, 63}, kLong = {1500, 1, 64, 2, 65, 700};

constexpr Form kHalves[] = {
    {KvType::kF16, 64}, {KvType::kF16, 128}, {KvType::kBf16, 64}, {KvType::kBf16, 128}};

// All that there is a kernel for.
std::vector<Form> Codes() {
  std::vector<Form> forms;
  for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (const int32_t value_bits : {0, type == KvType::kInt8 ? 4 : 8}) {
      for (const int32_t d : {64, 128}) {
        for (int32_t codes = 32; codes <= d; codes *= 2) forms.push_back({type, d, codes, value_bits});
      }
    }
  }
  return forms;
}
// One of each size of a row, of groups and of scales.
constexpr Form kSomeCodes[] = {{KvType::kInt8, 128, 32},
                               {KvType::kInt4, 128, 64},
                               {KvType::kInt8, 64, 64, 4},
                               {KvType::kInt4, 64, 32},
                               {KvType::kInt4, 128, 128, 8}};

std::vector<Form> SomeForms() {
  std::vector<Form> forms(std::begin(kHalves), std::end(kHalves));
  forms.insert(forms.end(), std::begin(kSomeCodes), std::end(kSomeCodes));
  return forms;
}

TEST_F(AttendStepTest, IsWhatTheOtherKernelGives) {
  for (const Form& form : SomeForms()) {
    for (int32_t group = 1; group <= 8; ++group) ExpectNear({form, group, 16, kLens, 64});
    ExpectNear({form, 12, 64, kLens, 64});
    ExpectNear({form, 4, 64, kLong, 1024});
    ExpectNear({form, 3, 4, kLong, 96});
  }
}

TEST_F(AttendStepTest, EveryFormOfCodes) {
  for (const Form& form : Codes()) {
    ExpectNear({form, 5, 32, kLens, 64});
    Case c{form, 3, 4, kLong, 128};
    c.logits = c.seen = true;
    ExpectNear(c);
  }
}

// Scales of codes that are far from each other, tiny ones and huge ones: what nobody sees is lost on nobody.
TEST_F(AttendStepTest, ScalesOfAllSizes) {
  for (const Form& form : kSomeCodes) {
    Case c{form, 4, 64, kLong, 256};
    c.spread = 10;
    ExpectNear(c);
    c.slots = 4, c.queries = 1e-20f;
    ExpectNear(c);
    // The window begins with an entry, at 3 * 450.
    c.slots = 16, c.queries = 1, c.spread = 0, c.window = 901, c.hidden = 450;
    ExpectNear(c);
  }
}

TEST_F(AttendStepTest, MasksWindowsAndWhatElseIsWanted) {
  for (const Form& form : SomeForms()) {
    Case c{form, 4, 16, kLong, 256};
    c.logits = true;
    ExpectNear(c);
    c.seen = true, c.group = 12;
    ExpectNear(c);
    // The window begins with an entry, at 3 * 450.
    c.window = 901, c.rest = true, c.group = 5;
    ExpectNear(c);
    c.seen = false, c.cap = 30;
    ExpectNear(c);
    c.chooses = true, c.window = 0, c.group = 7;
    ExpectNear(c);
    c.slots = 32;
    ExpectNear(c);
    c.logits = false, c.queries = 20, c.cap = 0;
    ExpectNear(c);
  }
}

// Over pages of f16 queries are two numbers of it, and end where both are its largest.
TEST_F(AttendStepTest, QueriesEndWhereHalvesDo) {
  for (const int32_t d : {64, 128}) {
    const Case c{{KvType::kF16, d}, 3, 16, kLens, 64};
    Step far(c), ends(c);
    for (size_t i = 0; i < far.queries().size(); i += 37) {
      far.queries()[i] = i % 2 == 0 ? 1e9f : -INFINITY;
      ends.queries()[i] = (i % 2 == 0 ? 2 : -2) * 65504.0f;
    }
    far.Run(true, stream_.get()), ends.Run(true, stream_.get());
    EXPECT_EQ(far.partial, ends.partial) << d;
    for (size_t item = 0; item < far.n_items(); ++item) {
      for (int32_t h = 0; h < c.group; ++h) EXPECT_TRUE(std::isfinite(far.Sum(item, h))) << d;
    }
  }
}

// Entries that are not coded yet.
TEST_F(AttendStepTest, RingsBesideCodes) {
  for (const Form& form : kSomeCodes) {
    Case c{form, 4, 16, kLong, 256};
    c.ring = 33;
    ExpectNear(c);
    c.lens[1] = 0, c.ring = 1, c.logits = c.rest = true;
    ExpectNear(c);
    c.lens = kLens, c.ring = 70, c.seen = true, c.window = 61, c.group = 9;
    ExpectNear(c);
    c.chooses = true, c.seen = false, c.cap = 30;
    ExpectNear(c);
  }
}

TEST_F(AttendStepTest, TheSameBitsInEveryOrder) {
  for (const Form& form : SomeForms()) {
    Case c{form, 7, form.d == 64 ? 64 : 16, kLong, 512};
    c.logits = true, c.seen = true, c.ring = form.coded() ? 33 : 0;
    std::vector<float> partial, logits;
    for (const int order : {0, 0, 1, 2}) {
      emu::GetOptions().order = order;
      Step step(c);
      step.Run(true, stream_.get());
      if (partial.empty()) partial = step.partial, logits = step.logits;
      EXPECT_EQ(0, std::memcmp(partial.data(), step.partial.data(), partial.size() * sizeof(float)));
      EXPECT_EQ(0, std::memcmp(logits.data(), step.logits.data(), logits.size() * sizeof(float)));
    }
  }
}

// Turned and appended where they are read: the same entries and the same attention as by a kernel in front.
TEST_F(AttendStepTest, AppendsAsAKernelInFrontDoes) {
  for (const Form& form : SomeForms()) {
    for (const RopePairing pairing : {RopePairing::kHalf, RopePairing::kInterleaved}) {
      Case c{form, pairing == RopePairing::kHalf ? 8 : 3, form.d == 64 ? 64 : 16, kLens, 64};
      c.logits = c.seen = true;
      c.ring = form.coded() && pairing == RopePairing::kHalf ? 33 : 0;
      SCOPED_TRACE(c.Name());
      Step before(c), a(c), b(c);
      a.LetAppend(true, pairing), b.LetAppend(false, pairing);
      a.Run(true, stream_.get()), b.Run(true, stream_.get());
      ASSERT_NE(c.ring > 0 ? before.rings() : before.pages(), c.ring > 0 ? b.rings() : b.pages());
      ASSERT_EQ(a.pages(), b.pages());
      ASSERT_EQ(a.rings(), b.rings());
      ASSERT_EQ(a.query_rings, b.query_rings);
      ASSERT_EQ(0, std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)));
      ASSERT_EQ(0, std::memcmp(a.partial.data(), b.partial.data(), a.partial.size() * sizeof(float)));
    }
  }
}

TEST_F(AttendStepTest, TheLastBlockOfAHeadJoinsIt) {
  for (const Form& form : SomeForms()) {
    for (const int32_t group : {1, 7, 9}) {
      Case c{form, group, form.d == 64 ? 64 : 16, kLong, 64};
      c.lens[1] = 0, c.seen = true, c.ring = form.coded() && group == 7 ? 33 : 0;
      for (const bool mma : {true, false}) {
        std::vector<float> out;
        for (const int order : {0, 1, 2}) {
          emu::GetOptions().order = order;
          Step step(c);
          step.LetJoin();
          step.Run(mma, stream_.get());
          if (out.empty()) out = step.out;
          ASSERT_EQ(0, std::memcmp(out.data(), step.out.data(), out.size() * sizeof(float))) << order;
          for (size_t i = 0; order == 0 && i < out.size(); ++i) {
            const auto at = static_cast<int32_t>(i), h = at / form.d % step.n_heads(),
                       row = at / form.d / step.n_heads();
            if (!step.AnyEntry(row, h)) {
              ASSERT_EQ(out[i], kNothing) << "a head without entries has no block";
              continue;
            }
            const auto [expected, size] = step.Joined(row, h, at % form.d);
            ASSERT_NEAR(out[i], expected, 1e-6 * size) << "row " << row << ", query head " << h;
          }
        }
      }
    }
  }
}

// However many segments' values are on their way at once: around a warp's lanes, and what those hold of them.
TEST_F(AttendStepTest, JoinsInTheOrderOfSegments) {
  for (const int32_t d : {64, 128}) {
    Case c{{KvType::kF16, d}, 5, 32, {32 * 70, 32 * 15 + 3, 32 * 16, 32 * 17, 32 * 33 - 1, 1}, 32};
    c.seen = true;
    Step step(c);
    step.LetJoin();
    step.Run(true, stream_.get());
    for (size_t i = 0; i < step.out.size(); ++i) {
      const auto at = static_cast<int32_t>(i), h = at / d % step.n_heads(), row = at / d / step.n_heads();
      // Where nvcc made the kernel, products and sums are one operation.
      const double off =
          std::getenv("KVC_EMU_PTX") == nullptr ? 0 : 1e-6 * step.Joined(row, h, at % d).second;
      ASSERT_NEAR(step.out[i], step.JoinedInOrder(row, h, at % d), off) << "row " << row << ", head " << h;
    }
  }
}

}  // namespace
}  // namespace kvc::cuda
