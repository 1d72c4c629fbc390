// Errors, what models say of themselves, text and policies of kvc.h. Models are opened in c_model.cc,
// sessions are in c_session.cc.
#include <cstdio>
#include <cstring>
#include <string>

#include "lib/api/handles.h"
#include "lib/base/json_text.h"
#include "lib/base/log.h"
#include "lib/ops/devices.h"

namespace kvc {
namespace {

#define KVC_SAME(name, code) \
  static_assert(static_cast<kvc_status>(Code::name) == code, "status numbers differ")
KVC_SAME(kInvalid, KVC_E_INVALID);
KVC_SAME(kMemory, KVC_E_MEMORY);
KVC_SAME(kIo, KVC_E_IO);
KVC_SAME(kBadModel, KVC_E_BAD_MODEL);
KVC_SAME(kUnsupported, KVC_E_UNSUPPORTED);
KVC_SAME(kNotFound, KVC_E_NOT_FOUND);
KVC_SAME(kBufferTooSmall, KVC_E_BUFFER_TOO_SMALL);
KVC_SAME(kContextFull, KVC_E_CONTEXT_FULL);
KVC_SAME(kCancelled, KVC_E_CANCELLED);
KVC_SAME(kDevice, KVC_E_DEVICE);
KVC_SAME(kBusy, KVC_E_BUSY);
KVC_SAME(kInternal, KVC_E_INTERNAL);
#undef KVC_SAME

thread_local char last_error[1024];

// A message that is too long, most likely of a path, loses its middle: the reason stands at its end.
void KeepEnds(const char* message, size_t n, char* to, size_t room) {
  constexpr char kGap[] = " ... ";
  const auto inside = [&](size_t at) { return (static_cast<uint8_t>(message[at]) & 0xc0) == 0x80; };
  size_t head = room / 2, tail = n - (room - 1 - head - (sizeof kGap - 1));
  while (head > 0 && inside(head)) --head;
  while (tail < n && inside(tail)) ++tail;
  std::snprintf(to, room, "%.*s%s%s", static_cast<int>(head), message, kGap, message + tail);
}

Status FindDevice(int32_t index, const DeviceKind** kind) {
  const Span<const DeviceKind> kinds = DeviceKinds();
  if (index < 0 || static_cast<size_t>(index) >= kinds.size())
    return Error(Code::kNotFound, "device %d: there are %zu", index, kinds.size());
  *kind = &kinds[static_cast<size_t>(index)];
  return {};
}

}  // namespace

kvc_status SetLastError(Code code, const char* message) {
  const size_t n = std::strlen(message);
  if (n < sizeof last_error) {
    std::memcpy(last_error, message, n + 1);
  } else {
    KeepEnds(message, n, last_error, sizeof last_error);
  }
  if (code == Code::kMemory) Log(kLogWarning, "a call fails: %s", last_error);
  return static_cast<kvc_status>(code);
}

kvc_status Report(const Status& status) {
  if (status.ok()) return KVC_OK;
  return SetLastError(status.code(), status.message().c_str());
}

}  // namespace kvc

using kvc::Code;
using kvc::CopyBuffer;
using kvc::Error;
using kvc::Guard;
using kvc::NullError;
using kvc::Status;

extern "C" {

int32_t kvc_version(void) { return KVC_VERSION; }
int32_t kvc_schema_version(void) { return static_cast<int32_t>(kvc::kModelFileVersion); }

const char* kvc_status_name(kvc_status status) {
  switch (status) {
    case KVC_OK:
      return "OK";
    case KVC_E_INVALID:
      return "INVALID";
    case KVC_E_MEMORY:
      return "MEMORY";
    case KVC_E_IO:
      return "IO";
    case KVC_E_BAD_MODEL:
      return "BAD_MODEL";
    case KVC_E_UNSUPPORTED:
      return "UNSUPPORTED";
    case KVC_E_NOT_FOUND:
      return "NOT_FOUND";
    case KVC_E_BUFFER_TOO_SMALL:
      return "BUFFER_TOO_SMALL";
    case KVC_E_CONTEXT_FULL:
      return "CONTEXT_FULL";
    case KVC_E_CANCELLED:
      return "CANCELLED";
    case KVC_E_DEVICE:
      return "DEVICE";
    case KVC_E_BUSY:
      return "BUSY";
    case KVC_E_INTERNAL:
      return "INTERNAL";
    default:
      return "UNKNOWN";
  }
}

const char* kvc_last_error(void) { return kvc::last_error; }

void kvc_params_init(void* params, int32_t struct_size) {
  if (params == nullptr || !kvc::CheckStructSize(struct_size, "params").ok()) return;
  std::memset(params, 0, static_cast<size_t>(struct_size));
  std::memcpy(params, &struct_size, sizeof struct_size);
}

kvc_status kvc_model_get_info(const kvc_model* model, kvc_model_info* out_info) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    const kvc::ModelFile& file = model->model->file();
    const kvc::ModelConfig& c = file.config();
    kvc_model_info info{};
    info.n_layers = c.n_layers, info.n_heads = c.n_heads, info.n_kv_heads = c.n_kv_heads,
    info.head_dim = c.head_dim;
    info.hidden_size = c.hidden_size, info.ffn_size = c.ffn_size, info.vocab_size = c.vocab_size,
    info.max_tokens = c.max_tokens;
    info.bos_token = file.tokenizer().bos, info.eos_token = file.tokenizer().eos;
    info.n_head_scores = static_cast<int32_t>(file.head_scores().size());
    info.weight_bytes = file.weight_bytes();
    for (const kvc::TensorEntry& tensor : file.tensors())
      info.n_parameters += int64_t{tensor.weight.rows} * tensor.weight.cols;
    return kvc::CopyOut(info, "out_info", out_info);
  });
}

kvc_status kvc_model_describe(const kvc_model* model, char* json, int32_t cap_json, int32_t* n_out) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    const std::string text = model->model->file().DescribeJson();
    return CopyBuffer(text.data(), text.size(), "json", json, cap_json, n_out);
  });
}

kvc_status kvc_model_get_head_scores(const kvc_model* model, int32_t index, float* scores, int32_t cap_scores,
                                     int32_t* n_out) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    const auto& tables = model->model->file().head_scores();
    if (index < 0 || index >= static_cast<int32_t>(tables.size())) {
      return Error(Code::kNotFound, "head-score table %d: the file has %zu", index, tables.size());
    }
    const std::vector<float>& values = tables[static_cast<size_t>(index)].scores;
    return CopyBuffer(values.data(), values.size(), "scores", scores, cap_scores, n_out);
  });
}

kvc_status kvc_tokenize(const kvc_model* model, const uint8_t* text, int32_t n_text, int32_t flags,
                        int32_t* tokens, int32_t cap_tokens, int32_t* n_out) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    if (n_text < 0 || (n_text > 0 && text == nullptr))
      return Error(Code::kInvalid, "text: %d bytes at %s", n_text, text == nullptr ? "NULL" : "an address");
    static_assert(uint32_t{kvc::kAddBos} == KVC_ADD_BOS &&
                      uint32_t{kvc::kParseSpecial} == KVC_PARSE_SPECIAL &&
                      uint32_t{kvc::kContinue} == KVC_CONTINUE,
                  "flags differ");
    if ((flags & ~(KVC_ADD_BOS | KVC_PARSE_SPECIAL | KVC_CONTINUE)) != 0)
      return Error(Code::kInvalid, "flags 0x%x has unknown bits", static_cast<unsigned>(flags));
    if ((flags & KVC_ADD_BOS) != 0 && (flags & KVC_CONTINUE) != 0)
      return Error(Code::kInvalid, "flags 0x%x: a text that continues another has no BOS before it",
                   static_cast<unsigned>(flags));
    kvc::TokenList ids(model->model->meter().get(),
                       cap_tokens == 0 ? kvc::TokenList::kCount : kvc::TokenList::kKeep);
    KVC_RETURN_IF_ERROR(model->model->tokenizer().Encode({text, static_cast<size_t>(n_text)},
                                                         static_cast<uint32_t>(flags), &ids));
    KVC_RETURN_IF_ERROR(kvc::CheckBuffer(ids.size(), "tokens", tokens, cap_tokens, n_out));
    if (cap_tokens > 0) ids.CopyTo(tokens);
    return {};
  });
}

kvc_status kvc_detokenize(const kvc_model* model, const int32_t* tokens, int32_t n_tokens, uint8_t* text,
                          int32_t cap_text, int32_t* n_out) {
  return Guard([&]() -> Status {
    if (model == nullptr) return NullError("model");
    if (n_tokens < 0 || (n_tokens > 0 && tokens == nullptr))
      return Error(Code::kInvalid, "tokens: %d at %s", n_tokens, tokens == nullptr ? "NULL" : "an address");
    std::string out;
    KVC_RETURN_IF_ERROR(model->model->tokenizer().Decode({tokens, static_cast<size_t>(n_tokens)}, &out));
    return CopyBuffer(reinterpret_cast<const uint8_t*>(out.data()), out.size(), "text", text, cap_text,
                      n_out);
  });
}

kvc_status kvc_policy_create(const char* spec, kvc_policy** out_policy) {
  if (out_policy == nullptr) return kvc::SetLastError(Code::kInvalid, "out_policy is NULL");
  *out_policy = nullptr;
  return Guard([&]() -> Status {
    if (spec == nullptr) return NullError("spec");
    kvc::Result<kvc::Policy> policy = kvc::ParsePolicy(spec);
    if (!policy.ok()) return policy.status();
    *out_policy = new kvc_policy(std::move(policy.value()));
    return {};
  });
}

kvc_status kvc_policy_describe(const kvc_policy* policy, char* text, int32_t cap_text, int32_t* n_out) {
  return Guard([&]() -> Status {
    if (policy == nullptr) return NullError("policy");
    const std::string spec = kvc::DescribePolicy(policy->Copy());
    return CopyBuffer(spec.data(), spec.size(), "text", text, cap_text, n_out);
  });
}

kvc_status kvc_policy_set_head_scores(kvc_policy* policy, const float* scores, int32_t n_scores) {
  return Guard([&]() -> Status {
    if (policy == nullptr || scores == nullptr) return NullError(policy == nullptr ? "policy" : "scores");
    if (n_scores < 1 || n_scores > kvc::kMaxLayers * kvc::kMaxHeads)
      return Error(Code::kInvalid, "n_scores is %d; one for each KV head or query head of a model", n_scores);
    for (int32_t i = 0; i < n_scores; ++i) {
      if (!(scores[i] > -1e30f && scores[i] < 1e30f))
        return Error(Code::kInvalid, "score %d is %g; scores are numbers within +-1e30", i,
                     static_cast<double>(scores[i]));
    }
    policy->Set(&kvc::Policy::head_scores, {scores, scores + n_scores});
    return {};
  });
}

kvc_status kvc_policy_set_table(kvc_policy* policy, const int32_t* slots, int32_t n_slots) {
  return Guard([&]() -> Status {
    if (policy == nullptr || slots == nullptr) return NullError(policy == nullptr ? "policy" : "slots");
    if (n_slots < 1 || n_slots > kvc::kMaxLayers * kvc::kMaxHeads)
      return Error(Code::kInvalid, "n_slots is %d", n_slots);
    for (int32_t i = 0; i < n_slots; ++i) {
      if (slots[i] < 1 || slots[i] > kvc::kMaxContext)
        return Error(Code::kInvalid, "slots %d is %d; it is 1 to %d", i, slots[i], kvc::kMaxContext);
    }
    policy->Set(&kvc::Policy::table, {slots, slots + n_slots});
    return {};
  });
}

void kvc_policy_close(kvc_policy* policy) { delete policy; }

int32_t kvc_method_count(void) { return kvc::MethodCount(); }

const char* kvc_method_name(int32_t index) {
  const kvc::Method* method = index < 0 ? nullptr : kvc::GetMethod(index);
  return method == nullptr ? nullptr : method->name;
}

kvc_status kvc_method_describe(int32_t index, char* json, int32_t cap_json, int32_t* n_out) {
  return Guard([&]() -> Status {
    if (index < 0 || kvc::GetMethod(index) == nullptr)
      return Error(Code::kNotFound, "method %d: there are %d", index, kvc::MethodCount());
    const std::string text = kvc::DescribeMethodJson(index);
    return CopyBuffer(text.data(), text.size(), "json", json, cap_json, n_out);
  });
}

int32_t kvc_device_count(void) { return static_cast<int32_t>(kvc::DeviceKinds().size()); }

kvc_status kvc_device_describe(int32_t index, char* json, int32_t cap_json, int32_t* n_out) {
  return Guard([&]() -> Status {
    const kvc::DeviceKind* kind = nullptr;
    KVC_RETURN_IF_ERROR(kvc::FindDevice(index, &kind));
    const auto device = kind->create(kind->name, 0);
    std::string json_text;
    kvc::JsonWriter text(&json_text);
    text.BeginObject();
    text.Field("name", kind->name);
    text.Field("summary", kind->summary);
    text.Field("available", device.ok());
    if (device.ok()) {
      const kvc::DeviceInfo& info = device.value()->info();
      kvc::WriteDevice(info, &text);
      text.Field("deterministic", info.deterministic);
      text.Field("batch_invariant", info.batch_invariant);
    } else {
      text.Field("reason", device.status().message());
    }
    text.EndObject();
    return CopyBuffer(json_text.data(), json_text.size(), "json", json, cap_json, n_out);
  });
}

kvc_status kvc_device_measure(int32_t index, double* out_bytes_per_second) {
  return Guard([&]() -> Status {
    if (out_bytes_per_second == nullptr) return NullError("out_bytes_per_second");
    const kvc::DeviceKind* kind = nullptr;
    KVC_RETURN_IF_ERROR(kvc::FindDevice(index, &kind));
    const auto device = kind->create(kind->name, 0);
    if (!device.ok()) return device.status();
    const kvc::Result<double> measured = device.value()->MeasureBandwidth();
    if (!measured.ok()) return measured.status();
    *out_bytes_per_second = measured.value();
    return {};
  });
}

void kvc_set_log(int32_t min_level, kvc_log_fn fn, void* user) { kvc::SetLog(min_level, fn, user); }

}  // extern "C"
