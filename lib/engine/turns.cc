#include "lib/engine/turns.h"

#include <algorithm>
#include <cstring>

namespace kvc {
namespace {

const std::string& FilePrefix(const TurnFormat& f, Role role) {
  return role == Role::kSystem ? f.system_prefix : role == Role::kUser ? f.user_prefix : f.assistant_prefix;
}

const std::string& FileSuffix(const TurnFormat& f, Role role) {
  return role == Role::kSystem ? f.system_suffix : role == Role::kUser ? f.user_suffix : f.assistant_suffix;
}

// A text of several parts, some of them trusted.
struct Parts {
  std::string text;
  std::vector<TextRange> trusted;
  void Mark(const std::string& mark) {
    const size_t begin = text.size();
    text += mark;
    if (!mark.empty()) trusted.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(text.size())});
  }
};

}  // namespace

Status TurnMarks::Set(Role role, const char* prefix, const char* suffix) {
  Own own;
  own.set = prefix != nullptr || suffix != nullptr;
  for (const char* mark : {prefix, suffix}) {
    if (mark != nullptr && std::strlen(mark) > size_t{kMaxStringBytes})
      return Error(Code::kInvalid, "a mark of %zu bytes; the limit is %d", std::strlen(mark),
                   kMaxStringBytes);
  }
  if (prefix != nullptr) own.prefix = prefix;
  if (suffix != nullptr) own.suffix = suffix;
  own_[static_cast<size_t>(role)] = std::move(own);
  return {};
}

bool TurnMarks::Any(const TurnFormat& file) const {
  bool any = std::any_of(own_.begin(), own_.end(), [](const Own& own) { return own.set; });
  for (Role role : {Role::kSystem, Role::kUser, Role::kAssistant})
    any = any || !FilePrefix(file, role).empty() || !FileSuffix(file, role).empty();
  return any;
}

std::string TurnMarks::Prefix(const TurnFormat& file, Role role) const {
  const Own& own = own_[static_cast<size_t>(role)];
  return own.set ? own.prefix : FilePrefix(file, role);
}

std::string TurnMarks::Suffix(const TurnFormat& file, Role role) const {
  const Own& own = own_[static_cast<size_t>(role)];
  return own.set ? own.suffix : FileSuffix(file, role);
}

Status EncodeTurn(const Tokenizer& tokenizer, const TurnFormat& file, const TurnMarks& marks, Role role,
                  Span<const uint8_t> text, const TurnPlace& place, std::vector<int32_t>* ids) {
  if (!marks.Any(file)) {
    return Error(Code::kUnsupported,
                 "the model file does not say how turns are marked: set the marks "
                 "(kvc_session_set_turn_marks), or feed text as it is (kvc_tokenize, kvc_session_prefill)");
  }
  Parts parts;
  if (place.after_answer) parts.Mark(marks.Suffix(file, Role::kAssistant));
  parts.Mark(marks.Prefix(file, role));
  parts.text.append(reinterpret_cast<const char*>(text.data()), text.size());
  parts.Mark(marks.Suffix(file, role));
  if (place.answer) parts.Mark(marks.Prefix(file, Role::kAssistant));
  const uint32_t flags = !place.first               ? uint32_t{kContinue}
                         : tokenizer.spec().add_bos ? uint32_t{kAddBos}
                                                    : 0;
  TokenList list;
  KVC_RETURN_IF_ERROR(tokenizer.EncodeParts(
      {reinterpret_cast<const uint8_t*>(parts.text.data()), parts.text.size()}, parts.trusted, flags, &list));
  const size_t before = ids->size();
  ids->resize(before + list.size());
  list.CopyTo(ids->data() + before);
  if (ids->size() == before) return {};
  const int32_t first = (*ids)[before], bos = tokenizer.spec().bos;
  // A mark may begin with BOS itself, and the caller may have fed the token that ended the answer.
  const bool bos_twice =
      (flags & kAddBos) != 0 && ids->size() > before + 1 && first == bos && (*ids)[before + 1] == bos;
  const bool ended = place.after_answer && first == place.newest_token && tokenizer.IsStop(first);
  if (bos_twice || ended) ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(before));
  return {};
}

}  // namespace kvc
