// As endurance.c, with the classes of kvc.hpp. Usage: endurance_cpp MODEL_OF_SESSIONS OTHER_MODEL
#include <malloc.h>
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

int64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
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
  Part(model, policy, argv[2], kSessions / 2, kModels / 2);  // what the allocator keeps has come by then
  int64_t resident = ResidentBytes(), allocated = AllocatedBytes();
  Part(model, policy, argv[2], kSessions / 2, kModels / 2);
  resident = ResidentBytes() - resident;
  allocated = AllocatedBytes() - allocated;
  std::cout << "grown by " << resident / 1024 << " KiB, " << allocated << " bytes of them allocated, in "
            << kSessions / 2 << " sessions and " << kModels / 2 << " models\n";
  // A leak of one byte a session, or of 41 a model, is more than that.
  return resident < 1 << 20 && allocated < 4 << 10 ? 0 : 1;
}
