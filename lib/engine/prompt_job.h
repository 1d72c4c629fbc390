// One prompt for one session, or for several empty ones with policies of their own: the network runs once,
// and every layer is handed to each session's compressor. The sessions themselves are not touched before the
// end.
#pragma once
#include <memory>
#include <vector>

#include "lib/engine/executor.h"

namespace kvc {

class Model;

class PromptJob final : public PromptSink {
 public:
  // What a session brings, and takes in the end.
  struct Taker {
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<Compressor> compressor;
    bool compress = false;
    int32_t n_behind = 0;  // tokens that follow those of the job and belong to the same prompt
    // Set while the prompt is worked on.
    PromptNeeds needs;
    double compress_seconds = 0;
    int64_t peak_bytes = 0;  // pages and the layer at full length
  };
  // Takers that want the prompt read a second time want the same reading.
  // tokens stand at first_position and behind. Brings every taker's compressor to the prompt.
  PromptJob(const Model& model, Executor* executor, std::vector<int32_t> tokens, int32_t first_position,
            std::vector<Taker> takers);
  Status Begin(const DeviceMemory& memory, Workspace* workspace);
  // One chunk in one layer; any workspace will do.
  Status Advance(Workspace* workspace);
  bool done() const { return run_.done(); }
  double progress() const { return run_.progress(); }
  // The residual of the last token [hidden], once done.
  Status CopyLastRow(Workspace* workspace, DeviceBytes to);

  Executor* executor() const { return executor_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::vector<Taker>& takers() { return takers_; }
  const PromptExtras& extras() const { return run_.extras(); }
  // What only reading needs goes; the takers stay.
  void FreeBuffers() { run_.Free(), copy_ = LayerBuffers(), copied_ = ObservedBuffers(); }
  int64_t bytes() const {
    int64_t waiting = 0;
    for (const Taker& t : takers_) waiting += t.compressor->waiting_bytes();
    return run_.bytes() + copy_.bytes() + copied_.bytes() + waiting;
  }
  int64_t layer_bytes() const { return run_.layer_bytes(); }
  int64_t workspace_peak() const { return workspace_peak_; }  // beside the layer at full length

  Status BeginLayer(int layer, LayerBuffers* kv) override;
  Status EndLayer(int layer, LayerBuffers* kv, ObservedBuffers* observed) override;

 private:
  Status CopyFor(const Taker& taker, const LayerBuffers& kv, const ObservedBuffers& observed);

  const Model& model_;
  Executor* const executor_;
  const std::vector<int32_t> tokens_;
  const int32_t first_position_;
  std::vector<Taker> takers_;
  Reread reread_;
  PromptRequest request_;
  PromptRun run_;
  LayerBuffers copy_;  // of several takers each may change its own
  ObservedBuffers copied_;
  std::vector<int32_t> n_before_;
  std::vector<uint8_t> slides_;     // [L] layers that slide for every taker, or empty
  Workspace* workspace_ = nullptr;  // during Advance
  int64_t workspace_peak_ = 0;
};

}  // namespace kvc
