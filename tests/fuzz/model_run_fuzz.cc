// Models that are accepted must also run. The input describes a small model and what is changed in it: shapes
// and types that stay consistent, single claims that do not, the tokenizer, bytes of weights, and bytes of
// the finished file; hashes are made right, so that every change reaches the content. Accepted files are used
// (run_model.h).
#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/model/model_check.h"
#include "lib/model/tokenizer_patterns.h"
#include "tests/fuzz/run_model.h"
#include "tests/support/raw_model_file.h"

namespace {

using kvc::test::AlignedBytes;
using kvc::test::RawModelFile;

// The input, byte by byte; zeros behind its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  // Small numbers, numbers at edges, any number.
  int32_t Number() {
    static constexpr int32_t kEdges[] = {0,
                                         -1,
                                         1,
                                         7,
                                         8,
                                         9,
                                         16,
                                         31,
                                         32,
                                         33,
                                         63,
                                         64,
                                         65,
                                         255,
                                         256,
                                         1023,
                                         1024,
                                         1025,
                                         65536,
                                         1 << 17,
                                         1 << 20,
                                         1 << 21,
                                         (1 << 21) + 1,
                                         1 << 26,
                                         -8,
                                         4096,
                                         3,
                                         262,
                                         261,
                                         INT32_MAX,
                                         INT32_MIN,
                                         2};
    const uint8_t kind = Byte();
    if (kind < 128) return Byte() % 40;
    if (kind < 224) return kEdges[Byte() % std::size(kEdges)];
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | Byte();
    return static_cast<int32_t>(value);
  }
  double Real() {
    static constexpr double kEdges[] = {0,     -1,   1,     1e-5,   1e-300, 1e300,  1e-38, 1e38,
                                        10000, 1e-6, 0.999, 500000, 8,      1e-308, 32,    4};
    const uint8_t kind = Byte();
    if (kind == 255) return std::numeric_limits<double>::quiet_NaN();
    if (kind == 254) return std::numeric_limits<double>::infinity();
    return kind < 128 ? kEdges[kind % std::size(kEdges)] : static_cast<double>(Number());
  }
  std::string Text(size_t most) {
    std::string text(Byte() % (most + 1), ' ');
    for (char& c : text) c = static_cast<char>(Byte());
    return text;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// Shapes that fit together.
kvc::test::TinyModelOptions Shape(Input* in) {
  kvc::test::TinyModelOptions o;
  const uint8_t flags = in->Byte();
  o.type = static_cast<kvc::WeightType>(flags % kvc::kWeightTypeCount);
  o.qk_norm = (flags & 0x08) != 0, o.query_key_value_bias = (flags & 0x10) != 0;
  o.output_bias = (flags & 0x20) != 0, o.tied_head = (flags & 0x40) != 0;
  if ((flags & 0x80) != 0) o.rope_pairing = kvc::RopePairing::kInterleaved;
  const uint8_t layers = in->Byte();
  o.n_layers = 1 + layers % 2;
  if (layers >= 128) {
    o.n_experts = 1 + layers % 7, o.n_chosen = 1 + layers % o.n_experts;
    o.normalise_experts = layers % 4 < 2;
  }
  o.n_kv_heads = 1 + in->Byte() % 2;
  o.n_heads = o.n_kv_heads * (1 + in->Byte() % 40);
  o.head_dim = 8 * (1 + in->Byte() % 4);
  o.hidden_size = 1 + in->Byte() % 72, o.ffn_size = 1 + in->Byte() % 72;
  o.group = 8 + in->Byte() % 60;
  if (o.type == kvc::WeightType::kInt8 || o.type == kvc::WeightType::kInt4) {
    o.hidden_size = (o.hidden_size + 7) / 8 * 8, o.ffn_size = (o.ffn_size + 7) / 8 * 8;
  }
  if (kvc::HasBlocks(o.type)) o.hidden_size = 256;
  const uint8_t parts = in->Byte();
  o.vocab_size = 259 + parts % 10;
  o.change = [parts](kvc::ModelConfig* c) {
    c->layer_norms = parts / 10 % 3 == 1, c->attention_sinks = parts / 10 % 5 >= 3;
    c->own_qk_norms = c->qk_norm && parts / 10 % 2 == 1,
    c->parallel_blocks = c->n_experts == 0 && parts >= 160;
    if (parts / 10 % 7 == 6) {
      c->activation = kvc::Activation::kClampedSwiglu;
      c->activation_gain = 1.7f, c->activation_limit = 7;
    }
  };
  o.sliding_window = in->Byte() % 5 == 0 ? 1 + in->Byte() % 20 : 0;
  o.max_tokens = 30 + in->Byte();
  return o;
}

// The same pieces as characters of SentencePiece.
void MakeSentencePiece(kvc::TokenizerSpec* t) {
  t->kind = kvc::TokenizerKind::kSentencePieceBpe;
  for (size_t i = 0; i < 256; ++i) t->piece_kinds[i] = kvc::PieceKind::kByte;
  t->scores.assign(t->pieces.size(), -1);
  t->byte_fallback = t->add_space_prefix = true;
  const char* const texts[] = {" ", "a", "e", "n", "an", " a", "na", " an"};
  for (size_t i = 0; i < std::size(texts) && 259 + i < t->pieces.size(); ++i) {
    t->pieces[259 + i] = texts[i], t->piece_kinds[259 + i] = kvc::PieceKind::kNormal;
    t->scores[259 + i] = -static_cast<float>(i % 4);
  }
}

void ChangeConfig(Input* in, kvc::ModelConfig* c) {
  int32_t* const numbers[] = {
      &c->n_layers, &c->n_heads,    &c->n_kv_heads, &c->head_dim,       &c->hidden_size,
      &c->ffn_size, &c->vocab_size, &c->max_tokens, &c->sliding_window, &c->rope.original_max_tokens};
  double* const reals[] = {&c->norm_eps,
                           &c->rope.theta,
                           &c->rope.factor,
                           &c->rope.low_freq_factor,
                           &c->rope.high_freq_factor,
                           &c->rope.beta_fast,
                           &c->rope.beta_slow,
                           &c->rope.attention_factor};
  const uint8_t which = in->Byte();
  if (which < 100)
    *numbers[which % std::size(numbers)] = in->Number();
  else if (which < 200)
    *reals[which % std::size(reals)] = in->Real();
  else if (which < 220)
    c->rope.scaling = static_cast<kvc::RopeScaling>(in->Byte() % 5);
  else if (which < 224)
    c->qk_norm = !c->qk_norm;
  else if (which < 228)
    c->attention_cap = static_cast<float>(in->Real()), c->embedding_scale = static_cast<float>(in->Real());
  else if (which < 232)
    c->activation = static_cast<kvc::Activation>(in->Byte() % 4), c->rope.rotated = in->Byte() % 40;
  else if (which < 238)
    c->layers.assign(static_cast<size_t>(in->Byte() % 4), {in->Byte() % 20, in->Byte() % 4 - 1}),
        c->more_ropes.resize(in->Byte() % 3);
  else if (which < 240)
    c->n_experts = in->Byte() % 8, c->n_chosen = in->Byte() % 8, c->normalise_experts = which == 239;
  else if (which < 242)
    c->logit_cap = static_cast<float>(in->Real()), c->wide_qk_norm = true;
  else
    c->rope = {1e4, static_cast<kvc::RopeScaling>(which % 4), 4, 1, 4, 32, 1, 0, 64, which % 3 != 0, 0, {}};
}

void ChangeTokenizer(Input* in, kvc::TokenizerSpec* t) {
  static const char* const kPatterns[] = {kvc::kPatternGpt2, kvc::kPatternLlama3, "\\p{L}+|\\s", "(?=a)",
                                          "[^b]*b",          "(a|e)+\\s?",        "\\s+(?!\\S)"};
  const uint8_t what = in->Byte();
  const size_t at = t->pieces.empty() ? 0 : (in->Byte() * 256u + in->Byte()) % t->pieces.size();
  switch (what % 12) {
    case 0:
      t->pieces[at] = in->Text(12);
      break;
    case 1:
      t->piece_kinds[at % t->piece_kinds.size()] = static_cast<kvc::PieceKind>(in->Byte() % 8);
      break;
    case 2:
      if (!t->scores.empty()) t->scores[at % t->scores.size()] = static_cast<float>(in->Real());
      break;
    case 3:
      t->merges.push_back(in->Number()), t->merges.push_back(in->Number());
      break;
    case 4:
      t->patterns.push_back(kPatterns[in->Byte() % std::size(kPatterns)]);
      break;
    case 5:
      t->patterns.push_back(in->Text(40));
      break;
    case 6:
      (at % 2 == 0 ? t->stop_tokens : t->begin_tokens).push_back(in->Number());
      break;
    case 7:
      t->nfc = !t->nfc, t->ignore_merges = at % 2 == 0, t->n_byte_patterns = static_cast<int32_t>(at % 3);
      break;
    case 8:
      t->add_space_prefix = at % 2 == 0, t->remove_extra_spaces = at % 3 == 0;
      break;
    case 9:
      (at % 2 == 0 ? t->unk : t->bos) = in->Number();
      break;
    case 10:
      t->byte_fallback = !t->byte_fallback;
      break;
    default:  // a merge that makes a piece
      t->merges.insert(t->merges.end(), {'a', 'n'});
      if (t->pieces.size() > 259) t->pieces[259] = "an", t->piece_kinds[259] = kvc::PieceKind::kNormal;
  }
}

// One claim about a tensor; with `fit`, its section gets the size that goes with it.
void ChangeTensor(Input* in, bool fit, RawModelFile* raw) {
  const size_t at = in->Byte() % raw->tensors.size();
  kvc::TensorPlan& t = raw->tensors[at];
  switch (in->Byte() % 5) {
    case 0:
      t.type = static_cast<kvc::WeightType>(in->Byte() % (kvc::kWeightTypeCount + 1));
      break;
    case 1:
      t.group = in->Number();
      break;
    case 2:
      (in->Byte() % 2 == 0 ? t.rows : t.cols) = in->Number();
      break;
    case 3:
      t.layer = in->Number();
      break;
    default:
      t.role = static_cast<kvc::TensorRole>(in->Byte() % 48);
  }
  kvc::Weight w;
  w.type = t.type, w.rows = t.rows, w.cols = t.cols, w.group = t.group;
  if (!fit || static_cast<size_t>(w.type) >= kvc::kWeightTypeCount || w.rows < 1 || w.cols < 1 ||
      w.group < 0 || int64_t{w.rows} * w.cols > 65536)
    return;
  if (w.group > 0 && w.cols % w.group != 0) return;
  std::vector<uint8_t>& bytes = raw->section_bytes[at];
  const kvc::WeightPlace layout = kvc::PlaceOf(w);
  bytes.resize(static_cast<size_t>(layout.n_bytes), 0x11);
  std::fill(bytes.begin() + layout.data_bytes, bytes.end(), uint8_t{0});
  for (int64_t i = layout.scales_offset; i + 1 < layout.n_bytes && layout.scales_bytes > 0; i += 2)
    bytes[static_cast<size_t>(i) + 1] = 0x20;
}

void ChangeSection(Input* in, RawModelFile* raw) {
  std::vector<uint8_t>& bytes = raw->section_bytes[in->Byte() % raw->section_bytes.size()];
  if (bytes.empty()) return;
  const size_t at = (in->Byte() * 256u + in->Byte()) % bytes.size(),
               n = std::min<size_t>(in->Byte(), bytes.size() - at);
  std::memset(bytes.data() + at, in->Byte(), n);
}

void ChangeScores(Input* in, RawModelFile* raw) {
  if (raw->content.head_scores.empty()) return;
  kvc::HeadScoreTable& table = raw->content.head_scores[0];
  const uint8_t what = in->Byte();
  if (what < 100 && !table.scores.empty())
    table.scores[in->Byte() % table.scores.size()] = static_cast<float>(in->Real());
  else if (what < 150)
    table.alpha = in->Number();
  else if (what < 200)
    table.n_columns = in->Number(), table.scores.resize(static_cast<size_t>(in->Byte()));
  else
    table.estimator = "headkv-r2";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size >= 4 && std::memcmp(data, "KVCM", 4) == 0) {
    AlignedBytes bytes(data, size);
    kvc::test::RepairHashes(&bytes);
    kvc::test::ModelRun::Run(bytes, data[size - 1]);
    return 0;
  }
  Input in(data, size);
  const uint8_t choice = in.Byte();
  const kvc::test::TinyModelOptions options = Shape(&in);
  const kvc::WeightType type = options.type;
  const bool coded = type == kvc::WeightType::kInt8 || type == kvc::WeightType::kInt4;
  if (coded && (options.hidden_size % 8 != 0 || options.ffn_size % 8 != 0)) return 0;
  RawModelFile raw = RawModelFile::Tiny(options);
  if ((choice & 0x40) != 0) MakeSentencePiece(&raw.content.tokenizer);
  int n_edits = 0;
  uint8_t what = 0;
  while (!in.empty() && ++n_edits <= 24 && (what = in.Byte()) < 240) {
    if (what < 40)
      ChangeConfig(&in, &raw.content.config);
    else if (what < 110)
      ChangeTokenizer(&in, &raw.content.tokenizer);
    else if (what < 170)
      ChangeTensor(&in, what % 4 != 0, &raw);
    else if (what < 220)
      ChangeSection(&in, &raw);
    else
      ChangeScores(&in, &raw);
  }
  AlignedBytes bytes = raw.Build();
  for (int i = 0; i < 16 && !in.empty(); ++i) {  // bytes of the directory
    uint64_t n_directory;
    std::memcpy(&n_directory, bytes.data() + 8, 8);
    const size_t at = 40 + (in.Byte() * 256u + in.Byte()) % (n_directory + 1);
    if (at < bytes.size()) bytes[at] = in.Byte();
  }
  kvc::test::RepairHashes(&bytes);
  kvc::test::ModelRun::Run(bytes, choice);
  return 0;
}
