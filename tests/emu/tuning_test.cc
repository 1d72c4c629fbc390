// What a device is tuned to: files that say it and files that do not, and that sessions give the same
// whatever it is.
#include "cuda/tuning.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>

#include "cuda/step_params.h"
#include "lib/base/log.h"
#include "lib/engine/session.h"
#include "tests/emu/device_pair.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"

namespace kvc::cuda {
namespace {

constexpr char kVariable[] = "KVC_CUDA_TUNING";
const TunedDevice kDevice = {"NVIDIA H200", "13.0", "0.1.0"};
const std::string kHead = "device = NVIDIA H200\ndriver = 13.0\nlibrary = 0.1.0\n";

// For the time of its life the last line of the log.
class LastLine {
 public:
  LastLine() {
    SetLog(
        kLogInfo,
        [](void* user, int32_t level, const char* text) {
          *static_cast<std::string*>(user) = (level == kLogWarning ? "warning: " : "") + std::string(text);
        },
        &text_);
  }
  ~LastLine() { SetLog(kLogError, nullptr, nullptr); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string TextOf(const Tuning& t) { return TuningText(kDevice, t); }

TEST(Tuning, FollowsFromTheDevice) {
  const Tuning h200 = TuningFor(90, 132), a100 = TuningFor(80, 108), orin = TuningFor(87, 16);
  EXPECT_EQ(h200.step_blocks, 264);
  EXPECT_EQ(a100.step_blocks, 216);
  EXPECT_EQ(orin.step_blocks, 32);
  EXPECT_EQ(h200.blas_workspace, 32);
  EXPECT_EQ(a100.blas_workspace, 16);
  EXPECT_EQ(orin.blas_workspace, 8);
  EXPECT_EQ(h200.weights_ahead, 64);
  EXPECT_EQ(a100.weights_ahead, 0) << "its kernels do not begin early";
  EXPECT_EQ(orin.weights_ahead, 0);
  EXPECT_EQ(h200.few_rows, 5) << "four rows read every weight once";
  EXPECT_EQ(h200.decoded_rows, 512);
  EXPECT_EQ(a100.decoded_rows, 1 << 20);
}

TEST(Tuning, IsReadAsItIsWritten) {
  Tuning t = TuningFor(90, 132);
  t.prompt_rows = 2048, t.most_segment = 512, t.piece = 7, t.early = 0;
  const LastLine line;
  Tuning read = TuningFor(80, 108);
  ASSERT_TRUE(ReadTuning(TextOf(t), "a file", kDevice, &read).ok());
  EXPECT_EQ(TextOf(read), TextOf(t));
  EXPECT_EQ(line.text(), "tuned by a file");
}

// What it does not name stays.
TEST(Tuning, CommentsBlanksAndOtherEndsOfLines) {
  Tuning read = TuningFor(87, 16), expected = read;
  expected.piece = 12, expected.step_blocks = 64;
  ASSERT_TRUE(ReadTuning("# of today\r\n\n" + kHead + " piece=12 # launches\r\n\tstep_blocks\t=\t64", "",
                         kDevice, &read)
                  .ok());
  EXPECT_EQ(TextOf(read), TextOf(expected));
}

TEST(Tuning, WhatIsNone) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "f: it does not say which device it is for"},
      {"device = a\ndriver = b\n", "f: it does not say which library it is for"},
      {kHead + "piece", "f, line 4: no \"name = value\""},
      {kHead + "pieces = 4", "f, line 4: no such name"},
      {kHead + "= 4", "f, line 4: no such name"},
      {kHead + "\n\npiece = 4\npiece = 4", "f, line 7: this name was there already"},
      {kHead + "driver = 13.0", "f, line 4: this name was there already"},
      {"device =", "f, line 1: no value"},
      {kHead + "piece =", "f, line 4: piece is a whole number from 1 to 4096"},
      {kHead + "piece = 0", "f, line 4: piece is a whole number from 1 to 4096"},
      {kHead + "piece = 4097", "f, line 4: piece is a whole number from 1 to 4096"},
      {kHead + "piece = 1.5", "f, line 4: piece is a whole number from 1 to 4096"},
      {kHead + "piece = 1e300", "f, line 4: piece is a whole number from 1 to 4096"},
      {kHead + "piece = nan", "f, line 4: piece is a whole number from 1 to 4096"},
      {kHead + "piece = 8 8", "f, line 4: piece is a whole number from 1 to 4096"},
      {kHead + "least_segment = 33",
       "f, line 4: least_segment is a whole number from 32 to 1024, a multiple of 32"},
      {kHead + "least_segment = 512\nmost_segment = 256", "f: least_segment is more than most_segment"},
      {kHead + std::string("piece = 4\0", 10), "f, line 4: piece is a whole number from 1 to 4096"}};
  for (const auto& [text, message] : cases) {
    Tuning t = TuningFor(90, 132);
    const Status status = ReadTuning(text, "f", kDevice, &t);
    EXPECT_EQ(status.code(), Code::kInvalid) << text;
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(TextOf(t), TextOf(TuningFor(90, 132))) << text;
  }
}

TEST(Tuning, ForSomethingElseIsNotUsed) {
  const std::pair<TunedDevice, const char*> cases[] = {
      {{"NVIDIA H100", "13.0", "0.1.0"},
       "warning: f is for device NVIDIA H200, not for NVIDIA H100: not used"},
      {{"NVIDIA H200", "12.8", "0.1.0"}, "warning: f is for driver 13.0, not for 12.8: not used"},
      {{"NVIDIA H200", "13.0", "0.2.0"}, "warning: f is for library 0.1.0, not for 0.2.0: not used"}};
  for (const auto& [device, said] : cases) {
    const LastLine line;
    Tuning t;
    ASSERT_TRUE(ReadTuning(kHead + "piece = 5\n", "f", device, &t).ok());
    EXPECT_EQ(t.piece, Tuning().piece);
    EXPECT_EQ(line.text(), said);
  }
}

// Room for segments is that of the longest heads, whatever they are cut for.
TEST(Tuning, SegmentsHaveRoom) {
  std::mt19937 random(1);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 20000; ++i) {
    Tuning t;
    t.step_blocks = static_cast<int32_t>(1 + below(i % 2 == 0 ? 16 : 4096));
    t.least_segment = static_cast<int32_t>(32 * (1 + below(32)));
    t.most_segment = t.least_segment + static_cast<int32_t>(32 * below(400));
    const int64_t heads = 1 + below(20), longest = 1 + below(i % 3 == 0 ? 1000 : 200000);
    int64_t lens[20], entries = 0, segments = 0;
    for (int64_t h = 0; h < heads; ++h) entries += lens[h] = 1 + below(longest);
    const int32_t segment = SegmentOf(entries, t);
    ASSERT_TRUE(segment % kTile == 0 && segment >= t.least_segment && segment <= t.most_segment);
    for (int64_t h = 0; h < heads; ++h) segments += (lens[h] + segment - 1) / segment;
    ASSERT_LE(segments, MostSegments(heads * longest, heads, t));
  }
}

class TunedSession : public testing::Test {
 protected:
  std::string Write(const std::string& text) const {
    const std::string path = folder_ / "tuning";
    std::ofstream(path, std::ios::binary) << text;
    test::SetVariable(kVariable, path.c_str());
    return path;
  }
  const test::KeptVariable kept_{kVariable};
  const test::TempFolder folder_;
};

TEST_F(TunedSession, FilesThatCannotBe) {
  const auto refusal = [] { return OpenDevice("emu", 1).status(); };
  test::SetVariable(kVariable, (folder_ / "none").c_str());
  EXPECT_EQ(refusal().code(), Code::kIo);
  EXPECT_EQ(refusal().message().rfind("KVC_CUDA_TUNING: " + folder_.path() + "/none: cannot open", 0), 0u)
      << refusal().message();
  test::SetVariable(kVariable, folder_.path().c_str());
  EXPECT_EQ(refusal().code(), Code::kIo);
  const std::string path = Write(std::string((64 << 10) + 1, '\n'));
  EXPECT_EQ(refusal().message(), "KVC_CUDA_TUNING: " + path + " is too large for what ./dev gpu tune writes");
  Write("piece = x");
  EXPECT_EQ(refusal().message(), path + ", line 1: piece is a whole number from 1 to 4096");
  test::SetVariable(kVariable, "");
  EXPECT_TRUE(refusal().ok());
}

// Ends of the ranges, and what no device would be tuned to.
TEST_F(TunedSession, GivesTheSame) {
  const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_layers = 2, options.type = WeightType::kBf16;
    return test::TinyModelBytes(options);
  }();
  const char* const policies[] = {"full", "snapkv:budget=24,window=8", "h2o:budget=24"};
  const std::string usual = OpenDevice("emu", 1).value()->info().tuning;
  const std::string head = usual.substr(0, usual.find("prompt_rows"));
  for (const char* policy : policies) {
    test::SetVariable(kVariable, nullptr);
    const auto model = OpenOn("emu", bytes);
    const auto expected = test::FedSession(model, policy, 150);
    for (const char* numbers :
         {"prompt_rows = 64\nblas_rows = 16\nstep_blocks = 1\nfirst_piece = 1\npiece = 1\nearly = 0\n",
          "prompt_rows = 128\nstep_blocks = 4096\nleast_segment = 32\nmost_segment = 32\npiece = 4096\n"}) {
      SCOPED_TRACE(std::string(policy) + "\n" + numbers);
      Write(head + numbers);
      const auto tuned = OpenOn("emu", bytes);
      EXPECT_NE(tuned->device().info().tuning, usual);
      EXPECT_EQ(tuned->device().info().prompt_rows, numbers[14] == '6' ? 64 : 128);
      const auto session = test::FedSession(tuned, policy, 150);
      test::ExpectSameKept(*expected, *session);
      EXPECT_LE(test::LargestDifference(*expected, *session), 1e-4);
      test::FeedTokens(*session, test::TinyPrompt(3, 9));
    }
  }
}

}  // namespace
}  // namespace kvc::cuda
