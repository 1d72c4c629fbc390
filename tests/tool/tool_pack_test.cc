// kvc convert --pack: matrices as processors multiply them, what kvc inspect says of them, and that the
// answers stay.
#include <gtest/gtest.h>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

const char* const kSource = KVC_SOURCE_DIR "/models/recall";
constexpr int kNorms = 2 * 6 + 1, kMatrices = 7 * 6 + 1;  // of the layers, and the last norm, the tied head

// Converts with these instructions, or with those that KVC_ISA names, and returns the report.
Json Convert(const std::string& out, const std::string& target, const std::string& weights = "keep",
             const std::string& isa = "") {
  const ProgramResult result =
      RunShell("KVC_ISA=$6 \"$1\" convert \"$2\" \"$3\" --pack \"$4\" --weights \"$5\" --json",
               {kSource, out, target, weights, isa});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? result.Json() : Json::object();
}

int CountPacked(const Json& about) {
  int n = 0;
  for (const Json& tensor : about["tensors"]) {
    if (!tensor.contains("layout")) continue;
    EXPECT_EQ(tensor["layout"], "panels16") << tensor;
    ++n;
  }
  return n;
}

// The line of inspect that begins with this word.
std::string LineOf(const std::string& text, const std::string& word) {
  const size_t at = text.find("\n" + word + " ");
  return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

TEST(ToolPack, ConvertAndInspectSayWhatIsPacked) {
  const TemporaryFolder folder;
  const std::string plain = folder.Path("plain.kvc");
  EXPECT_EQ(Convert(plain, "none")["n_packed"], 0);
  const Json about = RunKvc({"inspect", plain, "--json"}).Json();
  EXPECT_EQ(about["tensors"].size(), size_t{kNorms + kMatrices});
  EXPECT_EQ(CountPacked(about), 0);
  EXPECT_EQ(LineOf(RunKvc({"inspect", plain}).out, "packed"), "");
  // One form serves all; "native" is that of the kernels that would run, and the reference's are for rows.
  const struct {
    const char *target, *isa;
    int n_packed;
  } cases[] = {{"avx2", "", kMatrices},
               {"neondot", "", kMatrices},
               {"avx512", "ref", kMatrices},
               {"native", "ref", 0}};
  for (const auto& c : cases) {
    const std::string packed = folder.Path(std::string(c.target) + ".kvc");
    EXPECT_EQ(Convert(packed, c.target, "keep", c.isa)["n_packed"], c.n_packed) << c.target;
    const Json of_packed = RunKvc({"inspect", packed, "--json"}).Json();
    EXPECT_EQ(CountPacked(of_packed), c.n_packed) << c.target;
    EXPECT_EQ(of_packed["fingerprint"], about["fingerprint"]) << "the same model";
    const std::string text = RunKvc({"inspect", packed}).out, line = LineOf(text, "packed");
    EXPECT_EQ(line.empty(), c.n_packed == 0) << line;
    EXPECT_EQ(text.find("panels16") == std::string::npos, c.n_packed == 0) << text;
    if (c.n_packed > 0) {
      EXPECT_NE(line.find(" 43 matrices, for AVX2, AVX-512 and NEON"), std::string::npos) << line;
    }
    EXPECT_EQ(RunKvc({"verify", packed}).exit_code, 0) << c.target;
  }
}

TEST(ToolPack, AnUnknownTargetIsAnsweredWithTheKnownOnes) {
  const TemporaryFolder folder;
  const ProgramResult result = RunKvc({"convert", kSource, folder.Path("out.kvc"), "--pack", "abacus"});
  EXPECT_EQ(result.exit_code, 2);
  for (const char* target : {"abacus", "none", "native", "avx2", "avx512vnni", "neondot"})
    EXPECT_NE(result.err.find(target), std::string::npos) << result.err;
}

// Also those that would have packed it otherwise, or not at all.
TEST(ToolPack, EveryInstructionSetAnswersAsFromThePlainFile) {
  const TemporaryFolder folder;
  const std::string plain = folder.Path("plain.kvc"), packed = folder.Path("packed.kvc");
  const Json devices = RunKvc({"devices", "--json"}).Json();
  for (const char* weights : {"keep", "int8", "int4"}) {
    EXPECT_EQ(Convert(plain, "none", weights)["n_packed"], 0);
    EXPECT_EQ(Convert(packed, "avx2", weights)["n_packed"], kMatrices);
    for (const Json& isa : devices[0]["instruction_sets"]) {
      const auto answer = [&](const std::string& model) {
        const ProgramResult result = RunShell(
            "KVC_ISA=$3 \"$1\" run \"$2\" --max-tokens 12 --json --prompt "
            "' The code of Robin is 386. The code of Nadia is 553. The code of Robin is'",
            {model, isa.get<std::string>()});
        EXPECT_EQ(result.exit_code, 0) << result.err;
        return result.exit_code == 0 ? result.Json()["tokens"] : Json();
      };
      const Json tokens = answer(plain);
      EXPECT_EQ(tokens.size(), 12u);
      EXPECT_EQ(answer(packed), tokens) << weights << " with " << isa;
    }
  }
}

}  // namespace
