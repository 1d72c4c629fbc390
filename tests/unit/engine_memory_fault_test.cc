// Memory, or a file, that ends where several things are done at once: what was done is known, what was not is
// as it was.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <new>

#include "lib/base/hash.h"
#include "lib/base/input_file.h"
#include "tests/support/heap_faults.h"
#include "tests/support/process_memory.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::HeapFault;
using test::OpenTwoLayers;
using test::SavedBytes;
using test::TinyPrompt;

constexpr int kMostFaults = 2000;

// A session whose next character finds the room for unread text full.
std::vector<uint8_t> FullOfText(const std::shared_ptr<const Model>& model, int n_prompt) {
  SessionParams params;
  params.max_tokens = 64, params.on_full = OnFull::kEvict;
  const auto s = test::FedSession(model, "full", n_prompt, params);
  const float never[] = {-INFINITY, -INFINITY};
  const int32_t stops[] = {256, 257};
  EXPECT_TRUE(s->SetBias({stops, 2}, never).ok());
  while (s->text().Available() < 4095) EXPECT_TRUE(s->Accept('a').ok());
  return SavedBytes(*s);
}

// Of two sessions in a batch, in which memory ends anywhere: a token that was chosen is given, and a session
// that says it had no memory, each for itself, can be stepped again.
TEST(MemoryFault, NoRowOfABatchLosesItsToken) {
  const auto model = OpenTwoLayers();
  const std::vector<uint8_t> saved[] = {FullOfText(model, 20), FullOfText(model, 31)};
  const auto restored = [&](int i) {
    auto s = Session::RestoreFrom(model, {saved[i].data(), saved[i].size()});
    EXPECT_TRUE(s.ok()) << s.status().message();
    return std::move(s.value());
  };
  int32_t expected[2];
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(restored(i)->Step(&expected[i]).ok());
  for (const HeapFault::Mode mode : {HeapFault::kOne, HeapFault::kAllFrom}) {
    bool failed = true;
    for (int fault = 0; failed; ++fault) {
      ASSERT_LT(fault, kMostFaults) << "more allocations than expected";
      const std::unique_ptr<Session> sessions[] = {restored(0), restored(1)};
      StepWish rows[2];
      for (int i = 0; i < 2; ++i) rows[i].session = sessions[i].get();
      {
        HeapFault heap(fault, mode);
        Session::RunBatch({rows, 2}, 0);
        failed = heap.fired();
      }
      for (int i = 0; i < 2; ++i) {
        int32_t token = rows[i].token;
        if (!rows[i].status.ok()) {
          ASSERT_EQ(rows[i].status.code(), Code::kMemory) << rows[i].status.message();
          ASSERT_EQ(token, StepWish::kNone);
          ASSERT_TRUE(sessions[i]->Step(&token).ok());
        }
        ASSERT_EQ(token, expected[i]) << "row " << i << ", allocation " << fault << ", mode " << mode;
      }
    }
  }
}

// A compression puts pages in the place of others, which no cache has then. Another session holds some all
// the while, so nobody comes to sweep up behind the last.
TEST(MemoryFault, ACompressionLeavesNoPages) {
  const auto model = OpenTwoLayers();
  for (const std::string spec : {"snapkv:budget=40,window=8,kv=int8,quant_group=16,residual=4",
                                 "spindlekv:budget=40,window=8", "h2o:budget=40"}) {
    SCOPED_TRACE(spec);
    const auto other = test::FedSession(model, spec, 60);
    const std::vector<uint8_t> saved = SavedBytes(*other);
    model->executor()->FreeIdle();
    const int64_t before = model->meter()->used();
    bool failed = true;
    for (int fault = 0; failed; ++fault) {
      ASSERT_LT(fault, kMostFaults) << "more allocations than expected";
      auto session = Session::RestoreFrom(model, {saved.data(), saved.size()});
      ASSERT_TRUE(session.ok()) << session.status().message();
      {
        HeapFault heap(fault, HeapFault::kOne);
        try {
          static_cast<void>(session.value()->Recompress(20, nullptr));
        } catch (const std::bad_alloc&) {
        }
        failed = heap.fired();
      }
      session.value().reset();
      model->executor()->FreeIdle();
      ASSERT_EQ(model->meter()->used(), before) << "allocation " << fault;
    }
  }
}

// A prompt that is chosen from across layers fails behind its last row, too: the logits are those of before,
// and so are the times.
TEST(MemoryFault, APromptThatFailedLeavesTheLogits) {
  const auto model = OpenTwoLayers();
  const auto fed = [&] { return test::FedSession(model, "kvzip:budget=24", 60); };
  const auto logits = [&](Session& s) {
    std::vector<float> out(static_cast<size_t>(model->config().vocab_size));
    EXPECT_TRUE(s.ReadLogits(out.data()).ok());
    return out;
  };
  const std::vector<float> before = logits(*fed());
  int n_failed = 0;
  for (int fault = 0; fault < kMostFaults; ++fault) {
    const auto session = fed();
    const SessionStats stats = session->Stats();
    Status status;
    bool failed = false;
    {
      HeapFault heap(fault, HeapFault::kOne);
      try {
        status = session->Prefill(TinyPrompt(30, 9), true);
      } catch (const std::bad_alloc&) {
        status = Error(Code::kMemory, "heap");
      }
      failed = heap.fired();
    }
    if (!failed) break;
    ASSERT_EQ(status.code(), Code::kMemory) << status.message();
    ASSERT_EQ(session->Stats().prefill_seconds, stats.prefill_seconds) << "allocation " << fault;
    ASSERT_EQ(session->Stats().compress_seconds, stats.compress_seconds) << "allocation " << fault;
    ASSERT_EQ(logits(*session), before) << "allocation " << fault;
    ++n_failed;
  }
  EXPECT_GT(n_failed, 10);
}

// What a file says it has takes no memory before it is there.
TEST(MemoryFault, AFileThatEndsBeforeItsQueriesTakesNoneForThem) {
  constexpr int64_t kMiB = 1 << 20;
  test::TinyModelOptions options;
  options.n_heads = 16, options.head_dim = 64;
  const test::AlignedBytes file = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(file);
  const auto s = test::FedSession(model, "snapkv:budget=5000,window=4096,decode=reobserve", 20);
  std::vector<uint8_t> bytes = SavedBytes(*s);
  ASSERT_GT(bytes.size(), static_cast<size_t>(16 * kMiB));
  bytes.resize(4096);
  const uint64_t digest = Hash64(bytes.data(), bytes.size() - sizeof(uint64_t));
  std::memcpy(bytes.data() + bytes.size() - sizeof digest, &digest, sizeof digest);
  const int64_t before = test::HeapBytes();
  test::ResetHeapPeak();
  const auto restored = Session::RestoreFrom(model, {bytes.data(), bytes.size()});
  EXPECT_EQ(restored.status().code(), Code::kBadModel);
  EXPECT_NE(restored.status().message().find("behind the end"), std::string::npos)
      << restored.status().message();
  // Room for queries that a session of this policy has is device memory, which sanitizers see on the heap.
  const int64_t room = test::kSanitized ? 32 * kMiB : 0;
  EXPECT_LT(test::HeapPeak() - before, room + kMiB);
}

// Bytes that cannot be read from the n-th piece on.
class FailingSource final : public ByteSource {
 public:
  FailingSource(Span<const uint8_t> bytes, int n_pieces) : bytes_(bytes), left_(n_pieces) {}
  int64_t size() const override { return bytes_.size(); }
  Result<Span<const uint8_t>> Next(int64_t most) override {
    if (left_-- <= 0) return Error(Code::kIo, "the disk is gone");
    return bytes_.Next(most);
  }
  void Seek(int64_t offset) override { bytes_.Seek(offset); }
  bool failed() const { return left_ < 0; }

 private:
  MemorySource bytes_;
  int left_;
};

TEST(SourceFault, ASessionThatCannotBeReadIsToldAndLeavesNothing) {
  const auto model = OpenTwoLayers();
  for (const std::string spec : {"full", "h2o:budget=40", "spindlekv:budget=40,window=8"}) {
    const auto saved = SavedBytes(*test::FedSession(model, spec, 60));
    model->executor()->FreeIdle();
    const int64_t before = model->meter()->used();
    bool failed = true;
    int n_pieces = 0;
    for (; failed; ++n_pieces) {
      ASSERT_LT(n_pieces, 100000);
      FailingSource source({saved.data(), saved.size()}, n_pieces);
      auto restored = Session::RestoreFrom(model, &source, "saved");
      failed = source.failed();
      ASSERT_EQ(restored.ok(), !failed) << spec << ", piece " << n_pieces;
      if (!failed) break;
      ASSERT_EQ(restored.status().code(), Code::kIo) << restored.status().message();
      ASSERT_EQ(restored.status().message(), "the disk is gone");
      model->executor()->FreeIdle();
      ASSERT_EQ(model->meter()->used(), before) << spec << ", piece " << n_pieces;
    }
    EXPECT_GT(n_pieces, 50) << spec;
  }
}

// Another process cuts the file while it is read: mapped, that ended the program.
TEST(SourceFault, AFileThatIsCutWhileItIsReadIsTold) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = OpenTwoLayers();
  const auto session = test::FedSession(model, "full", 2000);
  for (const int64_t left : {int64_t{0}, int64_t{5000}, int64_t{300 << 10}}) {
    ASSERT_TRUE(session->Save(path).ok());
    auto file = FileSource::Open(path);
    ASSERT_TRUE(file.ok());
    ASSERT_GT(file.value().size(), int64_t{300 << 10});
    std::filesystem::resize_file(path, static_cast<uintmax_t>(left));
    const auto restored = Session::RestoreFrom(model, &file.value(), path.c_str());
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), Code::kIo);
    EXPECT_EQ(restored.status().message().find(path + ": ended after " + std::to_string(left)), 0u)
        << restored.status().message();
  }
}

}  // namespace
}  // namespace kvc
