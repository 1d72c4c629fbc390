#include "cuda/tuning.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "kvc/kvc.h"
#include "lib/base/decimal.h"
#include "lib/base/log.h"
#include "lib/base/mapped_file.h"
#include "lib/base/trim.h"

namespace kvc::cuda {

namespace {

constexpr const char* kVariable = "KVC_CUDA_TUNING";
constexpr int64_t kMostFileBytes = 64 << 10;
constexpr int32_t kNever = 1 << 20;  // rows

struct Number {
  const char* name;
  int32_t Tuning::*at;
  int32_t least, most, step;
};
constexpr Number kNumbers[] = {
#define KVC_TUNED(name, least, most, step, usual) {#name, &Tuning::name, least, most, step},
#include "cuda/tuning.list"
#undef KVC_TUNED
};

struct Word {
  const char* name;
  std::string TunedDevice::*at;
};
constexpr Word kWords[] = {
    {"device", &TunedDevice::device}, {"driver", &TunedDevice::driver}, {"library", &TunedDevice::library}};

std::string_view Trimmed(std::string_view text) { return Trim(text, " \t\r"); }  // any end of lines

class File {
 public:
  File(const std::string& path, const Tuning& tuning) : path_(path), tuning_(tuning) {}

  Status Read(std::string_view text) {
    for (line_ = 1; !text.empty(); ++line_) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = Trimmed(text.substr(0, std::min(end, text.find('#'))));
      if (!line.empty()) KVC_RETURN_IF_ERROR(ReadLine(line));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    for (const Word& word : kWords) {
      if ((device_.*word.at).empty())
        return Error(Code::kInvalid, "%s: it does not say which %s it is for", path_.c_str(), word.name);
    }
    if (tuning_.least_segment > tuning_.most_segment)
      return Error(Code::kInvalid, "%s: least_segment is more than most_segment", path_.c_str());
    return {};
  }
  const TunedDevice& device() const { return device_; }
  const Tuning& tuning() const { return tuning_; }

 private:
  Status Wrong(const char* why) const {
    return Error(Code::kInvalid, "%s, line %d: %s", path_.c_str(), line_, why);
  }

  Status ReadLine(std::string_view line) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) return Wrong("no \"name = value\"");
    const std::string_view name = Trimmed(line.substr(0, equals)), value = Trimmed(line.substr(equals + 1));
    for (const Word& word : kWords) {
      if (name != word.name) continue;
      std::string& to = device_.*word.at;
      if (!to.empty()) return Wrong("this name was there already");
      if (value.empty()) return Wrong("no value");
      to = value;
      return {};
    }
    for (const Number& number : kNumbers) {
      if (name == number.name) return ReadNumber(number, value);
    }
    return Wrong("no such name");
  }

  Status ReadNumber(const Number& number, std::string_view value) {
    bool& there = there_[&number - kNumbers];
    if (there) return Wrong("this name was there already");
    double n = 0;
    if (!ReadDecimal(value, &n) || !(n >= number.least && n <= number.most) ||
        static_cast<double>(static_cast<int32_t>(n)) != n || static_cast<int32_t>(n) % number.step != 0)
      return Wrong(Format("%s is a whole number from %d to %d%s", number.name, number.least, number.most,
                          number.step > 1 ? Format(", a multiple of %d", number.step).c_str() : "")
                       .c_str());
    there = true, tuning_.*number.at = static_cast<int32_t>(n);
    return {};
  }

  const std::string& path_;
  Tuning tuning_;
  TunedDevice device_;
  bool there_[std::size(kNumbers)] = {};
  int line_ = 0;
};

}  // namespace

// 8.0 and 8.7 gain nothing from writing codes as f16 first: from 9.0 on tensor cores have products that our
// own kernel does not use, twice as fast as those that it does, and decoding costs a fifth of what they save,
// for 1,024 rows, by arithmetic. The workspace is what NVIDIA advises for its larger GPUs, and what a
// Jetson's caches make of it. Of a step's attention two blocks and more run on a multiprocessor at once. 64
// KiB of weights on each are 8.4 MB of an H200, which its memory gives in 2 microseconds, beside as many that
// blocks fetch first: about what a short attention in front of a product takes; two kernels have 17 of the
// cache's 50 MB.
Tuning TuningFor(int capability, int32_t multiprocessors) {
  Tuning t;
  if (capability < 90) t.decoded_rows = kNever;
  t.blas_workspace = capability >= 90 ? 32 : capability == 80 ? 16 : t.blas_workspace;
  t.weights_ahead = capability >= 90 ? 64 : 0;
  t.step_blocks = std::clamp(2 * multiprocessors, 16, 1024);
  return t;
}

TunedDevice TunedDeviceOf(const char* name, int version) {
  return {name, Format("%d.%d", version / 1000, version / 10 % 100),
          Format("%d.%d.%d", KVC_VERSION / 10000, KVC_VERSION / 100 % 100, KVC_VERSION % 100)};
}

Status ReadTuning(std::string_view text, const std::string& path, const TunedDevice& device, Tuning* tuning) {
  File file(path, *tuning);
  KVC_RETURN_IF_ERROR(file.Read(text));
  for (const Word& word : kWords) {
    const std::string &is = device.*word.at, &was = file.device().*word.at;
    if (is == was) continue;
    Log(kLogWarning, "%s is for %s %.80s, not for %.80s: not used", path.c_str(), word.name, was.c_str(),
        is.c_str());
    return {};
  }
  *tuning = file.tuning();
  Log(kLogInfo, "tuned by %s", path.c_str());
  return {};
}

Status LoadTuning(const TunedDevice& device, Tuning* tuning) {
  const char* value = std::getenv(kVariable);
  if (value == nullptr || *value == '\0') return {};
  const std::string path = value;
  const Result<MappedFile> file = MappedFile::Open(path, nullptr);
  if (!file.ok()) return Error(file.status().code(), "%s: %s", kVariable, file.status().message().c_str());
  const MappedFile& bytes = file.value();
  if (bytes.size() > kMostFileBytes)
    return Error(Code::kInvalid, "%s: %s is too large for what ./dev gpu tune writes", kVariable,
                 path.c_str());
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  return ReadTuning({text, static_cast<size_t>(bytes.size())}, path, device, tuning);
}

std::string TuningText(const TunedDevice& device, const Tuning& tuning) {
  std::string text;
  for (const Word& word : kWords) text += Format("%s = %s\n", word.name, (device.*word.at).c_str());
  for (const Number& number : kNumbers) text += Format("%s = %d\n", number.name, tuning.*number.at);
  return text;
}

}  // namespace kvc::cuda
