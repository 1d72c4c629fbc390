// Bytes and flops: prefill streams every weight once per chunk of kChunk tokens (2 * parameters flops per
// token) and attends 2 * n^2 * D * H flops per layer; decode streams every weight once per step for all rows.
#include "lib/model/forward.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace kvc {
namespace {

constexpr int32_t kChunk = 256;      // prompt tokens worked on at once: activations of a chunk stay in cache,
                                     // cancel is seen between chunks
constexpr int32_t kQueryBlock = 32;  // query rows of one attention work item
constexpr int64_t kKeyBlock = 512;   // keys of one column-sum work item

// The activations of `n` tokens in one buffer.
struct Activations {
  float *norm, *q, *k, *v, *attended, *gate, *up;
  static int64_t Floats(const ModelConfig& c, int64_t n) {
    return n * (int64_t{c.hidden_size} + 2 * int64_t{c.n_heads} * c.head_dim +
                2 * int64_t{c.n_kv_heads} * c.head_dim + 2 * int64_t{c.ffn_size});
  }
  Activations(const ModelConfig& c, int64_t n, float* at) {
    norm = at, at += n * c.hidden_size;
    q = at, at += n * c.n_heads * c.head_dim;
    attended = at, at += n * c.n_heads * c.head_dim;
    k = at, at += n * c.n_kv_heads * c.head_dim;
    v = at, at += n * c.n_kv_heads * c.head_dim;
    gate = at, at += n * c.ffn_size;
    up = at;
  }
};

int64_t ScratchBytes(const ModelConfig& c, int32_t n) {
  return MatMulScratchBytes(n, std::max({c.hidden_size, c.ffn_size, c.n_heads * c.head_dim}));
}

// The parts of a layer that prefill and decode share, over n rows.
class LayerMath {
 public:
  LayerMath(const Network& net, void* scratch) : net_(net), c_(net.config), scratch_(scratch) {}

  void Norm(const float* x, const float* weight, int32_t n, float* y) const {
    net_.ops.pool->ParallelFor(n, [&](int64_t i, int) {
      net_.ops.kernels->rms_norm(x + i * c_.hidden_size, weight, static_cast<float>(c_.norm_eps),
                                 c_.hidden_size, y + i * c_.hidden_size);
    });
  }

  void Product(const Weight& w, const float* bias, const float* x, int32_t n, float* y) const {
    MatMul(net_.ops, w, bias, x, w.cols, n, y, w.rows, scratch_);
  }

  // q, k, v of n rows from the residual, per-head norms applied, not rotated.
  void Project(const LayerWeights& w, const float* x, int32_t n, const Activations& a) const {
    Norm(x, w.attention_norm, n, a.norm);
    Product(w.query, w.query_bias, a.norm, n, a.q);
    Product(w.key, w.key_bias, a.norm, n, a.k);
    Product(w.value, w.value_bias, a.norm, n, a.v);
    if (!c_.qk_norm) return;
    const float eps = static_cast<float>(c_.norm_eps);
    for (int64_t i = 0; i < int64_t{n} * c_.n_heads; ++i) {
      net_.ops.kernels->rms_norm(a.q + i * c_.head_dim, w.query_norm, eps, c_.head_dim,
                                 a.q + i * c_.head_dim);
    }
    for (int64_t i = 0; i < int64_t{n} * c_.n_kv_heads; ++i) {
      net_.ops.kernels->rms_norm(a.k + i * c_.head_dim, w.key_norm, eps, c_.head_dim, a.k + i * c_.head_dim);
    }
  }

  // x += output(attended); x += mlp(norm(x)) for n rows.
  void Finish(const LayerWeights& w, const float* attended, int32_t n, float* x, const Activations& a) const {
    Product(w.output, w.output_bias, attended, n, a.norm);
    Add(a.norm, n, x);
    Norm(x, w.ffn_norm, n, a.norm);
    Product(w.gate, nullptr, a.norm, n, a.gate);
    Product(w.up, nullptr, a.norm, n, a.up);
    net_.ops.pool->ParallelFor(n, [&](int64_t i, int) {
      net_.ops.kernels->silu_mul(a.gate + i * c_.ffn_size, a.up + i * c_.ffn_size, c_.ffn_size,
                                 a.gate + i * c_.ffn_size);
    });
    Product(w.down, nullptr, a.gate, n, a.norm);
    Add(a.norm, n, x);
  }

  void Logits(const float* x, int32_t n, const Activations& a, float* logits) const {
    Norm(x, net_.weights.final_norm, n, a.norm);
    Product(net_.weights.output_head, nullptr, a.norm, n, logits);
  }

 private:
  void Add(const float* y, int32_t n, float* x) const {
    for (int32_t i = 0; i < n; ++i)
      net_.ops.kernels->add(y + int64_t{i} * c_.hidden_size, c_.hidden_size, x + int64_t{i} * c_.hidden_size);
  }

  const Network& net_;
  const ModelConfig& c_;
  void* scratch_;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Rows of activations that are worked on at once.
int32_t ChunkRows(const PrefillRequest& r) {
  return std::min(std::max(r.n, r.reread == nullptr ? 0 : r.reread->LongestSegment()), kChunk);
}

float Scale(const ModelConfig& c) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
}

}  // namespace

int32_t Reread::LongestSegment() const {
  int32_t longest = 0, begin = 0;
  for (int32_t end : ends) {
    longest = std::max(longest, end - begin);
    begin = end;
  }
  return longest;
}

// ---- workspace ----

Status ForwardWorkspace::ReservePrefill(const ModelConfig& c, const PrefillRequest& r, MemoryMeter* meter) {
  const int64_t chunk = ChunkRows(r), rows = r.n + (r.reread == nullptr ? 0 : r.reread->tokens.size());
  KVC_RETURN_IF_ERROR(residual_.Reserve(meter, rows * c.hidden_size, "activations of the prompt"));
  KVC_RETURN_IF_ERROR(
      block_.Reserve(meter, Activations::Floats(c, chunk) + chunk * c.head_dim, "activations of a chunk"));
  KVC_RETURN_IF_ERROR(
      scratch_.Reserve(meter, ScratchBytes(c, static_cast<int32_t>(chunk)), "activations of a chunk"));
  if (r.column_sums || r.reread != nullptr)
    KVC_RETURN_IF_ERROR(lse_.Reserve(meter, int64_t{c.n_heads} * kChunk, "column sums"));
  LayerKv* kv;
  Observation* observed;
  return ReserveLayer(c, r, meter, &kv, &observed);
}

Status ForwardWorkspace::ReserveLayer(const ModelConfig& c, const PrefillRequest& r, MemoryMeter* meter,
                                      LayerKv** kv, Observation** observed) {
  const int64_t extra = r.reread == nullptr ? 0 : r.reread->LongestSegment(),
                entries = int64_t{r.max_cached} + r.n + extra, g = c.n_kv_heads;
  kv_.n_kv_heads = c.n_kv_heads, kv_.head_dim = c.head_dim, kv_.n_aux = r.n_aux;
  kv_.len.assign(static_cast<size_t>(g), 0);
  kv_.capacity = entries;
  KVC_RETURN_IF_ERROR(kv_.keys.Reserve(meter, g * entries * c.head_dim, "keys of one layer"));
  KVC_RETURN_IF_ERROR(kv_.values.Reserve(meter, g * entries * c.head_dim, "values of one layer"));
  KVC_RETURN_IF_ERROR(kv_.positions.Reserve(meter, g * entries, "positions of one layer"));
  KVC_RETURN_IF_ERROR(kv_.aux.Reserve(meter, r.n_aux * g * entries, "side values of one layer"));
  kv_.has_seen = r.seen_masks;
  if (kv_.has_seen) KVC_RETURN_IF_ERROR(kv_.seen.Reserve(meter, g * entries, "sets of query heads"));
  observed_.n_new = r.n;
  observed_.n_rows = std::min(r.window_rows, r.n);
  observed_.column_sums = r.column_sums;
  KVC_RETURN_IF_ERROR(
      observed_.queries.Reserve(meter, int64_t{observed_.n_rows} * c.n_heads * c.head_dim, "window queries"));
  if (r.column_sums) {
    KVC_RETURN_IF_ERROR(observed_.sums.Reserve(meter, g * entries, "column sums"));
    if (!meter->counting()) std::fill(observed_.sums.data(), observed_.sums.data() + g * entries, 0.0f);
  }
  observed_.reread = r.reread != nullptr;
  if (observed_.reread) {
    KVC_RETURN_IF_ERROR(observed_.maxima.Reserve(meter, g * entries, "column maxima"));
    if (!meter->counting()) std::fill(observed_.maxima.data(), observed_.maxima.data() + g * entries, 0.0f);
  }
  *kv = &kv_;
  *observed = &observed_;
  return {};
}

Status ForwardWorkspace::ReserveDecode(const ModelConfig& c, int32_t n_rows, MemoryMeter* meter) {
  KVC_RETURN_IF_ERROR(decode_.Reserve(
      meter, Activations::Floats(c, n_rows) + int64_t{n_rows} * (c.hidden_size + c.head_dim + c.vocab_size),
      "decode activations"));
  KVC_RETURN_IF_ERROR(scratch_.Reserve(meter, ScratchBytes(c, n_rows), "decode activations"));
  return {};
}

void ForwardWorkspace::FreePrefill() {
  residual_.Free(), block_.Free(), lse_.Free();
  kv_.keys.Free(), kv_.values.Free(), kv_.positions.Free(), kv_.aux.Free(), kv_.seen.Free();
  observed_.queries.Free(), observed_.sums.Free(), observed_.maxima.Free();
}

int64_t ForwardWorkspace::bytes() const {
  return residual_.bytes() + block_.bytes() + lse_.bytes() + decode_.bytes() + scratch_.bytes() +
         kv_.keys.bytes() + kv_.values.bytes() + kv_.positions.bytes() + kv_.aux.bytes() + kv_.seen.bytes() +
         observed_.queries.bytes() + observed_.sums.bytes() + observed_.maxima.bytes();
}

int64_t ForwardWorkspace::layer_bytes() const {
  return kv_.keys.bytes() + kv_.values.bytes() + kv_.positions.bytes() + kv_.aux.bytes() + kv_.seen.bytes();
}

// ---- prefill ----

class PrefillPass {
 public:
  PrefillPass(const Network& net, const PrefillRequest& r, ForwardWorkspace* ws)
      : net_(net),
        c_(net.config),
        r_(r),
        ws_(ws),
        math_(net, ws->scratch_.data()),
        a_(c_, ChunkRows(r), ws->block_.data()),
        angles_(ws->block_.data() + Activations::Floats(c_, ChunkRows(r))) {}

  Status Run() {
    Embed(r_.tokens, r_.n, ws_->residual_.data());
    if (r_.reread != nullptr) {
      Embed(r_.reread->tokens.data(), static_cast<int32_t>(r_.reread->tokens.size()),
            ws_->residual_.data() + int64_t{r_.n} * c_.hidden_size);
    }
    for (int layer = 0; layer < c_.n_layers; ++layer) {
      LayerKv& kv = ws_->kv_;
      KVC_RETURN_IF_ERROR(r_.sink->BeginLayer(layer, &kv));
      base_ = kv.len;
      const int64_t entries = c_.n_kv_heads * kv.capacity;
      if (r_.column_sums) std::fill_n(ws_->observed_.sums.data(), entries, 0.0f);
      if (r_.reread != nullptr) std::fill_n(ws_->observed_.maxima.data(), entries, 0.0f);
      KVC_RETURN_IF_ERROR(Segment(layer, 0, r_.n, 0));
      KVC_RETURN_IF_ERROR(ReadAgain(layer));
      KVC_RETURN_IF_ERROR(r_.sink->EndLayer(layer, &kv, &ws_->observed_));
    }
    math_.Logits(ws_->residual_.data() + int64_t{r_.n - 1} * c_.hidden_size, 1, a_, r_.logits);
    return {};
  }

 private:
  // Rows [row, row + n) of the residual, which stand at `offset` behind what was cached.
  struct Rows {
    int32_t row, n, offset;
    bool reread;
  };

  void Embed(const int32_t* tokens, int32_t n, float* x) {
    net_.ops.pool->ParallelFor(n, [&](int64_t i, int) {
      net_.ops.kernels->weight_row(net_.weights.embedding, tokens[i], x + i * c_.hidden_size);
    });
  }

  Status Segment(int layer, int32_t row, int32_t n, int32_t offset) {
    for (int32_t begin = 0; begin < n; begin += kChunk) {
      if (r_.call != nullptr && r_.call->cancelled()) return Error(Code::kCancelled, "prefill was cancelled");
      Chunk(layer, {row + begin, std::min(kChunk, n - begin), offset + begin, row >= r_.n});
    }
    return {};
  }

  // The segments follow the prompt one at a time, each in the place of the one before.
  Status ReadAgain(int layer) {
    if (r_.reread == nullptr) return {};
    const double start = Now();
    int32_t begin = 0;
    for (int32_t end : r_.reread->ends) {
      KVC_RETURN_IF_ERROR(Segment(layer, r_.n + begin, end - begin, r_.n));
      begin = end;
    }
    for (size_t g = 0; g < base_.size(); ++g) ws_->kv_.len[g] = base_[g] + r_.n;
    if (r_.extras != nullptr) r_.extras->reread += Now() - start;
    return {};
  }

  void Chunk(int layer, const Rows& rows) {
    const LayerWeights& w = net_.weights.layers[static_cast<size_t>(layer)];
    const int32_t n = rows.n;
    float* x = ws_->residual_.data() + int64_t{rows.row} * c_.hidden_size;
    math_.Project(w, x, n, a_);
    RotateAndScatter(rows.offset, n);
    if (!rows.reread) RecordWindow(rows.offset, n);
    AttendChunk(rows.offset, n);
    if (rows.reread) {
      FoldColumns(rows);
    } else if (r_.column_sums) {
      const double start = Now();
      FoldColumns(rows);
      if (r_.extras != nullptr) r_.extras->column_sums += Now() - start;
    }
    // Of the last layer only the last token goes on to the logits.
    const bool last_layer = layer + 1 == c_.n_layers;
    const int32_t skip = !last_layer ? 0 : rows.row + n == r_.n ? n - 1 : n;
    if (skip < n) {
      math_.Finish(w, a_.attended + int64_t{skip} * c_.n_heads * c_.head_dim, n - skip,
                   x + int64_t{skip} * c_.hidden_size, a_);
    }
  }

  void RotateAndScatter(int32_t begin, int32_t n) {
    const int32_t d = c_.head_dim, group = c_.n_heads / c_.n_kv_heads;
    LayerKv& kv = ws_->kv_;
    net_.ops.pool->ParallelFor(n, [&](int64_t i, int) {
      float *cos = angles_ + i * d, *sin = cos + d / 2;
      if (!r_.positions_in_cache) net_.rope.Angles(r_.first_position + begin + i, cos, sin);
      for (int32_t g = 0; g < c_.n_kv_heads; ++g) {
        const int64_t slot = base_[static_cast<size_t>(g)] + begin + i;
        if (r_.positions_in_cache) net_.rope.Angles(slot, cos, sin);
        for (int32_t h = g * group; h < (g + 1) * group; ++h) {
          net_.ops.kernels->rope(a_.q + (i * c_.n_heads + h) * d, cos, sin, d, c_.rope_pairing);
        }
        float* k = kv.Keys(g) + slot * d;
        std::memcpy(k, a_.k + (i * c_.n_kv_heads + g) * d, static_cast<size_t>(d) * sizeof(float));
        net_.ops.kernels->rope(k, cos, sin, d, c_.rope_pairing);
        std::memcpy(kv.Values(g) + slot * d, a_.v + (i * c_.n_kv_heads + g) * d,
                    static_cast<size_t>(d) * sizeof(float));
        kv.Positions(g)[slot] = static_cast<int32_t>(r_.first_position + begin + i);
        for (int32_t a = 0; a < kv.n_aux; ++a) kv.Aux(a, g)[slot] = 0.0f;
        if (kv.has_seen) kv.Seen(g)[slot] = ~0u;
      }
    });
    for (size_t g = 0; g < base_.size(); ++g) kv.len[g] = base_[g] + begin + n;
  }

  void RecordWindow(int32_t begin, int32_t n) {
    const int32_t rows = ws_->observed_.n_rows, first = r_.n - rows;
    const int64_t width = int64_t{c_.n_heads} * c_.head_dim;
    for (int32_t i = std::max(0, first - begin); i < n; ++i) {
      std::memcpy(ws_->observed_.queries.data() + (begin + i - first) * width, a_.q + i * width,
                  static_cast<size_t>(width) * sizeof(float));
    }
  }

  void AttendChunk(int32_t begin, int32_t n) {
    const int32_t d = c_.head_dim, group = c_.n_heads / c_.n_kv_heads,
                  blocks = (n + kQueryBlock - 1) / kQueryBlock;
    net_.ops.pool->ParallelFor(int64_t{blocks} * c_.n_heads, [&](int64_t item, int) {
      // Later blocks see more keys: they go first, so that threads end together.
      const int32_t block = blocks - 1 - static_cast<int32_t>(item / c_.n_heads),
                    h = static_cast<int32_t>(item % c_.n_heads);
      const int32_t row = block * kQueryBlock, g = h / group;
      PrefillAttentionArgs args{};
      args.q = a_.q + (int64_t{row} * c_.n_heads + h) * d;
      args.out = a_.attended + (int64_t{row} * c_.n_heads + h) * d;
      args.q_stride = args.out_stride = int64_t{c_.n_heads} * d;
      args.k = ws_->kv_.Keys(g), args.v = ws_->kv_.Values(g);
      args.lse =
          r_.column_sums || r_.reread != nullptr ? ws_->lse_.data() + int64_t{h} * kChunk + row : nullptr;
      args.seen = ws_->kv_.Seen(g), args.seen_bit = SeenBit(h % group);
      args.n_q = std::min(kQueryBlock, n - row);
      args.first_visible = base_[static_cast<size_t>(g)] + begin + row;
      args.d = d, args.window = c_.sliding_window, args.scale = Scale(c_);
      net_.ops.kernels->prefill_attention(args);
    });
  }

  // What the rows look at: the prompt's own are summed, of those that read it again the largest counts, and
  // only over the prompt and what was cached before.
  void FoldColumns(const Rows& rows) {
    const int32_t d = c_.head_dim, group = c_.n_heads / c_.n_kv_heads;
    const int64_t blocks = (ws_->kv_.capacity + kKeyBlock - 1) / kKeyBlock;
    float* into = rows.reread ? ws_->observed_.maxima.data() : ws_->observed_.sums.data();
    net_.ops.pool->ParallelFor(blocks * c_.n_kv_heads, [&](int64_t item, int) {
      const int32_t g = static_cast<int32_t>(item / blocks), cached = base_[static_cast<size_t>(g)];
      const int64_t first = item % blocks * kKeyBlock,
                    end = cached + (rows.reread ? r_.n : rows.offset + rows.n);
      if (first >= end) return;
      for (int32_t h = g * group; h < (g + 1) * group; ++h) {
        ColumnSumsArgs args{};
        args.q = a_.q + int64_t{h} * d;
        args.q_stride = int64_t{c_.n_heads} * d;
        args.k = ws_->kv_.Keys(g);
        args.lse = ws_->lse_.data() + int64_t{h} * kChunk;
        args.sums = into + g * ws_->kv_.capacity;
        args.n_q = rows.n, args.first_visible = cached + rows.offset;
        args.key_begin = static_cast<int32_t>(first),
        args.key_end = static_cast<int32_t>(std::min(first + kKeyBlock, end));
        args.d = d, args.scale = Scale(c_), args.weight = rows.reread ? 1 : 1.0f / static_cast<float>(group);
        (rows.reread ? net_.ops.kernels->column_maxima : net_.ops.kernels->column_sums)(args);
      }
    });
  }

  const Network& net_;
  const ModelConfig& c_;
  const PrefillRequest& r_;
  ForwardWorkspace* ws_;
  LayerMath math_;
  Activations a_;
  float* angles_;              // [chunk, D]
  std::vector<int32_t> base_;  // [G] entries cached before the prompt
};

Status Prefill(const Network& network, const PrefillRequest& request, ForwardWorkspace* workspace,
               MemoryMeter* meter) {
  KVC_RETURN_IF_ERROR(workspace->ReservePrefill(network.config, request, meter));
  return PrefillPass(network, request, workspace).Run();
}

// ---- decode ----

class DecodePass {
 public:
  DecodePass(const Network& net, const DecodeRow* rows, int32_t n, ForwardWorkspace* ws)
      : net_(net),
        c_(net.config),
        rows_(rows),
        n_(n),
        math_(net, ws->scratch_.data()),
        a_(c_, n, ws->decode_.data()) {
    x_ = ws->decode_.data() + Activations::Floats(c_, n);
    angles_ = x_ + int64_t{n} * c_.hidden_size;
    logits_ = angles_ + int64_t{n} * c_.head_dim;
  }

  void Run() {
    for (int32_t i = 0; i < n_; ++i) {
      net_.ops.kernels->weight_row(net_.weights.embedding, rows_[i].token, x_ + int64_t{i} * c_.hidden_size);
      net_.rope.Angles(rows_[i].position, Cos(i), Cos(i) + c_.head_dim / 2);
    }
    for (int layer = 0; layer < c_.n_layers; ++layer) {
      const LayerWeights& w = net_.weights.layers[static_cast<size_t>(layer)];
      math_.Project(w, x_, n_, a_);
      for (int32_t i = 0; i < n_; ++i) AttendRow(layer, i);
      math_.Finish(w, a_.attended, n_, x_, a_);
    }
    math_.Logits(x_, n_, a_, logits_);
    for (int32_t i = 0; i < n_; ++i) {
      std::memcpy(rows_[i].logits, logits_ + int64_t{i} * c_.vocab_size,
                  static_cast<size_t>(c_.vocab_size) * sizeof(float));
    }
  }

 private:
  float* Cos(int32_t i) { return angles_ + int64_t{i} * c_.head_dim; }

  void AttendRow(int layer, int32_t i) {
    const int32_t d = c_.head_dim;
    float *q = a_.q + int64_t{i} * c_.n_heads * d, *k = a_.k + int64_t{i} * c_.n_kv_heads * d;
    if (rows_[i].sink->KeysRotated(layer)) {
      for (int32_t h = 0; h < c_.n_heads; ++h)
        net_.ops.kernels->rope(q + int64_t{h} * d, Cos(i), Cos(i) + d / 2, d, c_.rope_pairing);
      for (int32_t g = 0; g < c_.n_kv_heads; ++g)
        net_.ops.kernels->rope(k + int64_t{g} * d, Cos(i), Cos(i) + d / 2, d, c_.rope_pairing);
    }
    rows_[i].sink->Attend(layer, q, k, a_.v + int64_t{i} * c_.n_kv_heads * d,
                          a_.attended + int64_t{i} * c_.n_heads * d);
  }

  const Network& net_;
  const ModelConfig& c_;
  const DecodeRow* rows_;
  const int32_t n_;
  LayerMath math_;
  Activations a_;
  float *x_, *angles_, *logits_;
};

void Decode(const Network& network, const DecodeRow* rows, int32_t n, ForwardWorkspace* workspace) {
  DecodePass(network, rows, n, workspace).Run();
}

}  // namespace kvc
