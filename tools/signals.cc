#include "tools/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "models/convert/output_file.h"
#include "tools/failure.h"

namespace kvc::tool {
namespace {

struct EndingSignal {
  int number;
  const char* name;
};
// SIGALRM is also how the program limits its own patience.
constexpr EndingSignal kEndingSignals[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},
                                           {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"}, {SIGALRM, "SIGALRM"}};
constexpr unsigned kPatienceSeconds = 5;
constexpr const char* kNoThread =
    "cannot start a thread: too little memory, or too many threads of this user (ulimit -v, ulimit -u)";

bool IsIgnored(int signal_number) {
  struct sigaction action;
  return sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

[[noreturn]] void DieBySignal(int signal_number) {
  ::signal(signal_number, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, signal_number);
  pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  ::kill(::getpid(), signal_number);
  _exit(128 + signal_number);  // where the default of the signal is not to end
}

const char* NameOf(int signal_number) {
  for (const EndingSignal& known : kEndingSignals) {
    if (known.number == signal_number) return known.name;
  }
  return "a signal";
}

// Not through stdio, whose locks another thread may hold for ever.
void SayEnded(int signal_number) {
  char text[64] = "kvc: ended by ";
  std::strcat(text, NameOf(signal_number));
  std::strcat(text, "\n");
  static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text)));
}

}  // namespace

struct Signals::State {
  sigset_t mask{};
  std::atomic<int> received{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::vector<std::string> outputs;  // this and below: under mutex
  kvc_session* session = nullptr;
  bool cooperates = false;
  kvc_session* interruptible = nullptr;  // of StopOnInterrupt
  bool interrupted = false;
  std::thread waiter;

  // Takes signals as they come, in a thread of its own: no signal handler, so everything may be called.
  void Wait() {
    for (int number = 0; sigwait(&mask, &number) == 0 && !stop;) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (number == SIGINT && interruptible != nullptr && !interrupted) {
        interrupted = true;
        kvc_session_cancel(interruptible);
        continue;
      }
      const int first = received != 0 ? received.load() : number;
      if (received != 0 || !cooperates) {
        for (const std::string& output : outputs) RemoveTemporaryFiles(output);
        SayEnded(first);
        DieBySignal(first);
      }
      received = number;
      if (session != nullptr) kvc_session_cancel(session);
      ::alarm(kPatienceSeconds);
    }
  }
};

// They are blocked in all threads, those of the library and of MPI too, and taken by one that waits for them.
Signals::Signals() : state_(std::make_unique<State>()) {
  ::signal(SIGALRM, SIG_DFL);
  ::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit then fails, and says so
  sigemptyset(&state_->mask);
  for (const EndingSignal& known : kEndingSignals) {
    if (!IsIgnored(known.number)) sigaddset(&state_->mask, known.number);
  }
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &state_->mask, &before);
  try {
    state_->waiter = std::thread([state = state_.get()] { state->Wait(); });
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Failure(kNoThread);
  }
}

Signals::~Signals() {
  state_->stop = true;
  pthread_kill(state_->waiter.native_handle(), SIGALRM);
  state_->waiter.join();
}

void Signals::RemoveTemporariesOf(const std::string& output) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->outputs.push_back(output);
}

int Signals::received() const { return state_->received; }

std::string Signals::Ending() const { return std::string("ended by ") + NameOf(state_->received); }

void Signals::DieOf(int signal_number) { DieBySignal(signal_number); }

CancelOnSignal::CancelOnSignal(Signals* signals) : signals_(signals) {
  const std::lock_guard<std::mutex> lock(signals_->state_->mutex);
  signals_->state_->cooperates = true;
}

CancelOnSignal::~CancelOnSignal() {
  const std::lock_guard<std::mutex> lock(signals_->state_->mutex);
  signals_->state_->cooperates = false;
  signals_->state_->session = nullptr;
}

void CancelOnSignal::Watch(kvc_session* session) {
  const std::lock_guard<std::mutex> lock(signals_->state_->mutex);
  signals_->state_->session = session;
}

bool CancelOnSignal::received() const { return signals_->received() != 0; }

StopOnInterrupt::StopOnInterrupt(Signals* signals, kvc_session* session) : signals_(signals) {
  const std::lock_guard<std::mutex> lock(signals_->state_->mutex);
  signals_->state_->interruptible = session;
  signals_->state_->interrupted = false;
}

// A request that came too late for a call is for none of the next ones.
StopOnInterrupt::~StopOnInterrupt() {
  const std::lock_guard<std::mutex> lock(signals_->state_->mutex);
  if (signals_->state_->interrupted) kvc_session_clear_cancel(signals_->state_->interruptible);
  signals_->state_->interruptible = nullptr;
}

bool StopOnInterrupt::stopped() const {
  const std::lock_guard<std::mutex> lock(signals_->state_->mutex);
  return signals_->state_->interrupted;
}

}  // namespace kvc::tool
