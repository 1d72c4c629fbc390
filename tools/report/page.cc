#include "tools/report/page.h"

#include <algorithm>

#include "tools/output.h"
#include "tools/score/svg.h"
#include "tools/suite/utf8.h"

namespace kvc::tool {
namespace {

constexpr const char* kStyle =
    ":root{color-scheme:light "
    "dark;--ink:#1f2328;--ground:#ffffff;--soft:#57606a;--line:#d8dee4;--heat:11,92,173;"
    "--want:#b3530b}"
    "@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--ground:#0d1117;--soft:#9da7b3;--line:#30363d;"
    "--heat:88,166,255;--want:#f0883e}}"
    "body{margin:0 auto;max-width:64rem;padding:1.5rem;background:var(--ground);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}"
    "h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.2rem;margin:2.2rem 0 .5rem}p{max-width:48rem}"
    ".soft{color:var(--soft)}svg{max-width:100%;height:auto;display:block}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.6rem 0}"
    "th,td{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}"
    "th{font-weight:600}th:first-child,td:first-child{text-align:left}"
    ".wide{overflow-x:auto}.grid td,.grid th{text-align:center}.grid td{min-width:3.4rem}"
    ".text{font:14px/1.7 ui-serif,Georgia,serif;white-space:pre-wrap;overflow-wrap:anywhere;max-width:54rem}"
    ".text b{font-weight:inherit;text-decoration:underline 2px;text-decoration-color:var(--want);"
    "text-underline-offset:3px}"
    "summary{cursor:pointer;font-weight:600;margin:.5rem 0}code,pre{font:13px ui-monospace,monospace}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere}dl{display:grid;grid-template-columns:max-content 1fr;"
    "gap:.1rem 1rem;margin:.8rem 0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}";

using Cells = std::vector<std::string>;

// What is no UTF-8, or no character of XML, becomes U+FFFD.
std::string Sound(const std::string& text) {
  std::u32string points = CodePoints(text);
  for (char32_t& c : points) c = (c >= 0xd800 && c < 0xe000) || c == 0xfffe || c == 0xffff ? 0xfffd : c;
  return Utf8(points);
}

// Text of a document; ends of lines stay, other control characters go.
std::string Escaped(const std::string& raw) {
  const std::string text = Sound(raw);
  std::string out;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    out += EscapeXml(text.substr(begin, end - begin)) + "\n";
  return out + EscapeXml(text.substr(begin));
}

std::string Row(const Cells& cells, const char* tag) {
  std::string row = "<tr>";
  for (const std::string& cell : cells)
    row += std::string("<") + tag + ">" + Escaped(cell) + "</" + tag + ">";
  return row + "</tr>\n";
}

std::string Heading(const std::string& text) { return "<h2>" + Escaped(text) + "</h2>\n"; }

std::string Picture(const LineChart& chart) {
  SvgPage page;
  page.Add(chart);
  return page.empty() ? "" : page.Text();
}

template <typename Value>
LineChart Curve(const Report& report, const char* title, const char* y_name, Value value) {
  LineChart chart;
  chart.title = title, chart.x_name = "bytes of the cache after the prompt", chart.y_name = y_name;
  chart.x_is_bytes = true;
  for (const ReportSeries& own : report.series) {
    Series series{Sound(own.name), {}, {}};
    for (const ReportPoint& point : own.points) {
      series.x.push_back(point.cache_bytes);
      series.y.push_back(value(point));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Cells PointCells(const ReportPoint& point) {
  return {point.spec,
          Format("%.1f", point.slots),
          FormatBytes(static_cast<int64_t>(point.cache_bytes)),
          FormatPercent(point.share),
          FormatPercent(point.accuracy),
          Format("%.0f - %.0f %%", 100 * point.low, 100 * point.high),
          Format("%.4f", point.kl),
          FormatSeconds(point.prefill_seconds),
          FormatSeconds(point.step_seconds)};
}

std::string PointTable(const Report& report) {
  std::string table =
      "<div class=\"wide\"><table>\n" +
      Row({"policy", "slots", "cache", "of full", "right", "95 % interval", "KL", "prefill", "step"}, "th");
  table += Row(PointCells(report.full), "td");
  for (const ReportSeries& series : report.series) {
    for (const ReportPoint& point : series.points) table += Row(PointCells(point), "td");
  }
  return table + "</table></div>\n";
}

std::string GridTable(const NeedleGrid& grid) {
  Cells head = {"tokens"};
  for (int c = 0; c < grid.n_columns; ++c)
    head.push_back(Format("%d - %d %%", 100 * c / grid.n_columns, 100 * (c + 1) / grid.n_columns));
  std::string table =
      "<h3><code>" + Escaped(grid.spec) + "</code></h3>\n<table class=\"grid\">\n" + Row(head, "th");
  for (size_t r = 0; r < grid.rows.size(); ++r) {
    table += "<tr><td>" + Escaped(grid.rows[r]) + "</td>";
    for (int c = 0; c < grid.n_columns; ++c) {
      const size_t at = r * static_cast<size_t>(grid.n_columns) + static_cast<size_t>(c);
      if (grid.counts[at] == 0) {
        table += "<td></td>";
        continue;
      }
      table +=
          Format("<td style=\"background:rgba(var(--heat),%.2f)\" title=\"%lld questions\">%.0f</td>",
                 0.6 * grid.accuracy[at], static_cast<long long>(grid.counts[at]), 100 * grid.accuracy[at]);
    }
    table += "</tr>\n";
  }
  return table + "</table>\n";
}

std::string HeatPicture(const std::string& title, int n_rows, int n_columns,
                        const std::vector<double>& values, bool whole) {
  SvgPage page;
  page.Add(HeatMap{Sound(title), "layer", "head", "", n_rows, n_columns, values, whole});
  return page.Text();
}

std::string KeptText(const KeptContext& context, bool open) {
  std::string text = std::string("<details") + (open ? " open=\"open\"" : "") + "><summary><code>" +
                     Escaped(context.spec) + "</code></summary>\n" +
                     HeatPicture("Slots that each head keeps of it", context.n_layers, context.n_heads,
                                 context.slots, true) +
                     "<div class=\"text\">";
  for (const KeptPiece& piece : context.pieces) {
    const std::string inside = piece.is_wanted ? "<b>" + Escaped(piece.text) + "</b>" : Escaped(piece.text);
    text += piece.share > 0
                ? Format("<span style=\"background:rgba(var(--heat),%.2f)\" title=\"%.0f %% of heads\">",
                         0.08 + 0.62 * piece.share, 100 * piece.share) +
                      inside + "</span>"
                : inside;
  }
  return text + "</div></details>\n";
}

std::string Facts(const Report& report) {
  std::string list = "<dl>\n";
  for (const auto& [name, what] : report.facts)
    list += "<dt>" + Escaped(name) + "</dt><dd>" + Escaped(what) + "</dd>\n";
  return list + "</dl>\n";
}

}  // namespace

std::string ReportHtml(const Report& report) {
  std::string body = "<h1>" + Escaped(report.title) + "</h1>\n<p>" + Escaped(report.summary) + "</p>\n" +
                     Facts(report) + Heading("Quality and memory");
  body += Picture(Curve(report, "Questions answered right", "%",
                        [](const ReportPoint& point) { return 100 * point.accuracy; }));
  body += Picture(Curve(report, "Divergence from the full cache", "nats a token",
                        [](const ReportPoint& point) { return point.kl; }));
  body += PointTable(report);
  body +=
      Heading("Latency") + Picture(Curve(report, "A step of an answer", "ms",
                                         [](const ReportPoint& point) { return 1000 * point.step_seconds; }));
  if (!report.grids.empty()) {
    body += Heading("Where the answer stands") +
            "<p class=\"soft\">Questions answered right, in percent, by length of the context and depth of "
            "the answer "
            "in it.</p>\n";
    for (const NeedleGrid& grid : report.grids) body += GridTable(grid);
  }
  if (!report.contexts.empty()) {
    body += Heading("What is kept") +
            "<p class=\"soft\">The first context. The darker a word, the more heads keep it; underlined is "
            "what the "
            "questions ask for.</p>\n";
    for (size_t i = 0; i < report.contexts.size(); ++i) body += KeptText(report.contexts[i], i == 0);
  }
  if (!report.head_scores.empty()) body += Heading("Head scores of the model file");
  for (const auto& [name, scores] : report.head_scores) {
    const int columns = static_cast<int>(scores.size()) / std::max(1, report.n_layers);
    body += HeatPicture(name, report.n_layers, columns, scores, false);
  }
  body += Heading("Again") + "<pre>" + Escaped(report.command) + "</pre>\n";
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\"/>\n<title>" +
         Escaped(report.title) + "</title>\n<style>" + kStyle + "</style></head>\n<body>\n" + body +
         "</body></html>\n";
}

}  // namespace kvc::tool
