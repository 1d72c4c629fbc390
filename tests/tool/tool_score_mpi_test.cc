// kvc score under mpirun: the same bits as one process, with any number of them, and after one of them died.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tool/run_program.h"
#include "tests/tool/short_tasks.h"

namespace {

std::vector<std::string> Score(const std::string& out, const std::vector<std::string>& more) {
  static const std::string tasks = ShortTasks(KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl", 1);
  std::vector<std::string> arguments = {KVC_PROGRAM, "score",   KVC_RECALL, "--data", tasks, "--utility",
                                        "nll",       "--sizes", "3,12",     "--out",  out,   "--balanced"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// mpirun as root in a container, on a machine with fewer places than processes, without a network.
ProgramResult RunTeam(int n_processes, const std::vector<std::string>& program) {
  std::vector<std::string> all = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", KVC_MPIRUN};
  for (const char* option : {"--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated", "--mca",
                             "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none", "-n"}) {
    all.push_back(option);
  }
  all.push_back(std::to_string(n_processes));
  all.insert(all.end(), program.begin(), program.end());
  return RunProgram("/usr/bin/env", all);
}

ProgramResult RunAlone(const std::vector<std::string>& program) {
  return RunProgram("/usr/bin/env", program);
}

TEST(ToolScoreMpi, AnyNumberOfProcessesGivesTheSameBits) {
  const TemporaryFolder folder;
  const ProgramResult alone = RunAlone(Score(folder.Path("alone.json"), {"--samples", "8"}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const std::string expected = ReadWholeFile(folder.Path("alone.json"));
  for (const int n : {2, 4}) {
    const std::string out = folder.Path("team" + std::to_string(n) + ".json");
    const ProgramResult team = RunTeam(n, Score(out, {"--samples", "8"}));
    ASSERT_EQ(team.exit_code, 0) << team.err;
    EXPECT_EQ(ReadWholeFile(out), expected) << n << " processes";
  }
}

// The stopping rule sees the samples in the same steps.
TEST(ToolScoreMpi, StopsWhereOneProcessStops) {
  const TemporaryFolder folder;
  const std::vector<std::string> rule = {"--variant", "regression", "--max-samples", "45"};
  ASSERT_EQ(RunAlone(Score(folder.Path("alone.json"), rule)).exit_code, 0);
  const ProgramResult team = RunTeam(3, Score(folder.Path("team.json"), rule));
  ASSERT_EQ(team.exit_code, 0) << team.err;
  EXPECT_EQ(ReadWholeFile(folder.Path("team.json")), ReadWholeFile(folder.Path("alone.json")));
}

TEST(ToolScoreMpi, GoesOnAfterAProcessDied) {
  const TemporaryFolder folder;
  ASSERT_EQ(RunAlone(Score(folder.Path("alone.json"), {"--samples", "30"})).exit_code, 0);
  // A worker kills itself once the log has some items: the launcher ends the others.
  const std::string out = folder.Path("team.json");
  const std::string script = folder.Write("member.sh",
                                          "if [ \"$OMPI_COMM_WORLD_RANK\" = 2 ]; then\n"
                                          "  \"$@\" & worker=$!\n"
                                          "  while [ \"$(wc -l < " +
                                              out +
                                              ".log 2>/dev/null || echo 0)\" -lt 9 ]; do sleep 0.05; done\n"
                                              "  kill -9 $worker; exit 137\nfi\nexec \"$@\"\n");
  std::vector<std::string> arguments = Score(out, {"--samples", "30"});
  std::vector<std::string> member = {"sh", script};
  member.insert(member.end(), arguments.begin(), arguments.end());
  EXPECT_NE(RunTeam(3, member).exit_code, 0);
  arguments.push_back("--resume");
  const ProgramResult resumed = RunTeam(2, arguments);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(ReadWholeFile(out), ReadWholeFile(folder.Path("alone.json")));
}

TEST(ToolScoreMpi, SaysOnceWhatIsWrong) {
  const ProgramResult run =
      RunTeam(3, {KVC_PROGRAM, "score", "/no/such.kvc", "--data", "/no/tasks.jsonl", "--out", "/tmp/x.json"});
  EXPECT_NE(run.exit_code, 0);
  const std::string message = "kvc: /no/such.kvc: cannot open";  // among what the launcher says
  const size_t first = run.err.find(message);
  ASSERT_NE(first, std::string::npos) << run.err;
  EXPECT_EQ(run.err.find(message, first + 1), std::string::npos) << run.err;
}

}  // namespace
