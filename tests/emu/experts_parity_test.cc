// Feed-forward parts of mixtures of experts on the CUDA backend: against those of the processor (which
// tests/unit/ops_experts_test.cc holds to their definition), and against themselves in other orders.
#include <limits>
#include <string>
#include <vector>

#include "tests/emu/device_pair.h"

namespace kvc {
namespace {

struct Mixture {
  WeightType type;
  int32_t hidden, ffn, n_experts, n_chosen, group = 16;
};

// Matrices of a layer as a file has them. One expert is never chosen, and what it has is no number: whoever
// used it would not give one either.
class FileLayer {
 public:
  FileLayer(const Mixture& m, std::mt19937* random)
      : output_(WeightType::kF32, m.hidden, kAttended, 0, random),
        router_(WeightType::kF32, m.n_experts, m.hidden, 0, random),
        gate_(m.type, m.n_experts * m.ffn, m.hidden, m.group, random),
        up_(m.type, m.n_experts * m.ffn, m.hidden, m.group, random),
        down_(m.type, m.n_experts * m.hidden, m.ffn, m.group, random),
        unused_(m.n_experts / 2) {
    shape.hidden = m.hidden, shape.ffn = m.ffn, shape.n_heads = shape.n_kv_heads = 1,
    shape.head_dim = kAttended;
    shape.n_experts = m.n_experts, shape.n_chosen = m.n_chosen;
    for (FileWeight* w : {&gate_, &up_, &down_}) {
      w->w.stack = m.n_experts;
      if (m.type != WeightType::kF32) continue;
      float* values = reinterpret_cast<float*>(w->data.data());
      const size_t size = static_cast<size_t>(m.hidden) * static_cast<size_t>(m.ffn);
      std::fill_n(values + static_cast<size_t>(unused_) * size, size, NAN);
    }
  }
  // Its router gives every expert what its bias says.
  void ForgetRouter() { std::fill(router_.data.begin(), router_.data.end(), uint8_t{0}); }
  std::vector<float> RouterBias(std::vector<float> bias) const {
    bias[static_cast<size_t>(unused_)] = -1e30f;
    return bias;
  }

  // biases of the router, of gate, up and down; null: none.
  void Prepare(Device* d, const DevicePtr<const float> (&biases)[4], LayerMatrices* w) const {
    const auto one = [&](const FileWeight& from, DevicePtr<const float> bias, Matrix* out) {
      EXPECT_TRUE(d->Prepare({&from.w, 1}, {&bias, 1}, MatrixUse::kProducts, out).ok());
      EXPECT_EQ(d->PreparedBytes({&from.w, 1}, MatrixUse::kProducts), out->bytes);
    };
    one(output_, {}, &w->output), one(router_, biases[0], &w->router), one(down_, biases[3], &w->down);
    const Weight halves[] = {gate_.w, up_.w};
    const DevicePtr<const float> of_halves[] = {biases[1], biases[2]};
    EXPECT_TRUE(d->Prepare({halves, 2}, {of_halves, 2}, MatrixUse::kProducts, &w->gate_up).ok());
  }
  static void Free(Device* d, const LayerMatrices& w) {
    for (const Matrix* m : {&w.output, &w.router, &w.gate_up, &w.down})
      if (m->memory) d->Free(m->memory, m->bytes);
  }

  static constexpr int32_t kAttended = 16;
  NetworkShape shape;

 private:
  FileWeight output_, router_, gate_, up_, down_;
  const int32_t unused_;
};

class ExpertsParity : public DeviceParity {
 protected:
  // n rows of a layer, on both devices or the other one alone; what stands in x then.
  Pair::On<float> Run(const FileLayer& layer, int32_t n, bool both = true) {
    const NetworkShape& s = layer.shape;
    const auto size = [](int64_t rows, int64_t width) { return static_cast<size_t>(rows * width); };
    const auto norm = pair_->Copy(Random(size(1, s.hidden)));
    std::vector<float> bias = Random(size(1, s.n_experts));
    for (float& z : bias) z = rounds_router_ ? std::floor(z) : z;
    const auto router = pair_->Copy(layer.RouterBias(bias));
    const auto gate = pair_->Copy(Random(size(s.n_experts, s.ffn))),
               up = pair_->Copy(Random(size(s.n_experts, s.ffn))),
               down = pair_->Copy(Random(size(s.n_experts, s.hidden)));
    const auto attended = pair_->Copy(Random(size(n, FileLayer::kAttended)));
    const auto x = pair_->Copy(Random(size(n, s.hidden)));
    for (int i = both ? 0 : 1; i < 2; ++i) {
      Device& d = *devices_[i];
      LayerMatrices w;
      const bool biases = n % 2 == 1;  // as gpt-oss has it
      layer.Prepare(&d,
                    {router.at[i], biases ? gate.at[i] : DevicePtr<float>(),
                     biases ? up.at[i] : DevicePtr<float>(), biases ? down.at[i] : DevicePtr<float>()},
                    &w);
      w.ffn_norm = norm.at[i], w.normalise_experts = biases;
      if (biases)
        w.activation = Activation::kClampedSwiglu, w.activation_gain = 1.702f, w.activation_limit = 1;
      if (n % 3 == 0) w.ffn_post_norm = norm.at[i];
      const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(s, n));
      EXPECT_TRUE(d.Finish(streams_[i].get(), {&s, &w, attended.at[i], n, 0.5f, x.at[i], scratch}).ok());
      EXPECT_TRUE(
          d.Read(streams_[i].get(), x.at[i].As<const uint8_t>(), std::vector<uint8_t>(4).data(), 4).ok());
      FileLayer::Free(&d, w);
    }
    return x;
  }
  bool rounds_router_ = false;
};

TEST_F(ExpertsParity, EveryWeightType) {
  for (const WeightType type : kTypes) {
    const FileLayer layer(HasBlocks(type) ? Mixture{type, 256, 256, 5, 2} : Mixture{type, 96, 48, 6, 3},
                          &random_);
    for (const int32_t n : {1, 2, 3, 4, 8, 9, 70}) {
      pair_->ExpectNear(Run(layer, n), HasCodes(type) ? 0.1 : 2e-5,
                        "type " + std::to_string(static_cast<int>(type)) + ", rows " + std::to_string(n));
      pair_->blocks.clear();
    }
  }
}

// Tiles of 16, 32 and 64 pairs of an expert, full and not, and codes that are read in whole vectors.
TEST_F(ExpertsParity, FewRows) {
  for (const WeightType type : {WeightType::kF16, WeightType::kInt8, WeightType::kInt4}) {
    const FileLayer layer({type, 160, 96, 4, 2, 32}, &random_);
    for (const int32_t n : {9, 16, 17, 33, 64, 65, 255}) {
      if (HasCodes(type) && n > 33 && n < 255) continue;
      pair_->ExpectNear(Run(layer, n), HasCodes(type) ? 0.1 : 2e-5,
                        "type " + std::to_string(static_cast<int>(type)) + ", rows " + std::to_string(n));
      pair_->blocks.clear();
    }
  }
}

// More experts than a block has threads, widths that no vector divides; a mixture of one; all chosen; more
// rows of an expert than a tile has.
TEST_F(ExpertsParity, OtherShapes) {
  for (const Mixture& m : {Mixture{WeightType::kF32, 18, 7, 300, 5}, Mixture{WeightType::kF32, 32, 32, 2, 1},
                           Mixture{WeightType::kBf16, 40, 24, 3, 3}}) {
    const FileLayer layer(m, &random_);
    for (const int32_t n : {1, 7, 200}) {
      pair_->ExpectNear(Run(layer, n), 2e-5,
                        std::to_string(m.n_experts) + " experts, rows " + std::to_string(n));
      pair_->blocks.clear();
    }
  }
}

// Of equal logits the lower numbers.
TEST_F(ExpertsParity, Ties) {
  FileLayer layer({WeightType::kF32, 24, 16, 150, 9}, &random_);
  layer.ForgetRouter();
  rounds_router_ = true;
  for (const int32_t n : {1, 2, 20}) pair_->ExpectNear(Run(layer, n), 2e-5, "rows " + std::to_string(n));
}

// Pairs have other places in other orders of warps; nothing of what they give shows it.
TEST_F(ExpertsParity, OrderDoesNotShow) {
  const FileLayer layer({WeightType::kBf16, 64, 32, 9, 4}, &random_);
  for (const int32_t n : {1, 8, 70}) {
    const std::mt19937 start = random_;
    std::vector<float> first;
    for (int order = 0; order < 3; ++order) {
      random_ = start;
#if defined(KVC_EMU)
      emu::GetOptions().order = order, emu::GetOptions().eager = order == 1;
#endif
      const std::vector<float> now = pair_->Read(Run(layer, n, false), 1);
      if (order == 0) first = now;
      EXPECT_EQ(first, now) << order << ", rows " << n;
    }
  }
}

// Products of logits that are no numbers choose somebody all the same, within bounds.
TEST_F(ExpertsParity, SomeAreChosenWhateverTheLogits) {
  FileLayer layer({WeightType::kF32, 32, 32, 5, 2}, &random_);
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    for (const int32_t n : {1, 9}) {
      layer.shape.norm_eps = value;
      Run(layer, n, false);  // the emulator, or AddressSanitizer, says what is out of bounds
    }
  }
}

}  // namespace
}  // namespace kvc
