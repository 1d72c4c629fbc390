// Byte-level BPE: GPT-2, Llama 3, Qwen. Text → words by regular expressions → bytes → merges by rank.
//
// Bytes that are not valid UTF-8 are kept: each maximal run of them is a word of its own, and the text before
// and after is split as if it ended there. (Libraries that take text would have put U+FFFD there before they
// saw it.)
#include <algorithm>

#include "lib/base/utf8.h"
#include "lib/model/tokenizer_impl.h"
#include "lib/model/tokenizer_merge.h"
#include "lib/model/tokenizer_normalize.h"

namespace kvc {
namespace {

class ByteLevelTokenizer final : public TokenizerBase {
 public:
  explicit ByteLevelTokenizer(TokenizerSpec spec) : TokenizerBase(std::move(spec)), words_(&spec_.pieces) {}
  Status Init() override;
  Status Decode(Span<const int32_t> ids, std::string* text) const override;

 protected:
  Status EncodeSegments(Span<const uint8_t> text, const std::vector<TextSegment>& segments,
                        std::vector<int32_t>* ids) const override;

 private:
  // Working memory of one Encode.
  struct Work {
    PreTokenizer::Scratch scratch;
    std::vector<TextRange> words;
    std::string normalized;
    Merger merger;
  };
  Status EncodeText(Span<const uint8_t> text, Work* work, std::vector<int32_t>* ids) const;
  void EncodeWord(const uint8_t* word, size_t size, Work* work, std::vector<int32_t>* ids) const;

  PieceTable words_;               // normal pieces
  FlatMap merges_;                 // PairKey -> rank << 32 | result
  std::vector<int32_t> byte_ids_;  // [256]
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
};

Status ByteLevelTokenizer::Init() {
  if (!spec_.scores.empty() || spec_.byte_fallback || spec_.add_space_prefix || spec_.remove_extra_spaces) {
    return Error(Code::kBadModel,
                 "a byte-level tokenizer has scores or space rules, which are SentencePiece's");
  }
  std::vector<int32_t> ids;
  KVC_RETURN_IF_ERROR(UniquePieces({PieceKind::kNormal}, &words_, &ids));
  KVC_RETURN_IF_ERROR(BytePieces(PieceKind::kNormal, &byte_ids_));
  KVC_RETURN_IF_ERROR(BuildMerges(words_, &merges_));
  PieceTable added(&spec_.pieces);
  KVC_RETURN_IF_ERROR(
      UniquePieces({PieceKind::kControl, PieceKind::kUnknown, PieceKind::kUserDefined}, &added, &ids));
  special_tokens_.Build(spec_.pieces, ids);
  ids.erase(std::remove_if(ids.begin(), ids.end(),
                           [this](int32_t id) { return KindOf(id) != PieceKind::kUserDefined; }),
            ids.end());
  user_tokens_.Build(spec_.pieces, ids);
  auto pre_tokenizer = PreTokenizer::Create(spec_.patterns);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  pre_tokenizer_ = std::move(pre_tokenizer.value());
  return {};
}

Status ByteLevelTokenizer::EncodeSegments(Span<const uint8_t> text, const std::vector<TextSegment>& segments,
                                          std::vector<int32_t>* ids) const {
  Work work;
  for (const TextSegment& segment : segments) {
    if (segment.id >= 0) {
      ids->push_back(segment.id);
      continue;
    }
    const Span<const uint8_t> part =
        text.subspan(segment.range.begin, segment.range.end - segment.range.begin);
    for (size_t begin = 0; begin < part.size();) {
      bool valid = false;
      const size_t end = Utf8RunEnd(part.data(), part.size(), begin, &valid);
      if (valid) {
        KVC_RETURN_IF_ERROR(EncodeText(part.subspan(begin, end - begin), &work, ids));
      } else {
        EncodeWord(part.data() + begin, end - begin, &work, ids);
      }
      begin = end;
    }
  }
  return {};
}

Status ByteLevelTokenizer::EncodeText(Span<const uint8_t> text, Work* work, std::vector<int32_t>* ids) const {
  if (spec_.nfc) {
    KVC_RETURN_IF_ERROR(NormalizeNfc(text, &work->normalized));
    text = Span<const uint8_t>(reinterpret_cast<const uint8_t*>(work->normalized.data()),
                               work->normalized.size());
  }
  KVC_RETURN_IF_ERROR(pre_tokenizer_->Split(text, &work->scratch, &work->words));
  for (const TextRange& word : work->words)
    EncodeWord(text.data() + word.begin, word.end - word.begin, work, ids);
  return {};
}

void ByteLevelTokenizer::EncodeWord(const uint8_t* word, size_t size, Work* work,
                                    std::vector<int32_t>* ids) const {
  if (spec_.ignore_merges) {
    const int32_t id = words_.Find(word, size);
    if (id >= 0) return ids->push_back(id);
  }
  std::vector<Symbol>& symbols = work->merger.symbols();
  symbols.resize(size);
  for (size_t i = 0; i < size; ++i)
    symbols[i] = Symbol{static_cast<uint32_t>(i), 1, byte_ids_[word[i]], false};
  work->merger.Run([this](const Symbol& left, const Symbol& right) {
    const uint64_t* merge = merges_.Find(PairKey(left.id, right.id));
    return merge == nullptr ? Merge{}
                            : Merge{static_cast<uint32_t>(*merge >> 32), static_cast<int32_t>(*merge)};
  });
  for (const Symbol& symbol : symbols) ids->push_back(symbol.id);
}

Status ByteLevelTokenizer::Decode(Span<const int32_t> ids, std::string* text) const {
  KVC_RETURN_IF_ERROR(CheckIds(ids));
  text->clear();
  for (int32_t id : ids) {
    const Span<const uint8_t> piece = Piece(id);
    text->append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return {};
}

}  // namespace

std::unique_ptr<TokenizerBase> NewByteLevelTokenizer(TokenizerSpec spec) {
  return std::make_unique<ByteLevelTokenizer>(std::move(spec));
}

}  // namespace kvc
