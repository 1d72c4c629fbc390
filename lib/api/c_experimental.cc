// kvc_experimental.h: in the static library only.
#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"

#include <string>
#include <vector>

#include "lib/api/handles.h"
#include "lib/engine/turns.h"

using kvc::Code;
using kvc::CopyBuffer;
using kvc::Error;
using kvc::Guard;
using kvc::GuardBatch;
using kvc::GuardSession;
using kvc::NullError;
using kvc::Session;
using kvc::Status;

namespace {

// What a session says in numbers of one of the heads that every layer has `n_heads` of.
struct OfHead {
  const char* kind;
  int32_t kvc::ModelConfig::*n_heads;
  Status (Session::*read)(int32_t, int32_t, std::vector<float>*) const;
};

kvc_status GetNumbers(kvc_session* session, const OfHead& of, int32_t layer, int32_t head, const char* name,
                      float* numbers, int32_t cap, int32_t* n_out) {
  return GuardSession(session, [&](Session& s) -> Status {
    const kvc::ModelConfig& c = s.model().config();
    if (layer < 0 || layer >= c.n_layers || head < 0 || head >= c.*of.n_heads) {
      return Error(Code::kInvalid, "layer %d, %s %d: the model has %d layers of %d", layer, of.kind, head,
                   c.n_layers, c.*of.n_heads);
    }
    std::vector<float> all;
    KVC_RETURN_IF_ERROR((s.*of.read)(layer, head, &all));
    return CopyBuffer(all.data(), all.size(), name, numbers, cap, n_out);
  });
}

}  // namespace

extern "C" {

kvc_status kvc_model_measure(kvc_model* model, double* out_bytes_per_second) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    if (out_bytes_per_second == nullptr) return NullError("out_bytes_per_second");
    KVC_RETURN_IF_ERROR(model->model->CanRun());
    const kvc::Network& network = model->model->executor()->network();
    const std::vector<const kvc::Matrix*> weights = network.weights->Matrices();
    const kvc::Result<double> measured = network.device->MeasureBandwidth({weights.data(), weights.size()});
    if (!measured.ok()) return measured.status();
    *out_bytes_per_second = measured.value();
    return {};
  });
}

kvc_status kvc_model_encode_turn(const kvc_model* model, int32_t role, const uint8_t* text, int32_t n_text,
                                 int32_t flags, int32_t* tokens, int32_t cap_tokens, int32_t* n_out) {
  return Guard([&]() -> Status {
    constexpr int32_t kKnown =
        KVC_TURN_ANSWER | KVC_TURN_AFTER_SYSTEM | KVC_TURN_HEAD | KVC_TURN_TAIL | KVC_TURN_PARSE_SPECIAL;
    if (model == nullptr) return NullError("model");
    if (role < 0 || role >= static_cast<int32_t>(kvc::kRoles))
      return Error(Code::kInvalid, "role %d: there are %zu", role, kvc::kRoles);
    if (n_text < 0 || (n_text > 0 && text == nullptr))
      return Error(Code::kInvalid, "text: %d bytes at %s", n_text, text == nullptr ? "NULL" : "an address");
    const bool head = (flags & KVC_TURN_HEAD) != 0, answer = (flags & KVC_TURN_ANSWER) != 0;
    if ((flags & ~kKnown) != 0 || (head && answer))
      return Error(Code::kInvalid, "flags 0x%x: unknown bits, or an answer to a message that goes on",
                   static_cast<unsigned>(flags));
    kvc::TurnPlace place;
    place.after_system = (flags & KVC_TURN_AFTER_SYSTEM) != 0, place.first = !place.after_system;
    place.answer = answer, place.open = head, place.opened = (flags & KVC_TURN_TAIL) != 0;
    place.special = (flags & KVC_TURN_PARSE_SPECIAL) != 0;
    const kvc::Model& m = *model->model;
    std::vector<int32_t> ids;
    KVC_RETURN_IF_ERROR(kvc::EncodeTurn(m.tokenizer(), m.file().turn_format(), kvc::TurnMarks(),
                                        static_cast<kvc::Role>(role), {text, static_cast<size_t>(n_text)},
                                        place, &ids));
    return CopyBuffer(ids.data(), ids.size(), "tokens", tokens, cap_tokens, n_out);
  });
}

kvc_status kvc_model_describe_device(const kvc_model* model, char* json, int32_t cap_json, int32_t* n_out) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    const kvc::DeviceInfo& info = model->model->device().info();
    std::string text;
    kvc::JsonWriter writer(&text);
    writer.BeginObject();
    writer.Field("name", info.name);
    kvc::WriteDevice(info, &writer);
    writer.EndObject();
    return CopyBuffer(text.data(), text.size(), "json", json, cap_json, n_out);
  });
}

kvc_status kvc_session_mask_heads(kvc_session* session, const uint8_t* keep, int32_t n_keep, int32_t window) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (keep == nullptr || n_keep < 0) return NullError("keep");
    return s.MaskHeads({keep, static_cast<size_t>(n_keep)}, window);
  });
}

kvc_status kvc_session_feed_batch(kvc_session* const* sessions, const int32_t* tokens, int32_t n) {
  return GuardBatch(sessions, n, [&](kvc::Span<Session* const> batch) -> Status {
    if (tokens == nullptr) return NullError("tokens");
    return Session::FeedBatch(batch, tokens);
  });
}

kvc_status kvc_session_prefill_together(kvc_session* const* sessions, int32_t n, const int32_t* tokens,
                                        int32_t n_tokens) {
  return GuardBatch(sessions, n, [&](kvc::Span<Session* const> batch) -> Status {
    if (tokens == nullptr || n_tokens < 1) return Error(Code::kInvalid, "the prompt has no tokens");
    return Session::PrefillTogether(batch, {tokens, static_cast<size_t>(n_tokens)});
  });
}

kvc_status kvc_session_observe_attention(kvc_session* session, int32_t on) {
  return GuardSession(session, [&](Session& s) -> Status {
    s.ObserveAttention(on != 0);
    return {};
  });
}

kvc_status kvc_session_get_attention(kvc_session* session, int32_t layer, int32_t head, float* p,
                                     int32_t cap_p, int32_t* n_out) {
  const OfHead of{"head", &kvc::ModelConfig::n_heads, &Session::Attention};
  return GetNumbers(session, of, layer, head, "p", p, cap_p, n_out);
}

kvc_status kvc_session_get_keys(kvc_session* session, int32_t layer, int32_t kv_head, float* keys,
                                int32_t cap_keys, int32_t* n_out) {
  const OfHead of{"KV head", &kvc::ModelConfig::n_kv_heads, &Session::Keys};
  return GetNumbers(session, of, layer, kv_head, "keys", keys, cap_keys, n_out);
}

kvc_status kvc_session_get_values(kvc_session* session, int32_t layer, int32_t kv_head, float* values,
                                  int32_t cap_values, int32_t* n_out) {
  const OfHead of{"KV head", &kvc::ModelConfig::n_kv_heads, &Session::Values};
  return GetNumbers(session, of, layer, kv_head, "values", values, cap_values, n_out);
}

kvc_status kvc_session_get_code_ratios(kvc_session* session, double* paper, double* exact) {
  return GuardSession(session, [&](Session& s) -> Status {
    if (paper == nullptr) return NullError("paper");
    if (exact == nullptr) return NullError("exact");
    const kvc::Result<kvc::CodeRatios> ratios = s.Ratios();
    if (!ratios.ok()) return ratios.status();
    *paper = ratios.value().paper, *exact = ratios.value().exact;
    return {};
  });
}

}  // extern "C"
