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

// Marks of the caller's, role by role, instead of a file's.
class TurnMarks {
 public:
  // Both null: the file's again; one null: "". kInvalid: too long.
  Status Set(Role role, const char* prefix, const char* suffix);
  // Whether there are any, in the file or here.
  bool Any(const TurnFormat& file) const;
  std::string Prefix(const TurnFormat& file, Role role) const;
  std::string Suffix(const TurnFormat& file, Role role) const;
  template <typename A>
  Status Archive(A& archive) {
    for (Own& own : own_) {
      uint8_t set = own.set ? 1 : 0;
      KVC_RETURN_IF_ERROR(ArchiveValue(archive, set));
      KVC_RETURN_IF_ERROR(ArchiveSequence(archive, own.prefix, kMaxStringBytes));
      KVC_RETURN_IF_ERROR(ArchiveSequence(archive, own.suffix, kMaxStringBytes));
      own.set = set != 0;
    }
    return {};
  }

 private:
  struct Own {
    bool set = false;
    std::string prefix, suffix;
  };
  std::array<Own, kRoles> own_;
};

// Where in a conversation a message stands.
struct TurnPlace {
  bool first = false;         // nothing is before it
  bool after_answer = false;  // an answer was begun, whose end comes first
  bool answer = false;        // the assistant's mark comes behind it
  int32_t newest_token = -1;  // the one before it: an end of the answer that is there already is not repeated
};

// Appends the tokens of one message. The marks may hold special tokens, the text cannot: "trusted" is what
// the model's file and the caller wrote as marks. kUnsupported: there are no marks.
Status EncodeTurn(const Tokenizer& tokenizer, const TurnFormat& file, const TurnMarks& marks, Role role,
                  Span<const uint8_t> text, const TurnPlace& place, std::vector<int32_t>* ids);

}  // namespace kvc
