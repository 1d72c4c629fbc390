// kvc report on the recall model: a page that parses as XML and needs nothing from elsewhere. What a browser
// makes of it: report_browser_test.py.
#include <gtest/gtest.h>

#include "tests/tool/run_program.h"

namespace {

const char* const kTasks = KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl";

// An XML parser of others, with what the page must hold.
const char* const kParse = R"(
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
svg = '{http://www.w3.org/2000/svg}'
tags = [e.tag for e in root.iter()]
assert root.tag == 'html', root.tag
assert not {t for t in tags if t.split('}')[-1] in ('script', 'link', 'img', 'iframe', 'object', 'image', 'use')}
for e in root.iter():
    for name, value in e.attrib.items():
        assert name not in ('src', 'href', 'srcset') and not name.startswith('on'), name
        assert 'url(' not in value, value
curves = [len(e.attrib['points'].split()) for e in root.iter(svg + 'polyline')]
assert curves == [2, 1, 1] * 3, curves
text = [e for e in root.iter('div') if e.attrib.get('class') == 'text'][0]
wanted = ''.join(''.join(e.itertext()) for e in text.iter('b'))
kept = [e for e in text.iter('span')]
print(len(''.join(text.itertext())), len(kept), wanted)
)";

TEST(ToolReport, WritesOnePage) {
  const TemporaryFolder folder;
  const std::string page = folder.Path("report.html");
  const ProgramResult run =
      RunKvc({"report", KVC_RECALL, "--data", kTasks, "--limit", "2", "--policy", "cokv", "--policy",
              "snapkv:budget=64,window=8", "--policy", "snapkv:budget=64,window=16", "--budgets", "96,32",
              "--focus", "32", "-o", page});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProgramResult parsed = RunProgram("/usr/bin/env", {"python3", "-c", kParse, page});
  ASSERT_EQ(parsed.exit_code, 0) << parsed.err;
  EXPECT_NE(parsed.out.find("code of"), std::string::npos) << parsed.out;  // what is asked for is marked
  const std::string html = ReadWholeFile(page);
  for (const char* part : {"budget=96", "budget=32", "prefers-color-scheme:dark", "Where the answer stands",
                           ">snapkv:window=8<", ">snapkv:window=16<"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

// What is printed is given to a shell, in which kvc says the words that it gets.
TEST(ToolReport, TheCommandIsTheOneThatWasGiven) {
  const TemporaryFolder folder;
  const std::string model = folder.Write("Ada's model.kvc", ReadWholeFile(KVC_RECALL)),
                    tasks = folder.Write("$HOME & tasks.jsonl", ReadWholeFile(kTasks)),
                    scores = folder.Path("head scores.json");
  ASSERT_EQ(
      RunShell("cp \"$2\" \"$3\"", {KVC_SOURCE_DIR "/models/recall/head_scores.json", scores}).exit_code, 0);
  std::vector<std::string> given = {"report", model};
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--threads", "1", "--device", "cpu", "--memory-limit", "512MiB", "--trusted"},
           {"--data", tasks, "--data", kTasks, "--policy", "cokv"},
           {"--policy", "snapkv:budget=64,window=8", "--head-scores", scores},
           {"--budgets", "96,32", "--focus", "32", "--limit", "1", "--out", folder.Path("a page.html")}})
    given.insert(given.end(), words.begin(), words.end());
  const ProgramResult run = RunKvc(given);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProgramResult words = RunShell(
      "kvc() { printf '%s\\n' \"$@\"; }; eval \"$(python3 -c '"
      "import sys, xml.etree.ElementTree as tree\n"
      "print(tree.parse(sys.argv[1]).getroot().findall(\".//pre\")[-1].text)' \"$2\")\"",
      {folder.Path("a page.html")});
  ASSERT_EQ(words.exit_code, 0) << words.err;
  std::string wanted;
  for (const std::string& word : given) wanted += word + "\n";
  EXPECT_EQ(words.out, wanted);
}

TEST(ToolReport, WhatIsWrongIsSaid) {
  const TemporaryFolder folder;
  EXPECT_EQ(RunKvc({"report", KVC_RECALL, "--data", kTasks, "--policy", "cokv"}).exit_code, 2);  // no --out
  const ProgramResult spared =
      RunKvc({"report", KVC_RECALL, "--data", kTasks, "--policy", "cokv", "-o", kTasks});
  EXPECT_EQ(spared.exit_code, 2);
  EXPECT_NE(spared.err.find("the output must be another file"), std::string::npos) << spared.err;
  const ProgramResult small = RunKvc({"report", KVC_RECALL, "--data", kTasks, "--policy", "snapkv:window=8",
                                      "--budgets", "4", "-o", folder.Path("r.html")});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_NE(small.err.find("snapkv:window=8"), std::string::npos) << small.err;
}

}  // namespace
