#include "tools/score/svg.h"

#include <algorithm>
#include <cmath>

#include "tools/output.h"

namespace kvc::tool {
namespace {

constexpr double kWidth = 760, kLeft = 72, kRight = 140, kTop = 34;
constexpr int kColours = 6, kMostTicks = 20;

// Heat is the opacity of one colour, so that a cell reads the same on light and dark ground.
constexpr const char* kStyle =
    "text{font:12px "
    "system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}.small{font-size:10px}"
    ".ground{fill:#ffffff}.cell{fill:#0b5cad}.frame{fill:none;stroke:#8b949e;stroke-width:1}"
    ".grid{stroke:#d8dee4;stroke-width:1}.mark{stroke:#8b949e;stroke-width:1.5;stroke-dasharray:5 4}"
    ".line{fill:none;stroke-width:2}.on{fill:#ffffff}"
    ".s0{stroke:#0b5cad}.s1{stroke:#b3530b}.s2{stroke:#1a7f37}.s3{stroke:#8250df}.s4{stroke:#bf3989}.s5{"
    "stroke:#57606a}"
    "@media "
    "(prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}.cell{fill:#58a6ff}.grid{stroke:#"
    "30363d}"
    ".on{fill:#0d1117}.s0{stroke:#58a6ff}.s1{stroke:#f0883e}.s2{stroke:#3fb950}.s3{stroke:#bc8cff}.s4{stroke:"
    "#f778ba}"
    ".s5{stroke:#8b949e}}";

std::string Label(double x, double y, const std::string& text, const char* anchor = "start",
                  const char* style = "") {
  return Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y, anchor,
                style, EscapeXml(text).c_str());
}

std::string Number(double value) { return Format("%.3g", value); }

// A name beside a chart, where there is room for some letters: policies go on a line further behind a colon
// or a comma.
std::vector<std::string> NameLines(const std::string& name) {
  constexpr size_t kLetters = 17;
  std::vector<std::string> lines(1);
  for (size_t at = 0; at < name.size();) {
    const size_t end = name.find_first_of(":,", at), n = std::min(end, name.size() - 1) + 1 - at;
    if (!lines.back().empty() && lines.back().size() + n > kLetters) lines.emplace_back();
    lines.back() += name.substr(at, n);
    at += n;
  }
  return lines;
}

// A round step that cuts the range into about n parts.
double RoundStep(double range, int n) {
  const double raw = std::max(range, 1e-12) / n, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

struct Range {
  double low = 0, high = 1;
};

Range RangeOf(const std::vector<Series>& series, bool of_x, double also) {
  Range range{INFINITY, -INFINITY};
  for (const Series& s : series) {
    for (const double v : of_x ? s.x : s.y)
      range.low = std::min(range.low, v), range.high = std::max(range.high, v);
  }
  if (!of_x) {
    range.low = std::min(range.low, 0.0), range.high = std::max(range.high, also);
  }
  if (range.high <= range.low) range.high = range.low + 1;
  return range;
}

std::string Cell(const HeatMap& map, int row, int column, double x, double y, double w, double h,
                 Range range) {
  const double value = map.values[static_cast<size_t>(row * map.n_columns + column)];
  const double share = (value - range.low) / (range.high - range.low);
  const std::string shown = map.whole_numbers ? Format("%.0f", value) : Number(value);
  std::string text = Format(
      "<rect class=\"cell\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
      "fill-opacity=\"%.3f\"><title>%s %d, %s %d: %s%s</title></rect>\n",
      x, y, std::max(w - 1, 0.8 * w), h - 1, 0.05 + 0.95 * share, map.row_name.c_str(), row,
      map.column_name.c_str(), column, shown.c_str(), map.unit.c_str());
  if (w >= 40) text += Label(x + w / 2, y + h / 2 + 4, shown, "middle", share > 0.55 ? "small on" : "small");
  return text;
}

}  // namespace

std::string EscapeXml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (byte >= 0x20)
      out += c;  // other control characters are not allowed in XML
  }
  return out;
}

void SvgPage::Title(const std::string& text) { body_ += Label(16, height_ + 16, text, "start", "title"); }

void SvgPage::Add(const HeatMap& map) {
  Title(map.title);
  const double w = std::min(64.0, (kWidth - kLeft - kRight) / map.n_columns);
  const double h = std::clamp(360.0 / map.n_rows, 8.0, 26.0), top = height_ + kTop;
  const auto [low, high] = std::minmax_element(map.values.begin(), map.values.end());
  const Range range{*low, *high > *low ? *high : *low + 1};
  const int row_step = h >= 14 ? 1 : 4, column_step = w >= 18 ? 1 : 8;
  for (int row = 0; row < map.n_rows; ++row) {
    const double y = top + row * h;
    if (row % row_step == 0) body_ += Label(kLeft - 8, y + h / 2 + 4, std::to_string(row), "end", "small");
    for (int column = 0; column < map.n_columns; ++column)
      body_ += Cell(map, row, column, kLeft + column * w, y, w, h, range);
  }
  const double bottom = top + map.n_rows * h, right = kLeft + map.n_columns * w;
  for (int column = 0; column < map.n_columns; column += column_step) {
    body_ += Label(kLeft + (column + 0.5) * w, bottom + 13, std::to_string(column), "middle", "small");
  }
  body_ += Label(16, top - 6, map.row_name, "start", "small") +
           Label(right + 8, bottom + 13, map.column_name, "start", "small");
  for (int i = 0; i <= 4; ++i) {
    const double share = 1 - i / 4.0, y = top + i * 20;
    body_ += Format(
        "<rect class=\"cell\" x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"19\" fill-opacity=\"%.3f\"/>\n",
        right + 24, y, 0.05 + 0.95 * share);
    body_ += Label(right + 46, y + 14, Number(range.low + share * (range.high - range.low)) + map.unit,
                   "start", "small");
  }
  height_ = std::max(bottom, top + 104) + 34;
}

void SvgPage::Add(const LineChart& chart) {
  const bool has_points =
      std::any_of(chart.series.begin(), chart.series.end(), [](const Series& s) { return !s.x.empty(); });
  if (!has_points) return;
  Title(chart.title);
  const Range xs = RangeOf(chart.series, true, 0), ys = RangeOf(chart.series, false, chart.mark * 1.2);
  const double top = height_ + kTop, plot_height = 200, bottom = top + plot_height, right = kWidth - kRight;
  const auto x_at = [&](double x) {
    const double share = chart.x_is_bytes ? std::log(x / xs.low) / std::log(xs.high / xs.low)
                                          : (x - xs.low) / (xs.high - xs.low);
    return kLeft + share * (right - kLeft);
  };
  const auto y_at = [&](double y) { return bottom - (y - ys.low) / (ys.high - ys.low) * plot_height; };
  const double y_step = RoundStep(ys.high - ys.low, 5), x_step = RoundStep(xs.high - xs.low, 8);
  // Counted, because adding a small step to a large number may not change it.
  const double y_first = std::ceil(ys.low / y_step), x_first = std::ceil(xs.low / x_step);
  for (int i = 0; i <= kMostTicks && (y_first + i) * y_step <= ys.high + 1e-9; ++i) {
    const double y = (y_first + i) * y_step;
    body_ += Format("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", kLeft, right,
                    y_at(y), y_at(y));
    body_ += Label(kLeft - 8, y_at(y) + 4, Number(std::fabs(y) < 1e-12 ? 0 : y), "end", "small");
  }
  for (int i = 0; !chart.x_is_bytes && i <= kMostTicks && (x_first + i) * x_step <= xs.high + 1e-9; ++i) {
    const double x = (x_first + i) * x_step;
    body_ += Label(x_at(x), bottom + 14, Number(x), "middle", "small");
  }
  for (double x = std::exp2(std::ceil(std::log2(xs.low))); chart.x_is_bytes && x <= xs.high; x *= 2)
    body_ += Label(x_at(x), bottom + 14, FormatBytes(static_cast<int64_t>(x)), "middle", "small");
  body_ += Format("<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", kLeft,
                  top, right - kLeft, plot_height);
  if (chart.mark > 0) {
    body_ += Format("<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", kLeft, right,
                    y_at(chart.mark), y_at(chart.mark));
    body_ += Label(right - 4, y_at(chart.mark) - 4, chart.mark_name, "end", "small");
  }
  double legend = top + 12;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& s = chart.series[i];
    const int colour = static_cast<int>(i) % kColours;
    std::string points;
    for (size_t k = 0; k < s.x.size(); ++k) points += Format("%.1f,%.1f ", x_at(s.x[k]), y_at(s.y[k]));
    if (!chart.is_scatter)
      body_ += Format("<polyline class=\"line s%d\" points=\"%s\"/>\n", colour, points.c_str());
    const bool dots = chart.x_is_bytes || chart.is_scatter;  // a series may have a single point
    for (size_t k = 0; dots && k < s.x.size(); ++k)
      body_ += Format("<circle class=\"line s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", colour, x_at(s.x[k]),
                      y_at(s.y[k]));
    body_ += Format("<line class=\"line s%d\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", colour,
                    right + 8, right + 24, legend - 4, legend - 4);
    for (const std::string& line : NameLines(s.name)) {
      body_ += Label(right + 28, legend, line, "start", "small");
      legend += 12;
    }
    legend += 4;
  }
  body_ += Label((kLeft + right) / 2, bottom + 28, chart.x_name, "middle", "small") +
           Label(16, top - 6, chart.y_name, "start", "small");
  height_ = std::max(bottom, legend - 12) + 46;
}

std::string SvgPage::Text() const {
  return Format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
             "%.0f\">\n<style>",
             kWidth, height_, kWidth, height_) +
         kStyle + "</style>\n" +
         Format("<rect class=\"ground\" x=\"0\" y=\"0\" width=\"%.0f\" height=\"%.0f\"/>\n", kWidth,
                height_) +
         body_ + "</svg>\n";
}

}  // namespace kvc::tool
