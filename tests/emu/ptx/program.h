// A kernel as nvcc's PTX has it, decoded for a processor. Where the emulator of this folder runs what a C++
// compiler makes of a kernel, with C++ in the place of every intrinsic, this runs what nvcc made of it: its
// instructions, inline PTX included, with the meaning that the PTX ISA gives them. A warp goes through them
// together where its lanes are at the same one.
#pragma once
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/emu/emulator.h"

namespace kvc::emu::ptx {

constexpr int kLanes = 32;
constexpr uint32_t kAll = ~0u;
constexpr uint32_t kNoSlot = ~0u;

// Registers are slots of a warp, a number for each lane: of 32 bits (smaller ones in their lower bits), of 64
// bits, or a bit for each lane.
enum class File : uint8_t { kNone, k32, k64, kPredicate };
struct Arg {
  uint32_t slot = kNoSlot;
  File file = File::kNone;
  bool negated = false;  // of a predicate
  int32_t offset = 0;    // of an address: added to the slot
};

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&, uint32_t lanes);

// kMeet: all lanes of the warp that have not ended do it together. kBarrier: of the block.
enum class Kind : uint8_t { kPlain, kBranch, kExit, kMeet, kBarrier };
constexpr int kMostArgs = 14;  // of a product of matrices: four results, ten operands
struct Instruction {
  Handler run = nullptr;
  Kind kind = Kind::kPlain;
  uint32_t target = 0;
  Arg guard;
  std::array<Arg, kMostArgs> args;
  int n_args = 0, n_results = 0;
  int mode = 0;  // the handler's own
  int line = 0;  // of the text
  int source = 0,
      source_line = 0;  // where nvcc says that it comes from (-lineinfo): a file of Program::sources
  std::string_view name;
};

// What warps did at an instruction. Sectors are of 32 bytes of device memory; a wavefront is what shared
// memory gives at once, a word of four bytes from each of its 32 banks. least: by the bytes that were asked
// for, each counted once.
struct Work {
  int64_t issued = 0, lanes = 0;
  int64_t sectors = 0, least_sectors = 0, wavefronts = 0, least_wavefronts = 0;
};

// What a slot holds from the beginning. local: a place in the memory of each lane.
struct Constant {
  Arg arg;
  uint64_t value = 0;
  bool local = false;
};
// tid, ntid, ctaid, nctaid, each .x, .y, .z.
struct Special {
  uint32_t slot = 0;
  int which = 0, axis = 0;
};

struct Warp;
struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Work> work;  // of each of them
  int64_t launches = 0, blocks = 0;
  std::map<int, std::string> sources;
  std::vector<Constant> constants;
  uint32_t n32 = 0, n64 = 0, n_predicates = 0;
  std::vector<Special> specials;
  std::vector<std::pair<int64_t, int64_t>> params;  // place and size
  std::vector<uint64_t> param_words;                // where they are when it runs
  std::map<std::string, std::vector<uint64_t>> globals;
  int64_t static_shared = 0, local_bytes = 0;  // local: of a lane
  unsigned most_threads = 1024;
  std::vector<std::unique_ptr<Warp>> warps;  // made when it runs
};

// Copies to shared memory that a lane has not waited for.
struct LaneCopies {
  std::deque<std::pair<unsigned, Copy>> queued;
  unsigned groups = 0;
};

struct BlockOfWarps {
  dim3 index, dim, grid;
  uint8_t* shared = nullptr;
  int64_t shared_bytes = 0;
  unsigned waits = 0;  // of threads, for what lies before the kernel
  std::string fault;   // the first
};

// Where lanes went in one instruction.
struct Trace {
  uint32_t lanes = 0;
  int64_t bytes = 0;  // of a lane
  std::array<int64_t, kLanes> at{};
};

struct Warp {
  BlockOfWarps* block = nullptr;
  Program* program = nullptr;
  unsigned first_thread = 0;
  std::vector<uint32_t> r32, predicates;
  std::vector<uint64_t> r64, local;
  std::array<uint32_t, kLanes> pc{}, carry{};
  uint32_t live = 0, done = 0, at_barrier = 0, at_meeting = 0;
  std::array<LaneCopies, kLanes> copies;
  std::array<Trace, 2> traces;  // in device memory (and a lane's own), in shared memory

  void Fail(const Instruction& i, const char* what) {
    if (block->fault.empty()) block->fault = "line " + std::to_string(i.line) + ": " + what;
  }
  uint32_t Predicate(const Arg& a) const {
    if (a.file != File::kPredicate) std::abort();
    const uint32_t bits = predicates[a.slot];
    return a.negated ? ~bits : bits;
  }
};

// A value of type T in a slot.
template <typename T>
using Raw = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <typename T>
T FromRaw(Raw<T> raw) {
  if constexpr (std::is_floating_point_v<T>) {
    T value;
    std::memcpy(&value, &raw, sizeof value);
    return value;
  } else {
    return static_cast<T>(raw);
  }
}
template <typename T>
Raw<T> ToRaw(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    Raw<T> raw;
    std::memcpy(&raw, &value, sizeof raw);
    return raw;
  } else {
    return static_cast<Raw<T>>(value);
  }
}
template <typename T>
Raw<T>* SlotOf(Warp& w, const Arg& a) {
  if (a.file != (sizeof(T) == 8 ? File::k64 : File::k32))
    std::abort();  // a handler that is not the instruction's
  if constexpr (sizeof(T) == 8) {
    return w.r64.data() + size_t{a.slot} * kLanes;
  } else {
    return w.r32.data() + size_t{a.slot} * kLanes;
  }
}

template <typename F>
void ForLanes(uint32_t lanes, F&& f) {
  if (lanes == kAll) {
    for (int l = 0; l < kLanes; ++l) f(l);
  } else {
    for (int l = 0; l < kLanes; ++l) {
      if ((lanes >> l & 1) != 0) f(l);
    }
  }
}

// An instruction's name in parts: "mul", "wide", "s32".
struct Opcode {
  std::vector<std::string_view> parts;
  bool Is(std::string_view name) const { return parts[0] == name; }
  bool Has(std::string_view part) const {
    for (std::string_view p : parts) {
      if (p == part) return true;
    }
    return false;
  }
  std::string_view Type(size_t from_end = 0) const { return parts[parts.size() - 1 - from_end]; }
};

// f(T{}) for the type of this name; null: it has another one.
template <typename F>
Handler ByWhole(std::string_view type, F f) {
  if (type == "s16") return f(int16_t{});
  if (type == "s32") return f(int32_t{});
  if (type == "s64") return f(int64_t{});
  if (type == "u16" || type == "b16") return f(uint16_t{});
  if (type == "u32" || type == "b32") return f(uint32_t{});
  if (type == "u64" || type == "b64") return f(uint64_t{});
  return nullptr;
}
template <typename F>
Handler ByFloat(std::string_view type, F f) {
  if (type == "f32") return f(float{});
  if (type == "f64") return f(double{});
  return nullptr;
}
template <typename F>
Handler ByType(std::string_view type, F f) {
  return type[0] == 'f' ? ByFloat(type, f) : ByWhole(type, f);
}

// What executes an instruction, by kinds of them; null: not one of these. The decoder has put args in the
// order of the text, vectors one by one.
Handler FindArithmetic(const Opcode& op);
Handler FindComparison(const Opcode& op);
Handler FindConversion(const Opcode& op, Instruction* i);
Handler FindMove(const Opcode& op, const Instruction& i);
Handler FindMemory(const Opcode& op, Instruction* i);
Handler FindCopy(const Opcode& op, Instruction* i);
Handler FindWarpOperation(const Opcode& op, Instruction* i);

// An address of a lane: the first of its bytes, null and a fault where there are none or they are not
// aligned.
uint8_t* AddressOf(Warp& w, const Instruction& i, const Arg& base, int lane, bool shared, int64_t bytes);

// What the traces say, which are empty then.
void CountTraffic(Warp& w, Work* work);

// All kernels of the .ptx files of a folder. Unknown: not there. Faults (no such file, an instruction that
// nobody has taught it) end the program: this is one of tests.
class Library {
 public:
  explicit Library(const std::string& folder);
  // mangled: the name of a C++ compiler for the kernel, whose unnamed namespaces have another name here.
  Program* Find(const std::string& mangled);
  // Of every kernel that was asked for what it did, instruction by instruction (tests/emu/ptx_ran.py).
  void WriteWhatRan(const std::string& path) const;

 private:
  struct Entry {
    size_t file;
    size_t begin, end;  // from the name in its header to the end of its body
  };
  std::vector<std::string> files_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

// That of the folder that KVC_EMU_PTX names in the environment; null: it names none, and kernels are what the
// C++ compiler made.
Library* TheLibrary();
// Whether KVC_EMU_PTX_RAN names a folder, so that sectors and wavefronts are counted.
bool CountsTraffic();

// Decodes one kernel. file: all of its text; [begin, end): from its name to the end of its body.
std::unique_ptr<Program> Decode(std::string_view file, size_t begin, size_t end);

// Mangled; empty: not known.
std::string NameOf(const void* function);

// As RunGrid of emulator.h.
bool RunGrid(const Started& started, Program* program, const std::vector<std::vector<unsigned char>>& params);

}  // namespace kvc::emu::ptx
