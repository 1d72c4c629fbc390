// The page of kvc report: one HTML document with everything in it, for light and dark, without scripts. It is
// well-formed XML too.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvc::tool {

// A policy at one budget, over all tasks.
struct ReportPoint {
  std::string spec;
  double cache_bytes = 0, share = 0, slots = 0;  // means; share of the full cache's bytes
  double accuracy = 0, low = 0, high = 1, kl = 0, prefill_seconds = 0, step_seconds = 0;
};

// Accuracy by depth of the answer in the context and by its length. A cell below 0 had no question.
struct NeedleGrid {
  std::string spec;
  std::vector<std::string> rows;  // lengths
  int n_columns = 0;              // depths, equal parts of the context
  std::vector<double> accuracy;   // [row][column]
  std::vector<int64_t> counts;    // questions, [row][column]
};

struct KeptPiece {
  std::string text;
  double share = 0;        // of all KV heads that keep it
  bool is_wanted = false;  // part of a fact that is asked for
};
// One context under one policy.
struct KeptContext {
  std::string spec;
  int n_layers = 0, n_heads = 0;
  std::vector<double> slots;  // kept of each head, [layer][KV head]
  std::vector<KeptPiece> pieces;
};

struct ReportSeries {
  std::string name;  // of the policy, without its budget
  std::vector<ReportPoint> points;
};

struct Report {
  std::string title, summary;
  std::vector<std::pair<std::string, std::string>> facts;  // model, data, machine: a name and what it is
  ReportPoint full;
  std::vector<ReportSeries> series;
  std::vector<NeedleGrid> grids;
  std::vector<KeptContext> contexts;
  std::vector<std::pair<std::string, std::vector<double>>> head_scores;  // by table, [layer][head]
  int n_layers = 0;
  std::string command;  // that makes it again
};

std::string ReportHtml(const Report& report);

}  // namespace kvc::tool
