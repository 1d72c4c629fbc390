// Opening models of kvc.h, directly and through a loader.
#include <algorithm>

#include "lib/api/handles.h"
#include "lib/base/log.h"
#include "lib/model/model_check.h"

struct kvc_loader {
  kvc::CallState call;
};

namespace kvc {
namespace {

// The type of most weights: norms are f32 in every file.
const char* MainWeightType(const ModelFile& file) {
  int64_t weights[kWeightTypeCount] = {};
  for (const TensorEntry& tensor : file.tensors())
    weights[static_cast<size_t>(tensor.weight.type)] += int64_t{tensor.weight.rows} * tensor.weight.cols;
  return WeightTypeName(
      static_cast<WeightType>(std::max_element(weights, weights + kWeightTypeCount) - weights));
}

void TellOpened(const Model& model) {
  const ModelFile& file = model.file();
  const ModelConfig& c = file.config();
  Log(kLogInfo, "opened %s, model \"%s\": %d layers with %d KV heads, %s weights, %lld bytes, %s",
      file.name().c_str(), c.name.c_str(), c.n_layers, c.n_kv_heads, MainWeightType(file),
      static_cast<long long>(file.weight_bytes()), model.device().info().description.c_str());
}

Status ThreadsOf(const kvc_model_params& p, ThreadOptions* out) {
  if (p.n_threads < 0 || p.n_threads > kMaxThreads)
    return Error(Code::kInvalid, "n_threads is %d; it is 0 (all) to %d", p.n_threads, kMaxThreads);
  out->n_threads = p.n_threads;
  if (p.executor == nullptr) return {};
  kvc_executor executor;
  KVC_RETURN_IF_ERROR(CopyIn(p.executor, "executor", &executor));
  if (p.n_threads != 0) return Error(Code::kInvalid, "n_threads is %d beside an executor", p.n_threads);
  if (executor.run == nullptr) return NullError("executor.run");
  if (executor.n_threads < 1 || executor.n_threads > kMaxThreads)
    return Error(Code::kInvalid, "executor.n_threads is %d; it is 1 to %d", executor.n_threads, kMaxThreads);
  out->host = {executor.n_threads, executor.context, executor.run};
  return {};
}

// The common part of the ways to open a model. watch: of a loader, else null.
template <typename Opener>
kvc_status OpenModel(const char* device, const kvc_model_params* params, CallState* watch,
                     kvc_model** out_model, Opener&& open) {
  if (out_model == nullptr) return SetLastError(Code::kInvalid, "out_model is NULL");
  *out_model = nullptr;
  return Guard([&]() -> Status {
    kvc_model_params p;
    KVC_RETURN_IF_ERROR(CopyIn(params, "params (kvc_model_params)", &p));
    if (p.trusted != 0 && p.trusted != 1)
      return Error(Code::kInvalid, "trusted is %d; it is 0 or 1", p.trusted);
    if (p.plan_only != 0 && p.plan_only != 1)
      return Error(Code::kInvalid, "plan_only is %d; it is 0 or 1", p.plan_only);
    if (p.memory_limit < 0) return Error(Code::kInvalid, "memory_limit is negative");
    ModelParams model_params;
    KVC_RETURN_IF_ERROR(ThreadsOf(p, &model_params.threads));
    model_params.device = device == nullptr ? "auto" : device;
    model_params.memory_limit = p.memory_limit;
    model_params.trusted = p.trusted == 1, model_params.plan_only = p.plan_only == 1;
    model_params.watch = watch;
    auto model = open(model_params);
    if (!model.ok()) return model.status();
    std::unique_ptr<kvc_model> handle(new kvc_model());
    handle->model = std::move(model.value());
    TellOpened(*handle->model);
    *out_model = handle.release();
    return {};
  });
}

// Openers: of a path, of a descriptor.
auto OpenerOf(const char* path) {
  return [path](const ModelParams& p) -> Result<std::shared_ptr<const Model>> {
    if (path == nullptr) return NullError("path");
    return Model::Open(path, p);
  };
}

auto OpenerOf(int32_t fd, int64_t offset, int64_t n_bytes) {
  return [=](const ModelParams& p) -> Result<std::shared_ptr<const Model>> {
    if (fd < 0 || offset < 0 || n_bytes < 0)
      return Error(Code::kInvalid, "fd, offset and n_bytes must not be negative");
    return Model::OpenFd(fd, offset, n_bytes, p);
  };
}

// The same while others may watch: one at a time.
template <typename Opener>
kvc_status Load(kvc_loader* loader, const char* device, const kvc_model_params* params, kvc_model** out_model,
                Opener&& open) {
  if (out_model != nullptr) *out_model = nullptr;
  if (loader == nullptr) return SetLastError(Code::kInvalid, "loader is NULL");
  if (!loader->call.TryBegin()) return SetLastError(Code::kBusy, "the loader is opening another model");
  loader->call.SetProgress(0);
  kvc_status status = OpenModel(device, params, &loader->call, out_model, open);
  // A request that came behind the last look at it is answered too: whoever made it waits for the answer.
  if (loader->call.TakeCancel() && status == KVC_OK) {
    delete *out_model;
    *out_model = nullptr;
    status = SetLastError(Code::kCancelled, "the opening was cancelled; it may be repeated");
  }
  loader->call.End();
  return status;
}

}  // namespace
}  // namespace kvc

using kvc::Code;
using kvc::Error;
using kvc::NullError;

extern "C" {

kvc_status kvc_model_open(const char* path, const char* device, const kvc_model_params* params,
                          kvc_model** out_model) {
  return kvc::OpenModel(device, params, nullptr, out_model, kvc::OpenerOf(path));
}

kvc_status kvc_model_open_fd(int32_t fd, int64_t offset, int64_t n_bytes, const char* device,
                             const kvc_model_params* params, kvc_model** out_model) {
  return kvc::OpenModel(device, params, nullptr, out_model, kvc::OpenerOf(fd, offset, n_bytes));
}

kvc_status kvc_model_open_memory(const uint8_t* data, int64_t n_bytes, const char* device,
                                 const kvc_model_params* params, kvc_model** out_model) {
  return kvc::OpenModel(device, params, nullptr, out_model,
                        [&](const kvc::ModelParams& p) -> kvc::Result<std::shared_ptr<const kvc::Model>> {
                          if (data == nullptr) return NullError("data");
                          if (n_bytes < 0 || reinterpret_cast<uintptr_t>(data) % 64 != 0)
                            return Error(Code::kInvalid,
                                         "data must be 64-byte aligned and n_bytes not negative");
                          return kvc::Model::OpenMemory(data, n_bytes, p);
                        });
}

void kvc_model_close(kvc_model* model) { delete model; }

kvc_status kvc_loader_create(kvc_loader** out_loader) {
  if (out_loader == nullptr) return kvc::SetLastError(Code::kInvalid, "out_loader is NULL");
  *out_loader = nullptr;
  return kvc::Guard([&]() -> kvc::Status {
    *out_loader = new kvc_loader();
    return {};
  });
}

kvc_status kvc_loader_open(kvc_loader* loader, const char* path, const char* device,
                           const kvc_model_params* params, kvc_model** out_model) {
  return kvc::Load(loader, device, params, out_model, kvc::OpenerOf(path));
}

kvc_status kvc_loader_open_fd(kvc_loader* loader, int32_t fd, int64_t offset, int64_t n_bytes,
                              const char* device, const kvc_model_params* params, kvc_model** out_model) {
  return kvc::Load(loader, device, params, out_model, kvc::OpenerOf(fd, offset, n_bytes));
}

kvc_status kvc_loader_get_progress(const kvc_loader* loader, double* out_share) {
  if (loader == nullptr || out_share == nullptr)
    return kvc::SetLastError(Code::kInvalid, loader == nullptr ? "loader is NULL" : "out_share is NULL");
  *out_share = loader->call.progress();
  return KVC_OK;
}

kvc_status kvc_loader_cancel(kvc_loader* loader) {
  if (loader == nullptr) return kvc::SetLastError(Code::kInvalid, "loader is NULL");
  loader->call.RequestCancel();
  return KVC_OK;
}

kvc_status kvc_loader_clear_cancel(kvc_loader* loader) {
  if (loader == nullptr) return kvc::SetLastError(Code::kInvalid, "loader is NULL");
  loader->call.ClearCancel();
  return KVC_OK;
}

void kvc_loader_close(kvc_loader* loader) { delete loader; }

}  // extern "C"
