// The team over MPI: the module kvc-mpi.so. It uses nothing of the program that loads it but what stands in
// headers.
#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tools/failure.h"
#include "tools/score/team.h"

namespace kvc::tool {
namespace {

constexpr int kCoordinator = 0;
constexpr int kWorkTag = 1, kResultTag = 2;  // keys of a chunk, none: go home; results of a chunk
constexpr std::chrono::milliseconds kPause{1};

// Messages are these structs as they lie in memory: all processes run the same program.
static_assert(std::is_trivially_copyable<WorkKey>::value && std::is_trivially_copyable<WorkResult>::value,
              "sent as bytes");

template <typename T>
void Send(const std::vector<T>& items, int to, int tag) {
  MPI_Send(items.data(), static_cast<int>(items.size() * sizeof(T)), MPI_BYTE, to, tag, MPI_COMM_WORLD);
}

template <typename T>
std::vector<T> Receive(const MPI_Status& found) {
  int n_bytes = 0;
  MPI_Get_count(&found, MPI_BYTE, &n_bytes);
  std::vector<T> items(static_cast<size_t>(n_bytes) / sizeof(T));
  MPI_Recv(items.data(), n_bytes, MPI_BYTE, found.MPI_SOURCE, found.MPI_TAG, MPI_COMM_WORLD,
           MPI_STATUS_IGNORE);
  return items;
}

// Waits with short sleeps: a waiting process must not take the processor of one that measures.
MPI_Status WaitForMessage(const std::function<void()>& idle) {
  MPI_Status found;
  for (;;) {
    int there = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, &found);
    if (there != 0) return found;
    if (idle) idle();
    std::this_thread::sleep_for(kPause);
  }
}

class MpiTeam : public Team {
 public:
  MpiTeam(int rank, int size) : rank_(rank), size_(size) {
    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &n_here_);
    MPI_Comm_free(&node);
  }
  ~MpiTeam() override { MPI_Finalize(); }

  bool coordinates() const override { return rank_ == kCoordinator; }
  int n_workers() const override { return size_ - 1; }
  int n_here() const override { return n_here_; }

  void Begin() override {
    if (coordinates()) {
      for (int worker = 1; worker < size_; ++worker) Send(WorkChunk(), worker, kWorkTag);
    } else {
      Receive<WorkKey>(WaitForMessage(nullptr));
    }
  }

  void Distribute(const std::vector<WorkChunk>& chunks,
                  const std::function<void(const WorkChunk&, const ChunkResults&)>& on_results,
                  const std::function<void()>& idle) override {
    std::vector<const WorkChunk*> given(static_cast<size_t>(size_), nullptr);
    size_t next = 0, n_out = 0;
    const auto give = [&](int worker) {
      if (next == chunks.size()) return;
      given[static_cast<size_t>(worker)] = &chunks[next++];
      Send(*given[static_cast<size_t>(worker)], worker, kWorkTag);
      ++n_out;
    };
    for (int worker = 1; worker < size_; ++worker) give(worker);
    while (n_out > 0) {
      const MPI_Status found = WaitForMessage(idle);
      const ChunkResults results = Receive<WorkResult>(found);
      const WorkChunk& chunk = *given[static_cast<size_t>(found.MPI_SOURCE)];
      --n_out;
      give(found.MPI_SOURCE);  // before the log is written: nobody waits for a disk
      on_results(chunk, results);
    }
  }

  void Dismiss() override {
    for (int worker = 1; worker < size_; ++worker) Send(WorkChunk(), worker, kWorkTag);
  }

  void Serve(const std::function<ChunkResults(const WorkChunk&)>& measure) override {
    for (;;) {
      const WorkChunk chunk = Receive<WorkKey>(WaitForMessage(nullptr));
      if (chunk.empty()) return;
      Send(measure(chunk), kCoordinator, kResultTag);
    }
  }

  void Abort(int exit_code) override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  const int rank_, size_;
  int n_here_ = 1;
};

}  // namespace
}  // namespace kvc::tool

int KvcJoinTeam(kvc::tool::Team** out_team) {
  *out_team = nullptr;
  if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) return -1;
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size > 1) {
    *out_team = new kvc::tool::MpiTeam(rank, size);
  } else {
    MPI_Finalize();
  }
  return 0;
}
