// Norms of the heads of queries and keys, run by the emulator, against those of the processor.
#include "tests/emu/device_pair.h"

namespace kvc {
namespace {

// Of queries, of keys and of both: one weight for all heads or one each, with the mean taken off or not, and
// over all heads together; every kind of head.
TEST_F(DeviceParity, NormsOfHeads) {
  struct Case {
    const char* name;
    bool q, k, wide, own, layer;
  };
  for (const Case& c : {Case{"of queries", true, false, false, false, false},
                        {"of keys", false, true, false, true, false},
                        {"of both", true, true, false, false, false},
                        {"of both, own", true, true, false, true, true},
                        {"wide", true, true, true, false, false},
                        {"wide, of keys", false, true, true, false, false}}) {
    for (const int32_t d : {2, 34, 64, 128, 250, 256}) {
      for (const int32_t n : {1, 5}) {
        NetworkShape shape;
        shape.hidden = 32, shape.ffn = 32, shape.n_heads = 6, shape.n_kv_heads = 3, shape.head_dim = d;
        shape.vocab = 32, shape.layer_norms = c.layer;
        const int32_t q_rows = shape.n_heads * d, kv_rows = shape.n_kv_heads * d;
        const FileWeight q(WeightType::kF32, q_rows, 32, 32, &random_),
            k(WeightType::kF32, kv_rows, 32, 32, &random_), v(WeightType::kF32, kv_rows, 32, 32, &random_);
        const auto x = pair_->Copy(Random(static_cast<size_t>(n * shape.hidden))),
                   of_q = pair_->Copy(Random(static_cast<size_t>(q_rows))),
                   of_k = pair_->Copy(Random(static_cast<size_t>(kv_rows))),
                   qs = pair_->Copy(Random(static_cast<size_t>(n * q_rows))),
                   ks = pair_->Copy(Random(static_cast<size_t>(n * kv_rows))),
                   vs = pair_->Copy(Random(static_cast<size_t>(n * kv_rows)));
        for (int i = 0; i < 2; ++i) {
          Device& device = *devices_[i];
          LayerMatrices w;
          const Weight m[] = {q.w, k.w, v.w};
          ASSERT_TRUE(device.Prepare({m, 3}, {}, MatrixUse::kProducts, &w.qkv).ok());
          if (c.q) w.query_norm = of_q.at[i];
          if (c.k) w.key_norm = of_k.at[i];
          shape.norm_eps = 1e-3f, w.wide_norms = c.wide, w.own_norms = c.own;
          const DeviceBytes scratch = pair_->Scratch(i, device.NetworkScratchBytes(shape, n));
          ASSERT_TRUE(
              device
                  .Project(streams_[i].get(), {&shape, &w, x.at[i], n, qs.at[i], ks.at[i], vs.at[i], scratch})
                  .ok());
          ASSERT_TRUE(
              device.Read(streams_[i].get(), qs.at[i].As<const uint8_t>(), std::vector<uint8_t>(4).data(), 4)
                  .ok());
          if (w.qkv.memory) device.Free(w.qkv.memory, w.qkv.bytes);
        }
        const std::string what = Format("%s, %d dimensions, %d rows", c.name, d, n);
        pair_->ExpectNear(qs, 2e-5, what + ", queries");
        pair_->ExpectNear(ks, 2e-5, what + ", keys");
        pair_->ExpectNear(vs, 2e-5, what + ", values");
        pair_->blocks.clear();
      }
    }
  }
}

}  // namespace
}  // namespace kvc
