// What the kvc program says: of methods, and of command lines and files that are wrong.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tool/run_program.h"

namespace {

void ExpectError(const std::vector<std::string>& arguments, int code, const std::string& words) {
  const ProgramResult result = RunKvc(arguments);
  EXPECT_EQ(result.exit_code, code) << words;
  EXPECT_NE(result.err.find(words), std::string::npos) << result.err << "\nlacks\n" << words;
}

TEST(ToolUsage, MessagesNameTheWayOut) {
  const TemporaryFolder folder;
  const std::string tasks = KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl",
                    adapter = folder.Write("adapter.gguf", "GGUF"),
                    text = folder.Write("short.txt", "Once upon.");
  const auto tune = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tune", KVC_RECALL, "--data", tasks, "--policy", "snapkv"});
    return more;
  };
  ExpectError(tune({"--max-loss", "5"}), 2,
              "--max-loss: 5 is not in the range 1e-06 .. 0.999: it is a share; write 5% or 0.05");
  ExpectError(tune({"--confidence", "95"}), 2, "it is a share; write 95% or 0.95");
  ExpectError(tune({"--max-loss", "500%"}), 2, "--max-loss: 500% is not in the range 0.0001% .. 99.9%");
  ExpectError(tune({"--max-loss", "500"}), 2, "--max-loss: 500 is not in the range 1e-06 .. 0.999\n");
  ExpectError({"run", KVC_RECALL, "--prompt", "a", "--prompt", "b"}, 2, "--prompt is given more than once");
  ExpectError({"run", KVC_RECALL, "--prompt", "a", "--policy", "cokv:budget=32,scores=nix"}, 1,
              "none named nix");
  ExpectError({"run", KVC_RECALL, "--prompt", "a", "--policy", "cokv:budget=32,scores=nix"}, 1,
              "\nits tables are ssv\n");
  ExpectError({"run", KVC_RECALL, "--load", "/no/such.kvcs", "--ask", "a"}, 1, "cannot load the session");
  ExpectError({"convert", "x", "y", "--lora", adapter + "=half"}, 2,
              "\"half\" is no number: --lora ADAPTER=0.5");
  ExpectError({"eval", KVC_RECALL, "--text", text}, 1, "; --window N takes shorter ones");
  ExpectError({"eval", KVC_RECALL, "--suite", "needle", "--length", "512", "--lengths", "256"}, 2,
              "--length");
  ExpectError(
      {"eval", KVC_RECALL, "--data", folder.Write("none.jsonl", "{\"context\": \"a\", \"questions\": []}\n")},
      1, "\"questions\" is empty: a context has one at least");
}

int Count(const std::string& text, const std::string& words) {
  int n = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++n;
  return n;
}

// What goes past the end is dropped before anybody asks; a full cache that was cut too agrees with it.
TEST(ToolUsage, APromptThatIsReadInPartsIsSaid) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "one two ";
  const std::string file = folder.Write("long.txt", text);
  const std::vector<std::string> run = {"run", KVC_RECALL, "--prompt-file", file, "--max-tokens", "1"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = run;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunKvc(arguments);
  };
  ExpectError({"run", KVC_RECALL, "--prompt-file", file, "--context", "64"}, 1, "do not fit in --context 64");
  for (const std::string how : {"slide", "evict"}) {
    const ProgramResult cut = with({"--context", "64", "--on-full", how, "--compare"});
    EXPECT_EQ(cut.exit_code, 0) << cut.err;
    EXPECT_EQ(Count(cut.err,
                    "tokens and the session room for 64: it is read in parts, and old tokens are "
                    "dropped (--on-full " +
                        how + "); --context N makes room for N\n"),
              1)
        << cut.err;
    EXPECT_EQ(Count(cut.out, "full, cut to 64"), 1) << cut.out;
    EXPECT_EQ(with({"--context", "64", "--on-full", how, "--json"}).Json()["read_in_parts_of"], 64);
    const ProgramResult whole = with({"--on-full", how, "--compare"});
    EXPECT_EQ(whole.err, "");
    EXPECT_EQ(Count(whole.out, "cut to"), 0) << whole.out;
    EXPECT_FALSE(with({"--on-full", how, "--json"}).Json().contains("read_in_parts_of"));
  }
  EXPECT_EQ(Count(RunKvc({"kept", KVC_RECALL, "--prompt-file", file, "--policy", "full", "--context", "64",
                          "--on-full", "evict"})
                      .err,
                  "room for 64"),
            1);
}

// Once each, however many sessions a command makes; what the program says itself is not said twice.
TEST(ToolUsage, WarningsOfTheLibraryAreSaid) {
  const std::string tasks = KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl";
  const ProgramResult merges = RunKvc(
      {"eval", KVC_RECALL, "--data", tasks, "--limit", "2", "--policy", "weightedkv:budget=64,kv=int4"});
  EXPECT_EQ(merges.exit_code, 0) << merges.err;
  EXPECT_EQ(Count(merges.err, "kvc: warning: reducer "), 1) << merges.err;
  const ProgramResult beyond =
      RunKvc({"run", KVC_RECALL, "--prompt", "a", "--max-tokens", "1", "--context", "5000"});
  EXPECT_EQ(Count(beyond.err, "beyond"), 1) << beyond.err;
  const ProgramResult memory = RunKvc({"run", KVC_RECALL, "--prompt", "a", "--memory-limit", "1KiB"});
  EXPECT_EQ(memory.exit_code, 1);
  EXPECT_EQ(Count(memory.err, "\n"), 1) << memory.err;
  EXPECT_EQ(Count(memory.err, "a call fails"), 0) << memory.err;
}

// A file whose name says GGUF, and that is none, is not taken for a model file that is damaged.
TEST(ToolUsage, FilesThatAreNoGguf) {
  const TemporaryFolder folder;
  const std::string pointer =
                        folder.Write("pointer.gguf", "version https://git-lfs.github.com/spec/v1\noid 0\n"),
                    page = folder.Write("page.gguf", "<!DOCTYPE html>");
  const std::string out = folder.Path("out.kvc");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run", pointer, "--prompt", "a"}, {"convert", pointer, out}})
    ExpectError(command, 1, "pointer.gguf: is a pointer of Git LFS, not the file: git lfs pull fetches it");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run", page, "--prompt", "a"}, {"convert", page, out}})
    ExpectError(command, 1,
                "page.gguf: does not begin with GGUF: not a GGUF file, or an incomplete download");
}

// Sizes are written as in budget_bytes of a policy.
TEST(ToolUsage, Sizes) {
  const auto limit = [](const std::string& text) {
    return RunKvc({"plan", KVC_RECALL, "--context", "100", "--memory-limit", text, "--json"})
        .Json()["memory_limit"];
  };
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, int64_t>>{{"512M", 536870912},
                                                                                {"900000K", 921600000},
                                                                                {"100000KB", 100000000},
                                                                                {"100000kB", 100000000},
                                                                                {"90000KiB", 92160000},
                                                                                {"1e9", 1000000000},
                                                                                {"1E9", 1000000000},
                                                                                {" 1.5 GiB ", 1610612736},
                                                                                {"2G", 2147483648}})
    EXPECT_EQ(limit(text), bytes) << text;
  for (const char* text :
       {"", "1e", "e6", "-5", "-0", "1e400", "1e308T", "9.1e18", "0.9", "G", "5 X", "+5", "0x10"})
    EXPECT_EQ(RunKvc({"plan", KVC_RECALL, "--context", "100", "--memory-limit", text}).exit_code, 2) << text;
}

TEST(ToolUsage, Help) {
  const std::string kept = RunKvc({"kept", "--help"}).out, all = RunKvc({"--help"}).out;
  EXPECT_EQ(kept.find("SPEC=full"), std::string::npos) << kept;
  for (const char* word : {"convert with --check-against", "tune where no budget passes"})
    EXPECT_NE(all.find(word), std::string::npos) << all;
}

TEST(ToolMethods, ListsAndDescribes) {
  const nlohmann::json list = RunKvc({"methods", "--json"}).Json();
  ASSERT_TRUE(list.is_array());
  std::vector<std::string> names;
  for (const nlohmann::json& method : list) {
    names.push_back(method.at("name"));
    EXPECT_FALSE(method.at("summary").get<std::string>().empty()) << names.back();
    EXPECT_TRUE(method.contains("source")) << names.back();
    for (const nlohmann::json& option : method.at("options")) {
      for (const char* key : {"key", "kind", "range", "default", "help"})
        EXPECT_TRUE(option.contains(key)) << names.back() << " " << key;
    }
  }
  for (const char* name : {"full", "streaming", "snapkv", "snapkv-w8", "ada-snapkv", "cokv"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  const ProgramResult one = RunKvc({"methods", "snapkv"});
  EXPECT_EQ(one.exit_code, 0);
  for (const char* words : {"\nbudget: required, as budget=N",
                            "parts: allocator=uniform, scorer=window, reducer=evict, decode=grow, ",
                            "example: --policy snapkv:budget=256\n", "window"})
    EXPECT_NE(one.out.find(words), std::string::npos) << one.out;
  for (const auto& [name, words] :
       {std::pair{"no-such-method", "no method \"no-such-method\""},
        {"h20", "; nearest is h2o."},
        {"adakv", ": it is called ada-snapkv here."},
        {"snapkv:budget=64", "\"snapkv:budget=64\" is more than the name of a method"},
        {"foo", "no method \"foo\". There are "}}) {  // nobody who means h2o writes that
    const ProgramResult result = RunKvc({"methods", name});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
}

// The example that every method shows is one that runs.
TEST(ToolMethods, ExamplesAreGood) {
  const TemporaryFolder folder;
  const std::string table = folder.Write(
      "slots.json", nlohmann::json(std::vector<std::vector<int>>(6, std::vector<int>(4, 64))).dump());
  const nlohmann::json list = RunKvc({"methods", "--json"}).Json();
  for (const nlohmann::json& method : list) {
    const std::string name = method["name"], out = RunKvc({"methods", name}).out,
                      mark = "\nexample: --policy ";
    const size_t at = out.find(mark);
    ASSERT_NE(at, std::string::npos) << out;
    std::string policy = out.substr(at + mark.size(), out.find('\n', at + 1) - at - mark.size());
    std::vector<std::string> plan = {"plan", KVC_RECALL, "--context", "900"};
    if (policy == "table --table slots.json") policy = "table", plan.insert(plan.end(), {"--table", table});
    if (method.value("head_scores", false)) plan.insert(plan.end(), {"--head-scores", table});
    EXPECT_EQ(policy.find(' '), std::string::npos) << policy;
    plan.insert(plan.end(), {"--policy", policy});
    const ProgramResult result = RunKvc(plan);
    EXPECT_EQ(result.exit_code, 0) << policy << ": " << result.err;
  }
}

}  // namespace
