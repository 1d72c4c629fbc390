// kvc.hpp - libkvc for C++11 and later: handles that close themselves, strings and vectors for buffers,
// errors as exceptions. Only a thin layer over kvc.h, which says what every call does, and which thread may
// make it.
//
//   kvc::Model model("model.kvc");
//   kvc::Session session(model, kvc::Policy("cokv:budget=128"));
//   session.prefill(model.prompt("Once upon a time"));
//   session.generate(200, [](const std::string& text) { std::cout << text << std::flush; return true; });
//
// Every call that fails throws kvc::Error. Built without exceptions it returns an empty value (a handle is
// then empty, too), and kvc::last_status() says what the last call of this thread came to: KVC_OK or what
// failed. Objects can be moved, not copied. Strings hold bytes of UTF-8.
#ifndef KVC_KVC_HPP
#define KVC_KVC_HPP
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvc/kvc.h"

#if !defined(KVC_NO_EXCEPTIONS) && !defined(__cpp_exceptions) && !defined(__EXCEPTIONS) && \
    !defined(_CPPUNWIND)
#define KVC_NO_EXCEPTIONS
#endif
#ifndef KVC_NO_EXCEPTIONS
#include <stdexcept>
#endif

namespace kvc {

// Ids of a model's vocabulary.
using Tokens = std::vector<int32_t>;

#ifndef KVC_NO_EXCEPTIONS
// A call that failed; what() is the library's text.
class Error : public std::runtime_error {
 public:
  // Of what a function of kvc.h returned.
  Error(kvc_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  // What kind of failure it was.
  kvc_status status() const { return status_; }

 private:
  kvc_status status_;
};
#endif

namespace detail {

inline kvc_status& status_of_thread() {
  static thread_local kvc_status status = KVC_OK;
  return status;
}

// Whether it went well; else throws, where there are exceptions.
inline bool check(kvc_status status) {
  status_of_thread() = status;
  if (status == KVC_OK) return true;
#ifndef KVC_NO_EXCEPTIONS
  throw Error(status, std::string(kvc_last_error()) + " (" + kvc_status_name(status) + ")");
#else
  return false;
#endif
}

// Of a batch that was not begun, without exceptions: no session has a status.
inline void refused(std::vector<kvc_status>* statuses) {
  if (statuses != nullptr) statuses->clear();
}

inline const uint8_t* bytes(const std::string& text) { return reinterpret_cast<const uint8_t*>(text.data()); }

// A name as the C API takes it. One with a NUL inside names something else there than its author meant: it is
// NULL, which every call that takes a name refuses; where NULL has a meaning of its own, `refused` is what it
// knows not.
inline const char* name(const std::string& text, const char* refused = nullptr) {
  return text.find('\0') == std::string::npos ? text.c_str() : refused;
}
inline const char* device_name(const std::string& text) { return name(text, "(a name with a NUL)"); }

// A count of elements as the C API takes it: nothing that large is ever right.
inline int32_t count(std::size_t n) { return n > INT32_MAX ? -1 : static_cast<int32_t>(n); }

// Asks for the count, then for the elements. call(data, cap, &n).
template <typename Container, typename Call>
Container buffer(Call&& call) {
  Container out;
  int32_t n = 0;
  if (!check(call(nullptr, 0, &n)) || n == 0) return out;
  out.resize(static_cast<std::size_t>(n));
  if (!check(call(&out[0], n, &n))) return Container();
  out.resize(static_cast<std::size_t>(n));
  return out;
}

// How the prompts of a model are tokenized, -1: not known yet. Several threads may find it out.
struct PromptFlags {
  PromptFlags() : flags(-1) {}
  PromptFlags(PromptFlags&& from) noexcept : flags(from.flags.load()) {}
  PromptFlags& operator=(PromptFlags&& from) noexcept {
    flags = from.flags.load();
    return *this;
  }
  std::atomic<int32_t> flags;
};

struct Close {
  void operator()(kvc_model* p) const { kvc_model_close(p); }
  void operator()(kvc_policy* p) const { kvc_policy_close(p); }
  void operator()(kvc_session* p) const { kvc_session_close(p); }
  void operator()(kvc_loader* p) const { kvc_loader_close(p); }
};

}  // namespace detail

// Of this thread's last call through this header.
inline kvc_status last_status() { return detail::status_of_thread(); }

// A struct of kvc.h with all defaults: kvc::params<kvc_session_params>().
template <typename T>
T params() {
  T out;
  kvc_params_init(&out, static_cast<int32_t>(sizeof out));
  return out;
}

// "0.1.0", of the library at run time.
inline std::string version() {
  const int32_t v = kvc_version();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}
inline int32_t schema_version() { return kvc_schema_version(); }
inline std::string status_name(kvc_status status) { return kvc_status_name(status); }

// Methods and devices: names, and all that is said of one as JSON.
inline int32_t method_count() { return kvc_method_count(); }
inline std::string method_name(int32_t index) {
  const char* name = kvc_method_name(index);
  return name == nullptr ? std::string() : std::string(name);
}
inline std::string method_describe(int32_t index) {
  return detail::buffer<std::string>(
      [&](char* out, int32_t cap, int32_t* n) { return kvc_method_describe(index, out, cap, n); });
}
inline int32_t device_count() { return kvc_device_count(); }
inline std::string device_describe(int32_t index) {
  return detail::buffer<std::string>(
      [&](char* out, int32_t cap, int32_t* n) { return kvc_device_describe(index, out, cap, n); });
}
inline double device_measure(int32_t index) {
  double bytes_per_second = 0;
  detail::check(kvc_device_measure(index, &bytes_per_second));
  return bytes_per_second;
}

// fn may be null: silent. What it may do: kvc.h.
inline void set_log(int32_t min_level, kvc_log_fn fn, void* user) { kvc_set_log(min_level, fn, user); }

// A compression method and its options. Sessions copy it.
class Policy {
 public:
  explicit Policy(const std::string& spec) {
    kvc_policy* p = nullptr;
    detail::check(kvc_policy_create(detail::name(spec), &p));
    handle_.reset(p);
  }
  std::string describe() const {
    return detail::buffer<std::string>(
        [&](char* out, int32_t cap, int32_t* n) { return kvc_policy_describe(get(), out, cap, n); });
  }
  void set_head_scores(const std::vector<float>& scores) {
    detail::check(kvc_policy_set_head_scores(get(), scores.data(), detail::count(scores.size())));
  }
  void set_table(const std::vector<int32_t>& slots) {
    detail::check(kvc_policy_set_table(get(), slots.data(), detail::count(slots.size())));
  }
  // For calls of kvc.h; it stays the object's.
  kvc_policy* get() const { return handle_.get(); }
  // Whether it was opened, and not moved from.
  explicit operator bool() const { return handle_ != nullptr; }
  // Refuses an empty one, where NULL in the C API would mean to keep everything.
  bool given() const {
    int32_t n = 0;
    return handle_ != nullptr || detail::check(kvc_policy_describe(nullptr, nullptr, 0, &n));
  }

 private:
  std::unique_ptr<kvc_policy, detail::Close> handle_;
};

// What a session would take: see kvc_session_plan().
struct Plan {
  kvc_plan bytes;              // of weights, workspace and cache
  std::vector<int32_t> slots;  // [L, G]
};

// Weights and a tokenizer. Any thread may use it; a session keeps what it needs of it alive.
class Model {
 public:
  // n_threads, memory_limit: 0 = as kvc_model_params says.
  explicit Model(const std::string& path, const std::string& device = "auto", int32_t n_threads = 0,
                 int64_t memory_limit = 0)
      : Model(path, device, make_params(n_threads, memory_limit)) {}
  // With all that kvc_model_params holds, an executor too: kvc::params<kvc_model_params>() is one of
  // defaults.
  Model(const std::string& path, const std::string& device, const kvc_model_params& p) {
    kvc_model* model = nullptr;
    detail::check(kvc_model_open(detail::name(path), detail::device_name(device), &p, &model));
    handle_.reset(model);
  }
  // From a part of an open file; n_bytes 0: to its end.
  static Model open_fd(int32_t fd, int64_t offset, int64_t n_bytes, const std::string& device = "auto",
                       int32_t n_threads = 0, int64_t memory_limit = 0) {
    return open_fd(fd, offset, n_bytes, device, make_params(n_threads, memory_limit));
  }
  static Model open_fd(int32_t fd, int64_t offset, int64_t n_bytes, const std::string& device,
                       const kvc_model_params& p) {
    kvc_model* model = nullptr;
    detail::check(kvc_model_open_fd(fd, offset, n_bytes, detail::device_name(device), &p, &model));
    return Model(model);
  }
  // From memory, 64-byte aligned, which outlives the model and its sessions.
  static Model open_memory(const uint8_t* data, int64_t n_bytes, const std::string& device = "auto",
                           int32_t n_threads = 0, int64_t memory_limit = 0) {
    return open_memory(data, n_bytes, device, make_params(n_threads, memory_limit));
  }
  static Model open_memory(const uint8_t* data, int64_t n_bytes, const std::string& device,
                           const kvc_model_params& p) {
    kvc_model* model = nullptr;
    detail::check(kvc_model_open_memory(data, n_bytes, detail::device_name(device), &p, &model));
    return Model(model);
  }
  kvc_model_info info() const {
    kvc_model_info out = params<kvc_model_info>();
    detail::check(kvc_model_get_info(get(), &out));
    return out;
  }
  std::string describe() const {
    return detail::buffer<std::string>(
        [&](char* out, int32_t cap, int32_t* n) { return kvc_model_describe(get(), out, cap, n); });
  }
  std::vector<float> head_scores(int32_t index) const {
    return detail::buffer<std::vector<float>>([&](float* out, int32_t cap, int32_t* n) {
      return kvc_model_get_head_scores(get(), index, out, cap, n);
    });
  }
  Tokens tokenize(const std::string& text, int32_t flags = 0) const {
    Tokens out(text.size() + 2);  // enough but for texts that grow when they are normalised
    int32_t n = 0;
    const auto call = [&] {
      return kvc_tokenize(get(), detail::bytes(text), detail::count(text.size()), flags, out.data(),
                          detail::count(out.size()), &n);
    };
    kvc_status status = call();
    if (status == KVC_E_BUFFER_TOO_SMALL) {
      out.resize(static_cast<std::size_t>(n));
      status = call();
    }
    out.resize(detail::check(status) ? static_cast<std::size_t>(n) : 0);
    return out;
  }
  // Of a text that begins a session, with BOS before it where the model wants one, which KVC_ADD_BOS does
  // not ask.
  Tokens prompt(const std::string& text) const {
    int32_t flags = begins_.flags;
    if (flags < 0) {
      const std::string about =
          describe();  // written by the library; inside its strings each quote is escaped
      if (last_status() != KVC_OK) return Tokens();
      begins_.flags = flags = about.find("\"add_bos\":false") == std::string::npos ? KVC_ADD_BOS : 0;
    }
    return tokenize(text, flags);
  }
  std::string detokenize(const Tokens& tokens) const {
    return detail::buffer<std::string>([&](char* out, int32_t cap, int32_t* n) {
      return kvc_detokenize(get(), tokens.data(), detail::count(tokens.size()),
                            reinterpret_cast<uint8_t*>(out), cap, n);
    });
  }
  // policy, p: null for the defaults.
  Plan plan(const Policy* policy, const kvc_session_params* p, int32_t n_prompt) const {
    Plan out;
    out.bytes = params<kvc_plan>();
    if (policy != nullptr && !policy->given()) return out;
    const kvc_model_info shape = info();
    int32_t n = shape.n_layers * shape.n_kv_heads;
    out.slots.resize(static_cast<std::size_t>(n));
    if (!detail::check(kvc_session_plan(get(), policy == nullptr ? nullptr : policy->get(), p, n_prompt,
                                        &out.bytes, out.slots.data(), n, &n)))
      out.slots.clear();
    return out;
  }
  // For calls of kvc.h; it stays the object's.
  kvc_model* get() const { return handle_.get(); }
  // Whether it was opened, and not moved from.
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  friend class Loader;
  explicit Model(kvc_model* handle) : handle_(handle) {}
  static kvc_model_params make_params(int32_t n_threads, int64_t memory_limit) {
    kvc_model_params p = params<kvc_model_params>();
    p.n_threads = n_threads, p.memory_limit = memory_limit;
    return p;
  }
  std::unique_ptr<kvc_model, detail::Close> handle_;
  mutable detail::PromptFlags begins_;
};

// Opens models while other threads ask progress() and may cancel().
class Loader {
 public:
  Loader() {
    kvc_loader* p = nullptr;
    detail::check(kvc_loader_create(&p));
    handle_.reset(p);
  }
  // As Model does.
  Model open(const std::string& path, const std::string& device = "auto", int32_t n_threads = 0,
             int64_t memory_limit = 0) {
    return open(path, device, Model::make_params(n_threads, memory_limit));
  }
  // With all that kvc_model_params holds.
  Model open(const std::string& path, const std::string& device, const kvc_model_params& p) {
    kvc_model* model = nullptr;
    detail::check(kvc_loader_open(get(), detail::name(path), detail::device_name(device), &p, &model));
    return Model(model);
  }
  // From a part of an open file, as Model::open_fd.
  Model open_fd(int32_t fd, int64_t offset, int64_t n_bytes, const std::string& device = "auto",
                int32_t n_threads = 0, int64_t memory_limit = 0) {
    return open_fd(fd, offset, n_bytes, device, Model::make_params(n_threads, memory_limit));
  }
  Model open_fd(int32_t fd, int64_t offset, int64_t n_bytes, const std::string& device,
                const kvc_model_params& p) {
    kvc_model* model = nullptr;
    detail::check(kvc_loader_open_fd(get(), fd, offset, n_bytes, detail::device_name(device), &p, &model));
    return Model(model);
  }
  double progress() const {
    double share = 1;
    detail::check(kvc_loader_get_progress(get(), &share));
    return share;
  }
  void cancel() { detail::check(kvc_loader_cancel(get())); }
  void clear_cancel() { detail::check(kvc_loader_clear_cancel(get())); }
  // For calls of kvc.h; it stays the object's.
  kvc_loader* get() const { return handle_.get(); }
  // Whether it was made, and not moved from.
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  std::unique_ptr<kvc_loader, detail::Close> handle_;
};

// One cache, one sampler and one stream of text, for one thread at a time.
class Session {
 public:
  // Keeps its model alive.
  explicit Session(const Model& model, const kvc_session_params& p = params<kvc_session_params>()) {
    create(model, nullptr, p);
  }
  // With a policy, which is copied.
  Session(const Model& model, const Policy& policy,
          const kvc_session_params& p = params<kvc_session_params>()) {
    if (policy.given()) create(model, policy.get(), p);
  }
  static Session restore(const Model& model, const std::string& path) {
    kvc_session* s = nullptr;
    detail::check(kvc_session_restore(model.get(), detail::name(path), &s));
    return Session(s);
  }
  static Session restore(const Model& model, const std::vector<uint8_t>& data) {
    kvc_session* s = nullptr;
    detail::check(
        kvc_session_restore_memory(model.get(), data.data(), static_cast<int64_t>(data.size()), &s));
    return Session(s);
  }

  void prefill(const Tokens& tokens) {
    detail::check(kvc_session_prefill(get(), tokens.data(), detail::count(tokens.size())));
  }
  void append(const Tokens& tokens) {
    detail::check(kvc_session_append(get(), tokens.data(), detail::count(tokens.size())));
  }
  void enqueue(const Tokens& tokens, bool compress = true) {
    detail::check(kvc_session_enqueue(get(), tokens.data(), detail::count(tokens.size()), compress ? 1 : 0));
  }
  void compress() { detail::check(kvc_session_compress(get())); }
  // Bytes that were given back.
  int64_t trim(int32_t budget) {
    int64_t freed = 0;
    detail::check(kvc_session_trim(get(), budget, &freed));
    return freed;
  }
  // A message of a conversation: KVC_ROLE_*, flags KVC_ANSWER and KVC_QUEUE.
  void say(int32_t role, const std::string& text, int32_t flags = 0) {
    detail::check(kvc_session_say(get(), role, detail::bytes(text), detail::count(text.size()), flags));
  }
  // What the user says, and the assistant's turn begins.
  void ask(const std::string& text) { say(KVC_ROLE_USER, text, KVC_ANSWER); }
  void set_turn_marks(int32_t role, const char* prefix, const char* suffix) {
    detail::check(kvc_session_set_turn_marks(get(), role, prefix, suffix));
  }

  // The next token of the answer, or KVC_TOKEN_NONE.
  int32_t step() {
    int32_t token = KVC_TOKEN_NONE;
    detail::check(kvc_session_step(get(), &token));
    return token;
  }
  // So many steps as the draft foresaw, and one more, in one pass over the weights: the tokens that step
  // gives, none where the answer is complete (kvc_session_step_draft).
  Tokens step(const Tokens& draft) {
    Tokens out(std::min<size_t>(draft.size(), 31) + 1);
    int32_t n = 0;
    detail::check(kvc_session_step_draft(get(), draft.data(), detail::count(draft.size()), out.data(),
                                         detail::count(out.size()), &n));
    out.resize(static_cast<size_t>(n));
    return out;
  }
  void accept(int32_t token) { detail::check(kvc_session_accept(get(), token)); }
  std::string read_text() {
    return detail::buffer<std::string>([&](char* out, int32_t cap, int32_t* n) {
      return kvc_session_read_text(get(), reinterpret_cast<uint8_t*>(out), cap, n);
    });
  }
  // Up to max_tokens steps. sink(text) gets each piece of text as soon as it is complete; false ends it.
  template <typename Sink>
  void generate(int32_t max_tokens, Sink&& sink) {
    for (int32_t i = 0; i < max_tokens; ++i) {
      const int32_t token = step();
      if (last_status() != KVC_OK) return;
      const std::string text = read_text();
      if (last_status() != KVC_OK || (!text.empty() && !sink(text)) || token == KVC_TOKEN_NONE) return;
    }
  }
  // The same, all of it.
  std::string generate(int32_t max_tokens) {
    std::string all;
    generate(max_tokens, [&](const std::string& text) {
      all += text;
      return true;
    });
    return all;
  }

  void set_sampling(const kvc_sampling& sampling) {
    detail::check(kvc_session_set_sampling(get(), &sampling));
  }
  void set_logit_bias(const Tokens& tokens, const std::vector<float>& biases) {
    const int32_t n = tokens.size() == biases.size() ? detail::count(tokens.size()) : -1;
    detail::check(kvc_session_set_logit_bias(get(), tokens.data(), biases.data(), n));
  }
  void set_token_mask(const std::vector<int32_t>& mask) {
    detail::check(kvc_session_set_token_mask(get(), mask.data(), detail::count(mask.size())));
  }
  std::vector<float> logits() {
    return detail::buffer<std::vector<float>>(
        [&](float* out, int32_t cap, int32_t* n) { return kvc_session_get_logits(get(), out, cap, n); });
  }
  kvc_session_stats stats() const {
    kvc_session_stats out = params<kvc_session_stats>();
    detail::check(kvc_session_get_stats(get(), &out));
    return out;
  }
  double progress() const {
    double share = 1;
    detail::check(kvc_session_get_progress(get(), &share));
    return share;
  }
  std::vector<int32_t> kept(int32_t layer, int32_t kv_head) const {
    return detail::buffer<std::vector<int32_t>>([&](int32_t* out, int32_t cap, int32_t* n) {
      return kvc_session_get_kept(get(), layer, kv_head, out, cap, n);
    });
  }

  void reset() { detail::check(kvc_session_reset(get())); }
  void cancel() { detail::check(kvc_session_cancel(get())); }
  void clear_cancel() { detail::check(kvc_session_clear_cancel(get())); }
  Session fork() {
    kvc_session* s = nullptr;
    detail::check(kvc_session_fork(get(), &s));
    return Session(s);
  }
  void rewind(int32_t n_tokens) { detail::check(kvc_session_rewind(get(), n_tokens)); }
  void save(const std::string& path) { detail::check(kvc_session_save(get(), detail::name(path))); }
  std::vector<uint8_t> save() {
    std::vector<uint8_t> out;
    int64_t n = 0;
    if (!detail::check(kvc_session_save_memory(get(), nullptr, 0, &n))) return out;
    out.resize(static_cast<std::size_t>(n));
    if (!detail::check(kvc_session_save_memory(get(), out.data(), n, &n))) out.clear();
    return out;
  }
  // For calls of kvc.h; it stays the object's.
  kvc_session* get() const { return handle_.get(); }
  // Whether it was opened, and not moved from.
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  explicit Session(kvc_session* handle) : handle_(handle) {}
  void create(const Model& model, const kvc_policy* policy, const kvc_session_params& p) {
    kvc_session* s = nullptr;
    detail::check(kvc_session_create(model.get(), policy, &p, &s));
    handle_.reset(s);
  }
  std::unique_ptr<kvc_session, detail::Close> handle_;
};

// A step of each session in one pass over the weights: tokens as of Session::step, or KVC_TOKEN_READING.
// statuses (may be null): what each came to. A batch that is refused as a whole has neither tokens nor
// statuses.
inline Tokens batch_step(const std::vector<kvc_session*>& sessions,
                         std::vector<kvc_status>* statuses = nullptr, int32_t prompt_tokens = 0) {
  kvc_batch_params p = params<kvc_batch_params>();
  p.prompt_tokens = prompt_tokens;
  Tokens tokens(sessions.size(), KVC_TOKEN_NONE);
  std::vector<kvc_status> each(sessions.size(), KVC_OK);
  const bool done = detail::check(
      kvc_batch_step(sessions.data(), detail::count(sessions.size()), &p, tokens.data(), each.data()));
  if (!done) return detail::refused(statuses), Tokens();
  if (statuses != nullptr) statuses->swap(each);
  return tokens;
}
// What followed the last n_gram tokens where they stood before, at most so many: a draft for Session::step.
inline Tokens draft_lookup(const Tokens& tokens, int32_t most = 8, int32_t n_gram = 3) {
  Tokens out(static_cast<size_t>(most > 0 ? most : 0));
  int32_t n = 0;
  detail::check(kvc_draft_lookup(tokens.data(), detail::count(tokens.size()), n_gram, out.data(),
                                 detail::count(out.size()), &n));
  out.resize(static_cast<size_t>(n));
  return out;
}

// The logits [n, V] of each, to choose from and accept. V: Model::info().vocab_size.
inline std::vector<float> batch_logits(const std::vector<kvc_session*>& sessions, int32_t vocab_size,
                                       Tokens* tokens, std::vector<kvc_status>* statuses = nullptr,
                                       int32_t prompt_tokens = 0) {
  kvc_batch_params p = params<kvc_batch_params>();
  p.prompt_tokens = prompt_tokens;
  const std::size_t width = static_cast<std::size_t>(vocab_size > 0 ? vocab_size : 0);
  std::vector<float> logits(sessions.size() * width);
  tokens->assign(sessions.size(), KVC_TOKEN_NONE);
  std::vector<kvc_status> each(sessions.size(), KVC_OK);
  const bool done =
      detail::check(kvc_batch_logits(sessions.data(), detail::count(sessions.size()), &p, logits.data(),
                                     static_cast<int64_t>(logits.size()), tokens->data(), each.data()));
  if (!done) return tokens->clear(), detail::refused(statuses), std::vector<float>();
  if (statuses != nullptr) statuses->swap(each);
  return logits;
}

}  // namespace kvc

#endif
