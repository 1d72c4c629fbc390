// Files by name. Names are UTF-8, of folders and files with '/' between them; Windows takes '\' as well.
// Every call that returns no Status leaves the reason of a failure in errno.
#pragma once
#include <cstdint>
#include <string>

#include "lib/base/file_descriptor.h"

namespace kvc {

// Where a file written as `path` comes to stand, as a canonical path. Links are followed, also one that
// points to a file that is not there yet (on Windows that is kIo): writing never replaces a link itself.
// kInvalid: an empty name; kIo: the folder is not there, or links go round in circles.
Result<std::string> ResolveOutput(const std::string& path);

// For reading. A folder opens too. Nothing is waited for: a named pipe without a writer opens.
FileDescriptor OpenFile(const std::string& path);
// For reading and writing; EEXIST: the name is taken. Private: nobody else may open it, until it is given
// permissions; on Windows it has those of its folder either way.
FileDescriptor CreateNewFile(const std::string& path, bool is_private);
// Gives an open file the permissions of another; on Windows it keeps those that its folder gave it.
bool CopyPermissions(const std::string& from, int fd);
// Takes the place of `path`, which may be there, in one step; true: on the disk.
bool MoveFileOver(const std::string& from, const std::string& path);
void RemoveFile(const std::string& path);

// What a file is, whatever it is called. False: nothing is there.
struct FileIdentity {
  uint64_t device = 0, number = 0;
  bool operator==(const FileIdentity& o) const { return device == o.device && number == o.number; }
};
bool Identify(const std::string& path, FileIdentity* identity, FileInfo* info);
// Something has this name, be it a link that points nowhere: what is wrong with it, opening will tell.
bool FileExists(const std::string& path);
bool MayWriteInto(const std::string& folder);
std::string FolderOf(const std::string& path);
int64_t ProcessNumber();

}  // namespace kvc
