// kvc_experimental.h: in the static library only.
#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"

#include <algorithm>
#include <vector>

#include "lib/api/handles.h"

using kvc::Code;
using kvc::CopyBuffer;
using kvc::Error;
using kvc::Guard;
using kvc::GuardSession;
using kvc::NullError;
using kvc::Session;
using kvc::Status;

extern "C" {

kvc_status kvc_session_mask_heads(kvc_session* session, const uint8_t* keep, int32_t n_keep, int32_t window) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (keep == nullptr || n_keep < 0) return NullError("keep");
    return s.MaskHeads({keep, static_cast<size_t>(n_keep)}, window);
  });
}

kvc_status kvc_session_feed_batch(kvc_session* const* sessions, const int32_t* tokens, int32_t n) {
  return Guard([&]() -> Status {
    constexpr int32_t kMost = 256;
    if (sessions == nullptr || tokens == nullptr) return NullError(sessions == nullptr ? "sessions" : "tokens");
    if (n < 1 || n > kMost) return Error(Code::kInvalid, "a batch of %d sessions; it is 1 to %d", n, kMost);
    std::vector<Session*> batch;
    Status status;
    for (int32_t i = 0; i < n && status.ok(); ++i) {
      if (sessions[i] == nullptr) {
        status = NullError("a session of the batch");
      } else if (!sessions[i]->session->call().TryBegin()) {
        status = Error(Code::kBusy, "session %d of the batch is working, or is there twice", i);
      } else {
        batch.push_back(sessions[i]->session.get());
      }
    }
    const auto end_all = [&] {
      for (Session* s : batch) s->call().End();
    };
    try {
      if (status.ok()) status = Session::FeedBatch({batch.data(), batch.size()}, tokens);
    } catch (...) {
      end_all();
      throw;
    }
    end_all();
    return status;
  });
}

kvc_status kvc_session_observe_attention(kvc_session* session, int32_t on) {
  return GuardSession(session, [&](Session& s) -> Status {
    s.ObserveAttention(on != 0);
    return {};
  });
}

kvc_status kvc_session_get_attention(kvc_session* session, int32_t layer, int32_t head, float* p, int32_t cap_p, int32_t* n_out) {
  return GuardSession(session, [&](Session& s) -> Status {
    const kvc::ModelConfig& c = s.model().config();
    if (layer < 0 || layer >= c.n_layers || head < 0 || head >= c.n_heads) {
      return Error(Code::kInvalid, "layer %d, head %d: the model has %d layers of %d", layer, head, c.n_layers, c.n_heads);
    }
    std::vector<float> values;
    KVC_RETURN_IF_ERROR(s.Attention(layer, head, &values));
    return CopyBuffer(values.data(), values.size(), "p", p, cap_p, n_out);
  });
}

}  // extern "C"
