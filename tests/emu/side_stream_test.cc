// What a layer of a prompt is compressed to, and what goes on to the next layer, are made beside each other:
// the same bits as one after the other, whichever of the two happens first.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/engine/session.h"
#include "tests/emu/device_pair.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"
#include "tests/support/watched_device.h"

namespace kvc {
namespace {

constexpr char kSwitch[] = "KVC_CUDA_BESIDE", kHalvesSwitch[] = "KVC_CUDA_FLOAT_ROWS";

const test::AlignedBytes& TinyBytes() {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_layers = 3, options.type = WeightType::kBf16;
    return test::TinyModelBytes(options);
  }();
  return bytes;
}

class SideStream : public testing::Test {
 protected:
  static std::shared_ptr<const Model> Open(bool beside) {
    test::SetVariable(kSwitch, beside ? "1" : "0");
    return OpenOn(kOther, TinyBytes());
  }
#if defined(KVC_EMU)
  void TearDown() override { emu::GetOptions() = {}; }
#endif
  const test::KeptVariable kept_{kSwitch}, kept_halves_{kHalvesSwitch};
};

// What a session gives: what it kept of a prompt and what comes next, behind another prompt too, and steps.
struct Given {
  std::vector<std::vector<int32_t>> kept;
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  bool operator==(const Given& other) const {
    return kept == other.kept && tokens == other.tokens && logits == other.logits;
  }
};
Given GivenBy(Session& session) {
  Given given;
  const ModelConfig& c = session.model().config();
  const auto note = [&] {
    for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) {
      given.kept.emplace_back();
      EXPECT_TRUE(session.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &given.kept.back()).ok());
    }
    const std::vector<float> logits = test::LogitsOf(session);
    given.logits.insert(given.logits.end(), logits.begin(), logits.end());
  };
  note();
  EXPECT_TRUE(session.Prefill(test::TinyPrompt(40, 3), true).ok());
  note();
  given.tokens = test::Steps(session, 3);
  note();
  return given;
}
Given GivenBy(const std::shared_ptr<const Model>& model, const char* policy, int n) {
  return GivenBy(*test::FedSession(model, policy, n));
}

// One chunk and several, rows between layers in f32 and in f16, what is read again, and pages of every kind.
TEST_F(SideStream, GivesTheSameBits) {
  const struct {
    const char *policy, *most_float_rows;
    int n;
  } cases[] = {{"full", "16", 260},
               {"streaming:budget=24", "8192", 60},
               {"snapkv:budget=24,window=8", "16", 1040},
               {"snapkv:budget=24,window=8", "8192", 100},
               {"ada-snapkv:budget=24,window=8", "16", 100},
               {"h2o:budget=24", "16", 100},
               {"weightedkv:budget=24,kv=int8,quant_group=16", "8192", 100},
               {"spindlekv:budget=48", "16", 100},
               {"kvzip:budget=24,reread_part=256", "16", 260},
               {"kvzip:budget=24,reread=own,reread_part=256", "16", 260}};
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.policy << ", f16 behind " << c.most_float_rows << " rows");
    test::SetVariable(kHalvesSwitch, c.most_float_rows);
    const auto with = Open(true);
    const Given expected = GivenBy(Open(false), c.policy, c.n);
    EXPECT_TRUE(GivenBy(with, c.policy, c.n) == expected);
#if defined(KVC_EMU)
    emu::GetOptions().eager = true;  // the rest of the layer first
    EXPECT_TRUE(GivenBy(with, c.policy, c.n) == expected);
    emu::GetOptions().eager = false;
#endif
  }
}

// Sessions that are given one prompt, each of which compresses a copy of its own.
TEST_F(SideStream, SessionsOfOnePromptGetTheSameBits) {
  const std::vector<int32_t> prompt = test::TinyPrompt(200);
  std::vector<Given> given[2];
  for (const bool beside : {false, true}) {
    const auto model = Open(beside);
    std::vector<std::unique_ptr<Session>> sessions;
    for (const char* policy : {"snapkv:budget=24,window=8", "h2o:budget=40", "full"})
      sessions.push_back(test::NewSession(model, policy));
    std::vector<Session*> all;
    for (const auto& s : sessions) all.push_back(s.get());
    ASSERT_TRUE(Session::PrefillTogether({all.data(), all.size()}, {prompt.data(), prompt.size()}).ok());
    for (Session* s : all) given[beside].push_back(GivenBy(*s));
  }
  EXPECT_TRUE(given[0] == given[1]);
}

#if defined(KVC_EMU)

// Whether what was last given to Finish has happened when a layer is stored, and when the next one is placed.
class Looker final : public test::WatchedDevice {
 public:
  struct Seen {
    int stored_first = 0, stored_behind = 0, placed = 0, placed_too_early = 0;
  };
  Looker(std::unique_ptr<Device> device, Seen* seen) : WatchedDevice(std::move(device)), seen_(seen) {
    EXPECT_TRUE(marker_.Allocate({this, nullptr}, 64, "test").ok());
    *Marker() = 0;
  }

  Status Finish(Stream* s, const FinishArgs& a) override {
    KVC_RETURN_IF_ERROR(WatchedDevice::Finish(s, a));
    *Marker() = 1;
    return Zero(s, marker_.raw(), 1);
  }
  Status StoreLayer(Stream* s, const StoreArgs& a) override {
    KVC_RETURN_IF_ERROR(WatchedDevice::StoreLayer(s, a));
    KVC_RETURN_IF_ERROR(Wait(s));
    ++(*Marker() != 0 ? seen_->stored_first : seen_->stored_behind);
    return {};
  }
  Status Place(Stream* s, const PlaceArgs& a) override {
    KVC_RETURN_IF_ERROR(WatchedDevice::Place(s, a));
    KVC_RETURN_IF_ERROR(Wait(s));
    ++seen_->placed, seen_->placed_too_early += *Marker() != 0;
    return {};
  }

 private:
  // As it is now, whatever streams have in front of them: memory of the emulated device is the host's.
  uint8_t* Marker() { return reinterpret_cast<uint8_t*>(marker_.raw().number()); }
  Status Wait(Stream* s) {
    uint8_t other = 0;
    return Read(s, marker_.raw() + 32, &other, 1);
  }

  Seen* const seen_;
  DeviceBuffer<uint8_t> marker_;
};

Looker::Seen* seen_by_looker = nullptr;

// The emulated device does what is waited for and no more: the layer is stored and the host knows it while
// the rest of it still stands in front of the other stream.
TEST_F(SideStream, LeavesCompressionNothingToWaitFor) {
  for (const bool beside : {true, false}) {
    SCOPED_TRACE(beside);
    test::SetVariable(kSwitch, beside ? "1" : "0");
    Looker::Seen seen;
    seen_by_looker = &seen;
    test::TestMaker() = [](const ThreadOptions& threads) -> Result<std::unique_ptr<Device>> {
      auto device = CreateCuda(kOther, threads);
      if (!device.ok()) return device.status();
      return std::unique_ptr<Device>(new Looker(std::move(device.value()), seen_by_looker));
    };
    const auto model = OpenOn("cpu", TinyBytes());
    test::TestMaker() = nullptr;
    const auto session = test::FedSession(model, "snapkv:budget=24,window=8", 1100);
    EXPECT_EQ(beside ? 3 : 0, seen.stored_first) << "layers";
    EXPECT_EQ(beside ? 0 : 3, seen.stored_behind);
    EXPECT_EQ(2 * 3, seen.placed) << "chunks of layers";
    EXPECT_EQ(0, seen.placed_too_early);
  }
}

#endif

}  // namespace
}  // namespace kvc
