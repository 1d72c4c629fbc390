// kvc devices: which kernels and how many threads a model would get, and why not faster ones or more.
#include <gtest/gtest.h>

#ifdef __linux__
#include <sched.h>
#endif

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

// The processor, with KVC_ISA as given.
Json Processor(const std::string& isa) {
  const ProgramResult result = RunShell("KVC_ISA=$2 \"$1\" devices --no-measure --json", {isa});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("kvc: warning: KVC_ISA=") == 0, isa == "abacus") << result.err;
  for (const Json& device : result.Json())
    if (device["name"] == "cpu") return device;
  ADD_FAILURE() << result.out;
  return {};
}

TEST(ToolDevices, MaskedInstructionSetsAreNotUsedAndItSaysSo) {
  const Json all = RunKvc({"devices", "--no-measure", "--json"}).Json();
  Json sets;
  for (const Json& device : all)
    if (device["name"] == "cpu") sets = device["instruction_sets"];
  ASSERT_GE(sets.size(), 1u);
  const std::string best = sets[0];
  EXPECT_EQ(sets.back(), "ref");
  for (const std::string isa : sets) {
    const Json device = Processor(isa);
    const std::string text = device["description"];
    const std::string masked = ", as KVC_ISA says (" + best + " is faster here)";
    EXPECT_NE(text.find(" threads, " + isa + (isa == best ? "" : masked)), std::string::npos) << text;
    EXPECT_EQ(text.find("KVC_ISA") == std::string::npos, isa == best) << text;
    EXPECT_EQ(device["instruction_sets"], sets) << isa;
  }
}

TEST(ToolDevices, AnUnknownInstructionSetIsIgnoredAloud) {
  const Json plain = Processor(""), device = Processor("abacus");
  EXPECT_EQ(device["description"],
            plain["description"].get<std::string>() + ", as KVC_ISA names none of its instruction sets");
  EXPECT_EQ(device["instruction_sets"], plain["instruction_sets"]);
  const ProgramResult run =
      RunShell("KVC_ISA=abacus \"$1\" run \"$2\" --max-tokens 1 --prompt hello", {KVC_RECALL});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const size_t at = run.err.find("KVC_ISA=abacus is ignored: this build and processor have ");
  ASSERT_NE(at, std::string::npos) << run.err;
  for (const std::string isa : plain["instruction_sets"])
    EXPECT_NE(run.err.find(isa, at), std::string::npos) << run.err;
}

#ifdef __linux__
// As taskset and containers limit it.
TEST(ToolDevices, ThreadsAreThoseOfTheProcessorsThatTheProcessMayUse) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const std::string text = Processor("ref")["description"];
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(text.compare(0, 10, "1 threads,"), 0) << text;
}
#endif

// More than there are processors, and as many as there are: the same answer.
TEST(ToolDevices, ThreadsBeyondTheProcessorsAnswerTheSame) {
  const auto answer = [](const char* threads) {
    const ProgramResult result = RunKvc({"run", KVC_RECALL, "--threads", threads, "--max-tokens", "8",
                                         "--json", "--prompt", " The code of Robin is"});
    EXPECT_EQ(result.exit_code, 0) << threads << ": " << result.err;
    return result.exit_code == 0 ? result.Json()["tokens"] : Json();
  };
  const Json tokens = answer("0");
  EXPECT_EQ(tokens.size(), 8u);
  for (const char* threads : {"1", "37"}) EXPECT_EQ(answer(threads), tokens) << threads;
}

}  // namespace
