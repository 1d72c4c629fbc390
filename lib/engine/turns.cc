#include "lib/engine/turns.h"

#include <algorithm>
#include <cstring>

#include "lib/base/utf8.h"

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

// What a model was not trained to see is not said to it, unless the caller has marks for it.
Status CheckSystem(const TurnFormat& file, const TurnMarks& marks, Role role, const TurnPlace& place) {
  if (role != Role::kSystem || marks.Own(role)) return {};
  const bool fits = file.system_turns == SystemTurns::kAnywhere ||
                    (file.system_turns == SystemTurns::kFirst && place.first);
  if (fits) return {};
  return Error(
      Code::kUnsupported,
      file.system_turns == SystemTurns::kNone
          ? "this model's chat template has no system text: say it in the user's first message, or set "
            "marks for it (kvc_session_set_turn_marks)"
          : "this model's chat template has a system text at the start of a conversation only");
}

// The text without the white space that the model's chat template takes away.
Span<const uint8_t> Trimmed(const TurnFormat& file, const TurnMarks& marks, Role role,
                            Span<const uint8_t> text, const TurnPlace& place) {
  if (marks.Own(role)) return text;
  const bool user = role == Role::kUser, after = user && place.after_system;
  const uint8_t start = role == Role::kSystem ? kTrimSystemStart
                        : !user               ? kTrimAssistantStart
                        : after               ? kTrimUserStartAfterSystem
                                              : kTrimUserStart;
  const uint8_t end = role == Role::kSystem ? kTrimSystemEnd : user ? kTrimUserEnd : kTrimAssistantEnd;
  const uint8_t *p = text.data(), *stop = p + text.size();
  while ((file.trim & start) != 0 && !place.opened && p < stop) {
    int32_t c = 0;
    const size_t n = Utf8Length(p, static_cast<size_t>(stop - p), &c);
    if (n == 0 || !IsWhiteSpace(c)) break;
    p += n;
  }
  while ((file.trim & end) != 0 && !place.open && p < stop) {
    const uint8_t* last = stop - 1;
    while (last > p && (*last & 0xC0) == 0x80) --last;
    int32_t c = 0;
    const size_t n = Utf8Length(last, static_cast<size_t>(stop - last), &c);
    if (n == 0 || last + n != stop || !IsWhiteSpace(c)) break;
    stop = last;
  }
  return {p, static_cast<size_t>(stop - p)};
}

}  // namespace

Status TurnMarks::Set(Role role, const char* prefix, const char* suffix) {
  OwnMarks own;
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
  return !file.empty() || std::any_of(own_.begin(), own_.end(), [](const OwnMarks& own) { return own.set; });
}

std::string TurnMarks::Prefix(const TurnFormat& file, Role role, const TurnPlace& place) const {
  const OwnMarks& own = own_[static_cast<size_t>(role)];
  if (own.set) return own.prefix;
  if (role == Role::kSystem && place.first) return file.first_system_prefix.value_or(file.system_prefix);
  if (role == Role::kUser && place.first) return file.first_user_prefix.value_or(file.user_prefix);
  // Which begins within the system's own marks, where these are the caller's, the turn begins as any other.
  if (role == Role::kUser && place.after_system && !Own(Role::kSystem))
    return file.user_prefix_after_system.value_or(file.user_prefix);
  return FilePrefix(file, role);
}

std::string TurnMarks::AnswerPrefix(const TurnFormat& file) const {
  const OwnMarks& own = own_[static_cast<size_t>(Role::kAssistant)];
  return own.set ? own.prefix : file.answer_prefix.value_or(file.assistant_prefix);
}

std::string TurnMarks::Suffix(const TurnFormat& file, Role role) const {
  const OwnMarks& own = own_[static_cast<size_t>(role)];
  return own.set ? own.suffix : FileSuffix(file, role);
}

Status EncodeTurn(const Tokenizer& tokenizer, const TurnFormat& file, const TurnMarks& marks, Role role,
                  Span<const uint8_t> text, const TurnPlace& place, std::vector<int32_t>* ids) {
  if (!marks.Any(file)) {
    return Error(Code::kUnsupported,
                 "the model file does not say how turns are marked: set the marks "
                 "(kvc_session_set_turn_marks), or feed text as it is (kvc_tokenize, kvc_session_prefill)");
  }
  KVC_RETURN_IF_ERROR(CheckSystem(file, marks, role, place));
  text = Trimmed(file, marks, role, text, place);
  Parts parts;
  if (place.after_answer) parts.Mark(marks.Suffix(file, Role::kAssistant));
  if (!place.opened) parts.Mark(marks.Prefix(file, role, place));
  const std::string said(reinterpret_cast<const char*>(text.data()), text.size());
  if (place.special) {
    parts.Mark(said);
  } else {
    parts.text += said;
  }
  if (!place.open) parts.Mark(marks.Suffix(file, role));
  if (place.answer) parts.Mark(marks.AnswerPrefix(file));
  const bool adds_bos = tokenizer.spec().add_bos && (!file.bos_in_marks || marks.Own(role));
  const uint32_t flags = !place.first || place.opened ? uint32_t{kContinue}
                         : adds_bos                   ? uint32_t{kAddBos}
                                                      : 0;
  TokenList list;
  KVC_RETURN_IF_ERROR(tokenizer.EncodeParts(
      {reinterpret_cast<const uint8_t*>(parts.text.data()), parts.text.size()}, parts.trusted, flags, &list));
  const size_t before = ids->size();
  ids->resize(before + list.size());
  list.CopyTo(ids->data() + before);
  if (ids->size() == before) return {};
  const auto begin = ids->begin() + static_cast<std::ptrdiff_t>(before);
  // A mark may begin with BOS, or all that stands for it, itself; and the caller may have fed the token that
  // ended the answer.
  const Span<const int32_t> bos = tokenizer.begin_tokens();
  const auto n_bos = static_cast<std::ptrdiff_t>(bos.size());
  const bool bos_twice = (flags & kAddBos) != 0 && n_bos > 0 && ids->end() - begin >= 2 * n_bos &&
                         std::equal(bos.begin(), bos.end(), begin + n_bos);
  const bool ended = place.after_answer && *begin == place.newest_token && tokenizer.IsStop(*begin);
  if (bos_twice) {
    ids->erase(begin, begin + n_bos);
  } else if (ended) {
    ids->erase(begin);
  }
  return {};
}

}  // namespace kvc
