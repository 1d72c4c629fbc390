// From the text of a kernel to its instructions.
#include <cstdio>
#include <cstdlib>

#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

[[noreturn]] void Stop(const std::string& what, std::string_view where) {
  std::fprintf(stderr, "ptx: %s: %.*s\n", what.c_str(), static_cast<int>(where.size()), where.data());
  std::exit(1);
}

constexpr std::string_view kBlanks = " \t\r\n";
std::string_view Trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlanks) - first + 1);
}
bool Takes(std::string_view* s, std::string_view prefix) {
  if (s->substr(0, prefix.size()) != prefix) return false;
  *s = Trimmed(s->substr(prefix.size()));
  return true;
}
// By commas outside of braces, brackets and parentheses.
std::vector<std::string_view> SplitOperands(std::string_view s) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= s.size(); ++i) {
    if (i < s.size() && (s[i] == '{' || s[i] == '[' || s[i] == '(')) ++depth;
    if (i < s.size() && (s[i] == '}' || s[i] == ']' || s[i] == ')')) --depth;
    if (i < s.size() && (s[i] != ',' || depth > 0)) continue;
    if (const std::string_view part = Trimmed(s.substr(begin, i - begin)); !part.empty())
      parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}
int64_t Number(std::string_view s) { return std::strtoll(std::string(s).c_str(), nullptr, 0); }
int64_t RoundUp(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// What a declaration names: ".align 16 .b8 name[152]", ".u64 name", ".b8 name[4] = {1, 2}".
struct Declared {
  std::string_view name;
  int64_t bytes = 0, align = 1;
  std::string_view values;
};
int64_t BytesOf(std::string_view type) {  // .b8 .. .f64
  return Number(type.substr(type.find_first_of("0123456789"))) / 8;
}
Declared ParseDeclared(std::string_view s) {
  Declared d;
  if (Takes(&s, ".align")) {
    const size_t end = s.find(' ');
    d.align = Number(s.substr(0, end)), s = Trimmed(s.substr(end));
  }
  const size_t end = s.find_first_of(kBlanks);
  const int64_t element = BytesOf(s.substr(0, end));
  d.align = std::max(d.align, element);
  s = Trimmed(s.substr(end));
  if (const size_t equals = s.find('='); equals != std::string_view::npos)
    d.values = Trimmed(s.substr(equals + 1)), s = Trimmed(s.substr(0, equals));
  const size_t bracket = s.find('[');
  d.name = s.substr(0, bracket);
  d.bytes = element * (bracket == std::string_view::npos ? 1 : Number(s.substr(bracket + 1)));
  return d;
}

class Decoder {
 public:
  Decoder(std::string_view file, Program* out) : file_(file), out_(out) {}

  void Kernel(std::string_view text) {
    const size_t open = text.find('('), close = text.find(')', open), body = text.find('{', close);
    out_->name = std::string(Trimmed(text.substr(0, open)));
    Params(text.substr(open + 1, close - open - 1));
    std::string_view bounds = text.substr(close + 1, body - close - 1);
    if (const size_t most = bounds.find(".maxntid"); most != std::string_view::npos) {
      out_->most_threads = 1;
      bounds = bounds.substr(most + 8);
      for (std::string_view n : SplitOperands(bounds.substr(0, bounds.find('\n'))))
        out_->most_threads *= static_cast<unsigned>(Number(n));
    }
    const std::string_view inside = text.substr(body + 1, text.rfind('}') - body - 1);
    ModuleSymbols(inside);
    Body(inside, "");
    Emit(Ending());
    out_->work.resize(out_->code.size());
    for (const auto& jump : jumps_) {
      const auto label = labels_.find(jump.second);
      if (label == labels_.end()) Stop("no such label", jump.second);
      out_->code[jump.first].target = label->second;
    }
  }

 private:
  enum class Where { kAddress, kShared, kLocal };
  struct Symbol {
    Where where;
    int64_t at;
  };
  struct Range {  // registers with a number behind their name
    File file;
    uint32_t first, n;
  };
  struct Scope {
    std::map<std::string, Arg, std::less<>> names;
    std::map<std::string, Range, std::less<>> ranges;
    std::map<std::string, Symbol, std::less<>> symbols;
  };

  static Instruction Ending() {
    Instruction i;
    i.kind = Kind::kExit;
    return i;
  }

  void Params(std::string_view list) {
    int64_t bytes = 0;
    std::vector<std::pair<std::string_view, int64_t>> names;
    for (std::string_view param : SplitOperands(list)) {
      if (!Takes(&param, ".param")) Stop("no parameter", param);
      const Declared d = ParseDeclared(param);
      bytes = RoundUp(bytes, d.align);
      names.emplace_back(d.name, bytes);
      out_->params.emplace_back(bytes, d.bytes);
      bytes += d.bytes;
    }
    out_->param_words.resize(static_cast<size_t>(bytes + 7) / 8);
    const int64_t base = reinterpret_cast<int64_t>(out_->param_words.data());
    for (const auto& [name, at] : names) outer_.symbols[std::string(name)] = {Where::kAddress, base + at};
  }

  // What stands outside of kernels and is named in this one. Shared memory of the launch lies behind what is
  // the kernel's own.
  void ModuleSymbols(std::string_view body) {
    std::vector<std::string_view> dynamic;
    size_t at = 0;
    int depth = 0;
    while (at < file_.size()) {
      size_t end = file_.find('\n', at);
      if (end == std::string_view::npos) end = file_.size();
      std::string_view line = Trimmed(file_.substr(at, end - at));
      at = end + 1;
      if (line == "{") ++depth;
      if (line == "}") --depth;
      if (depth > 0 || line.empty() || line[0] != '.') continue;
      const bool is_extern = Takes(&line, ".extern");
      if (Takes(&line, ".shared")) {
        const Declared d = ParseDeclared(line.substr(0, line.find(';')));
        if (body.find(d.name) == std::string_view::npos) continue;
        if (is_extern) {
          dynamic.push_back(d.name);
        } else {
          AddShared(d);
        }
      } else if (Takes(&line, ".global")) {
        AddGlobal(ParseDeclared(line.substr(0, line.find(';'))));
      }
    }
    // Before anything names what the launch brings.
    for (size_t from = 0; (from = body.find(".shared ", from)) != std::string_view::npos;) {
      const bool declares = from == 0 || kBlanks.find(body[from - 1]) != std::string_view::npos;
      from += 8;
      if (declares) AddShared(ParseDeclared(Trimmed(body.substr(from, body.find(';', from) - from))));
    }
    out_->static_shared = RoundUp(out_->static_shared, 16);
    for (std::string_view name : dynamic)
      outer_.symbols[std::string(name)] = {Where::kShared, out_->static_shared};
  }
  void AddShared(const Declared& d) {
    out_->static_shared = RoundUp(out_->static_shared, d.align);
    outer_.symbols[std::string(d.name)] = {Where::kShared, out_->static_shared};
    out_->static_shared += d.bytes;
  }
  void AddGlobal(const Declared& d) {
    std::vector<uint64_t>& words = out_->globals[std::string(d.name)];
    words.assign(static_cast<size_t>(d.bytes + 7) / 8, 0);
    if (!d.values.empty()) {
      size_t i = 0;
      for (std::string_view value : SplitOperands(d.values.substr(1, d.values.rfind('}') - 1)))
        reinterpret_cast<uint8_t*>(words.data())[i++] = static_cast<uint8_t>(Number(value));
    }
    outer_.symbols[std::string(d.name)] = {Where::kAddress, reinterpret_cast<int64_t>(words.data())};
  }
  int64_t AddLocal(const Declared& d) {
    const int64_t at = RoundUp(out_->local_bytes, std::max<int64_t>(d.align, 8));
    out_->local_bytes = RoundUp(at + d.bytes, 16);
    return at;
  }

  // Statements of a body; calls stand in their place. prefix: of its labels, and where its end is one.
  void Body(std::string_view text, const std::string& prefix) {
    scopes_.emplace_back();
    size_t at = 0;
    while (true) {
      at = text.find_first_not_of(kBlanks, at);
      if (at == std::string_view::npos) break;
      if (text[at] == '{') {
        scopes_.emplace_back();
        ++at;
      } else if (text[at] == '}') {
        scopes_.pop_back();
        ++at;
      } else if (text.substr(at, 4) == ".loc" &&
                 kBlanks.find(text[at + 4]) != std::string_view::npos) {  // as long as its line
        const size_t end = text.find('\n', at);
        Location(Trimmed(text.substr(at + 4, end - at - 4)));
        at = end;
      } else {
        const size_t end = text.find_first_of(";:", at);
        const std::string_view statement = text.substr(at, end - at);
        line_ = text.data() + at;
        if (text[end] == ':' && text.substr(end, 2) != "::") {
          labels_[prefix + std::string(Trimmed(statement))] = static_cast<uint32_t>(out_->code.size());
          at = end + 1;
          continue;
        }
        const size_t semicolon = text.find(';', at);
        Statement(Trimmed(text.substr(at, semicolon - at)), prefix);
        at = semicolon + 1;
      }
    }
    scopes_.pop_back();
    if (!prefix.empty()) labels_[prefix + "end"] = static_cast<uint32_t>(out_->code.size());
  }

  void Statement(std::string_view s, const std::string& prefix) {
    if (s[0] == '.') return Directive(s);
    Instruction i;
    if (s[0] == '@') {
      const size_t end = s.find_first_of(kBlanks);
      i.guard = Operand(s.substr(1, end - 1), File::kPredicate);
      s = Trimmed(s.substr(end));
    }
    i.line = Line(), i.source = source_, i.source_line = source_line_;
    const size_t end = std::min(s.find_first_of(kBlanks), s.size());
    const std::string_view name = s.substr(0, end), rest = Trimmed(s.substr(end));
    i.name = name;
    Opcode op;
    for (size_t at = 0; at <= name.size();) {
      const size_t dot = std::min(name.find('.', at), name.size());
      if (dot > at) op.parts.push_back(name.substr(at, dot - at));
      at = dot + 1;
    }
    if (op.Is("call")) return Call(rest);
    if (op.Is("bra")) {
      jumps_.emplace_back(out_->code.size(), prefix + std::string(rest));
      i.kind = Kind::kBranch;
    } else if (op.Is("ret") || op.Is("exit")) {
      i.kind = prefix.empty() ? Kind::kExit : Kind::kBranch;
      if (!prefix.empty()) jumps_.emplace_back(out_->code.size(), prefix + "end");
    } else if ((op.Is("bar") || op.Is("barrier")) && !op.Has("warp")) {
      if (!op.Has("sync") || rest != "0") Stop("a barrier that is not the block's", s);
      i.kind = Kind::kBarrier;
    } else {
      Operands(op, rest, &i);
      i.run = Find(op, &i);
      if (i.run == nullptr) Stop("an instruction that is not known", s);
    }
    Emit(i);
  }

  static Handler Find(const Opcode& op, Instruction* i) {
    if (const Handler h = FindMove(op, *i)) return h;
    if (const Handler h = FindComparison(op)) return i->n_results == 1 ? h : nullptr;
    if (const Handler h = FindConversion(op, i)) return h;
    if (const Handler h = FindMemory(op, i)) return h;
    if (const Handler h = FindCopy(op, i)) return h;
    if (const Handler h = FindWarpOperation(op, i)) return h;
    return FindArithmetic(op);
  }

  // Of a file that is named at the end of the text, a line.
  void Location(std::string_view s) {
    const size_t blank = s.find(' ');
    source_ = static_cast<int>(Number(s.substr(0, blank)));
    source_line_ = static_cast<int>(Number(s.substr(blank + 1)));
    std::string& path = out_->sources[source_];
    if (!path.empty()) return;
    const size_t named = file_.find(".file\t" + std::to_string(source_) + " \"");
    if (named == std::string_view::npos) return;
    const size_t first = file_.find('"', named) + 1;
    path = std::string(file_.substr(first, file_.find('"', first) - first));
  }

  void Directive(std::string_view s) {
    if (Takes(&s, ".reg")) {
      const size_t end = s.find_first_of(kBlanks);
      const std::string_view type = s.substr(0, end);
      const File file = type == ".pred" ? File::kPredicate : BytesOf(type) == 8 ? File::k64 : File::k32;
      for (std::string_view name : SplitOperands(s.substr(end))) {
        const size_t angle = name.find('<');
        if (angle == std::string_view::npos) {
          scopes_.back().names[std::string(name)] = NewSlot(file, 1);
        } else {
          const auto n = static_cast<uint32_t>(Number(name.substr(angle + 1)));
          scopes_.back().ranges[std::string(name.substr(0, angle))] = {file, NewSlot(file, n).slot, n};
        }
      }
    } else if (Takes(&s, ".local") || Takes(&s, ".param")) {
      const Declared d = ParseDeclared(s);
      scopes_.back().symbols[std::string(d.name)] = {Where::kLocal, AddLocal(d)};
    } else if (s.substr(0, 7) != ".pragma" && s.substr(0, 7) != ".shared") {
      Stop("a directive that is not known", s);
    }
  }

  // (results), function, (parameters): its body, with their names for its own.
  void Call(std::string_view rest) {
    const std::vector<std::string_view> parts = SplitOperands(rest);
    if (parts.size() != 3) Stop("a call that is not known", rest);
    const std::string name(parts[1]);
    size_t header = 0, open = 0;
    while (true) {  // where it has a body
      header = file_.find(".func", header + 1);
      if (header == std::string_view::npos) Stop("a function that is not there", name);
      open = file_.find_first_of("{;", header);
      const std::string_view head = file_.substr(header, open - header);
      if (file_[open] == '{' && head.find(name + "(") != std::string_view::npos) break;
    }
    const std::string_view head = file_.substr(header, open - header);
    Scope aliases;
    const auto add = [&](std::string_view formal, std::string_view given) {
      const auto names = SplitOperands(formal), values = SplitOperands(given.substr(1, given.size() - 2));
      if (names.size() != values.size()) Stop("a call that does not fit its function", rest);
      for (size_t k = 0; k < names.size(); ++k) {
        std::string_view param = names[k];
        Takes(&param, ".param");
        aliases.symbols[std::string(ParseDeclared(param).name)] = *FindSymbol(values[k]);
      }
    };
    const size_t first = head.find('('), first_end = head.find(')', first);
    const size_t second = head.find('(', first_end), second_end = head.find(')', second);
    add(head.substr(first + 1, first_end - first - 1), parts[0]);
    add(head.substr(second + 1, second_end - second - 1), parts[2]);
    scopes_.push_back(aliases);
    Body(file_.substr(open + 1, EndOfBody(open) - open - 1), "call" + std::to_string(n_calls_++) + ":");
    scopes_.pop_back();
  }
  size_t EndOfBody(size_t open) const {
    int depth = 0;
    for (size_t at = open;; ++at) {
      if (file_[at] == '{') ++depth;
      if (file_[at] == '}' && --depth == 0) return at;
    }
  }

  // ---- operands ----

  void Operands(const Opcode& op, std::string_view rest, Instruction* i) {
    const std::vector<std::string_view> parts = SplitOperands(rest);
    for (size_t k = 0; k < parts.size(); ++k) {
      std::vector<std::string_view> each;
      const size_t bar = parts[k].find('|');
      if (parts[k][0] == '{') {
        each = SplitOperands(parts[k].substr(1, parts[k].size() - 2));
      } else if (bar != std::string_view::npos) {
        each = {Trimmed(parts[k].substr(0, bar)), Trimmed(parts[k].substr(bar + 1))};
      } else {
        each = {parts[k]};
      }
      if (k == 0) i->n_results = static_cast<int>(each.size());
      for (std::string_view one : each) {
        if (i->n_args == kMostArgs) Stop("an instruction with too many operands", rest);
        i->args[static_cast<size_t>(i->n_args++)] = Operand(one, FileOf(op, k));
      }
    }
  }
  // Of a number that stands as operand k.
  static File FileOf(const Opcode& op, size_t k) {
    const std::string_view type = op.Type();
    if (op.Is("vote") && k == 2) return File::k32;  // lanes
    if (type == "pred") return File::kPredicate;
    const bool is_64 = type.size() == 3 && type.substr(1) == "64";
    if ((op.Is("shl") || op.Is("shr")) && k == 2) return File::k32;
    if (op.Is("bfi") && k >= 3) return File::k32;
    if (op.Is("mad") && op.Has("wide")) return k == 3 ? File::k64 : File::k32;
    return is_64 ? File::k64 : File::k32;
  }

  Arg Operand(std::string_view s, File file) {
    if (s[0] == '[') {
      s = Trimmed(s.substr(1, s.size() - 2));
      const size_t plus = s.find('+');
      Arg base = Operand(Trimmed(s.substr(0, plus)), File::k64);
      if (plus != std::string_view::npos)
        base.offset = static_cast<int32_t>(Number(Trimmed(s.substr(plus + 1))));
      return base;
    }
    if (s[0] == '!') {
      Arg a = Operand(s.substr(1), file);
      a.negated = true;
      return a;
    }
    if (s[0] == '%') return Register(s);
    if (s[0] == '-' || (s[0] >= '0' && s[0] <= '9')) return Immediate(s, file);
    const Symbol* symbol = FindSymbol(s);
    if (symbol == nullptr) {
      const Arg* name = FindName(s);
      if (name == nullptr) Stop("a name that is not known", s);
      return *name;
    }
    return NewConstant(file, static_cast<uint64_t>(symbol->at), symbol->where == Where::kLocal);
  }
  Arg Immediate(std::string_view s, File file) {
    uint64_t value = 0;
    if (s.substr(0, 2) == "0f" || s.substr(0, 2) == "0F" || s.substr(0, 2) == "0d" ||
        s.substr(0, 2) == "0D") {
      value = std::strtoull(std::string(s.substr(2)).c_str(), nullptr, 16);
    } else if (s[0] == '-') {
      value = static_cast<uint64_t>(Number(s));
    } else {
      value = std::strtoull(std::string(s).c_str(), nullptr, 0);
    }
    if (file == File::kPredicate) value = value != 0 ? kAll : 0;
    return NewConstant(file, file == File::k64 ? value : value & 0xffffffffu, false);
  }
  Arg Register(std::string_view s) {
    if (const Arg* name = FindName(s)) return *name;
    const size_t digits = s.find_last_not_of("0123456789") + 1;
    for (size_t k = scopes_.size(); k-- > 0;) {
      const auto range = scopes_[k].ranges.find(s.substr(0, digits));
      if (range == scopes_[k].ranges.end()) continue;
      Arg a;
      a.file = range->second.file;
      a.slot = range->second.first + static_cast<uint32_t>(Number(s.substr(digits)));
      return a;
    }
    return SpecialRegister(s);
  }
  Arg SpecialRegister(std::string_view s) {
    static constexpr std::string_view kNames[] = {"%tid.", "%ntid.", "%ctaid.", "%nctaid."};
    for (int which = 0; which < 4; ++which) {
      if (s.substr(0, s.size() - 1) != kNames[which]) continue;
      const int axis = s.back() - 'x';
      for (const Special& known : out_->specials) {
        if (known.which != which || known.axis != axis) continue;
        Arg a;
        a.file = File::k32, a.slot = known.slot;
        return a;
      }
      const Arg a = NewSlot(File::k32, 1);
      out_->specials.push_back({a.slot, which, axis});
      return a;
    }
    Stop("a register that is not known", s);
  }
  const Arg* FindName(std::string_view s) const {
    for (size_t k = scopes_.size(); k-- > 0;) {
      const auto it = scopes_[k].names.find(s);
      if (it != scopes_[k].names.end()) return &it->second;
    }
    return nullptr;
  }
  const Symbol* FindSymbol(std::string_view s) const {
    for (size_t k = scopes_.size(); k-- > 0;) {
      const auto it = scopes_[k].symbols.find(s);
      if (it != scopes_[k].symbols.end()) return &it->second;
    }
    const auto it = outer_.symbols.find(s);
    return it == outer_.symbols.end() ? nullptr : &it->second;
  }
  Arg NewSlot(File file, uint32_t n) {
    uint32_t& next = file == File::k64 ? out_->n64 : file == File::k32 ? out_->n32 : out_->n_predicates;
    Arg a;
    a.file = file, a.slot = next;
    next += n;
    return a;
  }
  Arg NewConstant(File file, uint64_t value, bool local) {
    for (const Constant& known : out_->constants) {
      if (known.arg.file == file && known.value == value && known.local == local) return known.arg;
    }
    const Arg a = NewSlot(file, 1);
    out_->constants.push_back({a, value, local});
    return a;
  }

  void Emit(const Instruction& i) { out_->code.push_back(i); }
  int Line() {  // of the file; statements mostly follow each other
    if (line_ < counted_to_) counted_to_ = file_.data(), n_lines_ = 1;
    for (; counted_to_ < line_; ++counted_to_) n_lines_ += *counted_to_ == '\n' ? 1 : 0;
    return n_lines_;
  }

  const std::string_view file_;
  Program* const out_;
  Scope outer_;
  std::vector<Scope> scopes_;
  std::map<std::string, uint32_t> labels_;
  std::vector<std::pair<size_t, std::string>> jumps_;
  const char *line_ = nullptr, *counted_to_ = file_.data();
  int n_lines_ = 1, n_calls_ = 0, source_ = 0, source_line_ = 0;
};

}  // namespace

std::unique_ptr<Program> Decode(std::string_view file, size_t begin, size_t end) {
  auto program = std::make_unique<Program>();
  Decoder(file, program.get()).Kernel(file.substr(begin, end - begin));
  return program;
}

}  // namespace kvc::emu::ptx
