// Models that are opened for plans only: these say what they say of the model with weights, no weight is read
// or counted, and nothing runs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"
#include "tests/support/tiny_session.h"
#include "tests/support/write_bytes.h"

namespace kvc {
namespace {

using test::AlignedBytes;
using test::NumbersOf;
using test::TinyModelOptions;

// What devices make forms of, and what networks differ by in the scratch they ask for.
std::vector<TinyModelOptions> Models() {
  std::vector<TinyModelOptions> models;
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kF16, WeightType::kInt8,
                                WeightType::kInt4, WeightType::kQ4K, WeightType::kQ6K}) {
    TinyModelOptions o;
    o.type = type;
    if (HasBlocks(type)) o.hidden_size = o.ffn_size = 256;
    models.push_back(o);
    o.n_experts = 4, o.n_chosen = 2, o.tied_head = true;
    models.push_back(o);
  }
  TinyModelOptions o;
  o.type = WeightType::kInt8, o.group = 32, o.hidden_size = 64, o.n_layers = 4;
  models.push_back(o);  // in panels, where a processor has them
  o.layout = WeightLayout::kPanels16;
  models.push_back(o);
  o.layout = WeightLayout::kRowMajor, o.qk_norm = o.query_key_value_bias = o.output_bias = true;
  o.change = [](ModelConfig* c) { c->attention_sinks = true; };
  models.push_back(o);
  return models;
}

ModelParams ParamsFor(bool plan_only) {
  ModelParams params;
  params.device = "cpu", params.threads = 2, params.plan_only = plan_only;
  return params;
}

void ExpectSamePlans(const std::shared_ptr<const Model>& whole, const std::shared_ptr<const Model>& alone) {
  EXPECT_EQ(whole->overhead_bytes(), alone->overhead_bytes());
  EXPECT_EQ(whole->opening_bytes(), alone->opening_bytes());
  for (const char* text :
       {"full", "full:kv=int8,quant_group=16", "cokv:budget=32", "snapkv:budget=32,kv=int4,quant_group=16",
        "ada-snapkv:budget=40", "h2o:budget=32", "kvzip:budget=50", "streaming:budget=24"}) {
    SCOPED_TRACE(text);
    const Policy policy = ParsePolicy(text).value();
    for (const int32_t n : {1, 40, 700}) {
      SessionParams params;
      params.max_tokens = n + 100;
      const Result<SessionPlan> expected = Session::Plan(whole, &policy, params, n),
                                found = Session::Plan(alone, &policy, params, n);
      ASSERT_TRUE(expected.ok()) << expected.status().message();
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(NumbersOf(expected.value()), NumbersOf(found.value())) << n;
    }
  }
}

TEST(PlanOnly, PlansAreThoseOfTheModelWithWeights) {
  int number = 0;
  for (const TinyModelOptions& options : Models()) {
    SCOPED_TRACE(number++);
    const AlignedBytes bytes = test::TinyModelBytes(options);
    ExpectSamePlans(test::OpenTiny(bytes, ParamsFor(false)), test::OpenTiny(bytes, ParamsFor(true)));
  }
}

// Mapped, and read into memory, which gives back what held the weights.
TEST(PlanOnly, FromAFileToo) {
  const test::TempFolder folder;
  TinyModelOptions options;
  options.type = WeightType::kInt8, options.group = 32, options.hidden_size = 256, options.ffn_size = 512;
  const AlignedBytes bytes = test::TinyModelBytes(options);
  for (const int64_t offset : {0, 1}) {
    SCOPED_TRACE(offset);
    test::WriteBytes(folder / "m", bytes, std::string(static_cast<size_t>(offset), 'x'));
    const int fd = ::open((folder / "m").c_str(), O_RDONLY);
    const auto whole = Model::OpenFd(fd, offset, 0, ParamsFor(false));
    const auto alone = Model::OpenFd(fd, offset, 0, ParamsFor(true));
    ::close(fd);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    ExpectSamePlans(whole.value(), alone.value());
    const int64_t weights = alone.value()->file().weight_bytes(), used = alone.value()->meter()->used();
    const int64_t kept = offset == 0 ? 0 : weights / 4;  // of a page, what is beside whole ones stays
    EXPECT_LE(used, alone.value()->overhead_bytes() + kept);
    EXPECT_GE(used, 0);
  }
}

// The pages of the weights cannot be read at all.
TEST(PlanOnly, NoWeightIsRead) {
  TinyModelOptions options;
  options.type = WeightType::kInt8, options.hidden_size = 256, options.ffn_size = 512,
  options.tied_head = true;
  const AlignedBytes bytes = test::TinyModelBytes(options);
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)),
               size = (bytes.size() + page - 1) / page * page;
  void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  uint8_t* const at = static_cast<uint8_t*>(mapped);
  std::memcpy(at, bytes.data(), bytes.size());
  size_t closed = 0;
  {
    const auto file = ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr, true);
    for (const TensorEntry& t : file.value()->tensors()) {
      const size_t begin = (static_cast<size_t>(t.offset) + page - 1) / page * page,
                   end = static_cast<size_t>(t.offset + t.size) / page * page;
      if (begin >= end) continue;
      ASSERT_EQ(::mprotect(at + begin, end - begin, PROT_NONE), 0);
      closed += end - begin;
    }
  }
  ASSERT_GT(closed, bytes.size() / 2);
  {
    const auto model = Model::OpenMemory(at, static_cast<int64_t>(bytes.size()), ParamsFor(true));
    ASSERT_TRUE(model.ok()) << model.status().message();
    ExpectSamePlans(test::OpenTiny(bytes, ParamsFor(false)), model.value());
  }
  ::munmap(mapped, size);
}

class PlanOnlyApi : public testing::Test {
 protected:
  kvc_status Open(int32_t plan_only, int64_t limit, kvc_model** model) const {
    kvc_model_params params{};
    params.struct_size = sizeof params;
    params.n_threads = 2, params.memory_limit = limit, params.plan_only = plan_only;
    return kvc_model_open_memory(bytes_.data(), static_cast<int64_t>(bytes_.size()), "cpu", &params, model);
  }
  const AlignedBytes bytes_ = test::TinyModelBytes({});
};

TEST_F(PlanOnlyApi, WeightsDoNotCount) {
  kvc_model* model = nullptr;
  ASSERT_EQ(Open(0, 0, &model), KVC_OK);
  kvc_model_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_model_get_info(model, &info), KVC_OK);
  kvc_model_close(model);
  ASSERT_EQ(Open(0, info.weight_bytes, &model), KVC_E_MEMORY);
  ASSERT_EQ(Open(1, info.weight_bytes, &model), KVC_OK) << kvc_last_error();
  kvc_model_info alone{};
  alone.struct_size = sizeof alone;
  ASSERT_EQ(kvc_model_get_info(model, &alone), KVC_OK);
  EXPECT_EQ(std::memcmp(&info, &alone, sizeof info), 0);
  kvc_model_close(model);
}

TEST_F(PlanOnlyApi, TextsGoAndSessionsDoNot) {
  kvc_model *whole = nullptr, *alone = nullptr;
  ASSERT_EQ(Open(0, 0, &whole), KVC_OK);
  ASSERT_EQ(Open(1, 0, &alone), KVC_OK);
  const uint8_t text[] = {'t', 'e', 'x', 't'};
  int32_t tokens[16], n = 0;
  EXPECT_EQ(kvc_tokenize(alone, text, 4, 0, tokens, 16, &n), KVC_OK) << kvc_last_error();
  EXPECT_EQ(n, 4);

  kvc_session* session = nullptr;
  EXPECT_EQ(kvc_session_create(alone, nullptr, nullptr, &session), KVC_E_UNSUPPORTED);
  EXPECT_NE(std::strstr(kvc_last_error(), "plan_only"), nullptr) << kvc_last_error();
  double speed = 0;
  EXPECT_EQ(kvc_model_measure(alone, &speed), KVC_E_UNSUPPORTED);
  EXPECT_NE(std::strstr(kvc_last_error(), "plan_only"), nullptr) << kvc_last_error();

  ASSERT_EQ(kvc_session_create(whole, nullptr, nullptr, &session), KVC_OK);
  ASSERT_EQ(kvc_session_prefill(session, tokens, n), KVC_OK);
  int64_t size = 0;
  ASSERT_EQ(kvc_session_save_memory(session, nullptr, 0, &size), KVC_OK);
  std::vector<uint8_t> saved(static_cast<size_t>(size));
  ASSERT_EQ(kvc_session_save_memory(session, saved.data(), size, &size), KVC_OK);
  kvc_session* restored = nullptr;
  EXPECT_EQ(kvc_session_restore_memory(alone, saved.data(), size, &restored), KVC_E_UNSUPPORTED);
  EXPECT_NE(std::strstr(kvc_last_error(), "plan_only"), nullptr) << kvc_last_error();
  EXPECT_EQ(restored, nullptr);
  kvc_session_close(session);
  kvc_model_close(alone);
  kvc_model_close(whole);
}

TEST_F(PlanOnlyApi, IsYesOrNo) {
  for (const int32_t value : {-1, 2}) {
    kvc_model* model = nullptr;
    EXPECT_EQ(Open(value, 0, &model), KVC_E_INVALID);
    EXPECT_NE(std::strstr(kvc_last_error(), "plan_only is"), nullptr) << kvc_last_error();
  }
}

}  // namespace
}  // namespace kvc
