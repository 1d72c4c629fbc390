// A tiny model that talks by any chat template, for tests of what marks and texts become.
#pragma once
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/tool/run_program.h"

// Words of a template that look like tokens of their own: <|im_start|>, <start_of_turn>, [INST].
inline std::set<std::string> MarksIn(const std::string& text) {
  std::set<std::string> marks;
  for (size_t at = text.find_first_of("<["); at != std::string::npos; at = text.find_first_of("<[", at + 1)) {
    const size_t end =
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_|/", at + 1);
    if (end == std::string::npos || end < at + 4 || text[end] != (text[at] == '<' ? '>' : ']')) continue;
    marks.insert(text.substr(at, end + 1 - at));
  }
  return marks;
}

// <|im_start|> and <|im_end|> around every turn, and BOS before the first.
inline std::string ChatmlBehindBos() {
  return "{{ bos_token }}" + ReadWholeFile(KVC_SOURCE_DIR "/tests/data/templates/chatml.jinja");
}

struct TalkingModel {
  std::string path;  // empty: the template cannot be converted
  std::string mark;  // a special token of it
};

// Random weights and bytes for tokens; two of the template's own marks are special tokens, and BOS begins a
// text.
inline TalkingModel MakeTalkingModel(const TemporaryFolder& folder, const std::string& name,
                                     const std::string& chat_template) {
  TalkingModel made;
  RunShell("mkdir \"$3\" && cp \"$2\"/* \"$3\"",
           {KVC_SOURCE_DIR "/tests/data/reference/hf_smollm3", folder.Path(name)});
  nlohmann::json tokenizer = nlohmann::json::parse(ReadWholeFile(folder.Path(name + "/tokenizer.json")));
  size_t next = 2;  // behind <|bos|> and <|eos|>
  for (const std::string& mark : MarksIn(chat_template)) {
    if (next == tokenizer["added_tokens"].size()) break;
    tokenizer["added_tokens"][next++]["content"] = made.mark = mark;
  }
  folder.Write(name + "/tokenizer.json", tokenizer.dump());
  folder.Write(name + "/tokenizer_config.json",
               R"({"bos_token": "<|bos|>", "eos_token": "<|eos|>", "add_bos_token": true})");
  folder.Write(name + "/chat_template.jinja", chat_template);
  const std::string path = folder.Path(name + ".kvc");
  const ProgramResult convert = RunKvc({"convert", folder.Path(name), path});
  EXPECT_EQ(convert.exit_code, 0) << name << convert.err;
  made.path = path;
  return made;
}
