#include "lib/engine/executor.h"

#include <algorithm>

namespace kvc {
namespace {

constexpr int32_t kLeastAngles = 64;

}  // namespace

int64_t Workspace::bytes() const {
  int64_t n = step.bytes() + chunk.bytes() + choice.bytes() + layer.bytes() + observed.bytes() +
              sample_weights.bytes();
  for (const auto& set : angle_sets) n += set == nullptr ? 0 : set->fine.bytes() + set->coarse.bytes();
  return n;
}

Status Workspace::ReserveReduction(const DeviceMemory& memory, const ModelConfig& c, int64_t longest,
                                   int n_aux, bool seen_masks, bool rereads) {
  chunk.Free();
  KVC_RETURN_IF_ERROR(layer.Reserve(memory, c.n_kv_heads, c.head_dim, longest, longest, n_aux, seen_masks));
  return observed.Reserve(memory, c.n_heads, c.n_kv_heads, c.head_dim, longest, 0, true, rereads);
}

void Workspace::FreePromptBuffers() { chunk.Free(), choice.Free(), layer.Free(), observed.Free(); }

void Workspace::FreeStepBuffers() {
  step.Free();
  sample_weights.Free();
  for (auto& set : angle_sets) set.reset();
}

Executor::Executor(Device* device, std::shared_ptr<MemoryMeter> meter, const Network& network,
                   std::vector<const Rope*> ropes, std::vector<int32_t> rope_of_layer)
    : meter_(meter),
      network_(network),
      arenas_(device, std::move(meter)),
      ropes_(std::move(ropes)),
      rope_of_layer_(std::move(rope_of_layer)),
      angles_(ropes_.size()) {}

void Executor::Lease::Return() {
  if (workspace_ == nullptr) return;
  std::lock_guard<std::mutex> lock(owner_->mutex_);
  owner_->idle_.push_back(std::move(workspace_));  // Acquire made room for it
}

Result<Executor::Lease> Executor::Acquire() {
  Lease lease;
  lease.owner_ = this;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      lease.workspace_ = std::move(idle_.back());
      idle_.pop_back();
      return lease;
    }
  }
  Result<std::unique_ptr<Stream>> stream = network_.device->NewStream();
  if (!stream.ok()) return stream.status();
  Result<std::unique_ptr<Stream>> side = network_.device->NewSideStream();
  if (!side.ok()) return side.status();
  auto workspace = std::make_unique<Workspace>();
  workspace->stream = std::move(stream.value()), workspace->side = std::move(side.value());
  workspace->angle_sets.resize(ropes_.size());
  workspace->angles.resize(rope_of_layer_.size());
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.reserve(n_workspaces_ + 1);  // others may have come meanwhile
  ++n_workspaces_;
  lease.workspace_ = std::move(workspace);
  return lease;
}

void Executor::FreeIdle() {
  std::lock_guard<std::mutex> lock(mutex_);
  n_workspaces_ -= idle_.size();
  idle_.clear();
  if (n_workspaces_ == 0) idle_.shrink_to_fit();
  for (auto& set : angles_) set.reset();
  arenas_.FreeUnused();
}

void Executor::FreeIdlePromptBuffers() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& workspace : idle_) workspace->FreePromptBuffers();
}

Status Executor::MakeAngles(const Rope& rope, int32_t n, const AngleSet* before, const DeviceMemory& memory,
                            std::shared_ptr<const AngleSet>* out) {
  auto set = std::make_shared<AngleSet>();
  set->n_fine = kLeastAngles;
  while (set->n_fine < std::min(n, kFineAngles)) set->n_fine *= 2;
  set->n_coarse = (n + kFineAngles - 1) / kFineAngles;
  if (before != nullptr) set->n_coarse = std::max(set->n_coarse, before->n_coarse + before->n_coarse / 2);
  const int64_t d = rope.head_dim();
  KVC_RETURN_IF_ERROR(set->fine.Allocate(memory, set->n_fine * d, "RoPE angles"));
  KVC_RETURN_IF_ERROR(set->coarse.Allocate(memory, set->n_coarse * d, "RoPE angles"));
  *out = set;
  if (memory.meter->counting()) return {};
  Result<std::unique_ptr<Stream>> stream = memory.device->NewStream();
  if (!stream.ok()) return stream.status();
  KVC_RETURN_IF_ERROR(
      memory.device->FillAngles(stream.value().get(), {&rope, 0, 1, set->n_fine, false, set->fine.at()}));
  return memory.device->FillAngles(stream.value().get(),
                                   {&rope, 0, kFineAngles, set->n_coarse, true, set->coarse.at()});
}

// A workspace's pointers go with each set: one that could not be made leaves those of the others.
Status Executor::ReserveAngles(Workspace* w, int32_t n, const DeviceMemory& memory) {
  for (size_t r = 0; r < ropes_.size(); ++r) {
    const auto reaches = [n](const AngleSet* set) {
      return set != nullptr && set->n_fine >= std::min(n, kFineAngles) &&
             int64_t{set->n_coarse} * kFineAngles >= n;
    };
    if (reaches(w->angle_sets[r].get())) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    const bool counting = memory.meter->counting();
    if (counting || !reaches(angles_[r].get())) {
      std::shared_ptr<const AngleSet> made;
      KVC_RETURN_IF_ERROR(MakeAngles(*ropes_[r], n, w->angle_sets[r].get(), memory, &made));
      if (!counting) angles_[r] = made;
      w->angle_sets[r] = std::move(made);
    } else {
      w->angle_sets[r] = angles_[r];
    }
    for (size_t layer = 0; layer < w->angles.size(); ++layer) {
      const AngleSet& set = *w->angle_sets[r];
      if (static_cast<size_t>(rope_of_layer_[layer]) == r)
        w->angles[layer] = {set.fine.at(), set.coarse.at()};
    }
  }
  return {};
}

}  // namespace kvc
