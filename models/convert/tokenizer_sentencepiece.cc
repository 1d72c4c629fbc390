#include "models/convert/tokenizer_sentencepiece.h"

#include <cmath>
#include <cstring>
#include <string>

#include "models/convert/tokenizer_pieces.h"

namespace kvc {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxPieces = size_t{1} << 21;

// One field of a protobuf message. Groups (wire types 3 and 4) are long gone and not accepted.
struct Field {
  uint32_t number = 0;
  enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 } wire = kVarint;
  uint64_t number_value = 0;  // varint, or the bits of a fixed field
  Span<const uint8_t> bytes;  // kBytes
};

// Walks the fields of one message. Never reads outside it; never descends by itself.
class Message {
 public:
  explicit Message(Span<const uint8_t> bytes) : bytes_(bytes) {}
  bool done() const { return at_ == bytes_.size(); }
  Status Next(Field* field) {
    uint64_t tag = 0;
    KVC_RETURN_IF_ERROR(Varint(&tag));
    if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) return Bad("an impossible field number");
    field->number = static_cast<uint32_t>(tag >> 3);
    field->wire = static_cast<Field::Wire>(tag & 7);
    field->bytes = {};
    switch (field->wire) {
      case Field::kVarint:
        return Varint(&field->number_value);
      case Field::kFixed64:
        return Fixed(8, &field->number_value);
      case Field::kFixed32:
        return Fixed(4, &field->number_value);
      case Field::kBytes: {
        uint64_t size = 0;
        KVC_RETURN_IF_ERROR(Varint(&size));
        if (size > bytes_.size() - at_) return Bad("a field that is longer than the file");
        field->bytes = bytes_.subspan(at_, static_cast<size_t>(size));
        at_ += static_cast<size_t>(size);
        return {};
      }
    }
    return Bad("a field of an unknown wire type");
  }

 private:
  Status Bad(const char* what) const {
    return Error(Code::kBadModel, "tokenizer.model: %s, %zu bytes into a message of %zu", what, at_,
                 bytes_.size());
  }
  Status Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (done()) return Bad("cut in a number");
      const uint8_t byte = bytes_[at_++];
      if (shift == 63 && byte > 1) break;
      *value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return {};
    }
    return Bad("a number of more than 64 bits");
  }
  Status Fixed(size_t size, uint64_t* value) {
    if (bytes_.size() - at_ < size) return Bad("cut in a number");
    *value = 0;
    for (size_t i = 0; i < size; ++i) *value |= uint64_t{bytes_[at_ + i]} << (8 * i);
    at_ += size;
    return {};
  }
  Span<const uint8_t> bytes_;
  size_t at_ = 0;
};

std::string Text(const Field& field) {
  return std::string(reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size());
}

// What of TrainerSpec and NormalizerSpec decides about encoding; the defaults are those of
// sentencepiece_model.proto.
struct Options {
  uint64_t model_type = 1;  // 1 unigram, 2 bpe, 3 word, 4 char
  bool space_as_suffix = false, byte_fallback = false;
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";
  std::string rule_name;
  bool has_character_map = false, add_space_prefix = true, remove_extra_spaces = true, escape_spaces = true;
};

Status Expect(const Field& field, Field::Wire wire, const char* what) {
  if (field.wire == wire) return {};
  return Error(Code::kBadModel, "tokenizer.model: %s has wire type %d, not %d", what, field.wire, wire);
}

Status ReadTrainer(Span<const uint8_t> bytes, Options* options) {
  for (Message message(bytes); !message.done();) {
    Field f;
    KVC_RETURN_IF_ERROR(message.Next(&f));
    const bool number = f.number == 3 || f.number == 24 || f.number == 35;
    const bool text = f.number >= 46 && f.number <= 48;
    if (number) KVC_RETURN_IF_ERROR(Expect(f, Field::kVarint, "a trainer option"));
    if (text) KVC_RETURN_IF_ERROR(Expect(f, Field::kBytes, "the name of a special piece"));
    if (f.number == 3) options->model_type = f.number_value;
    if (f.number == 24) options->space_as_suffix = f.number_value != 0;
    if (f.number == 35) options->byte_fallback = f.number_value != 0;
    if (f.number == 46) options->bos = Text(f);
    if (f.number == 47) options->eos = Text(f);
    if (f.number == 48) options->pad = Text(f);
  }
  return {};
}

Status ReadNormalizer(Span<const uint8_t> bytes, Options* options) {
  for (Message message(bytes); !message.done();) {
    Field f;
    KVC_RETURN_IF_ERROR(message.Next(&f));
    if (f.number == 1 || f.number == 2) KVC_RETURN_IF_ERROR(Expect(f, Field::kBytes, "a normalizer option"));
    if (f.number >= 3 && f.number <= 5) KVC_RETURN_IF_ERROR(Expect(f, Field::kVarint, "a normalizer option"));
    if (f.number == 1) options->rule_name = Text(f);
    if (f.number == 2) options->has_character_map = !f.bytes.empty();
    if (f.number == 3) options->add_space_prefix = f.number_value != 0;
    if (f.number == 4) options->remove_extra_spaces = f.number_value != 0;
    if (f.number == 5) options->escape_spaces = f.number_value != 0;
  }
  return {};
}

Status ReadPiece(Span<const uint8_t> bytes, TokenizerSpec* spec) {
  const size_t id = spec->pieces.size();
  if (id >= kMaxPieces) return Error(Code::kBadModel, "tokenizer.model: more than %zu pieces", kMaxPieces);
  std::string piece;
  float score = 0;
  uint64_t type = 1;
  for (Message message(bytes); !message.done();) {
    Field f;
    KVC_RETURN_IF_ERROR(message.Next(&f));
    if (f.number == 1) {
      KVC_RETURN_IF_ERROR(Expect(f, Field::kBytes, "a piece"));
      piece = Text(f);
    } else if (f.number == 2) {
      KVC_RETURN_IF_ERROR(Expect(f, Field::kFixed32, "a score"));
      const auto bits = static_cast<uint32_t>(f.number_value);
      std::memcpy(&score, &bits, sizeof score);
    } else if (f.number == 3) {
      KVC_RETURN_IF_ERROR(Expect(f, Field::kVarint, "a piece type"));
      type = f.number_value;
    }
  }
  static constexpr PieceKind kKinds[] = {PieceKind::kNormal,      PieceKind::kUnknown, PieceKind::kControl,
                                         PieceKind::kUserDefined, PieceKind::kUnused,  PieceKind::kByte};
  if (type < 1 || type > 6)
    return Error(Code::kBadModel, "tokenizer.model: piece %zu has an unknown type", id);
  if (!std::isfinite(score))
    return Error(Code::kBadModel, "tokenizer.model: the score of piece %zu is not finite", id);
  const PieceKind kind = kKinds[type - 1];
  if (kind == PieceKind::kByte) {
    const int byte = ParseBytePiece(piece);
    if (byte < 0)
      return Error(Code::kBadModel, "tokenizer.model: byte piece %zu is \"%.40s\"", id, piece.c_str());
    piece.assign(1, static_cast<char>(byte));
  } else if (kind != PieceKind::kControl && kind != PieceKind::kUnknown) {
    piece = UndoSpaceSymbol(piece);
  }
  spec->pieces.push_back(std::move(piece));
  spec->piece_kinds.push_back(kind);
  spec->scores.push_back(score);
  return {};
}

Status CheckOptions(const Options& options) {
  static constexpr const char* kTypes[] = {"Unigram", "BPE", "word", "character"};
  if (options.model_type != 2) {
    const bool known = options.model_type >= 1 && options.model_type <= 4;
    return Error(Code::kUnsupported, "tokenizer.model: the model type %s is not supported, only BPE is",
                 known ? kTypes[options.model_type - 1] : "is unknown and");
  }
  if (options.has_character_map) {
    return Error(Code::kUnsupported,
                 "tokenizer.model: the normalization rule \"%.40s\" is not supported, only identity is",
                 options.rule_name.c_str());
  }
  if (options.space_as_suffix)
    return Error(Code::kUnsupported, "tokenizer.model: treat_whitespace_as_suffix is not supported");
  if (!options.escape_spaces)
    return Error(Code::kUnsupported, "tokenizer.model: escape_whitespaces=false is not supported");
  return {};
}

}  // namespace

Result<TokenizerSpec> ReadSentencePiece(Span<const uint8_t> bytes) {
  if (bytes.empty()) return Error(Code::kBadModel, "tokenizer.model: empty");
  if (bytes.size() > kMaxFileBytes) {
    return Error(Code::kBadModel, "tokenizer.model: %zu bytes, the limit is %zu", bytes.size(),
                 kMaxFileBytes);
  }
  TokenizerSpec spec;
  spec.kind = TokenizerKind::kSentencePieceBpe;
  Options options;
  for (Message message(bytes); !message.done();) {
    Field f;
    KVC_RETURN_IF_ERROR(message.Next(&f));
    if (f.number < 1 || f.number > 3) continue;
    KVC_RETURN_IF_ERROR(Expect(f, Field::kBytes, "a part of the model"));
    if (f.number == 1) KVC_RETURN_IF_ERROR(ReadPiece(f.bytes, &spec));
    if (f.number == 2) KVC_RETURN_IF_ERROR(ReadTrainer(f.bytes, &options));
    if (f.number == 3) KVC_RETURN_IF_ERROR(ReadNormalizer(f.bytes, &options));
  }
  if (spec.pieces.empty()) return Error(Code::kBadModel, "tokenizer.model: no pieces");
  KVC_RETURN_IF_ERROR(CheckOptions(options));
  spec.add_space_prefix = options.add_space_prefix;
  spec.remove_extra_spaces = options.remove_extra_spaces;
  spec.byte_fallback = options.byte_fallback;
  for (size_t i = 0; i < spec.pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (spec.piece_kinds[i] == PieceKind::kUnknown) spec.unk = id;
    if (spec.piece_kinds[i] != PieceKind::kControl) continue;
    if (spec.pieces[i] == options.bos) spec.bos = id;
    if (spec.pieces[i] == options.eos) spec.eos = id;
    if (spec.pieces[i] == options.pad) spec.pad = id;
  }
  spec.add_bos = spec.bos >= 0;
  if (spec.eos >= 0) spec.stop_tokens = {spec.eos};
  return spec;
}

}  // namespace kvc
