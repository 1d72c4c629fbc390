// How the program talks: results on stdout (tables for people or one JSON document), everything else on
// stderr.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/convert/printable.h"

namespace kvc::tool {

using Json = nlohmann::ordered_json;  // keys in the order they are written: easier to read

void Print(const std::string& text);     // stdout
void PrintJson(const Json& document);    // stdout, one document; bytes that are no UTF-8 become U+FFFD
void FlushOutput();                      // throws Failure when stdout could not take everything
void Complain(const std::string& text);  // "kvc: text" on stderr
void Note(const std::string& text);      // a line on stderr, for people

// printf into a string.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));

std::string FormatBytes(int64_t n_bytes);     // "512 B", "1.50 KiB", "20.0 MiB"
std::string FormatSeconds(double seconds);    // "0.84 ms", "153 ms", "2.31 s"
std::string FormatPercent(double share);      // 0.0712 -> "7.1 %"
std::string FormatCount(int64_t count);       // 5242880 -> "5,242,880"
std::string FormatParameters(int64_t count);  // 5242880 -> "5.2 M"
// "1 policy", "2 policies", "1,024 tasks".
std::string Counted(int64_t count, const char* one, const char* more);
double Ratio(double part, double whole);  // part / whole, 0 when whole is 0
int TextWidth(const std::string& text);   // columns of UTF-8 text: one per code point

// Words of the text on lines of at most `width` columns; a longer word is broken.
std::vector<std::string> WrapLines(const std::string& text, int width);
int OutputWidth();  // columns of the terminal that stdout is; else 100

// The one of `known` that a mistyped word was perhaps meant to be; empty: none is near.
std::string Nearest(const std::string& word, const std::vector<std::string>& known);

// A table with aligned columns, two spaces between them and a rule below the head. A head of empty cells is
// left out.
class Table {
 public:
  // align: one letter a column: 'l', 'r', or 'w' for left and wrapped where lines would pass OutputWidth().
  Table(std::vector<std::string> head, std::string align);
  void AddRow(std::vector<std::string> cells);
  void AddRule();
  std::string Text(const std::string& indent = "") const;

 private:
  std::vector<int> Widths(int room) const;
  std::vector<std::string> head_;
  std::string align_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

// One line on stderr that is rewritten as work goes on; silent when stderr is no terminal.
class Progress {
 public:
  explicit Progress(const std::string& label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void Update(double done, double total, const std::string& detail = "");  // at most ten times a second
  void Clear();

 private:
  std::string label_;
  bool visible_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace kvc::tool
