// The scenario in C++: kvc.hpp. With --record it prints the scenario with what it got instead of what was
// expected.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "kvc/kvc.hpp"

namespace {

using Json = nlohmann::ordered_json;
using kvc::Tokens;

class Runner {
 public:
  Runner(std::string model, std::string folder) : model_(std::move(model)), folder_(std::move(folder)) {}

  // What the step gave; null: nothing to compare.
  Json Run(const Json& step) {
    const auto found = actions_.find(step.at("do").get<std::string>());
    if (found == actions_.end()) throw std::runtime_error("no such step");
    return (this->*found->second)(step);
  }

 private:
  using Action = Json (Runner::*)(const Json&);

  static std::string Text(const Json& step, const char* key) { return step.at(key).get<std::string>(); }
  static int32_t Number(const Json& step, const char* key, int32_t otherwise = 0) {
    return step.value(key, otherwise);
  }
  std::string Path(const Json& step) const { return folder_ + "/" + Text(step, "path"); }
  kvc::Model& Model(const Json& step) { return models_.at(Text(step, "model")); }
  kvc::Session& Session(const Json& step) { return sessions_.at(Text(step, "session")); }
  const kvc::Policy* PolicyOf(const Json& step) const {
    return step.contains("policy") ? &policies_.at(Text(step, "policy")) : nullptr;
  }
  Tokens TokensOf(const Json& step) const {
    const Json& tokens = step.at("tokens");
    return tokens.is_string() ? tokens_.at(tokens.get<std::string>()) : tokens.get<Tokens>();
  }
  template <typename Map, typename Value>
  static Json Keep(Map* map, const Json& step, Value&& value) {
    const std::string name = Text(step, "as");
    map->erase(name);
    map->emplace(name, std::forward<Value>(value));
    return nullptr;
  }

  Json Copy(const Json& step) {
    std::ifstream in(model_, std::ios::binary);
    std::ofstream(folder_ + "/" + Text(step, "to"), std::ios::binary) << in.rdbuf();
    return nullptr;
  }
  Json Open(const Json& step) { return Keep(&models_, step, kvc::Model(Path(step), "cpu", 2)); }
  Json Load(const Json& step) {
    kvc::Loader loader;
    Keep(&models_, step, loader.open(Path(step)));
    if (loader.progress() != 1) throw std::runtime_error("the loader still opens");
    return nullptr;
  }
  Json Info(const Json& step) {
    const kvc_model_info i = Model(step).info();
    const std::map<std::string, int64_t> fields = {{"n_layers", i.n_layers},
                                                   {"n_kv_heads", i.n_kv_heads},
                                                   {"vocab_size", i.vocab_size},
                                                   {"max_tokens", i.max_tokens},
                                                   {"bos_token", i.bos_token}};
    return fields.at(Text(step, "field"));
  }
  Json Tokenize(const Json& step) {
    const Tokens tokens = Model(step).tokenize(Text(step, "text"), Number(step, "flags"));
    Keep(&tokens_, step, tokens);
    return tokens;
  }
  Json Detokenize(const Json& step) { return Model(step).detokenize(TokensOf(step)); }
  Json Policy(const Json& step) { return Keep(&policies_, step, kvc::Policy(Text(step, "spec"))); }
  Json DescribePolicy(const Json& step) { return PolicyOf(step)->describe(); }
  Json NewSession(const Json& step) {
    kvc_session_params p = kvc::params<kvc_session_params>();
    p.max_tokens = Number(step, "max_tokens"), p.on_full = Number(step, "on_full");
    p.top_k = Number(step, "top_k"), p.top_p = step.value("top_p", 0.0f);
    p.temperature = step.value("temperature", 0.0f), p.seed = step.value("seed", int64_t{0});
    const kvc::Policy* policy = PolicyOf(step);
    return Keep(&sessions_, step,
                policy == nullptr ? kvc::Session(Model(step), p) : kvc::Session(Model(step), *policy, p));
  }
  Json Prefill(const Json& step) { return Session(step).prefill(TokensOf(step)), nullptr; }
  Json Append(const Json& step) { return Session(step).append(TokensOf(step)), nullptr; }
  Json Enqueue(const Json& step) { return Session(step).enqueue(TokensOf(step)), nullptr; }
  Json Compress(const Json& step) { return Session(step).compress(), nullptr; }
  Json Reset(const Json& step) { return Session(step).reset(), nullptr; }
  Json Cancel(const Json& step) { return Session(step).cancel(), nullptr; }
  Json ClearCancel(const Json& step) { return Session(step).clear_cancel(), nullptr; }
  Json Trim(const Json& step) { return Session(step).trim(Number(step, "budget")), nullptr; }
  Json Rewind(const Json& step) { return Session(step).rewind(Number(step, "n")), nullptr; }
  Json Accept(const Json& step) { return Session(step).accept(Number(step, "token")), nullptr; }
  Json Step(const Json& step) { return Steps(&Session(step), Number(step, "n")); }
  Json StepDraft(const Json& step) { return Session(step).step(TokensOf(step)); }
  Json DraftLookup(const Json& step) {
    return kvc::draft_lookup(TokensOf(step), Number(step, "most"), Number(step, "n_gram"));
  }
  Json ReadText(const Json& step) { return Session(step).read_text(); }
  Json Kept(const Json& step) { return Session(step).kept(Number(step, "layer"), Number(step, "kv_head")); }
  Json Best(const Json& step) {
    const std::vector<float> logits = Session(step).logits();
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  }
  Json Stats(const Json& step) {
    const kvc_session_stats s = Session(step).stats();
    const std::map<std::string, int64_t> fields = {
        {"n_prompt", s.n_prompt}, {"n_answer", s.n_answer}, {"n_slots", s.n_slots}};
    return fields.at(Text(step, "field"));
  }
  Json Sampling(const Json& step) {
    kvc_sampling s = kvc::params<kvc_sampling>();
    s.top_k = Number(step, "top_k"), s.top_p = step.value("top_p", 0.0f);
    s.temperature = step.value("temperature", 0.0f), s.seed = step.value("seed", int64_t{0});
    s.min_p = step.value("min_p", 0.0f), s.repeat_penalty = step.value("repeat_penalty", 0.0f);
    s.repeat_window = Number(step, "repeat_window");
    return Session(step).set_sampling(s), nullptr;
  }
  Json Bias(const Json& step) {
    return Session(step).set_logit_bias(TokensOf(step), step.at("biases").get<std::vector<float>>()), nullptr;
  }
  Json Mask(const Json& step) {
    const Tokens tokens = TokensOf(step);
    std::vector<int32_t> words;
    if (!tokens.empty()) words.resize(2048 / 32);
    for (int32_t t : tokens) words[static_cast<size_t>(t / 32)] |= static_cast<int32_t>(1u << (t % 32));
    return Session(step).set_token_mask(words), nullptr;
  }
  Json TurnMarks(const Json& step) {
    Session(step).set_turn_marks(Number(step, "role"), Text(step, "prefix").c_str(),
                                 Text(step, "suffix").c_str());
    return nullptr;
  }
  Json Say(const Json& step) {
    return Session(step).say(Number(step, "role"), Text(step, "text"), Number(step, "flags")), nullptr;
  }
  Json Fork(const Json& step) { return Keep(&sessions_, step, Session(step).fork()); }
  Json Save(const Json& step) { return Session(step).save(Path(step)), nullptr; }
  Json Restore(const Json& step) {
    return Keep(&sessions_, step, kvc::Session::restore(Model(step), Path(step)));
  }
  Json SaveMemory(const Json& step) { return Keep(&blobs_, step, Session(step).save()); }
  Json RestoreMemory(const Json& step) {
    return Keep(&sessions_, step, kvc::Session::restore(Model(step), blobs_.at(Text(step, "data"))));
  }
  Json BatchStep(const Json& step) {
    std::vector<kvc_session*> sessions;
    for (const Json& name : step.at("sessions"))
      sessions.push_back(sessions_.at(name.get<std::string>()).get());
    return kvc::batch_step(sessions);
  }
  Json Plan(const Json& step) {
    const std::vector<int32_t> slots =
        Model(step).plan(PolicyOf(step), nullptr, Number(step, "n_prompt")).slots;
    return std::accumulate(slots.begin(), slots.end(), int64_t{0});
  }
  Json Threads(const Json& step) {
    const Tokens prompt = TokensOf(step);
    std::vector<Tokens> answers(static_cast<size_t>(Number(step, "n")));
    std::vector<std::thread> threads;
    for (Tokens& answer : answers) {
      threads.emplace_back([&] {
        kvc::Session session(Model(step), *PolicyOf(step));
        session.prefill(prompt);
        answer = Steps(&session, Number(step, "steps"));
      });
    }
    for (std::thread& t : threads) t.join();
    for (const Tokens& answer : answers) {
      if (answer != answers[0]) throw std::runtime_error("two threads had different answers");
    }
    return answers[0];
  }
  Json Close(const Json& step) {
    const std::string name = Text(step, "name");
    if (models_.erase(name) + policies_.erase(name) + sessions_.erase(name) != 1)
      throw std::runtime_error("nothing of this name is open");
    return nullptr;
  }
  static Tokens Steps(kvc::Session* session, int32_t n) {
    Tokens tokens;
    while (n-- > 0 && (tokens.empty() || tokens.back() != KVC_TOKEN_NONE)) tokens.push_back(session->step());
    return tokens;
  }

  const std::string model_, folder_;
  std::map<std::string, kvc::Model> models_;
  std::map<std::string, kvc::Policy> policies_;
  std::map<std::string, kvc::Session> sessions_;
  std::map<std::string, Tokens> tokens_;
  std::map<std::string, std::vector<uint8_t>> blobs_;
  const std::map<std::string, Action> actions_ = {
      {"copy", &Runner::Copy},
      {"open", &Runner::Open},
      {"load", &Runner::Load},
      {"info", &Runner::Info},
      {"tokenize", &Runner::Tokenize},
      {"detokenize", &Runner::Detokenize},
      {"policy", &Runner::Policy},
      {"describe_policy", &Runner::DescribePolicy},
      {"session", &Runner::NewSession},
      {"prefill", &Runner::Prefill},
      {"append", &Runner::Append},
      {"enqueue", &Runner::Enqueue},
      {"compress", &Runner::Compress},
      {"reset", &Runner::Reset},
      {"cancel", &Runner::Cancel},
      {"clear_cancel", &Runner::ClearCancel},
      {"trim", &Runner::Trim},
      {"rewind", &Runner::Rewind},
      {"accept", &Runner::Accept},
      {"step", &Runner::Step},
      {"step_draft", &Runner::StepDraft},
      {"draft_lookup", &Runner::DraftLookup},
      {"read_text", &Runner::ReadText},
      {"kept", &Runner::Kept},
      {"best", &Runner::Best},
      {"stats", &Runner::Stats},
      {"sampling", &Runner::Sampling},
      {"bias", &Runner::Bias},
      {"mask", &Runner::Mask},
      {"turn_marks", &Runner::TurnMarks},
      {"say", &Runner::Say},
      {"fork", &Runner::Fork},
      {"save", &Runner::Save},
      {"restore", &Runner::Restore},
      {"save_memory", &Runner::SaveMemory},
      {"restore_memory", &Runner::RestoreMemory},
      {"batch_step", &Runner::BatchStep},
      {"plan", &Runner::Plan},
      {"threads", &Runner::Threads},
      {"close", &Runner::Close},
  };
};

// Whether the step came to what it says; with record what it came to is written into it.
bool Passes(Runner* runner, Json* step, bool record, std::string* why) {
  const std::string error = step->value("error", std::string());
  try {
    const Json got = runner->Run(*step);
    if (!error.empty()) return *why = "went well, where " + error + " was due", false;
    if (!step->contains("expect")) return true;
    if (record) (*step)["expect"] = got;
    *why = "gave " + got.dump();
    return got == step->at("expect");
  } catch (const kvc::Error& e) {
    *why = e.what();
    return kvc::status_name(e.status()) == error;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: " << argv[0] << " MODEL SCENARIO FOLDER [--record]\n";
    return 2;
  }
  const bool record = argc > 4 && std::string(argv[4]) == "--record";
  Runner runner(argv[1], argv[3]);
  std::ifstream file(argv[2]);
  Json steps = Json::parse(file);
  size_t n = 0;
  for (Json& step : steps) {
    std::string why;
    bool passes = false;
    try {
      passes = Passes(&runner, &step, record, &why);
    } catch (const std::exception& e) {
      why = e.what();
    }
    if (!passes) {
      std::cerr << "step " << n + 1 << " " << step.dump() << ": " << why << "\n";
      return 1;
    }
    ++n;
  }
  if (record) {
    for (size_t i = 0; i < steps.size(); ++i)
      std::cout << (i == 0 ? "[\n" : ",\n") << steps[i].dump() << (i + 1 == steps.size() ? "\n]\n" : "");
  } else {
    std::cout << n << " steps passed\n";
  }
  return 0;
}
