#include "cuda/launch_graphs.h"

#include <algorithm>

#include "cuda/kept_blocks.h"
#include "lib/base/log.h"

namespace kvc::cuda {
namespace {

constexpr size_t kMostGraphs = 192;
constexpr int kMostRefused = 4;
constexpr int kMostWithoutRoom =
    4;  // each costs a graph that is made for nothing, and those that are cleared

// Of a driver that has no early edges, or none beside others. That memory is short says nothing about edges.
bool RefusesEdges(cudaError_t e) {
  return e == cudaErrorInvalidValue || e == cudaErrorNotSupported || e == cudaErrorCallRequiresNewerDriver;
}

cudaKernelNodeParams NodeParams(LaunchList* list, size_t i, std::vector<void*>* pointers) {
  const Launch& launch = (*list)[i];
  return {const_cast<void*>(launch.kernel.function),
          launch.grid,
          launch.block,
          static_cast<unsigned>(launch.shared),
          list->ParamsOf(i, pointers),
          nullptr};
}

// Edges on which a kernel may begin before the one in front of it has ended are as old as CUDA 12.3.
#if CUDART_VERSION >= 12030
constexpr bool kHasEarlyEdges = true;
cudaError_t AddEarlyEdge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
  cudaGraphEdgeData edge = {};
  edge.from_port = cudaGraphKernelNodePortProgrammatic;
  edge.type = cudaGraphDependencyTypeProgrammatic;
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(graph, &from, &to, &edge, 1);
#else
  return cudaGraphAddDependencies_v2(graph, &from, &to, &edge, 1);
#endif
}
#else
constexpr bool kHasEarlyEdges = false;
cudaError_t AddEarlyEdge(cudaGraph_t, cudaGraphNode_t, cudaGraphNode_t) { return cudaErrorInvalidValue; }
#endif

cudaError_t LaunchEarly(const Launch& launch, void** params, cudaStream_t stream) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  // gridDim and blockDim are words of the language under the emulator.
  const cudaLaunchConfig_t config = {launch.grid, launch.block, launch.shared, stream, &early, 1};
  return cudaLaunchKernelExC(&config, launch.kernel.function, params);
}

}  // namespace

LaunchGraphs::LaunchGraphs(const LaunchTraits& traits, KeptBlocks* kept)
    : kept_(kept), enabled_(traits.graphs), early_(traits.early && kHasEarlyEdges) {}
void LaunchGraphs::ForgetPackets() {
  for (Graph& graph : graphs_) Destroy(&graph);
}

void LaunchGraphs::Clear() {
  ForgetPackets();
  graphs_.clear();
}

void LaunchGraphs::Destroy(Graph* graph) {
  if (graph->exec != nullptr) cudaGraphExecDestroy(graph->exec);
  if (graph->graph != nullptr) cudaGraphDestroy(graph->graph);
  graph->exec = nullptr, graph->graph = nullptr, graph->nodes.clear();
}

LaunchGraphs::Graph* LaunchGraphs::Find(int32_t piece, const LaunchList& list, const PacketCopy& copy) {
  for (Graph& graph : graphs_) {
    if (graph.piece == piece && (graph.copy.bytes > 0) == (copy.bytes > 0) && graph.list.HasKernelsOf(list))
      return &graph;
  }
  return nullptr;
}

// Makes room by the oldest whose kernels did not come again, else by the oldest graph.
void LaunchGraphs::Add(cudaStream_t stream, int32_t piece, const LaunchList& list, const PacketCopy& copy) {
  if (graphs_.size() >= kMostGraphs) {
    auto old = std::find_if(graphs_.begin(), graphs_.end(), [](const Graph& g) { return g.exec == nullptr; });
    if (old == graphs_.end()) {
      old = graphs_.begin();
      cudaStreamSynchronize(stream);  // it may be running
      Destroy(&*old);
    }
    graphs_.erase(old);
  }
  graphs_.emplace_back();
  Graph& graph = graphs_.back();
  graph.piece = piece, graph.copy = copy, graph.list = list;
}

// The edges of a graph while its nodes are added: a line, the order of a stream, and launches beside it.
struct GraphLine {
  cudaGraphNode_t last = nullptr;                  // of the line
  bool kernel = false;                             // that is one
  cudaGraphNode_t ends[LaunchOrder::kSlots] = {};  // of the launches beside that the line is not behind yet
};

// What waits by itself does so for a kernel, not for the copy.
cudaError_t LaunchGraphs::Build(Graph* graph, const LaunchList& list, const PacketCopy& copy) {
  graph->copy = copy, graph->list = list;
  cudaError_t e = cudaGraphCreate(&graph->graph, 0);
  GraphLine line;
  if (e == cudaSuccess && graph->copy.bytes > 0) {
    e = cudaGraphAddMemcpyNode1D(&line.last, graph->graph, nullptr, 0, graph->copy.to, graph->copy.from,
                                 graph->copy.bytes, cudaMemcpyHostToDevice);
    graph->copy_node = line.last;
  }
  graph->nodes.reserve(graph->list.size());
  for (size_t i = 0; e == cudaSuccess && i < graph->list.size(); ++i) e = AddKernel(graph, i, &line);
  // Its kernels have the priority of the stream that it is launched in: their own ones take a flag.
  if (e == cudaSuccess) e = cudaGraphInstantiate(&graph->exec, graph->graph, 0);
  return e;
}

// Launches beside that follow each other are a line of their own.
cudaError_t LaunchGraphs::AddKernel(Graph* graph, size_t i, GraphLine* line) {
  const Launch& launch = graph->list[i];
  const LaunchOrder& order = launch.order;
  const bool goes_on = order.beside && i > 0 && graph->list[i - 1].order == order;
  const cudaGraphNode_t front = goes_on ? graph->nodes[i - 1] : line->last;
  cudaGraphNode_t before[1 + LaunchOrder::kSlots], node = nullptr;
  size_t n = 0;
  for (uint8_t slot = 0; slot < LaunchOrder::kSlots; ++slot) {
    cudaGraphNode_t& end = line->ends[slot];
    if (end == nullptr || end == front || (order.behind >> slot & 1) == 0) continue;
    before[n++] = end;
    if (!order.beside) end = nullptr;  // and so is everything behind this one
  }
  // The first of those beside leaves the early start to what the line goes on with.
  const bool early =
      early_ && launch.kernel.early && (goes_on || (!order.beside && line->kernel)) && (n == 0 || mixed_);
  if (!early && front != nullptr) before[n++] = front;
  const cudaKernelNodeParams p = NodeParams(&graph->list, i, &pointers_);
  cudaError_t e = cudaGraphAddKernelNode(&node, graph->graph, before, n, &p);
  if (e == cudaSuccess && early) e = AddEarlyEdge(graph->graph, front, node);
  graph->nodes.push_back(node);
  if (order.beside) {
    line->ends[order.slot] = node;
  } else {
    line->last = node, line->kernel = true;
  }
  return e;
}

cudaError_t LaunchGraphs::Update(Graph* graph, LaunchList* list, const PacketCopy& copy) {
  cudaError_t e = cudaSuccess;
  const PacketCopy& was = graph->copy;
  if (copy.bytes > 0 && (copy.to != was.to || copy.from != was.from || copy.bytes != was.bytes))
    e = cudaGraphExecMemcpyNodeSetParams1D(graph->exec, graph->copy_node, copy.to, copy.from, copy.bytes,
                                           cudaMemcpyHostToDevice);
  for (size_t i = 0; e == cudaSuccess && i < list->size(); ++i) {
    if (list->IsAsIn(graph->list, i)) continue;
    const cudaKernelNodeParams p = NodeParams(list, i, &pointers_);
    e = cudaGraphExecKernelNodeSetParams(graph->exec, graph->nodes[i], &p);
  }
  // A graph that has only a part of it has to get all of it again: what it had counts on.
  if (e == cudaSuccess) graph->copy = copy, graph->list = *list;
  return e;
}

cudaError_t LaunchGraphs::LaunchAll(cudaStream_t stream, LaunchList* list, const PacketCopy& copy,
                                    const char** what) {
  *what = "records for the device";
  if (copy.bytes > 0) {
    const cudaError_t e = cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyHostToDevice, stream);
    if (e != cudaSuccess) return e;
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const Launch& launch = (*list)[i];
    *what = launch.kernel.name;
    void** params = list->ParamsOf(i, &pointers_);
    const cudaError_t e = early_ && launch.kernel.early
                              ? LaunchEarly(launch, params, stream)
                              : cudaLaunchKernel(launch.kernel.function, launch.grid, launch.block, params,
                                                 launch.shared, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

// Where memory is short, that is what has to be said.
bool LaunchGraphs::GoesAnew(cudaStream_t stream, Graph* graph, cudaError_t e) {
  if (e == cudaErrorMemoryAllocation || n_refused_ >= kMostRefused) return false;
  Log(kLogInfo, "a graph of kernels is made anew: %s", cudaGetErrorString(e));
  cudaGetLastError();
  ++n_refused_;
  cudaStreamSynchronize(stream);  // it may be running
  Destroy(graph);
  return true;
}

cudaError_t LaunchGraphs::Replay(cudaStream_t stream, Graph* graph, LaunchList* list,
                                 const PacketCopy& copy) {
  cudaError_t e = cudaSuccess;
  if (graph->exec != nullptr) {
    e = Update(graph, list, copy);
    if (e == cudaSuccess) {
      n_refused_ = 0;
    } else if (!GoesAnew(stream, graph, e)) {
      return e;
    }
  }
  if (graph->exec == nullptr) e = Build(graph, *list, copy);
  while (RefusesEdges(e) && early_ && graph->exec == nullptr) {
    Log(kLogWarning, "graphs of kernels without early starts%s: %s", mixed_ ? " beside other edges" : "",
        cudaGetErrorString(e));
    cudaGetLastError();
    (mixed_ ? mixed_ : early_) = false;
    Destroy(graph);
    e = Build(graph, *list, copy);
  }
  return e == cudaSuccess ? cudaGraphLaunch(graph->exec, stream) : e;
}

cudaError_t LaunchGraphs::Run(cudaStream_t stream, int32_t piece, LaunchList* list, const PacketCopy& copy,
                              const char** what) {
  if (!enabled_ || list->size() < 2) return LaunchAll(stream, list, copy, what);
  Graph* graph = Find(piece, *list, copy);
  if (graph == nullptr) {
    Add(stream, piece, *list, copy);
    return LaunchAll(stream, list, copy, what);
  }
  cudaError_t e = Replay(stream, graph, list, copy);
  if (e == cudaErrorMemoryAllocation && kept_ != nullptr && kept_->FreeAll()) {
    cudaGetLastError();
    if (graph->exec == nullptr) Destroy(graph);  // what there is of it
    e = Replay(stream, graph, list, copy);
  }
  if (e == cudaSuccess) {
    ++n_replayed_;
    return e;
  }
  // Nothing of it has been issued, and it goes the plain way. What broke the device breaks that too.
  const bool again = e == cudaErrorMemoryAllocation && ++n_without_room_ < kMostWithoutRoom;
  Log(kLogWarning, "kernels one by one%s: no graph of them: %s", again ? "" : " from here on",
      cudaGetErrorString(e));
  cudaGetLastError();
  enabled_ = again;
  cudaStreamSynchronize(stream);
  Clear();
  return LaunchAll(stream, list, copy, what);
}

}  // namespace kvc::cuda
