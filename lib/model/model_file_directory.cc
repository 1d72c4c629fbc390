#include "lib/model/model_file_directory.h"

#include <cstring>

#include "kvc_model_generated.h"
#include "lib/model/model_check.h"

namespace kvc {
namespace {

constexpr flatbuffers::uoffset_t kMaxDepth = 8, kMaxTables = 1 << 17;

Status ReadText(const flatbuffers::String* text, const char* name, std::string* out) {
  if (text == nullptr) return {};
  KVC_RETURN_IF_ERROR(CheckCount(name, text->size(), kMaxTextBytes, "bytes"));
  out->assign(text->data(), text->size());
  return {};
}

template <typename T>
void ReadNumbers(const flatbuffers::Vector<T>* from, std::vector<T>* out) {
  if (from != nullptr) out->assign(from->begin(), from->end());
}

Status ReadConfig(const schema::Config& from, ModelConfig* c) {
  KVC_RETURN_IF_ERROR(ReadText(from.name(), "name", &c->name));
  KVC_RETURN_IF_ERROR(ReadText(from.architecture(), "architecture", &c->architecture));
  c->n_layers = from.n_layers(), c->n_heads = from.n_heads(), c->n_kv_heads = from.n_kv_heads();
  c->head_dim = from.head_dim(), c->hidden_size = from.hidden_size(), c->ffn_size = from.ffn_size();
  c->vocab_size = from.vocab_size(), c->max_tokens = from.max_tokens(),
  c->sliding_window = from.sliding_window();
  c->norm_eps = from.norm_eps(), c->qk_norm = from.qk_norm(), c->tied_head = from.tied_head();
  const schema::Rope& rope = *from.rope();
  c->rope_pairing = static_cast<RopePairing>(rope.pairing());
  c->rope.scaling = static_cast<RopeScaling>(rope.scaling());
  c->rope.theta = rope.theta(), c->rope.factor = rope.factor();
  c->rope.low_freq_factor = rope.low_freq_factor(), c->rope.high_freq_factor = rope.high_freq_factor();
  c->rope.beta_fast = rope.beta_fast(), c->rope.beta_slow = rope.beta_slow();
  c->rope.attention_factor = rope.attention_factor(),
  c->rope.original_max_tokens = rope.original_max_tokens();
  return {};
}

Status ReadPieces(const schema::Tokenizer& from, TokenizerSpec* t) {
  const auto& bytes = *from.piece_bytes();
  const auto& ends = *from.piece_ends();
  const auto& kinds = *from.piece_kinds();
  KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", ends.size(), kMaxVocab, "pieces"));
  t->pieces.reserve(ends.size());
  uint32_t begin = 0;
  for (flatbuffers::uoffset_t i = 0; i < ends.size(); ++i) {
    const uint32_t end = ends.Get(i);
    if (end < begin || end > bytes.size()) {
      return Error(Code::kBadModel,
                   "tokenizer piece %u ends at byte %u, before its start %u or beyond all %u", i, end, begin,
                   bytes.size());
    }
    t->pieces.emplace_back(reinterpret_cast<const char*>(bytes.data()) + begin, end - begin);
    begin = end;
  }
  if (begin != bytes.size()) {
    return Error(Code::kBadModel, "the tokenizer's pieces end at byte %u of %u", begin, bytes.size());
  }
  t->piece_kinds.resize(kinds.size());
  for (flatbuffers::uoffset_t i = 0; i < kinds.size(); ++i)
    t->piece_kinds[i] = static_cast<PieceKind>(kinds.Get(i));
  return {};
}

Status ReadTokenizer(const schema::Tokenizer& from, TokenizerSpec* t) {
  t->kind = static_cast<TokenizerKind>(from.kind());
  KVC_RETURN_IF_ERROR(ReadPieces(from, t));
  ReadNumbers(from.scores(), &t->scores);
  ReadNumbers(from.merges(), &t->merges);
  if (from.patterns() != nullptr) {
    KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", from.patterns()->size(), kMaxPatterns, "patterns"));
    t->patterns.resize(from.patterns()->size());
    for (size_t i = 0; i < t->patterns.size(); ++i) {
      const auto index = static_cast<flatbuffers::uoffset_t>(i);
      KVC_RETURN_IF_ERROR(ReadText(from.patterns()->Get(index), "a tokenizer pattern", &t->patterns[i]));
    }
  }
  t->ignore_merges = from.ignore_merges(), t->nfc = from.nfc();
  t->add_space_prefix = from.add_space_prefix(), t->remove_extra_spaces = from.remove_extra_spaces();
  t->byte_fallback = from.byte_fallback(), t->add_bos = from.add_bos();
  t->bos = from.bos(), t->eos = from.eos(), t->unk = from.unk(), t->pad = from.pad();
  ReadNumbers(from.stop_tokens(), &t->stop_tokens);
  return {};
}

Status ReadTurnFormat(const schema::TurnFormat& from, TurnFormat* t) {
  constexpr char kName[] = "a marker of the turn format";
  KVC_RETURN_IF_ERROR(ReadText(from.system_prefix(), kName, &t->system_prefix));
  KVC_RETURN_IF_ERROR(ReadText(from.system_suffix(), kName, &t->system_suffix));
  KVC_RETURN_IF_ERROR(ReadText(from.user_prefix(), kName, &t->user_prefix));
  KVC_RETURN_IF_ERROR(ReadText(from.user_suffix(), kName, &t->user_suffix));
  KVC_RETURN_IF_ERROR(ReadText(from.assistant_prefix(), kName, &t->assistant_prefix));
  return ReadText(from.assistant_suffix(), kName, &t->assistant_suffix);
}

Status ReadHeadScores(const schema::HeadScores& from, HeadScoreTable* t) {
  constexpr char kName[] = "a text of a head-score table";
  KVC_RETURN_IF_ERROR(ReadText(from.name(), kName, &t->name));
  KVC_RETURN_IF_ERROR(ReadText(from.estimator(), kName, &t->estimator));
  KVC_RETURN_IF_ERROR(ReadText(from.dataset(), kName, &t->dataset));
  KVC_RETURN_IF_ERROR(ReadText(from.tool(), kName, &t->tool));
  KVC_RETURN_IF_ERROR(ReadText(from.note(), kName, &t->note));
  KVC_RETURN_IF_ERROR(
      CheckCount(t->name.c_str(), from.scores()->size(), int64_t{kMaxLayers} * kMaxHeads, "scores"));
  t->n_layers = from.n_layers(), t->n_columns = from.n_columns();
  t->n_samples = from.n_samples(), t->seed = from.seed(), t->budget = from.budget(), t->alpha = from.alpha();
  ReadNumbers(from.scores(), &t->scores);
  return {};
}

void ReadTensors(const schema::Directory& from, DirectoryContent* content) {
  for (const schema::Tensor* t : *from.tensors()) {
    TensorEntry entry;
    entry.role = static_cast<TensorRole>(t->role()), entry.layer = t->layer();
    entry.weight.type = static_cast<WeightType>(t->type());
    entry.weight.layout = static_cast<WeightLayout>(t->layout());
    entry.weight.rows = t->rows(), entry.weight.cols = t->cols(), entry.weight.group = t->group();
    content->tensors.push_back(entry);
    content->tensor_sections.push_back(t->section());
  }
  for (const schema::Section* s : *from.sections()) {
    content->sections.push_back({static_cast<uint16_t>(s->kind()), s->offset(), s->size(), s->checksum()});
  }
}

}  // namespace

Status ReadDirectory(const uint8_t* data, int64_t n_bytes, DirectoryContent* content) {
  flatbuffers::Verifier verifier(data, static_cast<size_t>(n_bytes), kMaxDepth, kMaxTables);
  if (!schema::VerifyDirectoryBuffer(verifier)) {
    return Error(Code::kBadModel, "the directory is not a valid FlatBuffers buffer of kind %s",
                 schema::DirectoryIdentifier());
  }
  const schema::Directory& from = *schema::GetDirectory(data);
  KVC_RETURN_IF_ERROR(ReadConfig(*from.config(), &content->config));
  KVC_RETURN_IF_ERROR(ReadTokenizer(*from.tokenizer(), &content->tokenizer));
  if (from.turn_format() != nullptr)
    KVC_RETURN_IF_ERROR(ReadTurnFormat(*from.turn_format(), &content->turn_format));
  if (from.head_scores() != nullptr) {
    KVC_RETURN_IF_ERROR(
        CheckCount("the model", from.head_scores()->size(), kMaxHeadScoreTables, "head-score tables"));
    for (const schema::HeadScores* table : *from.head_scores()) {
      content->head_scores.emplace_back();
      KVC_RETURN_IF_ERROR(ReadHeadScores(*table, &content->head_scores.back()));
    }
  }
  KVC_RETURN_IF_ERROR(ReadText(from.created_by(), "created_by", &content->created_by));
  KVC_RETURN_IF_ERROR(ReadText(from.source(), "source", &content->source));
  ReadTensors(from, content);
  return {};
}

}  // namespace kvc
