#include "lib/engine/reread.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lib/model/forward.h"

namespace kvc {
namespace {

constexpr char kInstruction[] = "\n\nRepeat the previous text exactly:\n\n";
constexpr int32_t kLead = 8;  // tokens of the part before that say where a part begins
// A segment is as long as the context has room, but the weights are streamed once for each. A prompt that
// fills the context is read in short ones that pass its end by as much.
constexpr int32_t kShortest = 64, kLongest = 2048;
constexpr int32_t kSampled = 256;  // tokens of a part of which not all are read, and which sees everything

// Queries of a part are remembered by whole chunks.
static_assert(kRereadPartStep % kPromptChunk == 0, "a part ends where a chunk ends");

// Whether part i is among those read: they are spread evenly, and the first is.
bool IsRead(double share, int32_t i) {
  const auto before = [&](int32_t k) { return std::ceil(k * share - 1e-9); };
  return before(i + 1) > before(i);
}

// Tokens of a part.
int32_t PartOf(const SecondReading& reading, int32_t n, int32_t room, int32_t before) {
  if (reading.part > 0) return std::min(reading.part, std::max(n, 1));
  if (reading.own) return std::max(n, 1);
  const int32_t part = std::max(std::clamp(room, kShortest, kLongest) - before, kShortest / 2);
  return reading.share < 1 ? std::min(part, kSampled) : part;
}

// Of a plan two stand for all: one with the most rows, and one that sees most.
void AddPart(const Reread::Part& part, bool planned, Reread* reread) {
  std::vector<Reread::Part>& parts = reread->parts;
  if (!planned) {
    parts.push_back(part);
    return;
  }
  if (parts.empty()) parts.assign(2, part);
  if (part.end - part.begin > parts[0].end - parts[0].begin) parts[0] = part;
  if (part.last - part.first > parts[1].last - parts[1].first) parts[1] = part;
}

// The part's own rows, each as far as a chunk goes: they see what they stand behind and those before them.
void AddOwn(int32_t begin, int32_t end, const SecondReading& reading, bool planned, Reread* reread) {
  const int32_t n_chunks = (end - begin + kPromptChunk - 1) / kPromptChunk;
  for (int32_t i = 0; i < n_chunks; ++i) {
    const int32_t at = begin + i * kPromptChunk;
    if (!reread->local && !IsRead(reading.share, i)) continue;
    AddPart({at, std::min(at + kPromptChunk, end), begin, end}, planned, reread);
  }
}

// tokens [n], or null in a plan.
void AddAgain(const int32_t* tokens, int32_t n, const std::vector<int32_t>& instruction, int32_t begin,
              int32_t end, Reread* reread) {
  const int32_t row = reread->n_tokens, lead = std::max(begin - kLead, 0);
  reread->n_tokens += static_cast<int32_t>(instruction.size()) + end - lead;
  if (tokens != nullptr) {
    reread->tokens.insert(reread->tokens.end(), instruction.begin(), instruction.end());
    reread->tokens.insert(reread->tokens.end(), tokens + lead, tokens + end);
  }
  const bool local = reread->local;
  AddPart({row, reread->n_tokens, local ? begin : 0, local ? end : n}, tokens == nullptr, reread);
}

// tokens [n], or null in a plan.
Status Make(const Model& model, const SecondReading& reading, const int32_t* tokens, int32_t n,
            int32_t n_tokens, Reread* reread) {
  *reread = {};
  reread->own = reading.own, reread->local = reading.part > 0, reread->squares = reading.squares;
  std::vector<int32_t> instruction;
  const std::string text = kInstruction;
  if (!reading.own)
    KVC_RETURN_IF_ERROR(model.tokenizer().Encode({reinterpret_cast<const uint8_t*>(text.data()), text.size()},
                                                 kContinue, &instruction));
  const int32_t before = static_cast<int32_t>(instruction.size()) + kLead,
                part = PartOf(reading, n, model.config().max_tokens - n_tokens, before),
                n_parts = (n + part - 1) / part;
  if (!reading.own && tokens != nullptr)
    reread->tokens.reserve(static_cast<size_t>(n) +
                           static_cast<size_t>(n_parts) * static_cast<size_t>(before));
  for (int32_t i = 0; i < n_parts; ++i) {
    const int32_t begin = i * part, end = std::min(begin + part, n);
    if (!IsRead(reading.share, i)) continue;
    if (reading.own) {
      AddOwn(begin, end, reading, tokens == nullptr, reread);
    } else {
      AddAgain(tokens, n, instruction, begin, end, reread);
    }
  }
  return {};
}

}  // namespace

Status MakeReread(const Model& model, const SecondReading& reading, Span<const int32_t> tokens,
                  int32_t n_tokens, Reread* reread) {
  return Make(model, reading, tokens.data(), static_cast<int32_t>(tokens.size()), n_tokens, reread);
}

Status PlanReread(const Model& model, const SecondReading& reading, int32_t n, int32_t n_tokens,
                  Reread* reread) {
  return Make(model, reading, nullptr, n, n_tokens, reread);
}

}  // namespace kvc
