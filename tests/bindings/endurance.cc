// As endurance.c, with the classes of kvc.hpp. Usage: endurance_cpp MODEL_OF_SESSIONS OTHER_MODEL
#include <unistd.h>

#include <fstream>
#include <iostream>

#include "kvc/kvc.hpp"

namespace {

const int kSessions = 10000, kModels = 200;

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream file("/proc/self/statm");
  if (!(file >> size >> resident)) throw std::runtime_error("no /proc/self/statm");
  return resident * sysconf(_SC_PAGESIZE);
}

void Part(const kvc::Model& model, const kvc::Policy& policy, const char* other, int sessions, int models) {
  const kvc::Tokens tokens = model.tokenize("Once upon a time there was a little dog", KVC_ADD_BOS);
  for (int i = 0; i < sessions; ++i) {
    kvc::Session session(model, policy);
    session.prefill(tokens);
    session.step();
    session.read_text();
  }
  for (int i = 0; i < models; ++i) kvc::Model{other};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const kvc::Model model(argv[1]);
  const kvc::Policy policy("snapkv:budget=16,window=4");
  Part(model, policy, argv[2], kSessions / 5, kModels / 5);  // what the allocator keeps has come by then
  const int64_t early = ResidentBytes();
  Part(model, policy, argv[2], kSessions * 4 / 5, kModels * 4 / 5);
  const int64_t grown = ResidentBytes() - early;
  std::cout << "grown by " << grown / 1024 << " KiB in " << kSessions * 4 / 5 << " sessions and "
            << kModels * 4 / 5 << " models\n";
  // A leak of 150 bytes a session, or of 7 KiB a model, is more than that.
  return grown < 1 << 20 ? 0 : 1;
}
