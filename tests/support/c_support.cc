#include "tests/support/c_support.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "models/convert/convert.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {
namespace {

AlignedBytes MakeModel(int32_t which) {
  TinyModelOptions options;
  if (which == TEST_MODEL_FOREIGN) options.seed = 2;
  if (which == TEST_MODEL_UNSCORED) options.head_scores = false;
  if (which == TEST_MODEL_INT8 || which == TEST_MODEL_SMALL_WINDOWS) options.type = WeightType::kInt8;
  if (which == TEST_MODEL_SMALL_WINDOWS) options.layers = {{24, 0}, {0, 0}};
  if (which == TEST_MODEL_WINDOWS) options.layers = {{24, 0}, {0, 0}, {24, 0}, {0, 0}};
  if (which == TEST_MODEL_WIDE || which == TEST_MODEL_WINDOWS) {
    options.n_layers = 4, options.n_heads = 8, options.n_kv_heads = 4, options.head_dim = 32;
    options.hidden_size = 128, options.ffn_size = 256;
  }
  ModelFileContent content = TinyModelContent(options);
  content.tokenizer.stop_tokens.clear();
  if (which == TEST_MODEL_STOPPING) {
    for (int32_t id = 0; id < 256; id += 2) content.tokenizer.stop_tokens.push_back(id);
    content.tokenizer.stop_tokens.push_back(content.tokenizer.eos);
  }
  return TinyModelBytes(options, std::move(content));
}

const TempFolder& Folder() {
  static const TempFolder folder;
  return folder;
}

}  // namespace
}  // namespace kvc::test

const uint8_t* test_model_bytes(int32_t which, int64_t* n_bytes) {
  static kvc::test::AlignedBytes models[TEST_MODEL_COUNT];
  kvc::test::AlignedBytes& model = models[which];
  if (model.size() == 0) model = kvc::test::MakeModel(which);
  *n_bytes = static_cast<int64_t>(model.size());
  return model.data();
}

const char* test_path(const char* name) {
  static std::string path;
  path = kvc::test::Folder() / name;
  return path.c_str();
}

const char* test_recall_path(const char* source_dir) {
  static const std::string path = [&] {
    const std::string out = kvc::test::Folder() / "recall.kvc";
    const std::string recall = std::string(source_dir) + "/models/recall";
    kvc::ConvertOptions options;
    options.head_score_files = {recall + "/head_scores.json"};
    const kvc::Status status = kvc::Convert(recall, out, options, nullptr);
    if (!status.ok()) {
      std::fprintf(stderr, "test support: %s\n", status.message().c_str());
      std::abort();
    }
    return out;
  }();
  return path.c_str();
}
