// The record of head scoring: a text file of checked lines that only grows. The first line says what is
// measured, each further one is a work item; everything else is derived from them. Killed at any moment, it
// loses at most the line being written.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "tools/output.h"

namespace kvc::tool {

// Sampled coalitions: run, size and sample number. Enumeration: run 0, size, the coalition's bit mask.
struct WorkKey {
  uint32_t run = 0, size = 0, sample = 0;
  bool operator<(const WorkKey& o) const {
    return std::tie(run, size, sample) < std::tie(o.run, o.size, o.sample);
  }
};

// Utility of the coalition and of all other players, means over n_examples.
struct WorkResult {
  int32_t n_examples = 0;
  double in = 0, out = 0;
};

using WorkResults =
    std::map<WorkKey, WorkResult>;  // in key order: sums over it do not depend on who did what

struct WorkLog {
  Json header;
  WorkResults results;
};

// Throws Failure: no such file, damaged before its last line (with the line), a utility outside [0, 1], or an
// item twice with different values. A last line that was cut off is left out; *good_bytes (may be null) is
// where it starts. Takes memory in proportion to the file.
WorkLog ReadWorkLog(const std::string& path, int64_t* good_bytes = nullptr);
// The same for the text of a log; `path` goes into messages.
WorkLog ParseWorkLog(const std::string& text, const std::string& path, int64_t* good_bytes = nullptr);
std::string CheckedLine(const std::string& text);  // "text checksum\n", as every line of a log

// Adds `from` to `to`. Throws Failure when an item is in both with utilities that differ by more than 1e-6.
void MergeResults(const WorkResults& from, const std::string& path, WorkResults* to);

// Throws Failure that names the first thing in which two headers differ; "estimate" may.
void CheckSameHeader(const Json& wanted, const Json& found, const std::string& path);

// Appends records; one process at a time.
class WorkLogWriter {
 public:
  // resume: goes on with an existing log of the same header, whose items go to *done; else the file must not
  // exist. A file that is no such log, and is no part of the first line of one, is left as it is.
  static std::unique_ptr<WorkLogWriter> Open(const std::string& path, const Json& header, bool resume,
                                             WorkResults* done);
  ~WorkLogWriter();
  WorkLogWriter(const WorkLogWriter&) = delete;
  WorkLogWriter& operator=(const WorkLogWriter&) = delete;
  void Append(const WorkKey& key, const WorkResult& result);
  // Everything appended is on the disk afterwards. A full disk takes back what did not fit whole, so that the
  // log can be resumed, and throws Failure.
  void Flush();

 private:
  WorkLogWriter(const std::string& path, int fd, int64_t size) : path_(path), fd_(fd), size_(size) {}
  const std::string path_;
  int fd_;
  int64_t size_;  // complete records on the disk
  std::string pending_;
};

}  // namespace kvc::tool
