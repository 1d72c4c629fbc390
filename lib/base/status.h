// Expected failures as values. Only std::bad_alloc may travel as an exception, and it stops in lib/api.
#pragma once
#include <cassert>
#include <cstdint>
#include <string>
#include <utility>

namespace kvc {

// The numbers are those of kvc_status in include/kvc/kvc.h; lib/api asserts that they agree.
enum class Code : int32_t {
  kOk = 0,
  kInvalid = -1,
  kMemory = -2,
  kIo = -3,
  kBadModel = -4,
  kUnsupported = -5,
  kNotFound = -6,
  kBufferTooSmall = -7,
  kContextFull = -8,
  kCancelled = -9,
  kDevice = -10,
  kBusy = -11,
  kInternal = -99,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// printf-style message; `format` is checked by the compiler.
Status Error(Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() {
    assert(ok());
    return value_;
  }
  const T& value() const {
    assert(ok());
    return value_;
  }

 private:
  Status status_;
  T value_{};
};

}  // namespace kvc

#define KVC_RETURN_IF_ERROR(expr)              \
  do {                                         \
    ::kvc::Status kvc_status_ = (expr);        \
    if (!kvc_status_.ok()) return kvc_status_; \
  } while (0)
