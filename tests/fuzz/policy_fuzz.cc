// Policy text: whatever the bytes are, parsing ends with a policy or a message, and a policy's description is
// a fixed point.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lib/compress/policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string spec(reinterpret_cast<const char*>(data), size);
  const kvc::Result<kvc::Policy> policy = kvc::ParsePolicy(spec.c_str());
  if (!policy.ok()) {
    if (policy.status().message().empty() || policy.status().message().size() > 4096) std::abort();
    return 0;
  }
  const std::string text = kvc::DescribePolicy(policy.value());
  const kvc::Result<kvc::Policy> again = kvc::ParsePolicy(text.c_str());
  if (!again.ok() || kvc::DescribePolicy(again.value()) != text) std::abort();
  return 0;
}
