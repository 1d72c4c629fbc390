#include "models/convert/model_directory.h"

#include "kvc_model_generated.h"

namespace kvc {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

Offset<schema::Config> BuildConfig(const ModelConfig& c, FlatBufferBuilder* b) {
  const auto rope = schema::CreateRope(
      *b, static_cast<schema::RopePairing>(c.rope_pairing), static_cast<schema::RopeScaling>(c.rope.scaling),
      c.rope.theta, c.rope.factor, c.rope.low_freq_factor, c.rope.high_freq_factor, c.rope.beta_fast,
      c.rope.beta_slow, c.rope.attention_factor, c.rope.original_max_tokens);
  const auto name = b->CreateString(c.name), architecture = b->CreateString(c.architecture);
  return schema::CreateConfig(*b, name, architecture, c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim,
                              c.hidden_size, c.ffn_size, c.vocab_size, c.max_tokens, c.sliding_window,
                              c.norm_eps, rope, c.qk_norm, c.tied_head);
}

Offset<schema::Tokenizer> BuildTokenizer(const TokenizerSpec& t, FlatBufferBuilder* b) {
  std::vector<uint8_t> bytes, kinds;
  std::vector<uint32_t> ends;
  for (const std::string& piece : t.pieces) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    ends.push_back(static_cast<uint32_t>(bytes.size()));
  }
  for (PieceKind kind : t.piece_kinds) kinds.push_back(static_cast<uint8_t>(kind));
  const auto piece_bytes = b->CreateVector(bytes);
  const auto piece_ends = b->CreateVector(ends);
  const auto piece_kinds = b->CreateVector(kinds);
  const auto scores = b->CreateVector(t.scores);
  const auto merges = b->CreateVector(t.merges);
  const auto patterns = b->CreateVectorOfStrings(t.patterns);
  const auto stop_tokens = b->CreateVector(t.stop_tokens);
  return schema::CreateTokenizer(*b, static_cast<schema::TokenizerKind>(t.kind), piece_bytes, piece_ends,
                                 piece_kinds, scores, merges, patterns, t.ignore_merges, t.nfc,
                                 t.add_space_prefix, t.remove_extra_spaces, t.byte_fallback, t.bos, t.eos,
                                 t.unk, t.pad, stop_tokens, t.add_bos);
}

Offset<schema::TurnFormat> BuildTurnFormat(const TurnFormat& t, FlatBufferBuilder* b) {
  const auto system_prefix = b->CreateString(t.system_prefix),
             system_suffix = b->CreateString(t.system_suffix);
  const auto user_prefix = b->CreateString(t.user_prefix), user_suffix = b->CreateString(t.user_suffix);
  const auto assistant_prefix = b->CreateString(t.assistant_prefix);
  const auto assistant_suffix = b->CreateString(t.assistant_suffix);
  return schema::CreateTurnFormat(*b, system_prefix, system_suffix, user_prefix, user_suffix,
                                  assistant_prefix, assistant_suffix);
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
