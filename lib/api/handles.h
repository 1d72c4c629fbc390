// What the opaque handles of kvc.h are, and the one wrapper every call goes through.
#pragma once
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "kvc/kvc.h"
#include "lib/base/json_text.h"
#include "lib/engine/session.h"

struct kvc_model {
  std::shared_ptr<const kvc::Model> model;
};
// Any thread may set its head scores or table while others read it: they get copies, from before or behind.
struct kvc_policy {
  explicit kvc_policy(kvc::Policy made) : policy(std::move(made)) {}
  kvc::Policy Copy() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return policy;
  }
  template <typename T>
  void Set(std::vector<T> kvc::Policy::*field, std::vector<T> values) {
    const std::lock_guard<std::mutex> lock(mutex);
    (policy.*field).swap(values);
  }

 private:
  mutable std::mutex mutex;
  kvc::Policy policy;
};
struct kvc_session {
  std::unique_ptr<kvc::Session> session;
  bool told_full = false;  // that it makes room for what comes
};

namespace kvc {

// Keeps the text for kvc_last_error, and logs that memory was refused; allocates nothing.
kvc_status SetLastError(Code code, const char* message);
kvc_status Report(const Status& status);

// Runs f() -> Status; nothing escapes. The only place that catches.
template <typename F>
kvc_status Guard(F&& f) noexcept {
  try {
    return Report(f());
  } catch (const std::bad_alloc&) {
    return SetLastError(Code::kMemory, "no memory");
  } catch (...) {
    return SetLastError(Code::kInternal, "an unexpected failure inside libkvc");
  }
}

// Logs that a session is full and begins to drop, once.
void TellFull(kvc_session* handle);

// The same for a call on a session: a second one while it runs is kBusy and changes nothing.
template <typename F>
kvc_status GuardSession(kvc_session* handle, F&& f) noexcept {
  if (handle == nullptr) return SetLastError(Code::kInvalid, "session is NULL");
  if (!handle->session->call().TryBegin())
    return SetLastError(Code::kBusy, "another call on this session is running");
  const kvc_status status = Guard([&] { return f(*handle->session); });
  if (handle->session->makes_room() != handle->told_full) TellFull(handle);
  if (status == KVC_E_CANCELLED) handle->session->call().ClearCancel();  // the request has been answered
  handle->session->call().End();
  return status;
}

inline Status NullError(const char* what) { return Error(Code::kInvalid, "%s is NULL", what); }

// Runs f on several sessions at once: each is marked as working, or none is touched.
template <typename F>
kvc_status GuardBatch(kvc_session* const* sessions, int32_t n, F&& f) noexcept {
  return Guard([&]() -> Status {
    constexpr int32_t kMost = 256;
    if (sessions == nullptr) return NullError("sessions");
    if (n < 1 || n > kMost) return Error(Code::kInvalid, "a batch of %d sessions; it is 1 to %d", n, kMost);
    struct Batch {
      std::vector<Session*> begun;
      ~Batch() {
        for (Session* s : begun) s->call().End();
      }
    } batch;
    batch.begun.reserve(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
      if (sessions[i] == nullptr) return NullError("a session of the batch");
      if (!sessions[i]->session->call().TryBegin())
        return Error(Code::kBusy, "session %d of the batch is working, or is there twice", i);
      batch.begun.push_back(sessions[i]->session.get());
    }
    const Status status = f(Span<Session* const>(batch.begun.data(), batch.begun.size()));
    for (Session* s : batch.begun) {
      if (status.code() == Code::kCancelled) s->call().ClearCancel();  // one of them asked, all were answered
    }
    for (int32_t i = 0; i < n; ++i) {
      if (sessions[i]->session->makes_room() != sessions[i]->told_full) TellFull(sessions[i]);
    }
    return status;
  });
}

// What is said of a device wherever one is described.
inline void WriteDevice(const DeviceInfo& info, JsonWriter* text) {
  text->Field("description", info.description);
  text->Key("instruction_sets").BeginArray();
  for (const std::string& name : info.instruction_sets) text->Value(name);
  text->EndArray();
  text->Field("threads", info.n_threads);
}

// A size no struct of this API will have: what is above it was never stored by a caller.
constexpr int32_t kMaxStructSize = 4096;

inline Status CheckStructSize(int32_t size, const char* name) {
  if (size >= 8 && size <= kMaxStructSize) return {};
  return Error(Code::kInvalid, "%s: struct_size is %d; store sizeof there", name, size);
}

// Copies a sized input struct: an older caller's missing fields are 0, a newer caller's unknown fields must
// be 0.
template <typename T>
Status CopyIn(const T* in, const char* name, T* out) {
  *out = T();
  if (in == nullptr) return {};
  const int32_t size = in->struct_size;
  KVC_RETURN_IF_ERROR(CheckStructSize(size, name));
  const char* bytes = reinterpret_cast<const char*>(in);
  for (int32_t i = static_cast<int32_t>(sizeof(T)); i < size; ++i) {
    if (bytes[i] != 0) return Error(Code::kInvalid, "%s: a field this library does not know is set", name);
  }
  std::memcpy(out, in, static_cast<size_t>(size) < sizeof(T) ? static_cast<size_t>(size) : sizeof(T));
  return {};
}

template <typename T>
Status CheckOut(const T* out, const char* name) {
  return out == nullptr ? NullError(name) : CheckStructSize(out->struct_size, name);
}

// Writes at most the caller's struct_size bytes, which stay what they were.
template <typename T>
Status CopyOut(T value, const char* name, T* out) {
  KVC_RETURN_IF_ERROR(CheckOut(out, name));
  const int32_t size = out->struct_size;
  value.struct_size = size;
  std::memcpy(out, &value, static_cast<size_t>(size) < sizeof(T) ? static_cast<size_t>(size) : sizeof(T));
  return {};
}

// Whether n elements go into a caller's buffer, by the rule of kvc.h: cap 0 asks for the count.
template <typename T>
Status CheckBuffer(size_t n, const char* name, const T* out, int32_t cap, int32_t* n_out) {
  if (n_out == nullptr) return NullError("n_out");
  if (cap < 0 || (cap > 0 && out == nullptr))
    return Error(Code::kInvalid, "%s: a capacity of %d with %s buffer", name, cap,
                 out == nullptr ? "no" : "a");
  if (n > static_cast<size_t>(INT32_MAX))
    return Error(Code::kUnsupported, "%s: more than 2^31 elements", name);
  *n_out = static_cast<int32_t>(n);
  if (cap == 0) return {};
  if (n > static_cast<size_t>(cap))
    return Error(Code::kBufferTooSmall, "%s: %zu elements, room for %d", name, n, cap);
  return {};
}

// Hands them over.
template <typename T>
Status CopyBuffer(const T* data, size_t n, const char* name, T* out, int32_t cap, int32_t* n_out) {
  KVC_RETURN_IF_ERROR(CheckBuffer(n, name, out, cap, n_out));
  if (cap > 0 && n > 0) std::memcpy(out, data, n * sizeof(T));
  return {};
}

}  // namespace kvc
