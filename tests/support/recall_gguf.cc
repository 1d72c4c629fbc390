#include "tests/support/recall_gguf.h"

#include <cstring>
#include <fstream>
#include <vector>

#include "lib/model/model_check.h"
#include "lib/model/model_file.h"
#include "models/convert/convert.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {
namespace {

constexpr uint32_t kU32 = 4, kF32 = 6, kString = 8, kArray = 9;  // kinds of values in GGUF
constexpr size_t kAlignment = 32;

class Bytes {
 public:
  template <typename T>
  void Put(T value) {
    const auto* raw = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof value);
  }
  void Text(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  void Pad() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment); }
  std::vector<uint8_t>& all() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

class Metadata {
 public:
  void Number(const std::string& key, uint32_t value) { Key(key, kU32), bytes_.Put(value); }
  void Real(const std::string& key, double value) { Key(key, kF32), bytes_.Put(static_cast<float>(value)); }
  void Text(const std::string& key, const std::string& value) { Key(key, kString), bytes_.Text(value); }
  void Texts(const std::string& key, const std::vector<std::string>& values) {
    Key(key, kArray), bytes_.Put(kString), bytes_.Put<uint64_t>(values.size());
    for (const std::string& value : values) bytes_.Text(value);
  }
  uint64_t n() const { return n_; }
  std::vector<uint8_t>& bytes() { return bytes_.all(); }

 private:
  void Key(const std::string& key, uint32_t kind) { bytes_.Text(key), bytes_.Put(kind), ++n_; }
  Bytes bytes_;
  uint64_t n_ = 0;
};

std::string Utf8(uint32_t c) {
  if (c < 128) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
}

// The characters that byte-level vocabularies have for the 256 bytes, a pair of them, fillers.
std::vector<std::string> Vocabulary(int32_t n) {
  std::vector<std::string> tokens;
  uint32_t spare = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
    tokens.push_back(Utf8(plain ? b : spare++));
  }
  tokens.emplace_back("ab");
  while (tokens.size() < static_cast<size_t>(n)) tokens.push_back(Format("[%zu]", tokens.size()));
  return tokens;
}

Metadata Describe(const ModelConfig& c) {
  Metadata m;
  m.Text("general.architecture", "llama");
  const auto number = [&](const char* key, int32_t value) {
    m.Number(std::string("llama.") + key, static_cast<uint32_t>(value));
  };
  number("context_length", c.max_tokens), number("embedding_length", c.hidden_size);
  number("block_count", c.n_layers), number("feed_forward_length", c.ffn_size);
  number("attention.head_count", c.n_heads), number("attention.head_count_kv", c.n_kv_heads);
  number("attention.key_length", c.head_dim), number("attention.value_length", c.head_dim);
  number("rope.dimension_count", c.head_dim), number("vocab_size", c.vocab_size);
  m.Real("llama.attention.layer_norm_rms_epsilon", c.norm_eps);
  m.Real("llama.rope.freq_base", c.rope.theta);
  m.Text("tokenizer.ggml.model", "gpt2"), m.Text("tokenizer.ggml.pre", "gpt-2");
  m.Texts("tokenizer.ggml.tokens", Vocabulary(c.vocab_size)), m.Texts("tokenizer.ggml.merges", {"a b"});
  m.Number("tokenizer.ggml.bos_token_id", 0), m.Number("tokenizer.ggml.eos_token_id", 1);
  return m;
}

const char* NameOf(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
      return "token_embd";
    case TensorRole::kFinalNorm:
      return "output_norm";
    case TensorRole::kAttentionNorm:
      return "attn_norm";
    case TensorRole::kQuery:
      return "attn_q";
    case TensorRole::kKey:
      return "attn_k";
    case TensorRole::kValue:
      return "attn_v";
    case TensorRole::kOutput:
      return "attn_output";
    case TensorRole::kFfnNorm:
      return "ffn_norm";
    case TensorRole::kGate:
      return "ffn_gate";
    case TensorRole::kUp:
      return "ffn_up";
    case TensorRole::kDown:
      return "ffn_down";
    default:
      return nullptr;
  }
}

// Row r of a tensor in GGUF, where rope turns neighbours: queries and keys change places within a head.
int32_t SourceRow(const ModelConfig& c, TensorRole role, int32_t r) {
  if (role != TensorRole::kQuery && role != TensorRole::kKey) return r;
  const int32_t i = r % c.head_dim;
  return r - i + i % 2 * (c.head_dim / 2) + i / 2;
}

std::vector<uint8_t> Encoded(const ModelConfig& c, const TensorEntry& t, const BlockForm& form) {
  const auto* x = static_cast<const float*>(t.weight.data);
  const int32_t blocks = t.weight.cols / form.elements;
  std::vector<uint8_t> out(static_cast<size_t>(int64_t{t.weight.rows} * blocks * form.bytes));
  uint8_t* to = out.data();
  for (int32_t r = 0; r < t.weight.rows; ++r) {
    const float* row = x + int64_t{SourceRow(c, t.role, r)} * t.weight.cols;
    for (int32_t b = 0; b < blocks; ++b, to += form.bytes) form.encode(row + b * form.elements, to);
  }
  return out;
}

}  // namespace

Status WriteRecallGguf(const std::string& source, const BlockForm& form, const std::string& path) {
  const TempFolder folder;
  ConvertOptions options;
  options.weights = WeightChoice::kF32;
  KVC_RETURN_IF_ERROR(Convert(source, folder / "m.kvc", options, nullptr));
  auto opened = ModelFile::Open(folder / "m.kvc", nullptr);
  if (!opened.ok()) return opened.status();
  const ModelFile& model = *opened.value();
  const ModelConfig& c = model.config();
  Metadata metadata = Describe(c);
  Bytes infos, data;
  for (const TensorEntry& t : model.tensors()) {
    const char* name = NameOf(t.role);
    if (name == nullptr) return Status(Code::kUnsupported, "a tensor that recall does not have");
    const bool vector = IsVectorRole(t.role);
    infos.Text((t.layer < 0 ? std::string() : Format("blk.%d.", t.layer)) + name + ".weight");
    infos.Put<uint32_t>(vector ? 1 : 2), infos.Put<uint64_t>(static_cast<uint64_t>(t.weight.cols));
    if (!vector) infos.Put<uint64_t>(static_cast<uint64_t>(t.weight.rows));
    infos.Put<uint32_t>(vector ? 0 : form.number), infos.Put<uint64_t>(data.all().size());
    if (vector) {
      const auto* x = static_cast<const float*>(t.weight.data);
      for (int32_t i = 0; i < t.weight.cols; ++i) data.Put(x[i]);
    } else {
      const std::vector<uint8_t> encoded = Encoded(c, t, form);
      data.all().insert(data.all().end(), encoded.begin(), encoded.end());
    }
    data.Pad();
  }
  Bytes all;
  all.Put<uint32_t>(0x46554747), all.Put<uint32_t>(3);  // "GGUF", version
  all.Put<uint64_t>(model.tensors().size()), all.Put(metadata.n());
  for (const auto* part : {&metadata.bytes(), &infos.all()})
    all.all().insert(all.all().end(), part->begin(), part->end());
  all.Pad();
  std::ofstream out(path, std::ios::binary);
  for (const auto* part : {&all.all(), &data.all()})
    out.write(reinterpret_cast<const char*>(part->data()), static_cast<std::streamsize>(part->size()));
  return out.flush() ? Status() : Status(Code::kIo, "cannot write");
}

}  // namespace kvc::test
