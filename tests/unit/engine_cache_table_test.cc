// The table of docs/first-hour.md: what caches of published models take, by arithmetic and as the engine
// plans them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/cache_plan.h"

namespace kvc {
namespace {

constexpr int64_t kContexts[] = {8192, 32768, 131072};
constexpr int32_t kBudget = 1024;

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

// 131,072
int64_t Number(const std::string& text) {
  std::string digits;
  for (const char c : text)
    if (c != ',') digits += c;
  return std::strtoll(digits.c_str(), nullptr, 10);
}

// "34, of which 29 see 1,024 tokens": 29 and 1024; nothing: zeros.
void ReadWindows(const std::string& text, int32_t* n_layers, int32_t* window) {
  const size_t of = text.find(", of which "), see = text.find(" see ");
  *n_layers = of == std::string::npos ? 0 : static_cast<int32_t>(Number(text.substr(of + 11, see - of - 11)));
  *window = of == std::string::npos ? 0 : static_cast<int32_t>(Number(text.substr(see + 5)));
}

struct Row {
  std::string name;
  ModelConfig config;
  int32_t n_windows = 0, window = 0;
  std::vector<std::string> cells;  // after kContexts, and with kBudget
};

std::vector<Row> ReadRows() {
  std::ifstream file(KVC_SOURCE_DIR "/docs/first-hour.md");
  std::vector<Row> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| model | trained for | layers | KV heads | head size | 8k | 32k | 128k | 1,024 ", 0) ==
        0) {
      inside = true;
      continue;
    }
    if (!inside || line.rfind("|--", 0) == 0) continue;
    if (line.rfind("|", 0) != 0) break;
    std::vector<std::string> cells;
    for (size_t at = 1, end; (end = line.find('|', at)) != std::string::npos; at = end + 1)
      cells.push_back(Trimmed(line.substr(at, end - at)));
    if (cells.size() != 9) return {};
    Row row;
    row.name = cells[0];
    row.config.max_tokens = static_cast<int32_t>(Number(cells[1]));
    row.config.n_layers = std::atoi(cells[2].c_str());
    row.config.n_kv_heads = row.config.n_heads = static_cast<int32_t>(Number(cells[3]));
    row.config.head_dim = static_cast<int32_t>(Number(cells[4]));
    ReadWindows(cells[2], &row.n_windows, &row.window);
    row.cells.assign(cells.begin() + 5, cells.end());
    rows.push_back(row);
  }
  return rows;
}

// Of entries of `bytes` each.
int64_t Arithmetic(const Row& row, int64_t bytes, int64_t n_tokens) {
  const ModelConfig& c = row.config;
  const int64_t of_windows = row.n_windows * std::min<int64_t>(n_tokens, row.window);
  return bytes * c.n_kv_heads * ((c.n_layers - row.n_windows) * n_tokens + of_windows);
}

// The number as far as the cell shows it.
void ExpectShown(const Row& row, std::string cell, int64_t n_bytes, bool beyond) {
  EXPECT_EQ(cell.front() == '(', beyond) << row.name << ": " << cell;
  if (beyond) cell = cell.substr(1, cell.size() - 2);
  const size_t blank = cell.find(' '), point = cell.find('.');
  ASSERT_NE(blank, std::string::npos) << cell;
  const std::string unit = cell.substr(blank + 1);
  ASSERT_TRUE(unit == "MiB" || unit == "GiB") << cell;
  const double shown = std::strtod(cell.c_str(), nullptr);
  const double exact = static_cast<double>(n_bytes) / (unit == "MiB" ? 1 << 20 : 1 << 30);
  const double last =
      point == std::string::npos ? 1 : std::pow(10.0, -static_cast<double>(blank - point - 1));
  EXPECT_LE(std::fabs(shown - exact), last / 2) << row.name << ": " << cell << " for " << exact;
  EXPECT_LT(exact, unit == "MiB" ? 1024 : 1e6) << row.name << ": " << cell;
}

TEST(CacheTable, IsTheArithmeticOfItsShapes) {
  const std::vector<Row> rows = ReadRows();
  ASSERT_GE(rows.size(), 8u);
  for (const Row& row : rows) {
    const int64_t entry = 2 * row.config.head_dim * 2;  // keys and values of two bytes
    for (size_t i = 0; i < std::size(kContexts); ++i) {
      ExpectShown(row, row.cells[i], Arithmetic(row, entry, kContexts[i]),
                  kContexts[i] > row.config.max_tokens);
    }
    ExpectShown(row, row.cells.back(), Arithmetic(row, entry, kBudget), false);
  }
}

// Four bytes more for each entry, as the page says; in layers with a window some entries more than it shows.
TEST(CacheTable, IsWhatTheEnginePlans) {
  const std::vector<Row> rows = ReadRows();
  ASSERT_FALSE(rows.empty());
  for (const Row& row : rows) {
    ModelConfig config = row.config;
    config.hidden_size = config.n_heads * config.head_dim;
    config.ffn_size = 64, config.vocab_size = 64;
    for (int32_t i = 0; i < row.n_windows; ++i) {
      config.layers.resize(static_cast<size_t>(config.n_layers));
      config.layers[static_cast<size_t>(i)].attention_window = row.window;
    }
    const int64_t entry = 4 * config.head_dim + 4;
    for (const int64_t n_tokens : kContexts) {
      config.max_tokens = static_cast<int32_t>(n_tokens);
      const Result<int64_t> full = CacheBytesAfterPrompt(config, "full", static_cast<int32_t>(n_tokens));
      const Result<int64_t> kept =
          CacheBytesAfterPrompt(config, "snapkv:budget=1024", static_cast<int32_t>(n_tokens));
      ASSERT_TRUE(full.ok() && kept.ok()) << row.name;
      const int64_t slack = entry * config.n_kv_heads * row.n_windows * 256;
      for (const auto& [planned, least] : {std::pair{full.value(), Arithmetic(row, entry, n_tokens)},
                                           std::pair{kept.value(), Arithmetic(row, entry, kBudget)}}) {
        EXPECT_GE(planned, least) << row.name << " " << n_tokens;
        EXPECT_LE(planned, least + slack) << row.name << " " << n_tokens;
      }
    }
  }
}

}  // namespace
}  // namespace kvc
