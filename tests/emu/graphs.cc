// Kernels by their addresses, and graphs of them. Nodes run as late as what they wait for lets them, those
// that were added last first: a graph that forgot an edge gives other results.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/emu/emulator.h"
#include "tests/emu/ptx/program.h"
#include "tests/support/heap_pause.h"

namespace kvc::emu {
namespace {

// A launch or a copy, with parameters of its own.
struct Work {
  const void* function = nullptr;  // null: a copy
  dim3 grid, block;
  size_t shared = 0;
  bool early = false;
  std::vector<std::vector<unsigned char>> params;
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// What a driver says of a change of a graph, as tests want it.
cudaError_t Updates() {
  Options& options = GetOptions();
  if (options.refused_updates <= 0) return cudaSuccess;
  --options.refused_updates;
  return options.refused_with;
}

// A kernel that was made ready: it has 48 KiB of shared memory, and up to 99 KiB where it asks for more.
struct Ready : KernelForm {
  size_t most_shared = 48 << 10;
};
constexpr size_t kMostShared = 99 << 10;

std::mutex forms_mutex;
std::map<const void*, Ready>& Forms() {
  static auto* forms = new std::map<const void*, Ready>();
  return *forms;
}
Ready* FormOf(const void* function) {
  const std::lock_guard<std::mutex> lock(forms_mutex);
  const auto it = Forms().find(function);
  return it == Forms().end() ? nullptr : &it->second;
}

cudaError_t SetKernel(const void* function, dim3 grid, dim3 block, size_t shared, void* const* params,
                      Work* work) {
  const Ready* form = FormOf(function);
  if (form == nullptr) {
    std::fprintf(stderr, "emulator: a kernel that no KernelLoader has made ready\n");
    return cudaErrorInvalidDeviceFunction;
  }
  if (Refuses(form->name, grid, block, shared, form->most_shared)) return cudaErrorInvalidValue;
  work->function = function, work->grid = grid, work->block = block, work->shared = shared;
  work->params.clear();
  for (size_t i = 0; i < form->n_params; ++i) {
    const auto* bytes = static_cast<const unsigned char*>(params[i]);
    work->params.emplace_back(bytes, bytes + form->sizes[i]);
  }
  return cudaSuccess;
}

cudaError_t Issue(const Work& work, cudaStream_t stream, const std::shared_ptr<GraphRun>& run = {},
                  size_t step = 0) {
  if (work.function == nullptr)
    return cudaMemcpyAsync(work.to, work.from, work.bytes, cudaMemcpyHostToDevice, stream);
  const KernelForm form = *FormOf(work.function);
  const void* function = work.function;
  // Not made by the threads themselves: those of a block that cannot go on never end.
  struct Params {
    decltype(work.params) values;
    std::vector<void*> pointers;
  };
  auto params = std::make_shared<Params>();
  params->values = work.params;
  for (auto& value : params->values) params->pointers.push_back(value.data());
  const auto tell = [=](bool good) {
    if (good && GetOptions().on_ran) GetOptions().on_ran(form.name, params->pointers.data());
    return good;
  };
  if (ptx::Library* library = ptx::TheLibrary()) {
    ptx::Program* program = library->Find(ptx::NameOf(function));
    const Started started{form.name, work.grid, work.block, work.shared, work.early, run, step};
    return Launch(stream, [=] { return tell(ptx::RunGrid(started, program, params->values)); });
  }
  const Started started{form.name, work.grid, work.block, work.shared, work.early, run, step};
  return Launch(
      stream, [=] { return tell(RunGrid(started, [=] { form.call(function, params->pointers.data()); })); });
}

}  // namespace

Calls& GetCalls() {
  static Calls calls;
  return calls;
}

bool Admits(Call call) {
  static std::mutex mutex;  // threads of sessions call
  const std::lock_guard<std::mutex> lock(mutex);
  ++GetCalls().of[static_cast<int>(call)];
  Options& options = GetOptions();
  if (options.on_call) options.on_call(call);
  if (options.refused != call || options.refused_after-- > 0) return true;
  if (--options.refused_calls <= 0) options.refused = Call::kCount;
  return false;
}

std::vector<const void*> DescribedKernels() {
  const std::lock_guard<std::mutex> lock(forms_mutex);
  std::vector<const void*> all;
  for (const auto& form : Forms()) all.push_back(form.first);
  return all;
}

void Describe(const void* function, const KernelForm& form) {
  const std::lock_guard<std::mutex> lock(forms_mutex);
  const test::HeapPause pause;
  Forms().emplace(function, Ready{form});
}

}  // namespace kvc::emu

using kvc::emu::Issue;
using kvc::emu::SetKernel;
using kvc::emu::Work;
using kvc::test::HeapPause;

struct CUgraphNode_st {
  Work work;
  std::vector<CUgraphNode_st*> before;
};
struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};
struct CUgraphExec_st {
  struct Step {
    CUgraphNode_st* node;
    Work work;
  };
  std::vector<Step> steps;
  std::vector<std::vector<size_t>> apart;  // GraphRun
  // Which steps in front of each, in the order in which they run, no line of edges leads to it from.
  void FindApart() {
    std::vector<std::vector<bool>> comes_behind(steps.size(), std::vector<bool>(steps.size(), false));
    apart.resize(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const auto& before = steps[i].node->before;
        if (std::find(before.begin(), before.end(), steps[j].node) == before.end()) continue;
        comes_behind[i][j] = true;
        for (size_t k = 0; k < j; ++k) comes_behind[i][k] = comes_behind[i][k] || comes_behind[j][k];
      }
      for (size_t j = 0; j < i; ++j) {
        if (!comes_behind[i][j]) apart[i].push_back(j);
      }
    }
  }
  Step* Of(cudaGraphNode_t node) {
    for (Step& step : steps) {
      if (step.node == node) return &step;
    }
    return nullptr;
  }
};

namespace {

cudaError_t AddNode(cudaGraph_t graph, const cudaGraphNode_t* before, size_t n, Work work,
                    cudaGraphNode_t* out) {
  auto node = std::make_unique<CUgraphNode_st>();
  node->work = std::move(work);
  node->before.assign(before, before + n);
  *out = node.get();
  graph->nodes.push_back(std::move(node));
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* function) {
  const cudaError_t e = kvc::emu::GetOptions().kernels_error;
  if (e != cudaSuccess) return e;
  const kvc::emu::Options& options = kvc::emu::GetOptions();
  *out = {};
  out->ptxVersion = options.compiled_for > 0 ? options.compiled_for : options.capability;
  return kvc::emu::FormOf(function) == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  kvc::emu::Ready* ready = kvc::emu::FormOf(function);
  if (ready == nullptr) return cudaErrorInvalidDeviceFunction;
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
    return value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue;
  if (value < 0 || static_cast<size_t>(value) > kvc::emu::kMostShared) return cudaErrorInvalidValue;
  ready->most_shared = static_cast<size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* function, void** params) {
  const HeapPause pause;
  ++kvc::emu::GetCalls().launches;
  if (!kvc::emu::Admits(kvc::emu::Call::kLaunch)) return cudaErrorLaunchOutOfResources;
  Work work;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    const cudaLaunchAttribute& a = c->attrs[i];
    if (a.id != cudaLaunchAttributeProgrammaticStreamSerialization) return cudaErrorInvalidValue;
    work.early = a.val.programmaticStreamSerializationAllowed != 0;
  }
  const cudaError_t e = SetKernel(function, c->grid, c->block, c->dynamicSmemBytes, params, &work);
  return e != cudaSuccess ? e : Issue(work, c->stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** params, size_t shared,
                             cudaStream_t stream) {
  const cudaLaunchConfig_t config = {grid, block, shared, stream, nullptr, 0};
  return cudaLaunchKernelExC(&config, function, params);
}

cudaError_t cudaGraphCreate(cudaGraph_t* out, unsigned) {
  const HeapPause pause;
  *out = new CUgraph_st();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* before,
                                   size_t n, const cudaKernelNodeParams* p) {
  const HeapPause pause;
  Work work;
  const cudaError_t e = SetKernel(p->func, p->grid, p->block, p->sharedMemBytes, p->kernelParams, &work);
  return e != cudaSuccess ? e : AddNode(graph, before, n, std::move(work), out);
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* before,
                                     size_t n, void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const HeapPause pause;
  Work work;
  work.to = to, work.from = from, work.bytes = bytes;
  return AddNode(graph, before, n, std::move(work), out);
}
// From one kernel to another alone, of which the later one waits by itself.
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData* data, size_t n) {
  const HeapPause pause;
  if (!kvc::emu::GetOptions().early_edges) return cudaErrorInvalidValue;
  for (size_t i = 0; i < n; ++i) {
    const bool early = data != nullptr && data[i].type == cudaGraphDependencyTypeProgrammatic;
    if (early && (data[i].from_port != cudaGraphKernelNodePortProgrammatic ||
                  from[i]->work.function == nullptr || to[i]->work.function == nullptr))
      return cudaErrorInvalidValue;
    if (early && !to[i]->before.empty() && !kvc::emu::GetOptions().mixed_edges) return cudaErrorInvalidValue;
    to[i]->before.push_back(from[i]);
    to[i]->work.early = early;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  const HeapPause pause;
  // Its kernels' parameters lie in the device's memory.
  constexpr size_t kBytes = 64 << 10;
  int64_t& left = kvc::emu::GetOptions().graphs;
  size_t free = 0, total = 0;
  if (const cudaError_t e = cudaMemGetInfo(&free, &total); e != cudaSuccess) return e;
  if (left <= 0 || free < kBytes) return cudaErrorMemoryAllocation;
  --left;
  auto exec = std::make_unique<CUgraphExec_st>();
  while (exec->steps.size() < graph->nodes.size()) {
    const size_t done = exec->steps.size();
    for (size_t i = graph->nodes.size(); i-- > 0 && exec->steps.size() == done;) {
      CUgraphNode_st* node = graph->nodes[i].get();
      bool ready = exec->Of(node) == nullptr;
      for (CUgraphNode_st* other : node->before) ready = ready && exec->Of(other) != nullptr;
      if (ready) exec->steps.push_back({node, node->work});
    }
    if (exec->steps.size() == done) return cudaErrorInvalidValue;  // a circle
  }
  exec->FindApart();
  *out = exec.release();
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
// A node stays what it is: another kernel is refused here, though some devices would take it.
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* p) {
  const HeapPause pause;
  CUgraphExec_st::Step* step = exec->Of(node);
  if (step == nullptr || step->work.function != p->func) return cudaErrorInvalidValue;
  const cudaError_t e = kvc::emu::Updates();
  if (e != cudaSuccess) return e;
  return SetKernel(p->func, p->grid, p->block, p->sharedMemBytes, p->kernelParams, &step->work);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* to,
                                               const void* from, size_t bytes, cudaMemcpyKind) {
  CUgraphExec_st::Step* step = exec->Of(node);
  if (step == nullptr || step->work.function != nullptr || bytes == 0) return cudaErrorInvalidValue;
  const cudaError_t e = kvc::emu::Updates();
  if (e != cudaSuccess) return e;
  step->work.to = to, step->work.from = from, step->work.bytes = bytes;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const HeapPause pause;
  ++kvc::emu::GetCalls().graphs;
  if (!kvc::emu::Admits(kvc::emu::Call::kLaunchGraph)) return cudaErrorMemoryAllocation;
  const auto run = std::make_shared<kvc::emu::GraphRun>();
  run->apart = exec->apart, run->numbers.resize(exec->steps.size());
  for (size_t i = 0; i < exec->steps.size(); ++i) {
    const cudaError_t e = Issue(exec->steps[i].work, stream, run, i);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // extern "C"
