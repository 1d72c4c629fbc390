// The parts of the emulator to each other and to tests.
#pragma once
#include <cuda_runtime.h>

#include <functional>

namespace kvc::emu {

struct Options {
  int order = 0;                      // of blocks and warps: 0 as numbered, 1 backward, 2 scattered
  bool eager = false;                 // kernels run when they are launched instead of when somebody waits
  int64_t memory = int64_t{8} << 30;  // of the device
  int64_t graphs = int64_t{1} << 62;  // that can still be made
};
// From KVC_EMU_ORDER, KVC_EMU_EAGER, KVC_EMU_MEMORY in the environment; tests may change it.
Options& GetOptions();

// Calls of the host so far.
struct Calls {
  int64_t launches = 0, graphs = 0;  // of single kernels, of graphs
};
Calls& GetCalls();

// The device forgets that a launch has failed; tests of failures end with it.
void Recover();

// Whether a device would refuse a launch; says so.
bool Refuses(const char* name, dim3 grid, dim3 block, size_t shared);
// Queues the kernel on its stream; it runs when somebody waits for what the stream has done.
cudaError_t Launch(const char* name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   std::function<void()> kernel);

// False: a block cannot go on, or threads race (races.h).
bool RunGrid(const char* name, dim3 grid, dim3 block, size_t shared, const std::function<void()>& kernel);

}  // namespace kvc::emu
