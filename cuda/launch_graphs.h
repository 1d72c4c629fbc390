// Pieces of a step as graphs of the runtime: the same kernels in the same order, once more, cost the host one
// call. What differs from the last time (grids that grow with the cache, addresses) is set in the graph.
#pragma once
#include <cstdint>
#include <vector>

#include "cuda/launches.h"
#include "cuda/tuning.h"

namespace kvc::cuda {

// What the host wrote for the kernels of a piece, to be copied in front of them; bytes 0: nothing.
struct PacketCopy {
  uint8_t* to;
  const uint8_t* from;
  size_t bytes;
};

// How a device is given its work.
struct LaunchTraits {
  bool graphs = true;  // KVC_CUDA_GRAPHS
  bool early = false;  // kernels may begin before those in front of them have ended: KVC_CUDA_EARLY
  bool rounds = true;  // activations of prompts are one number of f16 in products, not two: KVC_CUDA_ROUND
  int32_t multiprocessors = 1;
  Tuning tuning;
};

class KeptBlocks;
class LaunchGraphs {
 public:
  // kept: what goes where the device has no room for a graph; null: nothing.
  LaunchGraphs(const LaunchTraits& traits, KeptBlocks* kept);
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  // Issues the copy and the launches. piece: which of the pieces gathered at once. The kernels that a piece
  // had before become a graph; those that come for the first time are launched one by one, and so is what the
  // device has no room for at the moment. When that happened often, or it cannot change a graph, everything
  // is. *what: what failed.
  cudaError_t Run(cudaStream_t stream, int32_t piece, LaunchList* list, const PacketCopy& copy,
                  const char** what);

  // When none of them runs, before this goes: it may have to go where the device cannot be asked.
  void Clear();
  // When none of them runs and the memory that their packets lay in has gone: a graph that comes again is
  // made anew, as drivers may hold what they copied from and to against a change.
  void ForgetPackets();

  int64_t n_replayed() const { return n_replayed_; }  // pieces that were a graph

 private:
  struct Graph {
    int32_t piece;
    LaunchList list;  // as they came the last time
    PacketCopy copy;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;  // null: its kernels came once
    cudaGraphNode_t copy_node = nullptr;
    std::vector<cudaGraphNode_t> nodes;
  };
  static void Destroy(Graph* graph);
  Graph* Find(int32_t piece, const LaunchList& list, const PacketCopy& copy);
  // Lists are copied: that of the stream keeps the room it has, so that steps take nothing from the heap
  // whichever pieces follow each other.
  void Add(cudaStream_t stream, int32_t piece, const LaunchList& list, const PacketCopy& copy);
  cudaError_t Build(Graph* graph, const LaunchList& list, const PacketCopy& copy);
  cudaError_t AddKernel(Graph* graph, size_t i, struct GraphLine* line);
  cudaError_t Update(Graph* graph, LaunchList* list, const PacketCopy& copy);
  // Whether one that refused to be changed may be made anew; it has gone then.
  bool GoesAnew(cudaStream_t stream, Graph* graph, cudaError_t e);
  // Of a piece whose kernels came before.
  cudaError_t Replay(cudaStream_t stream, Graph* graph, LaunchList* list, const PacketCopy& copy);
  cudaError_t LaunchAll(cudaStream_t stream, LaunchList* list, const PacketCopy& copy, const char** what);

  KeptBlocks* const kept_;
  bool enabled_, early_;
  bool mixed_ = true;          // what begins early may come behind launches beside as well
  std::vector<Graph> graphs_;  // oldest first
  std::vector<void*> pointers_;
  int64_t n_replayed_ = 0;
  int n_without_room_ = 0;
  int n_refused_ = 0;  // changes, one after the other
};

}  // namespace kvc::cuda
