#include "lib/base/system_names_windows.h"

#include <io.h>
#include <stdlib.h>

#include <cerrno>
#include <cwchar>

// Of the C library (UCRT); MinGW's headers leave it out.
extern "C" _CRTIMP _invalid_parameter_handler __cdecl _set_thread_local_invalid_parameter_handler(
    _invalid_parameter_handler handler);

namespace kvc {
namespace {

constexpr size_t kLongName = 200;  // from here on in the form that has no limit; folders end at 248 otherwise

// The C library ends the process at a descriptor that is not open, unless a thread says what to do instead.
class NoInvalidParameterHandler {
 public:
  NoInvalidParameterHandler() : before_(_set_thread_local_invalid_parameter_handler(Ignore)) {}
  ~NoInvalidParameterHandler() { _set_thread_local_invalid_parameter_handler(before_); }
  NoInvalidParameterHandler(const NoInvalidParameterHandler&) = delete;
  NoInvalidParameterHandler& operator=(const NoInvalidParameterHandler&) = delete;

 private:
  static void Ignore(const wchar_t*, const wchar_t*, const wchar_t*, unsigned, uintptr_t) {}
  const _invalid_parameter_handler before_;
};

bool Widen(const std::string& text, std::wstring* out) {
  out->clear();
  if (text.empty()) return true;
  const int n = static_cast<int>(text.size());
  const int n_wide = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), n, nullptr, 0);
  if (n_wide <= 0) {
    errno = EILSEQ;
    return false;
  }
  out->resize(static_cast<size_t>(n_wide));
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), n, &(*out)[0], n_wide);
  return true;
}

}  // namespace

bool WidePath(const std::string& path, std::wstring* out) {
  if (!Widen(path, out)) return false;
  if (out->size() < kLongName || out->compare(0, 4, L"\\\\?\\") == 0) return true;
  const DWORD n = GetFullPathNameW(out->c_str(), 0, nullptr, nullptr);
  std::wstring full(n, L'\0');
  full.resize(GetFullPathNameW(out->c_str(), n, &full[0], nullptr));
  if (full.empty()) {
    SetErrno(GetLastError());
    return false;
  }
  const bool network = full.compare(0, 2, L"\\\\") == 0;
  *out = network ? L"\\\\?\\UNC\\" + full.substr(2) : L"\\\\?\\" + full;
  return true;
}

std::string Utf8(const std::wstring& text) {
  if (text.empty()) return {};
  const int n = static_cast<int>(text.size());
  std::string out(
      static_cast<size_t>(WideCharToMultiByte(CP_UTF8, 0, text.data(), n, nullptr, 0, nullptr, nullptr)),
      '\0');
  WideCharToMultiByte(CP_UTF8, 0, text.data(), n, &out[0], static_cast<int>(out.size()), nullptr, nullptr);
  return out;
}

void SetErrno(unsigned long windows_error) {
  static const struct {
    unsigned long windows;
    int number;
  } kNumbers[] = {
      {ERROR_FILE_NOT_FOUND, ENOENT},      {ERROR_PATH_NOT_FOUND, ENOENT},
      {ERROR_INVALID_DRIVE, ENOENT},       {ERROR_BAD_NETPATH, ENOENT},
      {ERROR_INVALID_NAME, ENOENT},        {ERROR_BAD_PATHNAME, ENOENT},
      {ERROR_ACCESS_DENIED, EACCES},       {ERROR_WRITE_PROTECT, EROFS},
      {ERROR_SHARING_VIOLATION, EACCES},   {ERROR_LOCK_VIOLATION, EACCES},
      {ERROR_FILE_EXISTS, EEXIST},         {ERROR_ALREADY_EXISTS, EEXIST},
      {ERROR_DISK_FULL, ENOSPC},           {ERROR_HANDLE_DISK_FULL, ENOSPC},
      {ERROR_NOT_ENOUGH_MEMORY, ENOMEM},   {ERROR_OUTOFMEMORY, ENOMEM},
      {ERROR_COMMITMENT_LIMIT, ENOMEM},    {ERROR_NOT_ENOUGH_QUOTA, ENOMEM},
      {ERROR_TOO_MANY_OPEN_FILES, EMFILE}, {ERROR_INVALID_HANDLE, EBADF},
      {ERROR_INVALID_PARAMETER, EINVAL},   {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG},
      {ERROR_USER_MAPPED_FILE, EBUSY},     {ERROR_NOT_SUPPORTED, ENOTSUP},
  };
  for (const auto& row : kNumbers) {
    if (row.windows != windows_error) continue;
    errno = row.number;
    return;
  }
  errno = EIO;
}

HANDLE HandleOf(int fd) {
  const NoInvalidParameterHandler guard;
  const intptr_t handle = fd < 0 ? -1 : _get_osfhandle(fd);
  if (handle != -1 && handle != -2) return reinterpret_cast<HANDLE>(handle);
  errno = EBADF;
  return nullptr;
}

}  // namespace kvc
