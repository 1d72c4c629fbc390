// Special tokens that end an answer, by the names under which tokenizers have them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "lib/model/tokenizer_spec.h"

namespace kvc {

// Of tokenizers that say no more.
constexpr const char* kStopNames[] = {"</s>",          "<|eos|>",    "<eos>",      "<|end_of_text|>",
                                      "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>"};
// GGUF has room for one or two of them, and llama.cpp finds the others by name; among them these.
constexpr const char* kMoreGgufStopNames[] = {"<|return|>",
                                              "<|call|>",
                                              "<|end|>",
                                              "<end_of_turn>",
                                              "<EOT>",
                                              "_<EOT>",
                                              "<end_of_utterance>",
                                              ("<\xEF\xBD\x9C"
                                               "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>")};

// Once each; an id below 0 is of a token that there is not.
inline void AddStop(int32_t id, TokenizerSpec* spec) {
  if (id >= 0 && std::count(spec->stop_tokens.begin(), spec->stop_tokens.end(), id) == 0)
    spec->stop_tokens.push_back(id);
}

}  // namespace kvc
