// kvc.hpp with a model: what a program should not do, and what happens to it. Usage: cpp_misuse MODEL NO_BOS
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <thread>
#include <vector>

#include "kvc/kvc.h"

static std::atomic<int> n_described{0};  // calls of kvc.hpp

static kvc_status CountedDescribe(const kvc_model* model, char* json, int32_t cap_json, int32_t* n_out) {
  ++n_described;
  return kvc_model_describe(model, json, cap_json, n_out);
}
#define kvc_model_describe CountedDescribe
#include "kvc/kvc.hpp"
#undef kvc_model_describe

namespace {

int failures = 0;

void Expect(bool holds, const char* what) {
  if (!holds) std::cout << "failed: " << what << "\n", ++failures;
}

void Fails(kvc_status status, const char* what, const std::function<void()>& call) {
  try {
    call();
    Expect(false, what);
  } catch (const kvc::Error& e) {
    Expect(e.status() == status && e.what()[0] != '\0', what);
  }
}

void Names(const std::string& path, const kvc::Model& model, kvc::Session& session) {
  const std::string nul(1, '\0');
  Fails(KVC_E_INVALID, "a path with a NUL", [&] { kvc::Model(path + nul); });
  Fails(KVC_E_INVALID, "and of a loader", [&] { kvc::Loader().open(path + nul + "x"); });
  Fails(KVC_E_INVALID, "a device with a NUL", [&] { kvc::Model(path, "cpu" + nul); });
  Fails(KVC_E_INVALID, "a policy with a NUL", [&] { kvc::Policy("snapkv" + nul + ":budget=3"); });
  Fails(KVC_E_INVALID, "a saved session's path", [&] { session.save("x" + nul); });
  Fails(KVC_E_INVALID, "and where it is read", [&] { kvc::Session::restore(model, "x" + nul); });
  // Text may be any bytes.
  Expect(!model.tokenize("a\xff" + nul + "b").empty(), "tokens of bytes that are no text");
}

void EmptyArrays(const kvc::Model& model, kvc::Session& session) {
  Fails(KVC_E_INVALID, "a prompt of nothing", [&] { session.prefill({}); });
  Fails(KVC_E_INVALID, "nothing appended", [&] { session.append({}); });
  Fails(KVC_E_INVALID, "a saved session of no bytes",
        [&] { kvc::Session::restore(model, std::vector<uint8_t>()); });
  session.set_logit_bias({}, {});
  session.set_token_mask({});
  Expect(model.tokenize("").empty() && model.detokenize({}).empty(), "nothing is nothing");
}

// A vocabulary that no model has is the library's error, as everywhere.
void Sizes(kvc::Session& session) {
  const std::vector<kvc_session*> batch = {session.get()};
  for (const int32_t vocab_size : {INT32_MIN, -1, 0, 3}) {
    kvc::Tokens tokens;
    Fails(vocab_size > 0 ? KVC_E_BUFFER_TOO_SMALL : KVC_E_INVALID, "logits of a batch without room for them",
          [&] { kvc::batch_logits(batch, vocab_size, &tokens); });
  }
}

// An exception of the program leaves by way of generate; the session goes on behind it.
void Exceptions(const kvc::Model& model, const kvc::Tokens& prompt) {
  kvc::Session thrown(model), whole(model);
  thrown.prefill(prompt), whole.prefill(prompt);
  const std::string expected = whole.generate(12);
  std::string got;
  try {
    thrown.generate(12, [&](const std::string& text) -> bool {
      got += text;
      if (got.size() > 8) throw 7;
      return true;
    });
    Expect(false, "it was thrown");
  } catch (int value) {
    Expect(value == 7, "what was thrown");
  }
  while (got.size() < expected.size() && thrown.step() != KVC_TOKEN_NONE) got += thrown.read_text();
  Expect(expected.size() > 9 && got == expected, "the answer goes on where it was left");
}

void MovedAway(const kvc::Model& model) {
  kvc::Session session(model);
  const kvc::Session taken(std::move(session));
  Expect(taken && !session, "a session moves");  // NOLINT: what is left of it is empty
  Fails(KVC_E_INVALID, "a step of what was moved away", [&] { session.step(); });
  Fails(KVC_E_INVALID, "a fork of it", [&] { session.fork(); });
  Fails(KVC_E_INVALID, "a cancel of it", [&] { session.cancel(); });
  // Not a session that keeps everything.
  kvc::Policy policy("snapkv:budget=64");
  const kvc::Policy other(std::move(policy));
  Fails(KVC_E_INVALID, "a session with such a policy", [&] { kvc::Session(model, policy); });
  Fails(KVC_E_INVALID, "a plan with it", [&] { model.plan(&policy, nullptr, 9); });
}

// NO_BOS was trained without the token that ADD_BOS puts before a text whatever the model.
void Prompts(const kvc::Model& model, const std::string& model_path, const std::string& no_bos_path) {
  const std::string text = "Once upon a time";
  Expect(model.prompt(text) == model.tokenize(text, KVC_ADD_BOS), "a prompt begins with BOS");
  Expect(model.prompt("").size() == 1, "and so does nothing");
  const kvc::Model no_bos(no_bos_path);
  Expect(no_bos.tokenize(text, KVC_ADD_BOS).size() == no_bos.tokenize(text).size() + 1, "there is one");
  Expect(no_bos.prompt(text) == no_bos.tokenize(text), "but this model does not want it");
  n_described = 0;
  kvc::Model moved(no_bos_path);
  std::thread others[2];
  for (std::thread& other : others)
    other = std::thread([&] { Expect(moved.prompt(text) == no_bos.tokenize(text), "several threads ask"); });
  for (std::thread& other : others) other.join();
  Expect(n_described >= 1, "somebody asked the library");
  n_described = 0;
  kvc::Model here(std::move(moved));
  Expect(here.prompt(text) == no_bos.tokenize(text), "the same without asking again");
  moved = std::move(here);
  Expect(moved.prompt(text) == no_bos.tokenize(text) && n_described == 0, "and where it moves");
  moved = kvc::Model(model_path);
  Expect(moved.prompt(text) == model.prompt(text), "another model has its own");
}

// Whatever a model comes from, all that kvc_model_params holds counts.
void WaysToOpen(const std::string& path, const kvc::Tokens& prompt) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<uint8_t> room(bytes.size() + 64);
  uint8_t* const data = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
  std::copy(bytes.begin(), bytes.end(), data);
  const int64_t n = static_cast<int64_t>(bytes.size());
  kvc_model_params tight = kvc::params<kvc_model_params>(), trusting = tight;
  tight.memory_limit = 1, trusting.trusted = 1;
  Fails(KVC_E_MEMORY, "memory past a limit", [&] { kvc::Model::open_memory(data, n, "cpu", tight); });
  kvc::Model model = kvc::Model::open_memory(data, n, "cpu", trusting);
  kvc::Session session(model);
  session.prefill(prompt);
  Expect(session.step() != KVC_TOKEN_NONE, "a model in memory");
  kvc::Loader loader;
  Fails(KVC_E_MEMORY, "a loader's model past a limit", [&] { loader.open(path, "cpu", tight); });
  kvc_model_params planning = kvc::params<kvc_model_params>();
  planning.plan_only = 1;
  kvc::Model planned = loader.open(path, "cpu", planning);
  Fails(KVC_E_UNSUPPORTED, "a session of a model for plans", [&] { kvc::Session of_plans(planned); });
#ifndef _WIN32
  std::FILE* const opened = std::fopen(path.c_str(), "rb");
  if (opened == nullptr) return Expect(false, "the file opens");
  Fails(KVC_E_MEMORY, "a file past a limit",
        [&] { kvc::Model::open_fd(fileno(opened), 0, 0, "cpu", tight); });
  kvc::Model::open_fd(fileno(opened), 0, 0, "cpu", trusting);
  Fails(KVC_E_MEMORY, "a loader's file past a limit",
        [&] { loader.open_fd(fileno(opened), 0, 0, "cpu", tight); });
  Expect(static_cast<bool>(loader.open_fd(fileno(opened), 0, 0, "cpu", trusting)), "a loader's file");
  std::fclose(opened);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  kvc::Model model(argv[1]);
  const kvc::Tokens prompt = model.prompt("Once upon a time");
  kvc::Session session(model);
  session.prefill(prompt);
  Names(argv[1], model, session);
  Prompts(model, argv[1], argv[2]);
  EmptyArrays(model, session);
  Sizes(session);
  Exceptions(model, prompt);
  MovedAway(model);
  WaysToOpen(argv[1], prompt);
  model = kvc::Model(argv[1]);  // the first one is closed; its session goes on
  Expect(session.step() != KVC_TOKEN_NONE, "after all of this it is usable");
  std::cout << (failures == 0 ? "all checks passed\n" : "FAILED\n");
  return failures == 0 ? 0 : 1;
}
