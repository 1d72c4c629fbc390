#include "lib/engine/reread.h"

#include <algorithm>
#include <string>

namespace kvc {
namespace {

constexpr char kInstruction[] = "\n\nRepeat the previous text exactly:\n\n";
constexpr int32_t kLead = 8;  // tokens of the part before that say where a part begins
// A segment is as long as the context has room, but the weights are streamed once for each. A prompt that
// fills the context is read in short ones that pass its end by as much.
constexpr int32_t kShortest = 64, kLongest = 2048;

}  // namespace

Status MakeReread(const Model& model, Span<const int32_t> tokens, int32_t n_tokens, Reread* reread) {
  std::vector<int32_t> instruction;
  const std::string text = kInstruction;
  KVC_RETURN_IF_ERROR(model.tokenizer().Encode({reinterpret_cast<const uint8_t*>(text.data()), text.size()},
                                               kContinue, &instruction));
  const int32_t n = static_cast<int32_t>(tokens.size()),
                room = std::clamp(model.config().max_tokens - n_tokens, kShortest, kLongest),
                before = static_cast<int32_t>(instruction.size()) + kLead,
                part = std::max(room - before, kShortest / 2);
  *reread = {};
  reread->tokens.reserve(static_cast<size_t>(n) +
                         static_cast<size_t>(n / part + 1) * static_cast<size_t>(before));
  for (int32_t begin = 0; begin < n; begin += part) {
    reread->tokens.insert(reread->tokens.end(), instruction.begin(), instruction.end());
    for (int32_t i = std::max(begin - kLead, 0); i < std::min(begin + part, n); ++i)
      reread->tokens.push_back(tokens[static_cast<size_t>(i)]);
    reread->ends.push_back(static_cast<int32_t>(reread->tokens.size()));
  }
  return {};
}

}  // namespace kvc
