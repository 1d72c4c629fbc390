// A .kvc file, verified. models/FORMAT.md describes the bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/call_state.h"
#include "lib/base/memory_meter.h"
#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/model/model_config.h"
#include "lib/model/tokenizer_spec.h"

namespace kvc {

// Of opening a model: the rest is preparing its weights, which reads them once more.
constexpr double kVerifyShare = 0.5;
constexpr uint32_t kModelFileVersion = 6;  // newest container version this library reads

struct TensorEntry {
  TensorRole role{};
  int32_t layer = -1;            // -1: not of a layer
  Weight weight;                 // points into the file
  int64_t offset = 0, size = 0;  // of the section, from the start of the file
  uint64_t checksum = 0;         // XXH3-64 of the section
  uint64_t plain_checksum =
      0;  // in panels: of the section that row major would make of it, as its writer says
};

// Where in a conversation a system text may stand.
enum class SystemTurns : uint8_t { kAnywhere = 0, kFirst = 1, kNone = 2 };

// What of a text is taken away before it is said: white space at its start, at its end.
enum TurnTrim : uint8_t {
  kTrimSystemStart = 1,
  kTrimSystemEnd = 2,
  kTrimUserStart = 4,
  kTrimUserEnd = 8,
  kTrimAssistantStart = 16,
  kTrimAssistantEnd = 32,
  kTrimUserStartAfterSystem = 64,  // instead of kTrimUserStart
};
constexpr uint8_t kTrimAll = 127;

// How a chat turn is written around what is said; all may be empty (no chat format).
struct TurnFormat {
  std::string system_prefix, system_suffix, user_prefix, user_suffix, assistant_prefix, assistant_suffix;
  // Instead of those above: of the message that a conversation begins with, of a user's message behind a
  // system text, where the assistant is to answer.
  std::optional<std::string> first_system_prefix, first_user_prefix, user_prefix_after_system, answer_prefix;
  uint8_t trim = 0;  // TurnTrim
  SystemTurns system_turns = SystemTurns::kAnywhere;
  bool bos_in_marks =
      false;  // no BOS but what the marks begin with, whatever the tokenizer adds to other texts
  bool empty() const {
    const auto none = [](const std::optional<std::string>& mark) { return !mark || mark->empty(); };
    return system_prefix.empty() && system_suffix.empty() && user_prefix.empty() && user_suffix.empty() &&
           assistant_prefix.empty() && assistant_suffix.empty() && none(first_system_prefix) &&
           none(first_user_prefix) && none(user_prefix_after_system) && none(answer_prefix);
  }
};

class ModelFile {
 public:
  // Maps (or reads, where mapping fails) and verifies everything: container, FlatBuffers verifier with
  // limits, ranges, overlaps, shapes against the config, checksums, finite values. Messages name the file and
  // say truncated, damaged, newer version or unsupported, and what and where. meter (may be null) is charged
  // for what is read or copied into memory, not for mappings. kIo cannot read; kBadModel truncated, damaged
  // or newer; kUnsupported a value this version does not know; kMemory. watch (may be null) hears which share
  // of the file has been verified, times kVerifyShare, and can cancel. trusted: checksums of sections and
  // values of tensors are not looked at, everything else is; whoever computes with weights bears any bytes in
  // them.
  static Result<std::unique_ptr<ModelFile>> Open(const std::string& path, MemoryMeter* meter,
                                                 CallState* watch = nullptr, bool trusted = false);
  // n_bytes from offset, 0 = to the end. The descriptor may be closed after the call. Where offset is no
  // multiple of 64, the file is read into memory, as its weights would not be aligned.
  static Result<std::unique_ptr<ModelFile>> OpenFd(int fd, int64_t offset, int64_t n_bytes,
                                                   MemoryMeter* meter, CallState* watch = nullptr,
                                                   bool trusted = false);
  // data: 64-byte aligned (else kInvalid), valid and unchanged while the object lives.
  static Result<std::unique_ptr<ModelFile>> OpenMemory(const uint8_t* data, int64_t n_bytes,
                                                       MemoryMeter* meter, bool trusted = false);
  virtual ~ModelFile() = default;

  virtual const std::string& name() const = 0;  // the path, or what stands for it in messages
  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerView& tokenizer() const = 0;  // of the file's bytes
  TokenizerSpec tokenizer_spec() const { return tokenizer().ToSpec(); }
  virtual const TurnFormat& turn_format() const = 0;
  virtual const std::vector<HeadScoreTable>& head_scores() const = 0;
  virtual const std::vector<TensorEntry>& tensors() const = 0;
  // Hash over config, tokenizer and all weights, not over head scores: binds sessions and score tables.
  virtual uint64_t fingerprint() const = 0;
  virtual uint32_t version() const = 0;
  virtual int64_t file_bytes() const = 0;
  virtual int64_t weight_bytes() const = 0;
  // A tensor will not soon be read again: where the file is mapped its pages are given back to the system.
  // Returns the bytes that no longer take memory.
  virtual int64_t Drop(const TensorEntry& tensor) const = 0;
  // Whether the file lies in the caller's memory.
  virtual bool borrowed() const = 0;
  virtual bool weights_are_metered() const = 0;       // the whole file was read into memory, and charged
  virtual const std::string& created_by() const = 0;  // tool and version that wrote it
  virtual const std::string& source() const = 0;      // what it was converted from, for people
  // Everything above as one JSON object (kvc inspect --json, kvc_model_describe).
  virtual std::string DescribeJson() const = 0;
  // A failure to use what the file holds, told as Open tells its own: with name and kind of failure in front.
  Status Fault(const Status& status) const;
};

}  // namespace kvc
