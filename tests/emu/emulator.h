// The parts of the emulator to each other and to tests.
#pragma once
#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace kvc::emu {

// Calls of the host that a device may refuse: for memory, of its own or pinned, for what lies behind pages,
// to start something, and to copy.
enum class Call { kAllocate, kPin, kCommit, kLaunchGraph, kLaunch, kCopy, kCount };

int64_t FromEnvironment(const char* variable, int64_t otherwise);
// KVC_EMU_CAPABILITY, else 90.
int UsualCapability();

// What no test sets is as the environment says, else as it stands here.
struct Options {
  // Of blocks and warps: 0 as numbered, 1 backward, 2 scattered.
  int order = static_cast<int>(FromEnvironment("KVC_EMU_ORDER", 0));
  // Kernels run when they are launched instead of when somebody waits.
  bool eager = FromEnvironment("KVC_EMU_EAGER", 0) != 0;
  int64_t memory = FromEnvironment("KVC_EMU_MEMORY", int64_t{8} << 30);  // of the device
  // Of what comes and goes behind addresses: 2 MiB on today's GPUs.
  int64_t granule = FromEnvironment("KVC_EMU_GRANULE", 64 << 10);
  int multiprocessors = static_cast<int>(FromEnvironment("KVC_EMU_MULTIPROCESSORS", 8));
  int64_t addresses = int64_t{1} << 46;  // that can be reserved
  int64_t graphs = int64_t{1} << 62;     // that can still be made
  // What a program finds on the machine: CUDA's version of the driver (0: there is none) and of the program's
  // own runtime, how many devices, what asking for them says beside that, their compute capability, times
  // ten, and whether they have virtual memory.
  int driver = 13000, runtime = 13000, devices = 1, capability = UsualCapability();
  int compiled_for = 0;  // the compute capability, times ten, of the program's kernels; 0: the device's
  cudaError_t count_error = cudaSuccess;
  bool virtual_memory = true;
  bool early_edges = true;      // in graphs: drivers before CUDA 12.3 have none
  bool mixed_edges = true;      // and those to what has others as well
  int64_t refused_updates = 0;  // of graphs, the next ones, with this error
  cudaError_t refused_with = cudaErrorInvalidValue;
  cudaError_t kernels_error = cudaSuccess;  // of kernels that are asked for
  // Another thread of the process captures a graph, in the mode that bars what could disturb it from all
  // others.
  bool capturing = false;
  // Calls of this kind are refused, so many in a row, after so many that are not. kCount: none is.
  Call refused = Call::kCount;
  int64_t refused_after = 0, refused_calls = 1;
  std::function<void(const void*, int64_t)> on_prefetch;  // with bytes that a thread wants in the cache
  std::function<void(Call)> on_call;  // with every call of these kinds, before anything of it happens
  // With every kernel that ran, whose memory is as it left it, and where its parameters lie.
  std::function<void(const std::string& name, void* const* params)> on_ran;
};
// Tests may change it; `GetOptions() = {}` takes that back.
Options& GetOptions();

// Calls of the host so far.
struct Calls {
  int64_t launches = 0, graphs = 0;  // of single kernels, of graphs
  int64_t early = 0;                 // kernels that ran as such, in graphs or not
  std::set<std::string> kernels;     // that ran
  int64_t waits = 0;                 // of the host, for what a stream or the device has done
  int64_t to_host = 0;               // copies to the host
  int64_t unnamed = 0;     // for the stream without a name, which waits for others of the host program
  int64_t disturbing = 0;  // that break a graph which another thread captures
  int64_t of[static_cast<int>(Call::kCount)] = {};
};
Calls& GetCalls();
// Counts a call. False: this one is refused (Options::refused).
bool Admits(Call call);

// The device is as after a kernel that failed, until it forgets that; tests of failures end with Recover.
void Break();
void Recover();

// Kernels that a KernelLoader has made ready.
std::vector<const void*> DescribedKernels();

// The device whose context is the calling thread's, -1: it has none.
int CurrentContext();
// As what the calling thread's own captures are: 0 global, 1 of its own, 2 relaxed.
int CaptureMode();

// Whether a device would refuse a launch of a kernel with so much shared memory at most; says so.
bool Refuses(const char* name, dim3 grid, dim3 block, size_t shared, size_t most_shared);
// A graph that was launched: of its steps those in front, in the order in which they run, that they need not
// come behind; and the numbers that races.h has for those that ran.
struct GraphRun {
  std::vector<std::vector<size_t>> apart;
  std::vector<uint32_t> numbers;
};
// A kernel as it was launched. early: it may begin before what lies in front of it has ended, so that all of
// its threads have to wait for that themselves.
struct Started {
  const char* name;
  dim3 grid, block;
  size_t shared;
  bool early;
  std::shared_ptr<GraphRun> run = {};  // of the graph that it is a step of
  size_t step = 0;
};

// Queues a kernel, which was not refused, on its stream; it runs when somebody waits for what the stream has
// done. grid: runs all of its blocks, false: as RunGrid.
cudaError_t Launch(cudaStream_t stream, std::function<bool()> grid);

// False: a block cannot go on, threads race (races.h), or some of an early kernel have not waited.
bool RunGrid(const Started& started, const std::function<void()>& kernel);

}  // namespace kvc::emu
