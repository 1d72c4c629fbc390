#include "tools/model_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "models/convert/convert.h"
#include "models/convert/gguf_parts.h"
#include "models/convert/sources.h"
#include "tools/failure.h"
#include "tools/kvc_handles.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

namespace fs = std::filesystem;

fs::path PathOf(const std::string& utf8) { return fs::u8path(utf8); }

// A folder that the environment names; empty: it does not.
fs::path Named(const char* variable) {
#ifdef _WIN32
  const std::wstring wide(variable, variable + std::char_traits<char>::length(variable));
  const wchar_t* value = _wgetenv(wide.c_str());
  return value == nullptr ? fs::path() : fs::path(value);
#else
  const char* value = std::getenv(variable);
  return value == nullptr ? fs::path() : fs::path(value);
#endif
}

std::string Hex(const std::string& text) {
  return Format("%016llx", static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
}

// Of a model in several GGUF files, which is given by the first, the others; of another none.
std::vector<fs::path> OtherParts(const fs::path& first) {
  const std::string path = first.u8string();
  std::vector<fs::path> parts;
  std::error_code error;
  for (int32_t part = 1; part < GgufPartsNamed(path); ++part) {
    parts.push_back(PathOf(GgufPart(path, part)));
    if (!fs::exists(parts.back(), error)) break;  // converting says what is missing
  }
  return parts;
}

// Name, size and time of a file and of those that belong to it by the name that was given, or of every file
// of a folder.
std::string StateOf(const fs::path& source, const fs::path& given) {
  std::vector<std::string> entries;
  std::error_code error;
  const auto add = [&](const fs::path& path) {
    const auto size = fs::file_size(path, error);
    const auto time = fs::last_write_time(path, error).time_since_epoch().count();
    entries.push_back(Format("%s %lld %lld\n", path.filename().u8string().c_str(),
                             static_cast<long long>(size), static_cast<long long>(time)));
  };
  if (!fs::is_directory(source, error)) {
    add(source);
    for (const fs::path& part : OtherParts(given)) add(part);
  } else {
    for (const auto& entry : fs::directory_iterator(source, error))
      if (entry.is_regular_file(error)) add(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  std::string all;
  for (const std::string& entry : entries) all += entry;
  return all;
}

bool NeedsConverting(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return true;
  if (!fs::is_regular_file(path, error)) return false;  // opening says what is wrong
  char start[4] = {};
  std::ifstream(path, std::ios::binary).read(start, sizeof start);
  const std::string magic(start, sizeof start);
  return magic == "GGUF" ||
         (NamedGguf(path.u8string()) && magic != kModelFileMagic);  // converting says what is wrong
}

[[noreturn]] void FailWithWayOut(const std::string& what) {
  throw Failure(
      what + "\nKVC_CACHE names another folder for converted models; kvc convert writes one where you say");
}

// What earlier states of the same source have left.
void RemoveOlder(const fs::path& folder, const std::string& beginning, const fs::path& kept) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().u8string();
    const bool older = name.compare(0, beginning.size(), beginning) == 0 && entry.path() != kept &&
                       entry.path().extension() == ".kvc";
    if (older) fs::remove(entry.path(), error);
  }
}

// What conversions that were killed have left. One that is at work writes; of another machine or container,
// whose process numbers say nothing here, too.
void RemoveAbandoned(const fs::path& folder) {
  const auto before = fs::file_time_type::clock::now() - std::chrono::hours(24);
  const std::string beginning = ".kvc-";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const bool temporary = entry.path().filename().u8string().compare(0, beginning.size(), beginning) == 0 &&
                           entry.path().extension() == ".tmp" && entry.is_regular_file(error);
    if (!temporary) continue;
    const auto written = entry.last_write_time(error);
    if (!error && written < before) fs::remove(entry.path(), error);
  }
}

void ConvertInto(const std::string& source, const std::string& output, Signals* signals) {
  signals->RemoveTemporariesOf(output);
  const CancelOnSignal cancel(signals);
  Progress progress("converting");
  ConvertOptions options;
  options.layout = LayoutFor("native").value();
  options.progress = [&](const ConvertProgress& at) {
    progress.Update(static_cast<double>(at.bytes_done), static_cast<double>(at.bytes_total),
                    Format("tensor %d of %d", at.tensors_done, at.tensors_total));
    return !cancel.received();
  };
  ConvertReport report;
  const Status status = Convert(source, output, options, &report);
  progress.Clear();
  if (!status.ok()) {
    const std::string what = "cannot convert: " + status.message();
    if (status.code() == Code::kIo) FailWithWayOut(what);
    throw Failure(what);
  }
  for (const std::string& warning : report.warnings) Note("kvc: note: " + warning);
}

}  // namespace

std::string CacheFolder() {
  fs::path folder = Named("KVC_CACHE");
#ifdef _WIN32
  if (folder.empty() && !Named("LOCALAPPDATA").empty()) folder = Named("LOCALAPPDATA") / "kvc";
#else
  if (folder.empty() && !Named("XDG_CACHE_HOME").empty()) folder = Named("XDG_CACHE_HOME") / "kvc";
  if (folder.empty() && !Named("HOME").empty()) folder = Named("HOME") / ".cache" / "kvc";
#endif
  if (folder.empty()) FailWithWayOut("no folder to keep converted models in");
  return folder.u8string();
}

std::string ScoresBeside(const std::string& source) {
  const fs::path scores = PathOf(source) / "head_scores.json";
  std::error_code error;
  if (!fs::is_regular_file(scores, error)) return "";
  return "left out are the scores beside the checkpoint: --head-scores " + Printable(scores.u8string());
}

void ForgetModelFile(const std::string& path) {
  std::error_code error;  // what cannot be removed cannot be opened then
  fs::remove(PathOf(path), error);
}

std::string ModelFileFor(const std::string& path, Signals* signals) {
  const fs::path source = PathOf(path);
  if (!NeedsConverting(source)) return path;
  std::error_code error;
  const fs::path canonical = fs::canonical(source, error);
  if (error) return path;  // opening says what is wrong
  const fs::path folder = PathOf(CacheFolder());
  const std::string beginning = canonical.filename().u8string().substr(0, 80) + "-" +
                                Hex(canonical.u8string()).substr(0, 8) + "-",
                    state =
                        Format("%d %d\n", kvc_version(), kvc_schema_version()) + StateOf(canonical, source);
  const fs::path output = folder / PathOf(beginning + Hex(state) + ".kvc");
  if (fs::exists(output, error)) return output.u8string();
  fs::create_directories(folder, error);
  if (error)
    FailWithWayOut("cannot make the folder " + Printable(folder.u8string()) + ": " + error.message());
  RemoveAbandoned(folder);
  Note("kvc: converting " + Printable(path) + ", this once, into " + Printable(folder.u8string()));
  ConvertInto(path, output.u8string(), signals);
  RemoveOlder(folder, beginning, output);
  return output.u8string();
}

}  // namespace kvc::tool
