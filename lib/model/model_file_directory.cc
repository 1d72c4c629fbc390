#include "lib/model/model_file_directory.h"

#include "kvc_model_generated.h"
#include "lib/base/limits.h"
#include "lib/model/model_check.h"

namespace kvc {
namespace {

template <typename T>
Span<const T> ViewOf(const flatbuffers::Vector<T>* from) {
  return from == nullptr ? Span<const T>() : Span<const T>(from->data(), from->size());
}

class DirectoryReader {
 public:
  DirectoryReader(int64_t n_bytes, MemoryMeter* meter, MeterCharge* charge)
      : left_(n_bytes), meter_(meter), charge_(charge) {}
  Status Read(const schema::Directory& from, DirectoryContent* content);

 private:
  Status ReadText(const flatbuffers::String* text, const char* name, std::string* out);
  Status ReadConfig(const schema::Config& from, ModelConfig* c);
  Status ReadRope(const schema::Rope& from, RopeConfig* r);
  Status ReadLayers(const schema::Config& from, ModelConfig* c);
  Status ReadTurnFormat(const schema::TurnFormat& from, TurnFormat* t);
  Status ReadHeadScores(const schema::HeadScores& from, HeadScoreTable* t);
  Status ReadTensors(const schema::Directory& from, DirectoryContent* content);
  // A text or vector of the directory is about to be copied. One that several tables refer to would be copied
  // for each: more comes out than lies in the file.
  Status Copies(int64_t n_bytes) {
    left_ -= n_bytes;
    if (left_ < 0) return Error(Code::kBadModel, "tables of the directory share texts or scores");
    return charge_->Add(meter_, n_bytes, "texts and scores of the model");
  }

  int64_t left_;  // bytes that copies may still take
  MemoryMeter* const meter_;
  MeterCharge* const charge_;
};

Status DirectoryReader::ReadText(const flatbuffers::String* text, const char* name, std::string* out) {
  if (text == nullptr) return {};
  KVC_RETURN_IF_ERROR(CheckCount(name, text->size(), kMaxStringBytes, "bytes"));
  KVC_RETURN_IF_ERROR(Copies(text->size()));
  out->assign(text->data(), text->size());
  return {};
}

Status DirectoryReader::ReadConfig(const schema::Config& from, ModelConfig* c) {
  KVC_RETURN_IF_ERROR(ReadText(from.name(), "name", &c->name));
  KVC_RETURN_IF_ERROR(ReadText(from.architecture(), "architecture", &c->architecture));
  c->n_layers = from.n_layers(), c->n_heads = from.n_heads(), c->n_kv_heads = from.n_kv_heads();
  c->head_dim = from.head_dim(), c->hidden_size = from.hidden_size(), c->ffn_size = from.ffn_size();
  c->vocab_size = from.vocab_size(), c->max_tokens = from.max_tokens(),
  c->sliding_window = from.sliding_window();
  c->norm_eps = from.norm_eps(), c->qk_norm = from.qk_norm(), c->tied_head = from.tied_head();
  c->embedding_scale = from.embedding_scale(), c->residual_scale = from.residual_scale();
  c->logit_scale = from.logit_scale(), c->attention_scale = from.attention_scale();
  c->attention_cap = from.attention_cap(), c->logit_cap = from.logit_cap();
  c->norms_before = !from.no_norms_before(), c->norms_after = from.norms_after();
  c->wide_qk_norm = from.wide_qk_norm(), c->activation = static_cast<Activation>(from.activation());
  c->n_experts = from.n_experts(), c->n_chosen = from.n_chosen();
  c->normalise_experts = from.normalise_experts();
  c->layer_norms = from.layer_norms(), c->own_qk_norms = from.own_qk_norms();
  c->parallel_blocks = from.parallel_blocks(), c->attention_sinks = from.attention_sinks();
  c->activation_gain = from.activation_gain(), c->activation_limit = from.activation_limit();
  c->rope_pairing = static_cast<RopePairing>(from.rope()->pairing());
  KVC_RETURN_IF_ERROR(ReadRope(*from.rope(), &c->rope));
  return ReadLayers(from, c);
}

Status DirectoryReader::ReadRope(const schema::Rope& from, RopeConfig* r) {
  r->scaling = static_cast<RopeScaling>(from.scaling());
  r->theta = from.theta(), r->factor = from.factor();
  r->low_freq_factor = from.low_freq_factor(), r->high_freq_factor = from.high_freq_factor();
  r->beta_fast = from.beta_fast(), r->beta_slow = from.beta_slow();
  r->attention_factor = from.attention_factor(), r->original_max_tokens = from.original_max_tokens();
  r->rotated = from.rotated(), r->whole_ramp = from.whole_ramp();
  const Span<const float> divisors = ViewOf(from.divisors());
  KVC_RETURN_IF_ERROR(CheckCount("rope", static_cast<int64_t>(divisors.size()), kMaxHeadDim / 2, "divisors"));
  KVC_RETURN_IF_ERROR(Copies(static_cast<int64_t>(divisors.size() * sizeof(float))));
  r->divisors.assign(divisors.begin(), divisors.end());
  return {};
}

Status DirectoryReader::ReadLayers(const schema::Config& from, ModelConfig* c) {
  if (from.more_ropes() != nullptr) {
    KVC_RETURN_IF_ERROR(CheckCount("the model", int64_t{from.more_ropes()->size()} + 1, kMaxRopes, "ropes"));
    for (const schema::Rope* rope : *from.more_ropes()) {
      if (rope->pairing() != from.rope()->pairing())
        return Error(Code::kUnsupported, "the ropes of the layers pair dimensions in different ways");
      c->more_ropes.emplace_back();
      KVC_RETURN_IF_ERROR(ReadRope(*rope, &c->more_ropes.back()));
    }
  }
  const Span<const int32_t> windows = ViewOf(from.layer_windows()), ropes = ViewOf(from.layer_ropes());
  if (windows.empty() && ropes.empty()) return {};
  KVC_RETURN_IF_ERROR(CheckCount("the model", c->n_layers, kMaxLayers, "layers"));
  const size_t n = c->n_layers < 0 ? 0 : static_cast<size_t>(c->n_layers);
  if (windows.size() != n || ropes.size() != n) {
    return Error(Code::kBadModel, "layer_windows has %zu and layer_ropes %zu entries for %d layers",
                 windows.size(), ropes.size(), c->n_layers);
  }
  KVC_RETURN_IF_ERROR(Copies(static_cast<int64_t>(n * sizeof(LayerConfig))));
  for (size_t i = 0; i < n; ++i) c->layers.push_back({windows[i], ropes[i]});
  return {};
}

Status ReadTokenizer(const schema::Tokenizer& from, TokenizerView* t) {
  const auto kind = static_cast<uint8_t>(from.kind());
  t->kind = static_cast<TokenizerKind>(kind % 16), t->space_prefix = static_cast<SpacePrefix>(kind / 16);
  t->piece_bytes = ViewOf(from.piece_bytes()), t->piece_ends = ViewOf(from.piece_ends());
  t->piece_kinds = {reinterpret_cast<const uint8_t*>(from.piece_kinds()->Data()), from.piece_kinds()->size()};
  t->scores = ViewOf(from.scores()), t->merges = ViewOf(from.merges());
  t->stop_tokens = ViewOf(from.stop_tokens()), t->begin_tokens = ViewOf(from.begin_tokens());
  if (from.patterns() != nullptr) {
    KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", from.patterns()->size(), kMaxPatterns, "patterns"));
    for (const flatbuffers::String* pattern : *from.patterns())
      t->patterns.emplace_back(pattern->data(), pattern->size());
  }
  t->n_byte_patterns = from.byte_patterns();
  t->ignore_merges = from.ignore_merges(), t->nfc = from.nfc();
  t->add_space_prefix = from.add_space_prefix(), t->remove_extra_spaces = from.remove_extra_spaces();
  t->byte_fallback = from.byte_fallback(), t->add_bos = from.add_bos();
  t->bos = from.bos(), t->eos = from.eos(), t->unk = from.unk(), t->pad = from.pad();
  return {};
}

Status DirectoryReader::ReadTurnFormat(const schema::TurnFormat& from, TurnFormat* t) {
  constexpr char kName[] = "a marker of the turn format";
  KVC_RETURN_IF_ERROR(ReadText(from.system_prefix(), kName, &t->system_prefix));
  KVC_RETURN_IF_ERROR(ReadText(from.system_suffix(), kName, &t->system_suffix));
  KVC_RETURN_IF_ERROR(ReadText(from.user_prefix(), kName, &t->user_prefix));
  KVC_RETURN_IF_ERROR(ReadText(from.user_suffix(), kName, &t->user_suffix));
  KVC_RETURN_IF_ERROR(ReadText(from.assistant_prefix(), kName, &t->assistant_prefix));
  KVC_RETURN_IF_ERROR(ReadText(from.assistant_suffix(), kName, &t->assistant_suffix));
  const auto optional = [&](const flatbuffers::String* text, std::optional<std::string>* out) {
    return text == nullptr ? Status() : ReadText(text, kName, &out->emplace());
  };
  KVC_RETURN_IF_ERROR(optional(from.first_system_prefix(), &t->first_system_prefix));
  KVC_RETURN_IF_ERROR(optional(from.first_user_prefix(), &t->first_user_prefix));
  KVC_RETURN_IF_ERROR(optional(from.user_prefix_after_system(), &t->user_prefix_after_system));
  KVC_RETURN_IF_ERROR(optional(from.answer_prefix(), &t->answer_prefix));
  t->trim = from.trim(), t->bos_in_marks = from.bos_in_marks();
  t->system_turns = static_cast<SystemTurns>(from.system_turns());
  return CheckTurnFormat(*t);
}

Status DirectoryReader::ReadHeadScores(const schema::HeadScores& from, HeadScoreTable* t) {
  constexpr char kName[] = "a text of a head-score table";
  KVC_RETURN_IF_ERROR(ReadText(from.name(), kName, &t->name));
  KVC_RETURN_IF_ERROR(ReadText(from.estimator(), kName, &t->estimator));
  KVC_RETURN_IF_ERROR(ReadText(from.dataset(), kName, &t->dataset));
  KVC_RETURN_IF_ERROR(ReadText(from.tool(), kName, &t->tool));
  KVC_RETURN_IF_ERROR(ReadText(from.note(), kName, &t->note));
  const Span<const float> scores = ViewOf(from.scores());
  KVC_RETURN_IF_ERROR(CheckCount(t->name.c_str(), static_cast<int64_t>(scores.size()),
                                 int64_t{kMaxLayers} * kMaxHeads, "scores"));
  t->n_layers = from.n_layers(), t->n_columns = from.n_columns();
  t->n_samples = from.n_samples(), t->seed = from.seed(), t->budget = from.budget(), t->alpha = from.alpha();
  KVC_RETURN_IF_ERROR(Copies(static_cast<int64_t>(scores.size() * sizeof(float))));
  t->scores.assign(scores.begin(), scores.end());
  return {};
}

Status DirectoryReader::ReadTensors(const schema::Directory& from, DirectoryContent* content) {
  const auto& tensors = *from.tensors();
  const auto& sections = *from.sections();
  constexpr size_t kTensorBytes = sizeof(TensorEntry) + sizeof(uint32_t);
  KVC_RETURN_IF_ERROR(charge_->Add(
      meter_, static_cast<int64_t>(tensors.size() * kTensorBytes + sections.size() * sizeof(SectionEntry)),
      "the list of tensors"));
  content->tensors.reserve(tensors.size()), content->tensor_sections.reserve(tensors.size());
  content->sections.reserve(sections.size());
  for (const schema::Tensor* t : tensors) {
    TensorEntry entry;
    entry.role = static_cast<TensorRole>(t->role()), entry.layer = t->layer();
    entry.weight.type = static_cast<WeightType>(t->type());
    entry.weight.layout = static_cast<WeightLayout>(t->layout());
    entry.weight.rows = t->rows(), entry.weight.cols = t->cols(), entry.weight.group = t->group();
    entry.plain_checksum = t->plain_checksum();
    content->tensors.push_back(entry);
    content->tensor_sections.push_back(t->section());
  }
  for (const schema::Section* s : sections) {
    content->sections.push_back({static_cast<uint16_t>(s->kind()), s->offset(), s->size(), s->checksum()});
  }
  return {};
}

Status DirectoryReader::Read(const schema::Directory& from, DirectoryContent* content) {
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
  return ReadTensors(from, content);
}

}  // namespace

Status ReadDirectory(const uint8_t* data, int64_t n_bytes, MemoryMeter* meter, MeterCharge* charge,
                     DirectoryContent* content) {
  flatbuffers::Verifier verifier(data, static_cast<size_t>(n_bytes), kMaxDirectoryDepth, kMaxDirectoryTables);
  if (!schema::VerifyDirectoryBuffer(verifier)) {
    return Error(Code::kBadModel, "the directory is not a valid FlatBuffers buffer of kind %s",
                 schema::DirectoryIdentifier());
  }
  return DirectoryReader(n_bytes, meter, charge).Read(*schema::GetDirectory(data), content);
}

}  // namespace kvc
