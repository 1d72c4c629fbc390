// kvc.hpp where there is no model: how failures show, with exceptions and without.
#include <cstdio>
#include <cstring>

#include "kvc/kvc.hpp"

static int failures = 0;

static void expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("failed: %s\n", what);
}

// f() must fail with this status.
template <typename F>
static void fails(F f, kvc_status status, const char* what) {
#ifdef KVC_NO_EXCEPTIONS
  f();
  expect(kvc::last_status() == status, what);
#else
  try {
    f();
    expect(false, what);
  } catch (const kvc::Error& e) {
    expect(e.status() == status && std::strstr(e.what(), kvc_status_name(status)) != nullptr, what);
  }
#endif
}

int main() {
  fails([] { expect(!kvc::Policy("no-such-method"), "an empty policy"); }, KVC_E_NOT_FOUND,
        "a method nobody knows");
  fails([] { expect(!kvc::Model("/no/such/file"), "an empty model"); }, KVC_E_IO, "a file that is not there");
  fails([] { kvc::method_describe(9999); }, KVC_E_NOT_FOUND, "a method past the end");
  kvc::Policy policy("snapkv:budget=64");
  kvc::Policy other(std::move(policy));
  expect(!policy && other, "a handle moves");  // NOLINT: what is left of it is empty
  expect(other.describe().find("snapkv:budget=64") == 0, "a policy tells its canonical text");
  expect(kvc::last_status() == KVC_OK, "a call that went well says so");
  fails([&] { policy.describe(); }, KVC_E_INVALID, "a handle that was moved away");
  expect(kvc::method_count() > 10 && kvc::method_name(-1).empty(), "methods");
  expect(kvc::device_describe(0).find("cpu") != std::string::npos, "devices");
  expect(kvc::params<kvc_sampling>().struct_size == static_cast<int32_t>(sizeof(kvc_sampling)),
         "sized structs");
  expect(kvc::version() == "0.1.0", "the version as text");
  kvc::Loader loader;
  expect(loader.progress() == 1, "a loader that does nothing");
  loader.cancel();
  fails([&] { loader.open("/no/such/file"); }, KVC_E_IO, "a loader's failure");
  kvc::Loader moved(std::move(loader));
  expect(!loader && moved, "a loader moves");  // NOLINT: what is left of it is empty
  fails([&] { loader.open("/no/such/file", "cpu", kvc::params<kvc_model_params>()); }, KVC_E_INVALID,
        "a loader that was moved away");
  std::vector<kvc_status> statuses(1);
  fails(
      [&] {
        expect(kvc::batch_step({nullptr}, &statuses).empty() && statuses.empty(), "no batch, no tokens");
      },
      KVC_E_INVALID, "a batch of no session");
  kvc::Tokens tokens(1);
  statuses.resize(1);
  fails(
      [&] {
        expect(
            kvc::batch_logits({nullptr}, 1, &tokens, &statuses).empty() && tokens.empty() && statuses.empty(),
            "no batch, no logits");
      },
      KVC_E_INVALID, "logits of no session");
  std::printf(failures == 0 ? "all checks passed\n" : "FAILED\n");
  return failures == 0 ? 0 : 1;
}
