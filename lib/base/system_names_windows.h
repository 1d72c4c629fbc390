// What the files for Windows share: names as it spells them, its reasons as errno.
#pragma once
#include <windows.h>

#include <string>

namespace kvc {

// UTF-8 to UTF-16; a long name becomes an absolute one, which may be longer than 260 characters. False: no
// UTF-8, or a folder on the way is gone (errno).
bool WidePath(const std::string& path, std::wstring* out);
std::string Utf8(const std::wstring& text);

void SetErrno(unsigned long windows_error);

// The system's handle behind a descriptor of the C library, null with EBADF where there is none.
HANDLE HandleOf(int fd);

}  // namespace kvc
