// Text to token ids and back, exactly as the model was trained. Immutable after Create; thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/memory_meter.h"
#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/model/text_range.h"
#include "lib/model/token_list.h"
#include "lib/model/tokenizer_spec.h"

namespace kvc {

// Flags of Encode; the numbers are those of kvc.h.
enum EncodeFlags : uint32_t {
  kAddBos = 1,        // what begins a text first (begin_tokens), when the model has that
  kParseSpecial = 2,  // special tokens written in the text become their ids; otherwise they are text
  // The text goes on behind one that was encoded before: what a tokenizer does only where a text begins is
  // not done (SentencePiece: the space before it; where extra spaces are removed, a space at its start
  // counts). Ids are those of the whole text where no piece crosses the border, such as before a space
  // behind a letter; merges across it cannot be made up for.
  kContinue = 4,
};

// What Encode takes for a while beside the meter, at most, whatever the text: the longest part of a word that
// is merged at once, the stacks of a pattern, the first ids. Beyond that come four bytes a token and, where a
// text changes when it is normalised, its new form and eight times a run of combining marks, all counted.
constexpr int64_t kMaxEncodeBytes = 16 << 20;

class Tokenizer {
 public:
  // The view's arrays stay where they are while the tokenizer lives; they are not copied. Tables are taken
  // through the meter (null: not counted). kBadModel with what and where when the view is inconsistent
  // (duplicate or missing pieces, merges of pieces that do not exist, a pattern that does not compile, ids
  // out of range), kUnsupported, kMemory.
  static Result<std::unique_ptr<Tokenizer>> Create(const TokenizerView& view, MemoryMeter* meter);
  virtual ~Tokenizer() = default;
  // Appends the ids of `text`. Time linear in the text. After a failure what was appended means nothing.
  Status Encode(Span<const uint8_t> text, uint32_t flags, TokenList* ids) const;
  // The same, with special tokens only where they lie wholly inside a part of the text that is trusted
  // (ascending parts; kParseSpecial does not count). Around them the text is encoded as one.
  virtual Status EncodeParts(Span<const uint8_t> text, Span<const TextRange> trusted, uint32_t flags,
                             TokenList* ids) const = 0;
  // The same; after a failure `ids` is as it was.
  Status Encode(Span<const uint8_t> text, uint32_t flags, std::vector<int32_t>* ids) const;
  // Bytes of one token inside a text (SentencePiece's leading space kept). Control tokens give "". id must be
  // in range.
  virtual Span<const uint8_t> Piece(int32_t id) const = 0;
  // The same where the text may begin (*at_start, which becomes whether what follows may be its beginning):
  // SentencePiece drops the space in front of a first piece, and all of them where extra spaces are removed.
  virtual Span<const uint8_t> TextOf(int32_t id, bool* at_start) const = 0;
  // The text of ids, as the model's own library gives it with special tokens skipped (SentencePiece: no space
  // at the start).
  virtual Status Decode(Span<const int32_t> ids, std::string* text) const = 0;
  virtual bool IsStop(int32_t id) const = 0;
  // What kAddBos puts before a text: BOS, or several tokens, or none. Lives as long as the tokenizer.
  virtual Span<const int32_t> begin_tokens() const = 0;
  virtual const TokenizerView& spec() const = 0;
  // Whether TextOf gives another text at the beginning than behind it.
  bool drops_spaces() const { return spec().add_space_prefix || spec().remove_extra_spaces; }
  virtual int64_t bytes() const = 0;  // of its tables, as counted by the meter
};

}  // namespace kvc
