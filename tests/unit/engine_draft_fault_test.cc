// A step that checks a draft, with every allocation failing once.
#include <gtest/gtest.h>

#include <new>

#include "tests/support/heap_faults.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr int kPrompt = 70, kAnswer = 48, kDraft = 9, kRight = 6;
constexpr int32_t kEos = 257;

// A session whose answers are long.
std::unique_ptr<Session> Endless(const std::shared_ptr<const Model>& model) {
  auto session = test::FedSession(model, "full", kPrompt);
  const float never[] = {-INFINITY};
  EXPECT_TRUE(session->SetBias({&kEos, 1}, never).ok());
  return session;
}

void StepTo(Session& session, size_t n, std::vector<int32_t>* answer) {
  while (answer->size() < n) {
    int32_t token = -1;
    ASSERT_TRUE(session.Step(&token).ok());
    answer->push_back(token);
  }
}

// The session is then as after the tokens that were given, and goes on. unread: bytes of text that nobody has
// taken, so that there is room for some of the draft's.
void ExpectGoesOnAfterEveryFailure(size_t unread) {
  const auto model = test::OpenTwoLayers();
  std::vector<int32_t> answer;
  StepTo(*Endless(model), kAnswer, &answer);
  std::vector<int32_t> draft(answer.begin(), answer.begin() + kDraft);
  for (size_t i = kRight; i < draft.size(); ++i) draft[i] = (draft[i] + 1) % 250;
  for (int64_t fault = 0; fault < 200; ++fault) {
    const auto session = Endless(model);
    const uint8_t byte = 'a';
    for (size_t i = 0; i < unread; ++i) session->text().Push({&byte, 1}, false);
    int32_t tokens[12], n = 0;
    Status status;
    bool failed = false;
    {
      test::HeapFault heap(fault, test::HeapFault::kOne);
      try {
        status = session->StepDraft(draft, tokens, 12, &n);
      } catch (const std::bad_alloc&) {
        status = Error(Code::kMemory, "heap");
      }
      failed = heap.fired();
    }
    ASSERT_EQ(n, session->Stats().n_answer) << "no token is lost, at " << fault;
    ASSERT_EQ(n == 0, !status.ok());
    std::vector<int32_t> got(answer.begin(), answer.begin() + n);
    StepTo(*session, answer.size(), &got);
    ASSERT_EQ(got, answer) << fault;
    if (!failed) return;
  }
  FAIL() << "more allocations than expected";
}

TEST(StepDraft, GoesOnAfterEveryFailedAllocation) { ExpectGoesOnAfterEveryFailure(0); }

// A text has room for 4096 bytes at first, and a byte may become three.
TEST(StepDraft, GoesOnWhereTheTextFindsNoMemory) {
  for (const size_t unread : {4090, 4093}) {
    SCOPED_TRACE(unread);
    ExpectGoesOnAfterEveryFailure(unread);
  }
}

}  // namespace
}  // namespace kvc
