// A conversation that may go on for ever: chat MODEL.kvc [POLICY [TOKENS]], one turn a line. Ctrl-C stops the
// answer.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

#include "kvc/kvc.hpp"

static kvc_session* talking = nullptr;  // what Ctrl-C stops

static void stop_answer(int) { kvc_session_cancel(talking); }

static void say(kvc::Session* session, const std::string& line) {
  try {
    session->ask(line);
  } catch (const kvc::Error& e) {
    if (e.status() != KVC_E_UNSUPPORTED) throw;
    // The model was not trained on conversations and has no marks for turns: it goes on with what the user
    // writes.
    session->set_turn_marks(KVC_ROLE_USER, "", "");
    session->ask(line);
  }
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: " << argv[0] << " MODEL.kvc [POLICY [TOKENS]]\n";
    return 2;
  }
  try {
    const kvc::Model model(argv[1]);
    // Past the trained context old entries leave, and what the policy keeps stays within its budget.
    kvc_session_params params = kvc::params<kvc_session_params>();
    params.on_full = KVC_ON_FULL_SLIDE;
    kvc::Session session(model, kvc::Policy(argc > 2 ? argv[2] : "full"), params);
    talking = session.get();
    std::signal(SIGINT, stop_answer);
    for (std::string line; std::getline(std::cin, line);) {
      session.clear_cancel();  // a Ctrl-C that came too late for an answer
      try {
        say(&session, line);
        session.generate(argc > 3 ? std::atoi(argv[3]) : 512, [](const std::string& text) {
          std::cout << text << std::flush;
          return true;
        });
      } catch (const kvc::Error& e) {
        if (e.status() != KVC_E_CANCELLED) throw;
      }
      std::cout << std::endl;
    }
    std::signal(SIGINT, SIG_DFL);
  } catch (const kvc::Error& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
