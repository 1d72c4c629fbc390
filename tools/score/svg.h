// Plain SVG for measurements: heat maps and line charts, stacked. Colours come from one style sheet that
// follows the reader's light or dark setting; no fonts or files from elsewhere.
#pragma once
#include <string>
#include <vector>

namespace kvc::tool {

std::string EscapeXml(const std::string& text);

struct HeatMap {
  std::string title, row_name, column_name, unit;
  int n_rows = 0, n_columns = 0;
  std::vector<double> values;  // [row][column]
  bool whole_numbers = false;
};

struct Series {
  std::string name;
  std::vector<double> x, y;
};

struct LineChart {
  std::string title, x_name, y_name;
  std::vector<Series> series;
  double mark = 0;  // a dashed level; 0 = none
  std::string mark_name;
  bool x_is_bytes = false;  // x above 0, on a logarithmic scale
  bool is_scatter = false;  // points without lines
};

class SvgPage {
 public:
  void Add(const HeatMap& map);
  void Add(const LineChart& chart);  // a chart without points is left out
  bool empty() const { return body_.empty(); }
  std::string Text() const;  // the whole document

 private:
  void Title(const std::string& text);
  std::string body_;
  double height_ = 16;
};

}  // namespace kvc::tool
