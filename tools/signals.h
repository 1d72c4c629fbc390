// Signals that ask the program to end: Ctrl-C, a closed terminal, a batch system, a limit. Whenever one
// comes, temporary files are removed, and the program dies of that signal, so that whoever started it sees
// which.
#pragma once
#include <memory>
#include <string>

#include "kvc/kvc.h"

namespace kvc::tool {

// One, made by main before any other thread. Signals that were ignored at the start (nohup) stay ignored.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  // Temporary files beside this output are removed when the program is ended.
  void RemoveTemporariesOf(const std::string& output);
  // The signal that asked a command to stop; 0: none.
  int received() const;
  std::string Ending() const;  // "ended by SIGINT"
  // Ends the program as that signal would have.
  [[noreturn]] void DieOf(int signal_number);

 private:
  friend class CancelOnSignal;
  friend class StopOnInterrupt;
  struct State;
  std::unique_ptr<State> state_;
};

// While it lives, the first signal cancels the session that is working, and the command finds out by asking.
// A second one, or a few seconds in which the command did not end, end the program at once, as the first one
// does without this. One at a time, made when what cannot be cancelled (reading, opening) is done.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(Signals* signals);
  ~CancelOnSignal();
  CancelOnSignal(const CancelOnSignal&) = delete;
  CancelOnSignal& operator=(const CancelOnSignal&) = delete;
  // The session to cancel; none with nullptr. Must be withdrawn before the session is closed.
  void Watch(kvc_session* session);
  bool received() const;

 private:
  Signals* signals_;
};

// While it lives, Ctrl-C stops what the session does, and nothing else: the command goes on. A second one
// ends the program, as every other signal does. One at a time; the session outlives it.
class StopOnInterrupt {
 public:
  StopOnInterrupt(Signals* signals, kvc_session* session);
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;
  bool stopped() const;

 private:
  Signals* signals_;
};

}  // namespace kvc::tool
