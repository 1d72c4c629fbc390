// kvc convert --rope: what it says beforehand, what is in the file, and what a bad value is told.
#include <gtest/gtest.h>

#include <string>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

const std::string kSource =
    KVC_SOURCE_DIR "/tests/data/reference/hf_qwen2_yarn_rope";  // 128 tokens, YaRN of 4

TEST(ToolConvertRope, SaysWhatItDoesToTheModel) {
  const TemporaryFolder folder;
  const std::string out = folder.Path("out.kvc");
  const ProgramResult dry = RunKvc({"convert", kSource, "--rope", "linear:8", "--dry-run"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  for (const char* words : {"trained context", "128 tokens, 1,024 with linear:8 in place of yarn:4"})
    EXPECT_NE(dry.out.find(words), std::string::npos) << words << "\n" << dry.out;
  for (const char* words :
       {"made for 1024 tokens, trained for 128", "in place of the model's own scaling (yarn:4)",
        "reads short prompts worse", "beyond 128 tokens is not known", "kvc eval"})
    EXPECT_NE(dry.err.find(words), std::string::npos) << words << "\n" << dry.err;
  const ProgramResult made = RunKvc({"convert", kSource, out, "--rope", "linear:8", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json plan = made.Json()["plan"], &extension = plan["extension"];
  EXPECT_EQ(plan["trained_context"], 128);
  EXPECT_EQ(extension["rope"], "linear:8");
  EXPECT_EQ(extension["context"], 1024);
  EXPECT_EQ(extension["replaces"], "yarn:4");
  ASSERT_EQ(extension["consequences"].size(), 1u);
  EXPECT_EQ(extension["consequences"][0], made.Json()["warnings"].back());
  const Json about = RunKvc({"inspect", out, "--json"}).Json();
  EXPECT_EQ(about["config"]["max_tokens"], 1024);
  EXPECT_EQ(about["config"]["rope"]["scaling"], "linear");
  EXPECT_EQ(about["config"]["rope"]["factor"], 8.0);
  EXPECT_NE(about.dump().find("+ rope linear:8"), std::string::npos) << about.dump();
  EXPECT_EQ(RunKvc({"convert", kSource, "--dry-run", "--json"}).Json()["extension"], nullptr);
}

TEST(ToolConvertRope, BadValuesAreToldWhatIsAllowed) {
  for (const char* value : {"yarn", "yarn:1", "yarn:257", "ntk:2", "4"}) {
    const ProgramResult bad = RunKvc({"convert", kSource, "--dry-run", "--rope", value});
    EXPECT_EQ(bad.exit_code, 2) << value;
    EXPECT_NE(bad.err.find("allowed: yarn:F, linear:F, dynamic:F with F over 1 (dynamic: from 1) to 256"),
              std::string::npos)
        << bad.err;
  }
  const ProgramResult less = RunKvc({"convert", kSource, "--dry-run", "--rope", "yarn:2"});
  EXPECT_EQ(less.exit_code, 1);
  EXPECT_NE(less.err.find("yarn:2 reaches 256 tokens of 128 trained for; allowed: 512 to"), std::string::npos)
      << less.err;
  const ProgramResult help = RunKvc({"convert", "--help"});
  for (const char* words :
       {"--rope FORM:F", "yarn:F, linear:F, dynamic:F", "kvc convert SRC long.kvc --rope yarn:2"})
    EXPECT_NE(help.out.find(words), std::string::npos) << words << "\n" << help.out;
}

}  // namespace
