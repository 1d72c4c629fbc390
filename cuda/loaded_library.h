// Functions of libraries that are found when a program runs: NVIDIA's are where there is a GPU, and not
// elsewhere.
#pragma once
#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace kvc::cuda {

// It stays loaded: what it made may outlive whoever asked. Null: there is none of that name, or it does not
// start.
#if defined(_WIN32)
inline void* LoadSystemLibrary(const char* path) { return LoadLibraryA(path); }
inline void* SymbolOf(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}
#else
inline void* LoadSystemLibrary(const char* path) { return dlopen(path, RTLD_LAZY | RTLD_LOCAL); }
inline void* SymbolOf(void* library, const char* name) { return dlsym(library, name); }
#endif

}  // namespace kvc::cuda
