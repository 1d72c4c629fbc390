#include "models/convert/not_supported.h"

#include "lib/base/ascii.h"

namespace kvc {
namespace {

struct Reason {
  const char* part;  // of the name
  const char* text;
};

constexpr char kStates[] = "state spaces are not supported; try Qwen3 or Llama";
constexpr char kGranite[] =
    "state spaces are not supported; try Granite 3, or Granite 4 without them (350m, 1b, micro)";
constexpr char kLinear[] = "linear attention is not supported; try Qwen3";
constexpr char kExperts[] =
    "its mixture of experts is not supported; try Qwen3Moe, or a dense model of the same family";
constexpr char kImages[] = "images and sound are not supported; try the text model of the family";
constexpr char kEncoders[] = "encoders are not supported; try a model that generates text";
constexpr char kSideBySide[] = "blocks side by side are not supported; try Qwen3 or Llama";

// The first that is part of a name counts: what a model is made of before that it has experts, too.
constexpr Reason kArchitectures[] = {
    {"granitemoehybrid", kGranite},
    {"granitehybrid", kGranite},
    {"lfm2", "convolutions between the layers are not supported; try Qwen3 or Gemma3"},
    {"qwen3next", kLinear},
    {"qwen35", kLinear},
    {"kimilinear", kLinear},
    {"minimax01", kLinear},
    {"minimaxtext01", kLinear},
    {"falconh1", "state spaces are not supported; try Falcon 3, which is Llama"},
    {"hybrid", "state spaces are not supported; try a model of the family without them"},
    {"mamba", kStates},
    {"jamba", kStates},
    {"bamba", kStates},
    {"zamba", kStates},
    {"nemotronh", kStates},
    {"plamo2", kStates},
    {"rwkv", "recurrent states are not supported; try Qwen3 or Llama"},
    {"llama4", "its mixture of experts is not supported; try Llama 3, or Qwen3Moe"},
    {"deepseek",
     "its mixture of experts is not supported; try the distilled models, which are Qwen2 and Llama"},
    {"granitemoe", "its mixture of experts is not supported; try Granite 3 or 4 without experts"},
    {"gemma3n", "layers with embeddings of their own are not supported; try Gemma3"},
    {"gemma4", "its layers are not those of Gemma 3; try Gemma3"},
    {"t5", kEncoders},
    {"bert", kEncoders},
    {"forconditionalgeneration", kImages},
    {"qwen2vl", kImages},
    {"qwen3vl", kImages},
    {"cogvlm", kImages},
    {"moe", kExperts},
    {"grok", kExperts},
    {"dbrx", kExperts},
    {"arctic", kExperts},
    {"minimaxm", kExperts},
    {"cohere", kSideBySide},
    {"commandr", kSideBySide},
    {"phi2", "blocks side by side are not supported; try Phi3"},
    {"phiforcausallm", "blocks side by side are not supported; try Phi3"},
    {"falcon", "blocks side by side are not supported; try Falcon 3, which is Llama"},
    {"gptneox", kSideBySide},
};

// By the names of both formats; where the first is GGUF's.
constexpr Reason kTokenizers[] = {
    {"t5", "Unigram is not supported; try a model with BPE"},
    {"unigram", "try a model with BPE"},
    {"bert", "WordPiece is not supported, which encoders have; try a model that generates text"},
    {"wordpiece", "encoders have it; try a model that generates text"},
    {"rwkv", "RWKV's own is not supported; try Qwen3 or Llama"},
    {"plamo2", "PLaMo's own is not supported; try Qwen3 or Llama"},
    {"gemma4", "try Gemma3"},
    {"novocab", "the file has no tokenizer; convert the Hugging Face directory of the model"},
    {"none", "the file has no tokenizer; convert the Hugging Face directory of the model"},
};

// Small letters and digits.
std::string Plain(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    const char small = LowerAscii(c);
    if ((small >= 'a' && small <= 'z') || (small >= '0' && small <= '9')) plain += small;
  }
  return plain;
}

template <size_t n>
std::string Find(const Reason (&reasons)[n], const std::string& name) {
  const std::string plain = Plain(name);
  for (const Reason& reason : reasons) {
    if (plain.find(reason.part) != std::string::npos) return std::string(": ") + reason.text;
  }
  return "";
}

}  // namespace

std::string WhyNotArchitecture(const std::string& name) { return Find(kArchitectures, name); }
std::string WhyNotTokenizer(const std::string& name) { return Find(kTokenizers, name); }

}  // namespace kvc
