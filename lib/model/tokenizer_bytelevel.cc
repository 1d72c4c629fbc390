// Byte-level BPE: GPT-2, Llama 3, Qwen. Text → words by regular expressions → bytes → merges by rank.
//
// Bytes that are not valid UTF-8 are kept: each maximal run of them is a word of its own, and the text before
// and after is split as if it ended there. (Libraries that take text would have put U+FFFD there before they
// saw it.)
#include <algorithm>
#include <iterator>
#include <string>

#include "lib/base/utf8.h"
#include "lib/model/tokenizer_impl.h"
#include "lib/model/tokenizer_merge.h"
#include "lib/model/tokenizer_normalize.h"
#include "lib/model/tokenizer_regex.h"

namespace kvc {
namespace {

constexpr size_t kFreeTextBytes = 256 * 1024;  // the normal form of longer texts counts against the meter

constexpr size_t kInvalidBytes = 64 * 1024;  // of a run that is no text, rewritten at a time

class ByteLevelTokenizer final : public TokenizerBase {
 public:
  using TokenizerBase::TokenizerBase;
  Status Init() override;
  int64_t bytes() const override { return TokenizerBase::bytes() + words_.bytes() + merges_.bytes(); }

 protected:
  std::unique_ptr<EncodeWork> StartWork(size_t n_bytes) const override {
    return std::make_unique<Work>(n_bytes);
  }
  Status EncodePlain(Span<const uint8_t> text, bool begins, EncodeWork* work, TokenList* ids) const override;

 private:
  struct Work final : EncodeWork {
    explicit Work(size_t n_bytes) : scratch(n_bytes) {}
    PreTokenizer::Scratch scratch;
    Buffer<uint8_t> normalized;
    Merger merger;
  };
  Status EncodeText(Span<const uint8_t> text, Work* work, TokenList* ids) const;
  void EncodeInvalid(Span<const uint8_t> bytes, Work* work, TokenList* ids) const;
  void EncodeWord(const uint8_t* word, size_t size, Work* work, TokenList* ids) const;
  void MergeBytes(const uint8_t* bytes, size_t size, Work* work, TokenList* ids) const;

  PieceTable words_;  // normal pieces; empty where words are not looked up whole
  MergeTable merges_;
  int32_t byte_ids_[256] = {};
  bool lacks_bytes_ = false;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
};

Status ByteLevelTokenizer::Init() {
  if (!view_.scores.empty() || view_.byte_fallback || view_.add_space_prefix || view_.remove_extra_spaces) {
    return Error(Code::kBadModel,
                 "a byte-level tokenizer has scores or space rules, which are SentencePiece's");
  }
  KVC_RETURN_IF_ERROR(charge_.Add(meter_, sizeof *this, "the tokenizer"));
  KVC_RETURN_IF_ERROR(words_.Build(view_, {PieceKind::kNormal}, meter_));
  KVC_RETURN_IF_ERROR(BytePieces(PieceKind::kNormal, byte_ids_));
  lacks_bytes_ = std::count(std::begin(byte_ids_), std::end(byte_ids_), -1) > 0;
  KVC_RETURN_IF_ERROR(merges_.FindResults(view_, words_, meter_));
  if (!view_.ignore_merges) words_.Free();
  KVC_RETURN_IF_ERROR(merges_.Build(meter_));
  joints_.Build(view_, {PieceKind::kNormal});
  KVC_RETURN_IF_ERROR(special_tokens_.Build(
      view_, {PieceKind::kControl, PieceKind::kUnknown, PieceKind::kUserDefined}, meter_));
  KVC_RETURN_IF_ERROR(user_tokens_.Build(view_, {PieceKind::kUserDefined}, meter_));
  auto pre_tokenizer = PreTokenizer::Create(view_.patterns, view_.n_byte_patterns, meter_, &charge_);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  pre_tokenizer_ = std::move(pre_tokenizer.value());
  return {};
}

// That a text begins here makes no difference to this kind.
Status ByteLevelTokenizer::EncodePlain(Span<const uint8_t> text, bool, EncodeWork* base,
                                       TokenList* ids) const {
  Work* work = static_cast<Work*>(base);
  for (size_t begin = 0; begin < text.size();) {
    bool valid = false;
    const size_t end = Utf8RunEnd(text.data(), text.size(), begin, &valid);
    if (valid) {
      KVC_RETURN_IF_ERROR(EncodeText(text.subspan(begin, end - begin), work, ids));
    } else {
      EncodeInvalid(text.subspan(begin, end - begin), work, ids);
    }
    begin = end;
  }
  return {};
}

Status ByteLevelTokenizer::EncodeText(Span<const uint8_t> text, Work* work, TokenList* ids) const {
  if (view_.nfc) {
    MemoryMeter* meter = text.size() > kFreeTextBytes ? meter_ : nullptr;
    KVC_RETURN_IF_ERROR(NormalizeNfc(text, meter, &work->normalized, &text));
    if (text.size() > size_t{INT32_MAX})  // it may be three times as long
      return Error(Code::kInvalid, "the text has %zu bytes in normal form, the limit is %d", text.size(),
                   INT32_MAX);
  }
  return pre_tokenizer_->Split(text, &work->scratch, [&](TextRange word) {
    EncodeWord(text.data() + word.begin, word.end - word.begin, work, ids);
  });
}

// Vocabularies trained on text have no piece for bytes that no text had: there stands U+FFFD.
void ByteLevelTokenizer::EncodeInvalid(Span<const uint8_t> bytes, Work* work, TokenList* ids) const {
  const auto known = [this](uint8_t b) { return byte_ids_[b] >= 0; };
  if (std::all_of(bytes.begin(), bytes.end(), known))
    return EncodeWord(bytes.data(), bytes.size(), work, ids);
  for (size_t begin = 0; begin < bytes.size(); begin += kInvalidBytes) {
    std::string shown;
    for (const uint8_t b : bytes.subspan(begin, std::min(kInvalidBytes, bytes.size() - begin))) {
      if (known(b)) {
        shown += static_cast<char>(b);
      } else {
        shown += kReplacementChar;
      }
    }
    EncodeWord(reinterpret_cast<const uint8_t*>(shown.data()), shown.size(), work, ids);
  }
}

void ByteLevelTokenizer::EncodeWord(const uint8_t* word, size_t size, Work* work, TokenList* ids) const {
  // What has no piece falls out of a text, as in the package.
  std::string known;
  if (lacks_bytes_ && !std::all_of(word, word + size, [this](uint8_t b) { return byte_ids_[b] >= 0; })) {
    std::copy_if(word, word + size, std::back_inserter(known),
                 [this](uint8_t b) { return byte_ids_[b] >= 0; });
    if (known.empty()) return;
    word = reinterpret_cast<const uint8_t*>(known.data()), size = known.size();
  }
  if (view_.ignore_merges) {
    const int32_t id = words_.Find(word, size);
    if (id >= 0) return ids->Push(id);
  }
  size_t begin = 0;
  while (size - begin > kMaxWordBytes) {
    const size_t end = PartEnd(word, begin);
    MergeBytes(word + begin, end - begin, work, ids);
    begin = end;
  }
  MergeBytes(word + begin, size - begin, work, ids);
}

void ByteLevelTokenizer::MergeBytes(const uint8_t* bytes, size_t size, Work* work, TokenList* ids) const {
  if (size == 1) return ids->Push(byte_ids_[bytes[0]]);
  work->merger.Begin(size);
  for (size_t i = 0; i < size; ++i)
    work->merger.Add(Symbol{static_cast<uint32_t>(i), 1, byte_ids_[bytes[i]]}, false);
  work->merger.Run(
      [this](const Symbol& left, const Symbol& right) { return merges_.Find(left.id, right.id); });
  work->merger.ForEach([ids](const Symbol& symbol) { ids->Push(symbol.id); });
}

}  // namespace

std::unique_ptr<TokenizerBase> NewByteLevelTokenizer(const TokenizerView& view, MemoryMeter* meter) {
  return std::make_unique<ByteLevelTokenizer>(view, meter);
}

}  // namespace kvc
