#include "tools/score/work_log.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tools/failure.h"
#include "tools/files.h"

namespace kvc::tool {
namespace {

constexpr double kSameUtility = 1e-6;
constexpr size_t kChecksumDigits = 16;

// The text of a checked line (without its end); false when it is damaged.
bool OpenLine(const std::string& line, std::string* text) {
  if (line.size() <= kChecksumDigits) return false;
  *text = line.substr(0, line.size() - kChecksumDigits - 1);
  return CheckedLine(*text) == line + "\n";
}

std::string RecordText(const WorkKey& key, const WorkResult& result) {
  return Format("%" PRIu32 " %" PRIu32 " %" PRIu32 " %d %a %a", key.run, key.size, key.sample,
                result.n_examples, result.in, result.out);
}

// Exactly what RecordText writes: numbers that overflow, signs, spaces elsewhere and anything behind are not.
bool ParseRecord(const std::string& text, WorkKey* key, WorkResult* result) {
  return std::sscanf(text.c_str(), "%" SCNu32 " %" SCNu32 " %" SCNu32 " %d %la %la", &key->run, &key->size,
                     &key->sample, &result->n_examples, &result->in, &result->out) == 6 &&
         RecordText(*key, *result) == text;
}

bool IsUtility(double value) { return value >= 0 && value <= 1; }  // NaN is none

bool Same(const WorkResult& a, const WorkResult& b) {
  return a.n_examples == b.n_examples && std::fabs(a.in - b.in) <= kSameUtility &&
         std::fabs(a.out - b.out) <= kSameUtility;
}

void Insert(const WorkKey& key, const WorkResult& result, const std::string& path, WorkResults* results) {
  const auto [at, added] = results->emplace(key, result);
  if (added || Same(at->second, result)) return;
  throw Failure(Format("%s: run %" PRIu32 ", size %" PRIu32 ", sample %" PRIu32
                       " is there twice with different utilities: %.9g, %.9g and %.9g, %.9g",
                       path.c_str(), key.run, key.size, key.sample, at->second.in, at->second.out, result.in,
                       result.out));
}

// Alone on the file. A process that was killed a moment ago may not have let go of it yet.
bool Locked(int fd) {
  constexpr int kTries = 40;
  for (int i = 0; i < kTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

}  // namespace

std::string CheckedLine(const std::string& text) {
  return text + Format(" %016" PRIx64 "\n", static_cast<uint64_t>(XXH3_64bits(text.data(), text.size())));
}

WorkLog ReadWorkLog(const std::string& path, int64_t* good_bytes) {
  return ParseWorkLog(ReadFile(path), path, good_bytes);
}

WorkLog ParseWorkLog(const std::string& file, const std::string& path, int64_t* good_bytes) {
  WorkLog log;
  size_t begin = 0;
  for (int line_number = 1; begin < file.size(); ++line_number) {
    const size_t end = file.find('\n', begin);
    const std::string where = path + ":" + std::to_string(line_number);
    std::string text;
    const bool whole = end != std::string::npos && OpenLine(file.substr(begin, end - begin), &text);
    if (!whole) {
      if (line_number > 1 && end != std::string::npos && end + 1 < file.size())
        throw Failure(where + ": damaged: its checksum does not match");
      break;
    }
    WorkKey key;
    WorkResult result;
    if (line_number == 1) {
      log.header = ParseJsonText(text, where);
      if (!log.header.is_object()) throw Failure(where + ": no log of head scoring");
    } else if (!ParseRecord(text, &key, &result)) {
      throw Failure(where + ": no record of head scoring");
    } else if (!IsUtility(result.in) || !IsUtility(result.out)) {
      throw Failure(where + ": a utility outside 0 .. 1");
    } else {
      Insert(key, result, path, &log.results);
    }
    begin = end + 1;
  }
  if (log.header.is_null()) throw Failure(path + ": no log of head scoring, or damaged in its first line");
  if (good_bytes != nullptr) *good_bytes = static_cast<int64_t>(begin);
  return log;
}

void MergeResults(const WorkResults& from, const std::string& path, WorkResults* to) {
  for (const auto& [key, result] : from) Insert(key, result, path, to);
}

void CheckSameHeader(const Json& wanted, const Json& found, const std::string& path) {
  const char* free = "estimate";
  for (const auto& [key, value] : wanted.items()) {
    if (key == free) continue;
    const Json other = found.contains(key) ? found[key] : Json();
    if (other == value) continue;
    throw Failure(path + ": a log of another measurement: " + key + " is " + other.dump().substr(0, 120) +
                  ", here " + value.dump().substr(0, 120));
  }
  if (found.contains("framing") && !wanted.contains("framing"))
    throw Failure(path + ": a log of another measurement: framing is " +
                  found["framing"].dump().substr(0, 120) + ", here texts are read as they stand");
  if (found.size() - found.count(free) != wanted.size() - wanted.count(free))
    throw Failure(path + ": a log of another version of this program");
}

std::unique_ptr<WorkLogWriter> WorkLogWriter::Open(const std::string& path, const Json& header, bool resume,
                                                   WorkResults* done) {
  struct stat info;
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && !resume) throw UsageError(path + " exists: --resume goes on with it, or remove it");
  if (exists && !S_ISREG(info.st_mode)) throw Failure(path + ": is not a regular file");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw Failure(path + ": " + std::strerror(errno));
  std::unique_ptr<WorkLogWriter> log(new WorkLogWriter(path, fd, 0));
  if (!Locked(fd)) throw Failure(path + ": another process is writing it");
  const std::string first_line = CheckedLine(header.dump());
  const std::string text = exists ? ReadFile(path) : "";
  // Killed while it wrote its first line: nothing is lost by starting again.
  if (text.size() >= first_line.size() || first_line.compare(0, text.size(), text) != 0) {
    const WorkLog old = ParseWorkLog(text, path, &log->size_);
    CheckSameHeader(header, old.header, path);
    *done = old.results;
  }
  if (ftruncate(fd, log->size_) != 0) throw Failure(path + ": " + std::strerror(errno));
  if (log->size_ == 0) {
    log->pending_ = first_line;
    log->Flush();
  }
  return log;
}

WorkLogWriter::~WorkLogWriter() { close(fd_); }

void WorkLogWriter::Append(const WorkKey& key, const WorkResult& result) {
  pending_ += CheckedLine(RecordText(key, result));
}

void WorkLogWriter::Flush() {
  size_t written = 0;
  while (written < pending_.size()) {
    const ssize_t n = pwrite(fd_, pending_.data() + written, pending_.size() - written,
                             size_ + static_cast<int64_t>(written));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    written += static_cast<size_t>(n);
  }
  if (written < pending_.size() || fsync(fd_) != 0) {
    const std::string reason = std::strerror(errno);
    const bool taken_back = ftruncate(fd_, size_) == 0;
    throw Failure(path_ + ": " + reason +
                  (taken_back ? "; the log is whole up to here: make room and --resume" : ""));
  }
  size_ += static_cast<int64_t>(written);
  pending_.clear();
}

}  // namespace kvc::tool
