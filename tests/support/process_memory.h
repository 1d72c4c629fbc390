// What the system says that a process holds. Sanitizers keep memory for their own ends: tests skip there.
#pragma once
#include <cstdint>
#include <functional>

#include "tests/support/emulated.h"

namespace kvc::test {

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
    false;
#endif

// Anonymous memory of this process that is in use, in bytes: no files.
int64_t AnonymousBytes();

// By how many bytes resident memory rises at most while `work` runs, in a child process of its own, which
// gets a copy of everything; -1 when it fails.
int64_t PeakGrowth(const std::function<void()>& work);

}  // namespace kvc::test
