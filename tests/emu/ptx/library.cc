// Kernels by their names, and their names by their addresses.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/emu/ptx/program.h"

#include <unistd.h>

namespace kvc::emu::ptx {
namespace {

constexpr std::string_view kUnnamed = "12_GLOBAL__N_1";

// nvcc gives the unnamed namespace of a file a name of its own, with its length in front.
std::string AsElsewhere(std::string_view mangled) {
  static constexpr std::string_view kMark = "_GLOBAL__N__";
  std::string name;
  while (true) {
    const size_t mark = mangled.find(kMark);
    if (mark == std::string_view::npos) break;
    size_t digits = mark;
    while (digits > 0 && mangled[digits - 1] >= '0' && mangled[digits - 1] <= '9') --digits;
    const size_t length =
        std::strtoul(std::string(mangled.substr(digits, mark - digits)).c_str(), nullptr, 10);
    name += std::string(mangled.substr(0, digits)) + std::string(kUnnamed);
    mangled = mangled.substr(mark + length);
  }
  return name + std::string(mangled);
}

// Comments go, lines stay; paths may have two strokes too.
std::string WithoutComments(std::string text) {
  bool quoted = false, comment = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') quoted = comment = false;
    if (text[i] == '"') quoted = !quoted;
    comment = comment || (!quoted && text[i] == '/' && i + 1 < text.size() && text[i + 1] == '/');
    if (comment) text[i] = ' ';
  }
  return text;
}

}  // namespace

Library::Library(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".ptx") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    files_.push_back(WithoutComments(text.str()));
    const std::string& file = files_.back();
    for (size_t at = 0; (at = file.find(".entry ", at)) != std::string::npos;) {
      at += 7;
      const size_t open = file.find('(', at), close = file.find(')', open), body = file.find('{', close);
      size_t end = body;
      for (int depth = 0; end < file.size(); ++end) {
        if (file[end] == '{') ++depth;
        if (file[end] == '}' && --depth == 0) break;
      }
      entries_[AsElsewhere(std::string_view(file).substr(at, open - at))] = {files_.size() - 1, at, end + 1};
      at = end;
    }
  }
  if (!entries_.empty()) return;
  std::fprintf(stderr, "ptx: no kernels in %s\n", folder.c_str());
  std::exit(1);
}

Program* Library::Find(const std::string& mangled) {
  const auto known = programs_.find(mangled);
  if (known != programs_.end()) return known->second.get();
  const auto entry = entries_.find(mangled);
  if (entry == entries_.end()) {
    std::fprintf(stderr, "ptx: no kernel %s\n", mangled.c_str());
    std::exit(1);
  }
  const Entry& e = entry->second;
  return (programs_[mangled] = Decode(files_[e.file], e.begin, e.end)).get();
}

void Library::WriteWhatRan(const std::string& path) const {
  std::ofstream out(path);
  for (const auto& [name, program] : programs_) {
    out << "kernel " << name << ' ' << program->launches << ' ' << program->blocks << '\n';
    for (size_t i = 0; i < program->code.size(); ++i) {
      const Instruction& code = program->code[i];
      const Work& w = program->work[i];
      const auto source = program->sources.find(code.source);
      out << (code.name.empty() ? "end" : code.name) << ' '
          << (source == program->sources.end() ? "-" : source->second) << ' ' << code.source_line << ' '
          << w.issued << ' ' << w.lanes << ' ' << w.sectors << ' ' << w.least_sectors << ' ' << w.wavefronts
          << ' ' << w.least_wavefronts << '\n';
    }
  }
}

bool CountsTraffic() {
  static const bool counts = std::getenv("KVC_EMU_PTX_RAN") != nullptr;
  return counts;
}

Library* TheLibrary() {
  static const char* const folder = std::getenv("KVC_EMU_PTX");
  static Library* const library = folder == nullptr || *folder == 0 ? nullptr : new Library(folder);
  static const bool writes = library != nullptr && CountsTraffic();
  static const int at_exit = !writes ? 0 : std::atexit([] {
    library->WriteWhatRan(std::getenv("KVC_EMU_PTX_RAN") + std::string("/") + std::to_string(getpid()));
  });
  static_cast<void>(at_exit);
  return library;
}

}  // namespace kvc::emu::ptx
