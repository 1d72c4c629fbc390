// Steps of any sessions of one model in one pass over the weights.
#pragma once
#include "lib/engine/session.h"

namespace kvc {

class StepRunner final : public StepSink {
 public:
  static constexpr size_t kMostFeeds = 256;
  // Tokens that one session is fed, in order.
  struct Feed {
    Session* session;
    Span<const int32_t> tokens;
  };
  StepRunner(Executor* executor, Span<const Feed> feeds) : executor_(executor), feeds_(feeds) {}
  ~StepRunner() override = default;
  // Feeds them. On failure none has changed. Afterwards every session has the logits of its last token.
  Status Run();

  Status AfterAttention(int layer, const StepArgs& args) override;

 private:
  Status Reserve();
  Status ReserveSession(const Feed& feed);
  void Shape(StepShape* shape) const;
  Status KeepLogits();

  Executor* const executor_;
  const Span<const Feed> feeds_;
  Executor::Lease workspace_;
  StepShape shape_{};
  bool ends_later_ = false;
};

}  // namespace kvc
