// How the messages of a conversation are written around what their roles say.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "lib/base/archive.h"
#include "lib/base/limits.h"
#include "lib/model/model_file.h"
#include "lib/model/tokenizer.h"

namespace kvc {

enum class Role : int32_t { kSystem = 0, kUser = 1, kAssistant = 2 };
constexpr size_t kRoles = 3;

// Where in a conversation a message stands.
struct TurnPlace {
  bool first = false;         // nothing is before it
  bool after_answer = false;  // an answer was begun, whose end comes first
  bool after_system = false;  // what was said last is a system text
  bool answer = false;        // the assistant's mark comes behind it
  int32_t newest_token = -1;  // the one before it: an end of the answer that is there already is not repeated
  // Parts of a message: its text goes on behind what is encoded here, or has begun before it. The border is
  // as between texts that kContinue joins.
  bool open = false, opened = false;
  bool special = false;  // special tokens written in the text count as such
};

// Marks of the caller's, role by role, instead of a file's.
class TurnMarks {
 public:
  // Both null: the file's again; one null: "". kInvalid: too long.
  Status Set(Role role, const char* prefix, const char* suffix);
  // Whether there are any, in the file or here.
  bool Any(const TurnFormat& file) const;
  // The caller's mark, or the file's: that of its places where it has one of its own for this.
  std::string Prefix(const TurnFormat& file, Role role, const TurnPlace& place) const;
  std::string AnswerPrefix(const TurnFormat& file) const;
  std::string Suffix(const TurnFormat& file, Role role) const;
  bool Own(Role role) const { return own_[static_cast<size_t>(role)].set; }
  template <typename A>
  Status Archive(A& archive) {
    for (OwnMarks& own : own_) {
      uint8_t set = own.set ? 1 : 0;
      KVC_RETURN_IF_ERROR(ArchiveValue(archive, set));
      KVC_RETURN_IF_ERROR(ArchiveSequence(archive, own.prefix, kMaxStringBytes));
      KVC_RETURN_IF_ERROR(ArchiveSequence(archive, own.suffix, kMaxStringBytes));
      own.set = set != 0;
    }
    return {};
  }

 private:
  struct OwnMarks {
    bool set = false;
    std::string prefix, suffix;
  };
  std::array<OwnMarks, kRoles> own_;
};

// Appends the tokens of one message. The marks may hold special tokens, the text cannot unless place says so:
// "trusted" is what the model's file and the caller wrote as marks. kUnsupported: there are no marks, or a
// system text where the model was made for none.
Status EncodeTurn(const Tokenizer& tokenizer, const TurnFormat& file, const TurnMarks& marks, Role role,
                  Span<const uint8_t> text, const TurnPlace& place, std::vector<int32_t>* ids);

}  // namespace kvc
