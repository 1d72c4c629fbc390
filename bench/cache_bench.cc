// What compression promises, measured in one run on models with random weights: the memory of a long prefill,
// what compressing costs, what a step gains, what a fork costs, and that endless generation stays constant.
// Prints a table; every line names the shape it used.
//   cache_bench [--quick] [--threads N] [--only NAME]
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "kvc/kvc.h"
#include "lib/base/clock.h"
#include "tests/support/process_memory.h"
#include "tests/support/tiny_model.h"

namespace {

using kvc::Seconds;

int n_threads = 0;

// Of all threads: other work on the machine does not count.
double ProcessorTime() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Check(kvc_status status, const char* what) {
  if (status == KVC_OK) return;
  std::fprintf(stderr, "cache_bench: %s: %s: %s\n", what, kvc_status_name(status), kvc_last_error());
  std::exit(1);
}

double Median(std::vector<double>* values) {
  std::sort(values->begin(), values->end());
  return (*values)[values->size() / 2];
}

std::vector<int32_t> Tokens(int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 2654435761u) >> 9) & 0xff;
  return ids;
}

class Run {
 public:
  Run(const std::string& model_path, const char* spec, int max_tokens) {
    kvc_model_params mp{};
    mp.struct_size = sizeof mp, mp.n_threads = n_threads;
    Check(kvc_model_open(model_path.c_str(), "cpu", &mp, &model_), "open");
    kvc_policy* policy = nullptr;
    Check(kvc_policy_create(spec, &policy), spec);
    kvc_session_params sp{};
    sp.struct_size = sizeof sp, sp.max_tokens = max_tokens;
    Check(kvc_session_create(model_, policy, &sp, &session_), spec);
    kvc_policy_close(policy);
  }
  ~Run() {
    kvc_session_close(session_);
    kvc_model_close(model_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  void Prefill(int n) {
    const std::vector<int32_t> ids = Tokens(n);
    Check(kvc_session_prefill(session_, ids.data(), n), "prefill");
  }
  double StepSeconds(int n) {  // median of n
    std::vector<double> times;
    for (int i = 0; i < n; ++i) {
      int32_t token;
      const double begin = Seconds();
      Check(kvc_session_step(session_, &token), "step");
      times.push_back(Seconds() - begin);
      if (token == KVC_TOKEN_NONE) {  // random weights came upon the stop token: go on with another
        const int32_t other = 5;
        Check(kvc_session_append(session_, &other, 1), "append");
      }
    }
    return Median(&times);
  }
  kvc_session_stats Stats() const {
    kvc_session_stats stats{};
    stats.struct_size = sizeof stats;
    Check(kvc_session_get_stats(session_, &stats), "stats");
    return stats;
  }
  kvc_status Plan(const char* spec, int n, kvc_plan* plan) const {
    kvc_policy* policy = nullptr;
    Check(kvc_policy_create(spec, &policy), spec);
    kvc_session_params sp{};
    sp.struct_size = sizeof sp, sp.max_tokens = n + 64;
    const kvc_status status = kvc_session_plan(model_, policy, &sp, n, plan, nullptr, 0, nullptr);
    kvc_policy_close(policy);
    return status;
  }
  kvc_session* session() { return session_; }

 private:
  kvc_model* model_ = nullptr;
  kvc_session* session_ = nullptr;
};

int64_t PeakRss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// In a process of its own, whose heap nobody has filled before.
template <typename F>
void Apart(const F& measure) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    measure();
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) std::exit(1);
}

// Peak memory of a prefill, against the formula of one full layer and the compressed ones.
void PrefillMemory(const std::string& model, int n, const char* spec) {
  Apart([&] {
    Run run(model, spec, n + 64);
    run.Prefill(32);
    kvc_session_reset(run.session());
    const int64_t before = PeakRss();
    run.Prefill(n);
    const kvc_session_stats s = run.Stats();
    kvc_plan plan{};
    plan.struct_size = sizeof plan;
    Check(run.Plan(spec, n, &plan), "plan");
    const double mib = 1048576, grown = static_cast<double>(PeakRss() - before),
                 formula = static_cast<double>(s.cache_bytes_peak) + 4.0 * n * 256,
                 planned = static_cast<double>(plan.cache_bytes_peak + plan.workspace_bytes);
    std::printf("prefill memory  24 layers, 4 KV heads x 64, %d tokens, %s\n", n, spec);
    std::printf(
        "                peak grew by %.1f MiB (getrusage); one full layer, the compressed ones and the\n",
        grown / mib);
    std::printf(
        "                residual are %.1f MiB: ratio %.3f; planned, all workspace included, %.1f MiB: "
        "%.3f\n",
        formula / mib, grown / formula, planned / mib, grown / planned);
    std::printf("                full cache would hold %.1f MiB; after prefill %.1f MiB are held\n",
                static_cast<double>(s.cache_bytes_full) / 1048576,
                static_cast<double>(s.cache_bytes) / 1048576);
  });
}

// Layers with windows hold them, the others the budget: what is held, and the step, against what `full` holds
// and takes.
void WindowLayers(const std::string& model, int n) {
  std::printf("windows         26 layers (22 of them see 512 tokens), 1 KV head x 256, %d tokens\n", n);
  double full_bytes = 0, full_step = 0;
  for (const char* spec : {"full", "snapkv:budget=512", "cokv-document:budget=512", "snapkv:budget=128"}) {
    Run run(model, spec, n + 256);
    run.Prefill(n);
    const kvc_session_stats s = run.Stats();
    kvc_plan plan{};
    plan.struct_size = sizeof plan;
    Check(run.Plan(spec, n, &plan), "plan");
    const double bytes = static_cast<double>(s.cache_bytes), step = run.StepSeconds(64);
    if (full_bytes == 0) full_bytes = bytes, full_step = step;
    std::printf(
        "                %-26s %7.2f MiB (planned %.2f): %5.1f %% of full; step %.2f ms: %.2f of full; "
        "prefill %.1f s\n",
        spec, bytes / 1048576, static_cast<double>(plan.cache_bytes_prompt) / 1048576,
        100 * bytes / full_bytes, 1e3 * step, step / full_step, s.prefill_seconds);
  }
}

double PrefillSeconds(const std::string& model, const char* spec, int n) {
  Run run(model, spec, n + 16);
  run.Prefill(n);
  return run.Stats().prefill_seconds;
}

// Window methods: scoring and compaction as a share of prefill. Column-sum methods pay inside the pass, a
// second Q.K of every chunk: their extra time over a full prefill just before, as a share of attention, which
// is what prefill takes beyond the linear part of short prompts. cokv-document reads the prompt
// twice, or looks twice.
void CompressionCost(const std::string& model, int n) {
  constexpr int kShort = 256, kRounds = 5;
  for (const char* spec : {"snapkv:budget=128,window=32", "cokv:budget=128", "ada-snapkv:budget=128",
                           "h2o:budget=128", "weightedkv:budget=128", "cokv-document:budget=128",
                           "cokv-document:budget=128,reread=own,reread_part=512"}) {
    std::vector<double> shares, extras, prefills, attention;
    for (int i = 0; i < kRounds; ++i) {
      const double full = PrefillSeconds(model, "full", n);
      Run run(model, spec, n + 16);
      run.Prefill(n);
      const kvc_session_stats s = run.Stats();
      shares.push_back(s.compress_seconds / s.prefill_seconds);
      attention.push_back(full - PrefillSeconds(model, "full", kShort) * n / kShort);
      extras.push_back((s.prefill_seconds - full) / attention.back());
      prefills.push_back(s.prefill_seconds / full);
    }
    std::printf("compression     %-28s %d tokens: scoring and compaction %.2f %% of prefill; ", spec, n,
                100 * Median(&shares));
    std::printf("extra %.0f %% of attention's %.0f ms; %.2f of a full prefill\n", 100 * Median(&extras),
                1e3 * Median(&attention), Median(&prefills));
  }
}

void StepGain(const std::string& model, int n) {
  Run full(model, "full", n + 64), small(model, "snapkv:budget=128,window=32", n + 64);
  full.Prefill(n), small.Prefill(n);
  full.StepSeconds(5), small.StepSeconds(5);
  double ratio_sum = 0;
  const int rounds = 5;
  double a = 0, b = 0;
  for (int i = 0; i < rounds; ++i) {  // in turn, so that a change of the machine's speed hits both
    a = full.StepSeconds(5), b = small.StepSeconds(5);
    ratio_sum += a / b;
  }
  const kvc_session_stats s = full.Stats();
  std::printf(
      "decode step     %d tokens, full cache %.1f MiB over weights of %.1f MiB: full %.3f ms, budget 128 "
      "%.3f ms, %.2f times faster\n",
      n, static_cast<double>(s.cache_bytes) / 1048576, static_cast<double>(s.weight_bytes) / 1048576, 1e3 * a,
      1e3 * b, ratio_sum / rounds);
}

// The caller's own token against the library's: steps and accepts in turn, on two sessions that see the same.
void AcceptCost(const std::string& model, int n) {
  for (const char* spec : {"full", "snapkv:budget=128,window=32", "h2o:budget=128"}) {
    constexpr int kPairs = 201;
    Run stepped(model, spec, n + kPairs + 16), accepted(model, spec, n + kPairs + 16);
    stepped.Prefill(n), accepted.Prefill(n);
    std::vector<double> steps, accepts;
    for (int i = 0; i < kPairs; ++i) {
      int32_t token;
      double begin = ProcessorTime();
      Check(kvc_session_step(stepped.session(), &token), "step");
      steps.push_back(ProcessorTime() - begin);
      if (token == KVC_TOKEN_NONE) {  // random weights came upon the stop token: both go on with another
        token = 5;
        Check(kvc_session_accept(stepped.session(), token), "accept");
      }
      begin = ProcessorTime();
      Check(kvc_session_accept(accepted.session(), token), "accept");
      accepts.push_back(ProcessorTime() - begin);
    }
    const double step = Median(&steps), accept = Median(&accepts);
    std::printf(
        "accept          %-28s %d tokens: processor time of a step %.3f ms, of an accept %.3f ms, ratio "
        "%.3f\n",
        spec, n, 1e3 * step, 1e3 * accept, accept / step);
  }
}

void ForkCost(const std::string& model, int n) {
  Run run(model, "full", n + 64);
  run.Prefill(n);
  const int64_t before = run.Stats().cache_bytes;
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    kvc_session* fork = nullptr;
    const double begin = Seconds();
    Check(kvc_session_fork(run.session(), &fork), "fork");
    times.push_back(Seconds() - begin);
    kvc_session_close(fork);
  }
  std::printf("fork            %d tokens: %.3f ms (median), %lld cache bytes\n", n, 1e3 * Median(&times),
              static_cast<long long>(run.Stats().cache_bytes - before));
}

// A session that has just filled its budget against one that has generated `steps` tokens more.
void Endless(const std::string& model, int steps) {
  for (const char* spec : {"streaming:budget=512", "h2o:budget=512", "weightedkv:budget=512"}) {
    Run young(model, spec, steps + 4000), old(model, spec, steps + 4000);
    young.Prefill(1000), old.Prefill(1000);
    young.StepSeconds(200), old.StepSeconds(200);
    const int64_t bytes = old.Stats().cache_bytes;
    old.StepSeconds(steps);
    std::vector<double> early, late, ratios;
    for (int i = 0; i < 9; ++i) {  // in turn, so that a change of the machine's speed hits both
      early.push_back(young.StepSeconds(100)), late.push_back(old.StepSeconds(100));
      ratios.push_back(late.back() / early.back());
    }
    std::printf(
        "endless         %-24s %d tokens: step %.3f ms then %.3f ms (ratio %.2f), cache %.2f MiB then %.2f "
        "MiB\n",
        spec, steps, 1e3 * Median(&early), 1e3 * Median(&late), Median(&ratios),
        static_cast<double>(bytes) / 1048576, static_cast<double>(old.Stats().cache_bytes) / 1048576);
  }
}

// Sessions that nobody has fed yet, of as many layers and heads as a 0.5B model has: what the process grows
// by.
void IdleSessions(const std::string& model_path, const char* spec, int n) {
  kvc_model* model = nullptr;
  kvc_policy* policy = nullptr;
  Check(kvc_model_open(model_path.c_str(), "cpu", nullptr, &model), "open");
  Check(kvc_policy_create(spec, &policy), spec);
  std::vector<kvc_session*> sessions(static_cast<size_t>(n));
  const int64_t before = kvc::test::AnonymousBytes();
  for (kvc_session*& session : sessions) Check(kvc_session_create(model, policy, nullptr, &session), spec);
  const double bytes = static_cast<double>(kvc::test::AnonymousBytes() - before);
  std::printf("idle            %-24s %d sessions: %.1f KiB each (%.2f of 16 KiB)\n", spec, n,
              bytes / n / 1024, bytes / n / 16384);
}

kvc::test::TinyModelOptions Shape(int layers, int heads, int kv_heads, int dim, int hidden, int ffn) {
  kvc::test::TinyModelOptions o;
  o.n_layers = layers, o.n_heads = heads, o.n_kv_heads = kv_heads, o.head_dim = dim, o.hidden_size = hidden,
  o.ffn_size = ffn;
  o.max_tokens = 1 << 20;
  return o;
}

constexpr char kHelp[] =
    "cache_bench: what a compressed cache costs and what it saves, on random-weight models\n\n"
    "  cache_bench [--quick] [--threads N] [--only NAME]\n\n"
    "  --quick      shorter contexts and fewer steps (half a minute instead of several)\n"
    "  --threads N  threads of the engine; 0, the default, takes the machine's\n"
    "  --only NAME  one measurement: memory, cost, step, windows, accept, fork, idle or endless\n\n"
    "Every line is a ratio within one run, or a share of what was planned.\n";

struct Options {
  bool quick = false;
  std::string only;
  bool Wants(const char* name) const { return only.empty() || only == name; }
};

// 0 to go on, else the exit status plus one.
int ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--help") {
      std::fputs(kHelp, stdout);
      return 1;
    }
    if (arg == "--quick") {
      options->quick = true;
    } else if (arg == "--threads" && i + 1 < argc) {
      n_threads = std::atoi(argv[++i]);
    } else if (arg == "--only" && i + 1 < argc) {
      options->only = argv[++i];
    } else {
      std::fprintf(stderr, "cache_bench: '%s' is not an option; see --help\n", arg.c_str());
      return 3;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // into a file or a pipe, too: the whole takes minutes
  Options options;
  if (const int exit = ParseOptions(argc, argv, &options); exit != 0) return exit - 1;
  const bool quick = options.quick;
  const kvc::test::TempFolder folder;
  const std::string deep = folder / "deep.kvc", wide = folder / "wide.kvc", small = folder / "small.kvc",
                    half = folder / "half.kvc", windows = folder / "windows.kvc";
  kvc::test::TinyModelOptions gemma = Shape(26, 4, 1, 256, 128, 256);  // attention of Gemma 3 1B
  for (int layer = 0; layer < 26; ++layer) gemma.layers.push_back({layer % 6 == 5 ? 0 : 512, 0});
  if (!kvc::test::WriteTinyModel(Shape(24, 4, 4, 64, 256, 512), deep).ok() ||
      !kvc::test::WriteTinyModel(Shape(4, 16, 16, 64, 256, 512), wide).ok() ||
      !kvc::test::WriteTinyModel(Shape(4, 8, 4, 64, 256, 1024), small).ok() ||
      !kvc::test::WriteTinyModel(Shape(24, 14, 2, 64, 128, 256), half).ok() ||
      !kvc::test::WriteTinyModel(gemma, windows).ok()) {
    return 1;
  }
  if (options.Wants("memory")) {
    PrefillMemory(deep, quick ? 4096 : 16384, "snapkv:budget=128,kv=f32");
    if (!quick) PrefillMemory(deep, 16384, "full:kv=f32");
  }
  if (options.Wants("cost")) CompressionCost(small, 4096);
  if (options.Wants("step")) StepGain(wide, quick ? 4096 : 8192);
  if (options.Wants("windows")) WindowLayers(windows, quick ? 4096 : 32768);
  if (options.Wants("accept")) AcceptCost(small, quick ? 512 : 2048);
  if (options.Wants("fork")) ForkCost(wide, quick ? 4096 : 8192);
  for (const char* spec : {"full", "snapkv:budget=128", "h2o:budget=128", "spindlekv:budget=128"}) {
    if (options.Wants("idle")) Apart([&] { IdleSessions(half, spec, quick ? 1000 : 10000); });
  }
  if (options.Wants("endless")) Endless(small, quick ? 4000 : 20000);
  return 0;
}
