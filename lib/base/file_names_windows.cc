#include "lib/base/file_names.h"

#include <fcntl.h>
#include <io.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/system_names_windows.h"

namespace kvc {
namespace {

constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

// An open file; INVALID_HANDLE_VALUE and errno when it cannot be opened. Backup semantics: folders open too.
HANDLE Open(const std::string& path, DWORD access, DWORD share, DWORD how) {
  std::wstring name;
  if (!WidePath(path, &name)) return INVALID_HANDLE_VALUE;
  const HANDLE file = CreateFileW(name.c_str(), access, share, nullptr, how,
                                  FILE_ATTRIBUTE_NORMAL | FILE_FLAG_BACKUP_SEMANTICS, nullptr);
  if (file == INVALID_HANDLE_VALUE) SetErrno(GetLastError());
  return file;
}

FileDescriptor Descriptor(HANDLE file, int flags) {
  if (file == INVALID_HANDLE_VALUE) return {};
  const int fd = _open_osfhandle(reinterpret_cast<intptr_t>(file), flags | _O_BINARY | _O_NOINHERIT);
  if (fd < 0) CloseHandle(file);
  return FileDescriptor(fd);
}

class Handle {
 public:
  explicit Handle(HANDLE handle) : handle_(handle) {}
  ~Handle() {
    if (open()) CloseHandle(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  bool open() const { return handle_ != INVALID_HANDLE_VALUE; }
  HANDLE get() const { return handle_; }

 private:
  const HANDLE handle_;
};

DWORD AttributesOf(const std::string& path) {
  std::wstring name;
  if (!WidePath(path, &name)) return INVALID_FILE_ATTRIBUTES;
  const DWORD attributes = GetFileAttributesW(name.c_str());
  if (attributes == INVALID_FILE_ATTRIBUTES) SetErrno(GetLastError());
  return attributes;
}

// The absolute path of what is no link: for volumes that do not know where a file of theirs is.
bool FullName(const std::string& path, std::wstring* out) {
  std::wstring name;
  if (!WidePath(path, &name)) return false;
  const DWORD attributes = GetFileAttributesW(name.c_str());
  if (attributes == INVALID_FILE_ATTRIBUTES || (attributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0) return false;
  const DWORD n = GetFullPathNameW(name.c_str(), 0, nullptr, nullptr);
  out->assign(n, L'\0');
  out->resize(GetFullPathNameW(name.c_str(), n, &(*out)[0], nullptr));
  return !out->empty();
}

// The canonical path of what exists, with '/' between names and without the prefix that says "no limits".
bool Canonical(const std::string& path, std::string* out) {
  const Handle file(Open(path, 0, kShareAll, OPEN_EXISTING));
  if (!file.open()) return false;
  std::wstring name(MAX_PATH, L'\0');
  DWORD n = GetFinalPathNameByHandleW(file.get(), &name[0], static_cast<DWORD>(name.size()), VOLUME_NAME_DOS);
  if (n >= name.size()) {
    name.resize(n + 1);
    n = GetFinalPathNameByHandleW(file.get(), &name[0], static_cast<DWORD>(name.size()), VOLUME_NAME_DOS);
  }
  if (n == 0) {
    SetErrno(GetLastError());
    if (!FullName(path, &name)) return false;
  } else {
    name.resize(n);
  }
  if (name.compare(0, 8, L"\\\\?\\UNC\\") == 0) {
    name = L"\\\\" + name.substr(8);
  } else if (name.compare(0, 4, L"\\\\?\\") == 0) {
    name.erase(0, 4);
  }
  std::replace(name.begin(), name.end(), L'\\', L'/');
  *out = Utf8(name);
  return true;
}

}  // namespace

Result<std::string> ResolveOutput(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Error(Code::kInvalid, "a file name is empty or contains a zero byte");
  }
  std::string resolved;
  if (Canonical(path, &resolved)) return resolved;
  if (errno != ENOENT) return IoError(path, "cannot resolve", errno);
  if (FileExists(path)) return Error(Code::kIo, "%s: a link to a file that is not there", path.c_str());
  if (path.back() == '/' || path.back() == '\\')
    return Error(Code::kIo, "%s: names a folder that is not there", path.c_str());
  if (!Canonical(FolderOf(path), &resolved)) return IoError(path, "cannot create a file beside it", errno);
  const size_t slash = path.find_last_of("/\\");
  const bool on_drive = slash == std::string::npos && path.size() > 1 && path[1] == ':';  // "C:name"
  const std::string name = path.substr(on_drive ? 2 : slash == std::string::npos ? 0 : slash + 1);
  return resolved + (resolved.back() == '/' ? "" : "/") + name;
}

FileDescriptor OpenFile(const std::string& path) {
  return Descriptor(Open(path, GENERIC_READ, kShareAll, OPEN_EXISTING), _O_RDONLY);
}

FileDescriptor CreateNewFile(const std::string& path, bool) {
  return Descriptor(Open(path, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ, CREATE_NEW), _O_RDWR);
}

bool CopyPermissions(const std::string&, int) { return true; }

bool MoveFileOver(const std::string& from, const std::string& path) {
  std::wstring source, target;
  if (!WidePath(from, &source) || !WidePath(path, &target)) return false;
  if (MoveFileExW(source.c_str(), target.c_str(), MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) != 0)
    return true;
  SetErrno(GetLastError());
  return false;
}

void RemoveFile(const std::string& path) {
  std::wstring name;
  if (WidePath(path, &name)) DeleteFileW(name.c_str());
}

bool Identify(const std::string& path, FileIdentity* identity, FileInfo* info) {
  const Handle file(Open(path, 0, kShareAll, OPEN_EXISTING));
  if (!file.open()) return false;
  BY_HANDLE_FILE_INFORMATION found = {};
  *identity = {}, *info = {};
  if (GetFileType(file.get()) != FILE_TYPE_DISK) return true;
  if (GetFileInformationByHandle(file.get(), &found) == 0) {
    SetErrno(GetLastError());
    return false;
  }
  *identity = {found.dwVolumeSerialNumber,
               static_cast<uint64_t>(found.nFileIndexHigh) << 32 | found.nFileIndexLow};
  info->kind =
      (found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0 ? FileKind::kFolder : FileKind::kRegular;
  info->bytes = static_cast<int64_t>(found.nFileSizeHigh) << 32 | found.nFileSizeLow;
  return true;
}

bool FileExists(const std::string& path) { return AttributesOf(path) != INVALID_FILE_ATTRIBUTES; }

// Who may write where is a matter of access lists here, which opening asks; a folder that is there will do.
bool MayWriteInto(const std::string& folder) { return AttributesOf(folder) != INVALID_FILE_ATTRIBUTES; }

std::string FolderOf(const std::string& path) {
  const size_t slash = path.find_last_of("/\\");
  if (slash == std::string::npos) return path.size() > 1 && path[1] == ':' ? path.substr(0, 2) : ".";
  const bool root = slash == 0 || (slash == 2 && path[1] == ':');
  return path.substr(0, slash + (root ? 1 : 0));
}

int64_t ProcessNumber() { return GetCurrentProcessId(); }

}  // namespace kvc
