#include "tests/emu/races.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emu/emulator.h"

#include <link.h>
#include <unistd.h>

namespace kvc::emu::races {
namespace {

constexpr uint32_t kManyBlocks = ~0u;
constexpr uint16_t kManyWarps = 0xffff, kManyLanes = 0xffff;
constexpr uintptr_t kPageBytes = 4096;

// Who has accessed a byte since all that came before it was ordered before it: one thread, or lanes that have
// not met, warps that no barrier parts, blocks.
struct Party {
  uint32_t launch = 0;  // 0: nobody
  uint32_t block = 0, barriers = 0, meetings = 0;
  uint16_t warp = 0, lane = 0;
  uint32_t place = 0;  // in the program, of the last of them
};

// kMoreReads: of a launch that is not behind the one whose reads the byte has already.
enum Kind { kReads, kWrites, kAtomics, kMoreReads, kKinds };
struct Page {
  std::array<std::unique_ptr<std::array<Party, kPageBytes>>, kKinds> parties;
  Party* Of(Kind kind, uintptr_t at) const {
    return parties[kind] == nullptr ? nullptr : &(*parties[kind])[at % kPageBytes];
  }
  Party* Make(Kind kind, uintptr_t at) {
    if (parties[kind] == nullptr) parties[kind].reset(new std::array<Party, kPageBytes>());
    return Of(kind, at);
  }
};

// Kernels run one at a time, on whichever thread waits for them, under the emulated machine's mutex.
struct Detector {
  std::unordered_map<uintptr_t, Page> pages;
  uint32_t launch = 0;
  std::vector<uint32_t> streams = {0};  // of all launches
  Order* stream = nullptr;
  std::shared_ptr<const Ended> known = std::make_shared<Ended>();  // to the host
  bool on = false;
  std::set<uint32_t> apart;  // launches in front of this one that it does not come behind
  const char* kernel = nullptr;
  Range stacks, handed, shared, own;
  uintptr_t program = 0;
  std::set<std::pair<uint32_t, uint32_t>> told;
  int found = 0;
  // Of the launch: blocks that have released an address, and those that are before a block; with the barriers
  // that they had passed.
  using Blocks = std::map<uint32_t, uint32_t>;
  std::map<const void*, Blocks> released;
  std::map<uint32_t, Blocks> earlier;

  bool IsEarlier(const Party& a, uint32_t than) const {
    const auto blocks = earlier.find(than);
    if (blocks == earlier.end()) return false;
    const auto at = blocks->second.find(a.block);
    return at != blocks->second.end() && a.barriers < at->second;
  }
  // Whether another launch had ended before what the thread does.
  bool HasEnded(uint32_t other) const {
    if (other == 0) return true;
    if (apart.count(other) != 0) return false;
    const uint32_t of = streams[other];
    return (self->waited && of == stream->number) || stream->ended.Has(of, other);
  }
};

Detector& The() {
  static Detector* detector = new Detector();  // the last launches come as the process ends
  return *detector;
}

// Whether `a` happened before `me`, an access of now. per_block: memory that every block has for itself.
bool Before(const Party& a, const Party& me, bool per_block) {
  if (a.launch != me.launch) return per_block || The().HasEnded(a.launch);
  if (a.block != me.block) return per_block || The().IsEarlier(a, me.block);
  if (a.barriers != me.barriers) return true;
  if (a.warp != me.warp) return false;
  return a.lane == me.lane || a.meetings != me.meetings;
}

// The party of both, where neither is before the other.
void Join(const Party& me, Party* a) {
  a->place = me.place;
  if (a->block != me.block) {
    a->block = kManyBlocks;
  } else if (a->warp != me.warp) {
    a->warp = kManyWarps;
  } else {
    a->lane = kManyLanes;
  }
}

std::string Place(uint32_t place) {
  char command[160];
  std::snprintf(command, sizeof command, "addr2line -Cpe /proc/%d/exe 0x%x 2>/dev/null", ::getpid(),
                place - 1);
  std::string text;
  if (FILE* lines = ::popen(command, "r")) {
    char line[512];
    while (std::fgets(line, sizeof line, lines) != nullptr) text += line;
    ::pclose(lines);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "?" : text;
}

std::string Who(const Party& a) {
  const Detector& d = The();
  if (a.launch != d.launch)
    return d.streams[a.launch] == d.stream->number ? "a kernel in front of it that may not have ended"
                                                   : "a kernel of another stream that may not have ended";
  if (a.block == kManyBlocks) return "several blocks";
  std::string text = "block " + std::to_string(a.block);
  if (a.warp == kManyWarps) return text + ", several warps";
  text += ", warp " + std::to_string(a.warp);
  return text + (a.lane == kManyLanes ? ", several lanes" : ", lane " + std::to_string(a.lane));
}

void Tell(const Party& a, Kind kind, const Party& me, Kind mine, uintptr_t at, bool per_block) {
  static const char* const kNames[] = {"read", "written", "added to", "read"};
  Detector& d = The();
  ++d.found;
  if (!d.told.insert({a.place, me.place}).second) return;
  std::fprintf(stderr, "emulator: %s: race at %s %#zx\n  %s by %s: %s\n  %s by %s: %s\n", d.kernel,
               per_block ? "shared" : "global", static_cast<size_t>(at), kNames[kind], Who(a).c_str(),
               Place(a.place).c_str(), kNames[mine], Who(me).c_str(), Place(me.place).c_str());
}

void AccessByte(Page* page, uintptr_t at, Kind kind, const Party& me, bool per_block) {
  for (const Kind other : {kReads, kWrites, kAtomics, kMoreReads}) {
    if (kind != kWrites && (other == kind || (kind == kReads && other == kMoreReads))) continue;
    Party* a = page->Of(other, at);
    if (a == nullptr) continue;
    if (!Before(*a, me, per_block)) Tell(*a, other, me, kind, at, per_block);
    if (kind == kWrites) a->launch = 0;
  }
  Party* a = page->Make(kind, at);
  if (kind == kReads && a->launch != me.launch && !Before(*a, me, per_block)) a = page->Make(kMoreReads, at);
  if (Before(*a, me, per_block)) {
    *a = me;
  } else if (a->launch == me.launch) {
    Join(me, a);
  }  // else the other launch's stays: what this one does to the byte next is not behind it either
}

void Access(const void* address, size_t n, Kind kind, const void* from) {
  Detector& d = The();
  const uintptr_t first = reinterpret_cast<uintptr_t>(address);
  if (!d.on || self == nullptr || d.stacks.holds(first) || d.handed.holds(first)) return;
  const bool per_block = d.shared.holds(first) || d.own.holds(first);
  const Party me = {d.launch,
                    block->number,
                    block->barriers,
                    self->meetings,
                    static_cast<uint16_t>(self->warp),
                    static_cast<uint16_t>(self->lane),
                    static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) - d.program)};
  for (uintptr_t at = first; at < first + n;) {
    Page* page = &d.pages[at / kPageBytes];
    for (const uintptr_t end = std::min(first + n, (at / kPageBytes + 1) * kPageBytes); at < end; ++at)
      AccessByte(page, at, kind, me, per_block);
  }
}

// Where the program lies, and the calling thread's own memory in it.
int OfProgram(dl_phdr_info* info, size_t, void* out) {
  Detector* d = static_cast<Detector*>(out);
  d->program = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
    d->own.begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
    d->own.end = d->own.begin + info->dlpi_phdr[i].p_memsz;
  }
  return 1;  // the first is the program
}

}  // namespace

bool Ended::Has(uint32_t stream, uint32_t launch) const {
  const auto last = of.find(stream);
  return launch <= all || (last != of.end() && launch <= last->second);
}
void Ended::Join(const Ended& other) {
  all = std::max(all, other.all);
  for (const auto& [stream, launch] : other.of) of[stream] = std::max(of[stream], launch);
}

std::shared_ptr<const Ended> KnownToHost() { return The().known; }
void HostWaitsFor(const Ended& ended) {
  auto known = std::make_shared<Ended>(*The().known);
  known->Join(ended);
  The().known = std::move(known);
}
void HostWaitsForAll() { HostWaitsFor({The().launch, {}}); }
void BeginTask(Order* stream, const std::shared_ptr<const Ended>& known) {
  The().stream = stream;
  stream->ended.Join(*known);
}
void EndChain(Order* stream) { stream->ended.of[stream->number] = The().launch; }
Ended SoFar(const Order& stream) {
  Ended ended = stream.ended;
  ended.of[stream.number] = The().launch;
  return ended;
}

void Forget(const void* from, size_t bytes) {
  Detector& d = The();
  const uintptr_t first = reinterpret_cast<uintptr_t>(from), end = first + bytes;
  for (uintptr_t at = first; at < end;) {
    const uintptr_t begin = at, next = std::min(end, (at / kPageBytes + 1) * kPageBytes);
    const auto page = d.pages.find(at / kPageBytes);
    at = next;
    if (page == d.pages.end()) continue;
    if (next - begin == kPageBytes) {
      d.pages.erase(page);
      continue;
    }
    for (uintptr_t byte = begin; byte < next; ++byte) {
      for (int kind = 0; kind < kKinds; ++kind) {
        if (Party* a = page->second.Of(static_cast<Kind>(kind), byte)) a->launch = 0;
      }
    }
  }
}

void BeginLaunch(const Started& started, Range stacks, Range handed, Range shared) {
  Detector& d = The();
  ++d.launch;
  d.streams.push_back(d.stream->number);
  d.apart.clear();
  if (GraphRun* run = started.run.get()) {
    run->numbers[started.step] = d.launch;
    for (const size_t step : run->apart[started.step]) d.apart.insert(run->numbers[step]);
  }
  // What one kernel waited for has ended, unless another may still be running beside it.
  if (!started.early && d.apart.empty()) d.stream->ended.of[d.stream->number] = d.launch - 1;
  d.kernel = started.name, d.stacks = stacks, d.handed = handed, d.shared = shared, d.found = 0, d.on = true;
  d.told.clear(), d.released.clear(), d.earlier.clear();
  ::dl_iterate_phdr(OfProgram, &d);
}

void Release(const void* at) {
  if (The().on) The().released[at][block->number] = block->barriers;
}
void Acquire(const void* at) {
  if (The().on) The().earlier[block->number].insert(The().released[at].begin(), The().released[at].end());
}

int EndLaunch() {
  The().on = false;
  return The().found;
}

}  // namespace kvc::emu::races

// What -fsanitize=thread calls; nothing of it is ThreadSanitizer's.
using kvc::emu::races::Access;
using kvc::emu::races::kAtomics;
using kvc::emu::races::kReads;
using kvc::emu::races::kWrites;

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* at, size_t n) { Access(at, n, kReads, __builtin_return_address(0)); }
void __tsan_write_range(void* at, size_t n) { Access(at, n, kWrites, __builtin_return_address(0)); }
#define KVC_ACCESS(bytes)                                                                                 \
  void __tsan_read##bytes(void* at) { Access(at, bytes, kReads, __builtin_return_address(0)); }           \
  void __tsan_write##bytes(void* at) { Access(at, bytes, kWrites, __builtin_return_address(0)); }         \
  void __tsan_unaligned_read##bytes(void* at) { Access(at, bytes, kReads, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##bytes(void* at) { Access(at, bytes, kWrites, __builtin_return_address(0)); }
KVC_ACCESS(1)
KVC_ACCESS(2)
KVC_ACCESS(4)
KVC_ACCESS(8)
KVC_ACCESS(16)
// Kernels only add; host code beside them takes and gives references.
#define KVC_ATOMIC(bits, T)                                                                                 \
  T __tsan_atomic##bits##_fetch_add(volatile T* at, T x, int) {                                             \
    Access(const_cast<T*>(at), bits / 8, kAtomics, __builtin_return_address(0));                            \
    return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST);                                                     \
  }                                                                                                         \
  T __tsan_atomic##bits##_fetch_sub(volatile T* at, T x, int) {                                             \
    Access(const_cast<T*>(at), bits / 8, kAtomics, __builtin_return_address(0));                            \
    return __atomic_fetch_sub(at, x, __ATOMIC_SEQ_CST);                                                     \
  }                                                                                                         \
  T __tsan_atomic##bits##_load(const volatile T* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile T* at, T x, int) { __atomic_store_n(at, x, __ATOMIC_SEQ_CST); }
KVC_ATOMIC(8, unsigned char)
KVC_ATOMIC(32, unsigned)
KVC_ATOMIC(64, unsigned long long)
}
