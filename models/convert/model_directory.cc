#include "models/convert/model_directory.h"

#include "kvc_model_generated.h"

namespace kvc {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

Offset<schema::Rope> BuildRope(const RopeConfig& r, RopePairing pairing, FlatBufferBuilder* b) {
  Offset<flatbuffers::Vector<float>> divisors;
  if (!r.divisors.empty()) divisors = b->CreateVector(r.divisors);
  return schema::CreateRope(*b, static_cast<schema::RopePairing>(pairing),
                            static_cast<schema::RopeScaling>(r.scaling), r.theta, r.factor, r.low_freq_factor,
                            r.high_freq_factor, r.beta_fast, r.beta_slow, r.attention_factor,
                            r.original_max_tokens, r.rotated, divisors, r.whole_ramp);
}

Offset<schema::Config> BuildConfig(const ModelConfig& c, FlatBufferBuilder* b) {
  const auto rope = BuildRope(c.rope, c.rope_pairing, b);
  std::vector<Offset<schema::Rope>> ropes;
  for (const RopeConfig& more : c.more_ropes) ropes.push_back(BuildRope(more, c.rope_pairing, b));
  Offset<flatbuffers::Vector<Offset<schema::Rope>>> more_ropes;
  if (!ropes.empty()) more_ropes = b->CreateVector(ropes);
  Offset<flatbuffers::Vector<int32_t>> windows, layer_ropes;
  if (c.layers_differ()) {
    std::vector<int32_t> window_list, rope_list;
    for (const LayerConfig& layer : c.layers)
      window_list.push_back(layer.attention_window), rope_list.push_back(layer.rope);
    windows = b->CreateVector(window_list), layer_ropes = b->CreateVector(rope_list);
  }
  const auto name = b->CreateString(c.name), architecture = b->CreateString(c.architecture);
  return schema::CreateConfig(
      *b, name, architecture, c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.hidden_size, c.ffn_size,
      c.vocab_size, c.max_tokens, c.sliding_window, c.norm_eps, rope, c.qk_norm, c.tied_head,
      c.embedding_scale, c.residual_scale, c.logit_scale, c.attention_scale, c.attention_cap, c.logit_cap,
      !c.norms_before, c.norms_after, c.wide_qk_norm, static_cast<schema::Activation>(c.activation),
      more_ropes, windows, layer_ropes, c.n_experts, c.n_chosen, c.normalise_experts, c.layer_norms,
      c.own_qk_norms, c.parallel_blocks, c.attention_sinks, c.activation_gain, c.activation_limit);
}

Offset<schema::Tokenizer> BuildTokenizer(const TokenizerSpec& t, FlatBufferBuilder* b) {
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> ends;
  for (const std::string& piece : t.pieces) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    ends.push_back(static_cast<uint32_t>(bytes.size()));
  }
  const int number = static_cast<int>(t.kind) + 16 * static_cast<int>(t.space_prefix);
  const auto kind = static_cast<schema::TokenizerKind>(number);
  const auto piece_bytes = b->CreateVector(bytes);
  const auto piece_ends = b->CreateVector(ends);
  const auto piece_kinds = b->CreateVector(FlatPieceKinds(t));
  const auto scores = b->CreateVector(t.scores);
  const auto merges = b->CreateVector(t.merges);
  const auto patterns = b->CreateVectorOfStrings(t.patterns);
  const auto stop_tokens = b->CreateVector(t.stop_tokens);
  const auto begin_tokens =
      t.begin_tokens.empty() ? Offset<flatbuffers::Vector<int32_t>>() : b->CreateVector(t.begin_tokens);
  return schema::CreateTokenizer(*b, kind, piece_bytes, piece_ends, piece_kinds, scores, merges, patterns,
                                 t.ignore_merges, t.nfc, t.add_space_prefix, t.remove_extra_spaces,
                                 t.byte_fallback, t.bos, t.eos, t.unk, t.pad, stop_tokens, t.add_bos,
                                 begin_tokens, t.n_byte_patterns);
}

Offset<schema::TurnFormat> BuildTurnFormat(const TurnFormat& t, FlatBufferBuilder* b) {
  const auto system_prefix = b->CreateString(t.system_prefix),
             system_suffix = b->CreateString(t.system_suffix);
  const auto user_prefix = b->CreateString(t.user_prefix), user_suffix = b->CreateString(t.user_suffix);
  const auto assistant_prefix = b->CreateString(t.assistant_prefix);
  const auto assistant_suffix = b->CreateString(t.assistant_suffix);
  const auto optional = [b](const std::optional<std::string>& text) {
    return text ? b->CreateString(*text) : Offset<flatbuffers::String>();
  };
  const auto first_system = optional(t.first_system_prefix), first_user = optional(t.first_user_prefix);
  const auto after_system = optional(t.user_prefix_after_system), answer = optional(t.answer_prefix);
  return schema::CreateTurnFormat(*b, system_prefix, system_suffix, user_prefix, user_suffix,
                                  assistant_prefix, assistant_suffix, first_system, first_user, after_system,
                                  answer, t.trim, static_cast<schema::SystemTurns>(t.system_turns),
                                  t.bos_in_marks);
}

Offset<schema::HeadScores> BuildHeadScores(const HeadScoreTable& t, FlatBufferBuilder* b) {
  const auto name = b->CreateString(t.name), estimator = b->CreateString(t.estimator);
  const auto dataset = b->CreateString(t.dataset), tool = b->CreateString(t.tool),
             note = b->CreateString(t.note);
  const auto scores = b->CreateVector(t.scores);
  return schema::CreateHeadScores(*b, name, estimator, dataset, tool, note, t.n_layers, t.n_columns,
                                  t.n_samples, t.seed, t.budget, t.alpha, scores);
}

}  // namespace

std::vector<uint8_t> BuildDirectory(const ModelFileContent& content, const std::vector<TensorPlan>& tensors,
                                    const std::vector<SectionEntry>& sections) {
  FlatBufferBuilder b;
  b.ForceDefaults(
      true);  // a field takes its place whatever its value: the size is known before the checksums are
  const auto config = BuildConfig(content.config, &b);
  const auto tokenizer = BuildTokenizer(content.tokenizer, &b);
  const auto turn_format = BuildTurnFormat(content.turn_format, &b);
  std::vector<Offset<schema::HeadScores>> tables;
  for (const HeadScoreTable& table : content.head_scores) tables.push_back(BuildHeadScores(table, &b));
  std::vector<Offset<schema::Tensor>> tensor_list;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorPlan& t = tensors[i];
    tensor_list.push_back(schema::CreateTensor(b, static_cast<schema::TensorRole>(t.role), t.layer,
                                               static_cast<schema::WeightType>(t.type),
                                               static_cast<schema::WeightLayout>(t.layout), t.rows, t.cols,
                                               t.group, static_cast<uint32_t>(i), t.plain_checksum));
  }
  std::vector<Offset<schema::Section>> section_list;
  for (const SectionEntry& s : sections) {
    section_list.push_back(
        schema::CreateSection(b, static_cast<schema::SectionKind>(s.kind), s.offset, s.size, s.checksum));
  }
  const auto head_scores = b.CreateVector(tables);
  const auto tensor_vector = b.CreateVector(tensor_list);
  const auto section_vector = b.CreateVector(section_list);
  const auto created_by = b.CreateString(content.created_by), source = b.CreateString(content.source);
  schema::FinishDirectoryBuffer(
      b, schema::CreateDirectory(b, config, tokenizer, turn_format, head_scores, tensor_vector,
                                 section_vector, created_by, source));
  return std::vector<uint8_t>(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
}

}  // namespace kvc
