// The mangled name of a function of this process, from the table of symbols of the file that it came from:
// kernels have internal linkage, so that no other table has them.
#include <dlfcn.h>
#include <elf.h>

#include <fstream>
#include <sstream>

#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

class Symbols {
 public:
  Symbols(const char* path, uintptr_t base) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    file_ = bytes.str();
    const auto* header = At<Elf64_Ehdr>(0);
    if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return;
    const uintptr_t moved = header->e_type == ET_EXEC ? 0 : base;
    for (size_t i = 0; i < header->e_shnum; ++i) {
      const auto* section = At<Elf64_Shdr>(header->e_shoff + i * header->e_shentsize);
      if (section == nullptr || section->sh_type != SHT_SYMTAB) continue;
      const auto* strings = At<Elf64_Shdr>(header->e_shoff + section->sh_link * header->e_shentsize);
      for (size_t at = 0; strings != nullptr && at + sizeof(Elf64_Sym) <= section->sh_size;
           at += sizeof(Elf64_Sym)) {
        const auto* symbol = At<Elf64_Sym>(section->sh_offset + at);
        if (symbol == nullptr) break;
        if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC)
          names_[symbol->st_value + moved] = file_.c_str() + strings->sh_offset + symbol->st_name;
      }
    }
  }
  std::string NameAt(const void* address) const {
    const auto it = names_.find(reinterpret_cast<uintptr_t>(address));
    return it == names_.end() ? "" : it->second;
  }

 private:
  template <typename T>
  const T* At(size_t offset) const {
    return offset + sizeof(T) <= file_.size() ? reinterpret_cast<const T*>(file_.data() + offset) : nullptr;
  }
  std::string file_;
  std::map<uintptr_t, const char*> names_;
};

}  // namespace

std::string NameOf(const void* function) {
  static std::map<std::string, std::unique_ptr<Symbols>> files;
  Dl_info info;
  if (dladdr(function, &info) == 0) return "";
  std::unique_ptr<Symbols>& symbols = files[info.dli_fname];
  // The program's own name may be relative to a folder that it has left.
  const std::string path = files.size() == 1 ? "/proc/self/exe" : info.dli_fname;
  if (symbols == nullptr)
    symbols = std::make_unique<Symbols>(path.c_str(), reinterpret_cast<uintptr_t>(info.dli_fbase));
  return symbols->NameAt(function);
}

}  // namespace kvc::emu::ptx
