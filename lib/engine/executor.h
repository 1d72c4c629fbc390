// What the sessions of a model share when they run: the device, the arenas of their pages, and workspaces, of
// which a call holds one while it computes. An idle session holds none.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/compress/compressor.h"
#include "lib/model/forward.h"

namespace kvc {

// cos and sin of positions, for sessions that turn keys at every step. Immutable once made: who needs more
// gets another.
struct AngleSet {
  DeviceBuffer<float> fine, coarse;
  int32_t n_fine = 0, n_coarse = 0;
};

// Buffers that hold nothing between calls.
struct Workspace {
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Stream> side;  // Device::NewSideStream
  StepBuffers step;
  ChunkBuffers chunk;
  ChoiceBuffers choice;
  LayerBuffers layer;  // of methods that look at a layer again at steps
  ObservedBuffers observed;
  DeviceBuffer<float> sample_weights;
  std::vector<std::shared_ptr<const AngleSet>> angle_sets;  // [ropes], what `angles` points to
  std::vector<AngleTable> angles;                           // [L]
  std::vector<StepRow> rows;                                // of a step
  std::vector<int32_t> tokens;
  std::vector<int32_t> repeated;  // Sampler::RowOf
  int64_t bytes() const;
  // For layers that are loaded, chosen from and stored again, of heads of at most `longest` entries. What
  // only reading a prompt needs goes.
  Status ReserveReduction(const DeviceMemory& memory, const ModelConfig& c, int64_t longest, int n_aux,
                          bool seen_masks, bool rereads);
  // What only prompts need, which is much: steps go on without it.
  void FreePromptBuffers();
  // What only steps need: little beside a prompt's, which may need the room.
  void FreeStepBuffers();
};

// Of a workspace that is taken for a prompt, or for a layer at full length: in the end, however that comes,
// what only prompts need goes.
class PromptUse {
 public:
  explicit PromptUse(Workspace* workspace) : workspace_(workspace) {}
  ~PromptUse() {
    if (!pauses_) workspace_->FreePromptBuffers();
  }
  PromptUse(const PromptUse&) = delete;
  PromptUse& operator=(const PromptUse&) = delete;
  void Pause() { pauses_ = true; }  // the prompt goes on, in this workspace or another

 private:
  Workspace* const workspace_;
  bool pauses_ = false;
};

class Executor {
 public:
  Executor(Device* device, std::shared_ptr<MemoryMeter> meter, const Network& network,
           std::vector<const Rope*> ropes, std::vector<int32_t> rope_of_layer);

  // A workspace for the time of a call.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& o) noexcept : owner_(o.owner_), workspace_(std::move(o.workspace_)) {}
    Lease& operator=(Lease&& o) noexcept {
      Return();
      owner_ = o.owner_, workspace_ = std::move(o.workspace_);
      return *this;
    }
    ~Lease() { Return(); }
    Workspace* operator->() const { return workspace_.get(); }
    Workspace& operator*() const { return *workspace_; }

   private:
    friend class Executor;
    void Return();
    Executor* owner_ = nullptr;
    std::unique_ptr<Workspace> workspace_;
  };
  Result<Lease> Acquire();
  // Gives back the memory of workspaces that nobody holds, and of tables.
  void FreeIdle();
  // Of these, what a prompt needed that does not go on.
  void FreeIdlePromptBuffers();
  // Held by every session, before anything else of it: when the last has gone, what only sessions need goes.
  class User {
   public:
    explicit User(Executor* executor) : executor_(executor) {
      executor_->n_users_.fetch_add(1, std::memory_order_relaxed);
    }
    ~User() {
      if (executor_->n_users_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      executor_->FreeIdle();
      executor_->device()->GiveBackFreed();
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

   private:
    Executor* const executor_;
  };

  // Tables that reach position n - 1, into the workspace.
  Status ReserveAngles(Workspace* workspace, int32_t n, const DeviceMemory& memory);

  Device* device() const { return network_.device; }
  DeviceMemory memory() const { return {network_.device, meter_.get()}; }
  PageArenas* arenas() { return &arenas_; }
  const Network& network() const { return network_; }
  size_t n_ropes() const { return ropes_.size(); }
  LayerWork WorkOf(Workspace* w) const {
    return {network_.device, w->stream.get(), meter_.get(), &w->choice};
  }

 private:
  Status MakeAngles(const Rope& rope, int32_t n, const AngleSet* before, const DeviceMemory& memory,
                    std::shared_ptr<const AngleSet>* out);

  const std::shared_ptr<MemoryMeter> meter_;
  const Network network_;
  PageArenas arenas_;
  const std::vector<const Rope*> ropes_;
  const std::vector<int32_t> rope_of_layer_;  // [L]
  std::atomic<int32_t> n_users_{0};
  std::mutex mutex_;
  size_t n_workspaces_ = 0;                              // lent or idle
  std::vector<std::unique_ptr<Workspace>> idle_;         // with room for all
  std::vector<std::shared_ptr<const AngleSet>> angles_;  // [ropes], the longest made so far
};

}  // namespace kvc
