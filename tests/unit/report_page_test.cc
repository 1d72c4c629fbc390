// The page of kvc report: balanced markup whatever the texts hold, nothing from elsewhere.
#include "tools/report/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tools/score/svg.h"
#include "tools/suite/utf8.h"

namespace kvc::tool {
namespace {

// Elements opened and not closed, or closed and not opened, as a text; empty: all is well. Attributes are
// quoted.
std::string Unbalanced(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    if (page.compare(at, 2, "<!") == 0) continue;
    size_t end = at;
    bool quoted = false;
    for (; end < page.size() && (quoted || page[end] != '>'); ++end) quoted ^= page[end] == '"';
    if (end == page.size()) return "no end: " + page.substr(at, 40);
    const bool closes = page[at + 1] == '/';
    const std::string inside = page.substr(at + 1 + closes, end - at - 1 - closes);
    if (page[end - 1] == '/') continue;
    const std::string name = inside.substr(0, inside.find_first_of(" \n"));
    if (!closes) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> in " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "open: " + open.back();
}

Report HostileReport() {
  const std::string bad =
      "</pre><script>alert(\"1\")</script> & <img src='http://x/'> \x01\xff\xed\xa0\x80 \"";
  Report report;
  report.title = report.summary = report.command = bad;
  report.facts = {{bad, bad}};
  report.full = {bad, 4096, 1, 100, 1, 0.9, 1, 0, 0.1, 0.001};
  report.series = {
      {bad, {{bad, 1024, 0.25, 25, 0.5, 0.4, 0.6, 0.3, 0.1, 0.001}, {bad, 300, 0.1, 9, 0, 0, 0.2, 2, 1, 1}}},
      {"one point", {report.full}}};
  report.grids = {{bad, {"10 - 20", bad}, 2, {1, 0, 0.5, 0}, {4, 0, 2, 3}}};
  report.contexts = {{bad, 1, 2, {5, 0}, {{bad, 0.5, true}, {"plain", 0, false}, {bad, 0, true}}}};
  report.head_scores = {{bad, {0.25, -1}}};
  report.n_layers = 1;
  return report;
}

TEST(ReportPage, TextsStayTexts) {
  const std::string page = ReportHtml(HostileReport());
  EXPECT_EQ(Unbalanced(page), "");
  EXPECT_NE(Unbalanced(page + "<p>"), "");
  for (const char* never : {"<script", "<img", "<link", "url(", "@import", "\x01", "NaN", "nan", "inf\""})
    EXPECT_EQ(page.find(never), std::string::npos) << never;
  const std::u32string points = CodePoints(page);
  EXPECT_TRUE(
      std::none_of(points.begin(), points.end(), [](char32_t c) { return c >= 0xd800 && c < 0xe000; }));
  // Addresses in attributes are those of the namespace, which nobody loads.
  size_t attributes = 0;
  for (size_t at = page.find("=\"http"); at != std::string::npos; at = page.find("=\"http", at + 1)) {
    EXPECT_EQ(page.compare(at, 28, "=\"http://www.w3.org/2000/svg"), 0);
    ++attributes;
  }
  EXPECT_GT(attributes, 0u);
}

TEST(ReportPage, ShowsWhatItWasGiven) {
  const std::string page = ReportHtml(HostileReport());
  for (const char* part :
       {"prefers-color-scheme:dark", "title=\"4 questions\">100<", "title=\"2 questions\">50<",
        "title=\"50 % of heads\"", "<td></td>", "1.00 KiB", "4.00 KiB", "25.0 %"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  size_t rows = 0;
  for (size_t at = page.find("<tr>"); at != std::string::npos; at = page.find("<tr>", at + 1)) ++rows;
  EXPECT_EQ(rows, 1u + 1u + 3u + 1u + 2u);  // heads, the full cache, points, rows of the grid
}

TEST(Charts, LongNamesBesideThemGoOnBelow) {
  LineChart chart;
  chart.series = {{"cokv:budget=64", {1, 2}, {1, 2}}, {"ada-snapkv:window=8,ada_floor=0.5", {1, 2}, {2, 1}}};
  SvgPage page;
  page.Add(chart);
  std::vector<std::string> names;
  std::vector<double> heights;
  const std::string text = page.Text();
  const std::regex label(
      "<text x=\"648.0\" y=\"([0-9.]+)\" text-anchor=\"start\" class=\"small\">([^<]*)</text>");
  for (std::sregex_iterator at(text.begin(), text.end(), label), end; at != end; ++at)
    heights.push_back(std::stod((*at)[1])), names.push_back((*at)[2]);
  EXPECT_EQ(names, (std::vector<std::string>{"cokv:budget=64", "ada-snapkv:", "window=8,", "ada_floor=0.5"}));
  ASSERT_EQ(heights.size(), 4u);
  EXPECT_EQ(heights[1] - heights[0], 16);
  EXPECT_EQ(heights[2] - heights[1], 12);
}

TEST(ReportPage, AnEmptyReportIsAPage) { EXPECT_EQ(Unbalanced(ReportHtml(Report())), ""); }

}  // namespace
}  // namespace kvc::tool
