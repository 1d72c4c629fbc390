// Choosing among the entries of one head by one block (methods.md 1.7, 2.5, 2.17); as SelectEntries of
// lib/ops/cpu/select.cc.
#pragma once
#include "cuda/block.h"
#include "lib/base/philox.h"
#include "lib/ops/score_ops.h"

namespace kvc::cuda {

struct LineToSelect {
  SelectRule rule;
  const int32_t* n_random;  // DrawnCount of `count`, kDraw only; read when there are registers for it
  const float* scores;
  const int32_t* positions;  // kDraw only
  int32_t n, count;
  uint32_t head;
  float* line;    // scratch [n], kDraw only
  uint8_t* mark;  // [n]
};

constexpr int32_t kListed = 1024;

// mark[i] = whether x[i] is one of the `count` best of n scores, equal ones by the lower index; list
// [kListed]. For long lines: two reads find 22 bits of the threshold, a third one marks what is above and
// lists what has these bits; the rest is found in the list. Where that has no room for so many, another read
// of the line does it, and two where equal scores are told apart by place.
class LineMarks {
 public:
  KVC_DEVICE LineMarks(const float* x, int32_t n, BlockSpace* s, int32_t* list, uint8_t* mark)
      : x_(x), n_(n), s_(s), list_(list), mark_(mark) {}

  KVC_DEVICE void Best(int32_t count) const {
    if (count <= 0 || count >= n_) {
      for (int32_t i = ThreadOfBlock(); i < n_; i += BlockThreads()) mark_[i] = count > 0 ? 1 : 0;
      __syncthreads();
      return;
    }
    const auto each = [&](auto f) { Each(f); };
    Threshold t{0, 0, 0};
    BlockNarrow(0, each, count, &t, s_);
    BlockNarrow(1, each, count, &t, s_);
    const auto all_stay = [&] { return t.above + t.equal == count; };
    const bool listed = !all_stay() && t.equal <= kListed;
    if (!listed && !all_stay()) BlockNarrow(2, each, count, &t, s_);
    if (listed) {
      MarkAndList<true>(t.bits);
      MarkListed(count, t);
    } else if (all_stay()) {
      MarkAndList<false>(t.bits);
    } else {
      BlockRankLoaded(
          n_, s_, [&](int32_t i) { return ScoreBits(x_[i]); }, [&](uint32_t b) { return b == t.bits; },
          [&](int32_t i, uint32_t b, bool equal, int32_t place) {
            mark_[i] = (equal ? place < count - t.above : b > t.bits) ? 1 : 0;
          });
    }
  }

 private:
  static constexpr int kOpen = ShiftOfPass(1);  // bits that two passes leave

  template <typename F>
  KVC_DEVICE void Each(F f) const {
    EachOfFloats(
        x_, n_,
        [&](int32_t i, const float4& v) {
          f(i, ScoreBits(v.x)), f(i + 1, ScoreBits(v.y)), f(i + 2, ScoreBits(v.z)), f(i + 3, ScoreBits(v.w));
        },
        [&](int32_t i, float v) { f(i, ScoreBits(v)); });
  }
  // Marks from `bits` on; kList: from where their open bits end on, and lists those below: four beside each
  // other that have one by the first of them, one alone as ~i.
  template <bool kList>
  KVC_DEVICE void MarkAndList(uint32_t bits) const {
    const uint32_t least = bits + (kList ? 1u << kOpen : 0);
    if (ThreadOfBlock() == 0) s_->told = 0;
    __syncthreads();
    const auto is_open = [&](uint32_t b) { return kList && (b ^ bits) >> kOpen == 0; };
    const auto one = [&](int32_t i, float v) {
      const uint32_t b = ScoreBits(v);
      mark_[i] = b >= least ? 1 : 0;
      if (is_open(b)) list_[atomicAdd(&s_->told, 1)] = ~i;
    };
    const auto four = [&](int32_t i, const float4& v) {
      const uint32_t b[4] = {ScoreBits(v.x), ScoreBits(v.y), ScoreBits(v.z), ScoreBits(v.w)};
      uint32_t marks = 0;
      bool any = false;
      KVC_UNROLL
      for (int k = 0; k < 4; ++k) {
        marks |= b[k] >= least ? 1u << 8 * k : 0;
        any = any || is_open(b[k]);
      }
      *reinterpret_cast<uint32_t*>(mark_ + i) = marks;
      if (any) list_[atomicAdd(&s_->told, 1)] = i;
    };
    if (reinterpret_cast<uintptr_t>(mark_ + FrontOf(x_)) % sizeof(uint32_t) == 0) {
      EachOfFloats(x_, n_, four, one);
    } else {
      EachOfLine(
          n_, [&](int32_t i) { return x_[i]; }, one);
    }
    __syncthreads();
  }
  template <typename F>
  KVC_DEVICE void EachListed(F f) const {
    for (int32_t j = ThreadOfBlock(); j < s_->told; j += BlockThreads()) {
      const int32_t at = list_[j], first = at < 0 ? ~at : at, end = at < 0 ? first + 1 : first + 4;
      for (int32_t i = first; i < end; ++i) f(i, ScoreBits(x_[i]));
    }
  }
  KVC_DEVICE void MarkListed(int32_t count, Threshold t) const {
    BlockNarrow(
        2, [&](auto f) { EachListed(f); }, count, &t, s_);
    uint32_t last = 0;  // of ~i of the equal ones
    if (t.above + t.equal != count) {
      const auto each_equal = [&](auto f) {
        EachListed([&](int32_t i, uint32_t b) {
          if (b == t.bits) f(i, ~static_cast<uint32_t>(i));
        });
      };
      last = BlockThreshold(each_equal, count - t.above, s_).bits;
    }
    EachListed([&](int32_t i, uint32_t b) {
      if (b > t.bits || (b == t.bits && ~static_cast<uint32_t>(i) >= last)) mark_[i] = 1;
    });
    __syncthreads();
  }

  const float* x_;
  int32_t n_;
  BlockSpace* s_;
  int32_t* list_;
  uint8_t* mark_;
};

// list: shared memory [kListed], or null: for lines that are not worth so much code.
KVC_DEVICE void BlockSelectEntries(const LineToSelect& in, BlockSpace* s, int32_t* list) {
  const bool draws = in.rule.kind == SelectKind::kDraw, lowest = in.rule.kind == SelectKind::kLowest,
             all = in.n <= in.rule.protect.n_sink + in.rule.protect.n_recent + in.count;
  const int32_t sink = lowest ? 0 : in.rule.protect.n_sink, behind = in.n - in.rule.protect.n_recent,
                n_free = behind - sink;  // entries [sink, behind) are chosen from
  for (int32_t i = ThreadOfBlock(); i < (all ? in.n : sink); i += BlockThreads()) in.mark[i] = 1;
  for (int32_t i = behind + ThreadOfBlock(); !all && i < in.n; i += BlockThreads()) in.mark[i] = 1;
  if (all) {
    __syncthreads();
    return;
  }
  const int32_t n_random = draws ? *in.n_random : 0,
                n_top = lowest ? n_free - (in.n - KeptCount(in.rule, in.n, in.count)) : in.count - n_random;
  const float* scores = in.scores + sink;
  uint8_t* mark = in.mark + sink;
  if (list != nullptr) {
    LineMarks(scores, n_free, s, list, mark).Best(n_top);
  } else {
    BlockMarkTop([&](int32_t i) { return ScoreBits(scores[i]); }, n_free, n_top, s,
                 [&](int32_t i, bool yes) { mark[i] = yes ? 1 : 0; });
  }
  if (!draws) return;
  for (int32_t t = ThreadOfBlock(); t < n_free; t += BlockThreads()) {
    const double u = Uniform(
        Philox(in.head, static_cast<uint32_t>(in.positions[sink + t]), 0, kSelectDraw, in.rule.seed)[0]);
    const double gumbel = u > 0 ? -log(-log(u)) : -static_cast<double>(Infinity());
    // What the first part took goes below everything that is left, whatever that is: a score that is no
    // number counts as the least one there is.
    const float drawn = static_cast<float>(static_cast<double>(scores[t]) + gumbel), least = -3.402823466e38f;
    in.line[t] = mark[t] != 0 ? -Infinity() : drawn > least ? drawn : least;
  }
  __syncthreads();
  BlockMarkTop([&](int32_t i) { return ScoreBits(in.line[i]); }, n_free, min(*in.n_random, n_free - n_top), s,
               [&](int32_t i, bool yes) {
                 if (yes) mark[i] = 1;
               });
}

}  // namespace kvc::cuda
