// What templates find in their environment, and the methods of their values.
#include <algorithm>
#include <iterator>

#include "models/convert/jinja/interpreter.h"
#include "models/convert/jinja/text.h"

namespace kvc::jinja {
namespace {

using Bound = std::vector<const Value*>;

bool Namespace(Interpreter* run, const Arguments& arguments, Value* out) {
  Value space = Named(Kind::kNamespace, "");
  if (arguments.items.size() > 1) return run->Fail("namespace: too many arguments");
  if (!arguments.items.empty()) {
    if (!arguments.items[0].is(Kind::kDict)) return run->Fail("namespace: a dict expected");
    space.object->pairs = arguments.items[0].pairs();
  }
  for (const auto& [name, value] : arguments.named) {
    if (DepthOf(value) >= kMaxValueDepth) return run->Fail("values are nested too deeply");
    space.object->pairs.emplace_back(Text(name), value);
  }
  *out = std::move(space);
  return run->Charge(out->pairs().size());
}

bool MakeDict(Interpreter* run, const Arguments& arguments, Value* out) {
  std::vector<std::pair<Value, Value>> pairs;
  if (arguments.items.size() > 1 || (!arguments.items.empty() && !arguments.items[0].is(Kind::kDict)))
    return run->Fail("dict: only names and one dict are supported");
  if (!arguments.items.empty()) pairs = arguments.items[0].pairs();
  for (const auto& [name, value] : arguments.named) {
    const auto known = std::find_if(pairs.begin(), pairs.end(), [n = &name](const auto& pair) {
      return pair.first.is(Kind::kString) && pair.first.text() == *n;
    });
    if (known != pairs.end()) {
      known->second = value;
    } else {
      pairs.emplace_back(Text(name), value);
    }
  }
  return run->Give(Dict(std::move(pairs)), out);
}

bool MakeRange(Interpreter* run, const Arguments& arguments, Value* out) {
  const size_t n = arguments.items.size();
  if (!arguments.named.empty() || n < 1 || n > 3) return run->Fail("range: one to three numbers expected");
  int64_t parts[3] = {0, 0, 1};
  for (size_t i = 0; i < n; ++i) {
    if (!arguments.items[i].IsWhole()) return run->Fail("range: whole numbers expected");
    parts[n == 1 ? 1 : i] = arguments.items[i].number;
  }
  if (parts[2] == 0) return run->Fail("range: a step of 0");
  std::vector<Value> items;
  for (int64_t i = parts[0]; parts[2] > 0 ? i < parts[1] : i > parts[1];) {
    if (!run->Charge(1)) return false;
    items.push_back(Int(i));
    if (__builtin_add_overflow(i, parts[2], &i)) break;
  }
  return run->Give(List(std::move(items)), out);
}

bool RaiseException(Interpreter* run, const Arguments& arguments, Value*) {
  std::string text;
  if (!arguments.items.empty() && !run->ToText(arguments.items[0], &text)) return false;
  return run->Refuse(text);
}

// strftime in English, whatever the locale.
bool FormatDate(Interpreter* run, const Arguments& arguments, Value* out) {
  constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
  constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};
  if (arguments.items.size() != 1 || !arguments.items[0].is(Kind::kString))
    return run->Fail("strftime_now: a text expected");
  const std::string& format = arguments.items[0].text();
  const std::tm& t = *run->date();
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      text += format[i];
      continue;
    }
    const bool short_form = format[i + 1] == '-' && i + 2 < format.size();
    i += short_form ? 2 : 1;
    const auto number = [&](int value, int digits) {
      text += short_form ? std::to_string(value) : Format("%0*d", digits, value);
    };
    const int hour = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
    switch (format[i]) {
      case 'Y':
        number(t.tm_year + 1900, 4);
        break;
      case 'y':
        number(t.tm_year % 100, 2);
        break;
      case 'm':
        number(t.tm_mon + 1, 2);
        break;
      case 'd':
        number(t.tm_mday, 2);
        break;
      case 'H':
        number(t.tm_hour, 2);
        break;
      case 'I':
        number(hour, 2);
        break;
      case 'M':
        number(t.tm_min, 2);
        break;
      case 'S':
        number(t.tm_sec, 2);
        break;
      case 'j':
        number(t.tm_yday + 1, 3);
        break;
      case 'B':
        text += kMonths[t.tm_mon];
        break;
      case 'b':
        text += std::string(kMonths[t.tm_mon]).substr(0, 3);
        break;
      case 'A':
        text += kDays[t.tm_wday];
        break;
      case 'a':
        text += std::string(kDays[t.tm_wday]).substr(0, 3);
        break;
      case 'p':
        text += t.tm_hour < 12 ? "AM" : "PM";
        break;
      case '%':
        text += '%';
        break;
      default:
        return run->Fail(std::string("strftime_now: %") + format[i] + " is not supported");
    }
  }
  return run->GiveText(std::move(text), out);
}

constexpr struct {
  const char* name;
  bool (*function)(Interpreter* run, const Arguments& arguments, Value* out);
} kFunctions[] = {{"namespace", Namespace},
                  {"dict", MakeDict},
                  {"range", MakeRange},
                  {"raise_exception", RaiseException},
                  {"strftime_now", FormatDate}};

}  // namespace

bool HasFunction(const std::string& name) {
  return std::any_of(std::begin(kFunctions), std::end(kFunctions),
                     [&](const auto& known) { return name == known.name; });
}

bool CallFunction(Interpreter* run, const std::string& name, const Arguments& arguments, Value* out) {
  for (const auto& known : kFunctions) {
    if (name == known.name) return known.function(run, arguments, out);
  }
  return run->Fail(name + " is not supported");
}

}  // namespace kvc::jinja
