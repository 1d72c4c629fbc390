// The log sink of the process, silent until someone sets it. kvc.h lists what is told. A line has names and
// figures, never text or tokens of prompts and answers.
#pragma once
#include <cstdint>

namespace kvc {

using LogFunction = void (*)(void* user, int32_t level, const char* text);
enum LogLevel : int32_t { kLogDebug = 0, kLogInfo = 1, kLogWarning = 2, kLogError = 3 };

void SetLog(int32_t min_level, LogFunction fn, void* user);
// One line on the calling thread, of whole characters where it is too long; control characters (names come
// from files) become '?'. Allocates nothing.
void Log(int32_t level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace kvc
