#include "tools/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "tools/failure.h"

namespace kvc::tool {

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void PrintJson(const Json& document) {
  Print(document.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

void FlushOutput() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw OutputFailure("could not write all of the output");
}

void Complain(const std::string& text) { Note("kvc: " + text); }

void Note(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", Printable(text, /*keep_lines=*/true).c_str());
}

std::string Format(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int size = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string text(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  if (size > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

// Three significant digits.
static std::string Short(double value) {
  return Format(value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
}

std::string FormatBytes(int64_t n_bytes) {
  if (n_bytes < 1024) return Format("%lld B", static_cast<long long>(n_bytes));
  double value = static_cast<double>(n_bytes) / 1024;
  const char* unit = "KiB";
  for (const char* next : {"MiB", "GiB", "TiB"}) {
    if (value < 999.5) break;
    value /= 1024;
    unit = next;
  }
  return Short(value) + " " + unit;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1e-3) return Format("%.0f us", seconds * 1e6);
  if (seconds < 1) return Short(seconds * 1e3) + " ms";
  return Short(seconds) + " s";
}

std::string FormatPercent(double share) { return Format("%.1f %%", share * 100); }

std::string FormatCount(int64_t count) {
  std::string text = std::to_string(count);
  const int first = text[0] == '-' ? 1 : 0;
  for (int i = static_cast<int>(text.size()) - 3; i > first; i -= 3)
    text.insert(static_cast<size_t>(i), 1, ',');
  return text;
}

std::string Counted(int64_t count, const char* one, const char* more) {
  return FormatCount(count) + " " + (count == 1 ? one : more);
}

std::string FormatParameters(int64_t count) {
  if (count < 1000) return std::to_string(count);
  if (count < 1000000) return Format("%.1f K", static_cast<double>(count) / 1e3);
  if (count < 1000000000) return Format("%.1f M", static_cast<double>(count) / 1e6);
  return Format("%.1f B", static_cast<double>(count) / 1e9);
}

double Ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

int TextWidth(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<std::string> WrapLines(const std::string& text, int width) {
  std::vector<std::string> lines;
  std::string line, word;
  const auto end_word = [&] {
    if (!line.empty() && TextWidth(line) + 1 + TextWidth(word) > width) {
      lines.push_back(line);
      line.clear();
    }
    if (!word.empty()) line += (line.empty() ? "" : " ") + word;
    word.clear();
  };
  for (const char c : text + " ") {
    const bool starts_character = (c & 0xc0) != 0x80;
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      end_word();
      continue;
    }
    if (starts_character && TextWidth(word) >= std::max(width, 1)) end_word();
    word += c;
  }
  if (!line.empty() || lines.empty()) lines.push_back(line);
  return lines;
}

int OutputWidth() {
  winsize size = {};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::max<int>(size.ws_col, 40) : 100;
}

// Steps of inserting, removing, replacing a letter or swapping two neighbours.
static int EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      int& at = d[i][j];
      at = static_cast<int>(i == 0 ? j : j == 0 ? i : 0);
      if (i == 0 || j == 0) continue;
      at = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at = std::min(at, d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string Nearest(const std::string& word, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 64;  // nobody mistypes more than that
  std::string nearest;
  int least = 1 + std::max(word.size() > 3 ? 2 : 1, static_cast<int>(word.size()) / 3);
  if (word.size() > kLongest) return nearest;
  for (const std::string& candidate : known) {
    const bool begins = word.size() >= 3 && candidate.compare(0, word.size(), word) == 0;
    const int distance = begins ? 0 : EditDistance(word, candidate);
    if (distance < least) least = distance, nearest = candidate;
  }
  return nearest;
}

Table::Table(std::vector<std::string> head, std::string align)
    : head_(std::move(head)), align_(std::move(align)) {
  for (std::string& cell : head_) cell = Printable(cell);
}

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  cells.resize(head_.size());
  rows_.push_back(std::move(cells));
}

void Table::AddRule() { rows_.emplace_back(); }

// Widths of the columns; those that wrap give way, the widest first, until a line fits.
std::vector<int> Table::Widths(int room) const {
  constexpr int kNarrowest = 12;
  std::vector<int> widths(head_.size(), 0);
  const auto widen = [&](const std::vector<std::string>& row) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], TextWidth(row[c]));
  };
  widen(head_);
  for (const auto& row : rows_) widen(row);
  int total = 2 * (static_cast<int>(widths.size()) - 1);
  for (const int width : widths) total += width;
  for (; total > room; --total) {
    int* widest = nullptr;
    for (size_t c = 0; c < widths.size(); ++c) {
      if (align_[c] == 'w' && (widest == nullptr || widths[c] > *widest)) widest = &widths[c];
    }
    if (widest == nullptr || *widest <= kNarrowest) break;
    --*widest;
  }
  return widths;
}

std::string Table::Text(const std::string& indent) const {
  const std::vector<int> widths = Widths(OutputWidth() - TextWidth(indent));
  const auto line = [&](const std::vector<std::string>& row) {
    std::string out = indent;
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string pad(static_cast<size_t>(std::max(0, widths[c] - TextWidth(row[c]))), ' ');
      out += align_[c] == 'r' ? pad + row[c] : row[c] + pad;
      if (c + 1 < widths.size()) out += "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  const auto lines = [&](const std::vector<std::string>& row) {
    std::string out;
    std::vector<std::vector<std::string>> parts(row.size());
    size_t n_lines = 1;
    for (size_t c = 0; c < row.size(); ++c) {
      parts[c] = align_[c] == 'w' ? WrapLines(row[c], widths[c]) : std::vector<std::string>{row[c]};
      n_lines = std::max(n_lines, parts[c].size());
    }
    for (size_t i = 0; i < n_lines; ++i) {
      std::vector<std::string> cells;
      for (const auto& part : parts) cells.push_back(i < part.size() ? part[i] : "");
      out += line(cells);
    }
    return out;
  };
  std::string rule = indent;
  for (size_t c = 0; c < widths.size(); ++c) {
    rule += std::string(static_cast<size_t>(widths[c]), '-') + (c + 1 < widths.size() ? "  " : "\n");
  }
  const bool has_head =
      std::any_of(head_.begin(), head_.end(), [](const std::string& cell) { return !cell.empty(); });
  std::string text = has_head ? line(head_) + rule : "";
  for (const auto& row : rows_) text += row.empty() ? rule : lines(row);
  return text;
}

Progress::Progress(const std::string& label)
    : label_(Printable(label)), visible_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { Clear(); }

void Progress::Update(double done, double total, const std::string& detail) {
  if (!visible_) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  std::fprintf(stderr, "\r\033[K%s %3.0f %%  %s", label_.c_str(), 100 * std::min(1.0, Ratio(done, total)),
               detail.c_str());
  std::fflush(stderr);
}

void Progress::Clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

}  // namespace kvc::tool
