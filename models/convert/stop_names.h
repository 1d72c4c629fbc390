// Special tokens that end an answer, by the names under which tokenizers have them.
#pragma once

namespace kvc {

// Of tokenizers that say no more.
constexpr const char* kStopNames[] = {"</s>",          "<|eos|>",    "<eos>",      "<|end_of_text|>",
                                      "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>"};
// GGUF has room for one or two of them, and llama.cpp finds the others by name; among them these.
constexpr const char* kMoreGgufStopNames[] = {"<|return|>", "<|call|>", "<end_of_turn>",
                                              "<\xEF\xBD\x9C"
                                              "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};

}  // namespace kvc
