// Runs a decoded kernel: blocks one after the other, warps in turns. Lanes of a warp that part go on one
// group at a time, that with the earliest instruction first, so that they meet again where their paths do.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

constexpr uint32_t kNever = ~0u;

uint32_t Ready(const Warp& w) { return w.live & ~(w.done | w.at_barrier | w.at_meeting); }
uint32_t Alive(const Warp& w) { return w.live & ~w.done; }

void SetPlace(Warp& w, uint32_t lanes, uint32_t pc) {
  ForLanes(lanes, [&](int l) { w.pc[static_cast<size_t>(l)] = pc; });
}

void RunInstruction(Warp& w, uint32_t pc, uint32_t lanes) {
  const Instruction& i = w.program->code[pc];
  if (lanes == 0) return;
  i.run(w, i, lanes);
  if ((w.traces[0].lanes | w.traces[1].lanes) == 0) return;
  if (CountsTraffic()) CountTraffic(w, &w.program->work[pc]);
  w.traces[0].lanes = w.traces[1].lanes = 0;
}

// The lanes of group, all at pc, up to where others stand or where they part or wait.
void RunGroup(Warp& w, uint32_t group, uint32_t pc, uint32_t others_at) {
  Program& p = *w.program;
  while (w.block->fault.empty()) {
    if (pc >= others_at) return SetPlace(w, group, pc);
    const Instruction& i = p.code[pc];
    const uint32_t lanes = i.guard.slot == kNoSlot ? group : group & w.Predicate(i.guard);
    p.work[pc].issued += 1, p.work[pc].lanes += __builtin_popcount(lanes);
    switch (i.kind) {
      case Kind::kPlain:
        RunInstruction(w, pc, lanes);
        ++pc;
        break;
      case Kind::kBranch:
        if (lanes == group && others_at == kNever) {
          pc = i.target;
          break;
        }
        if (lanes == 0) {
          ++pc;
          break;
        }
        SetPlace(w, group & ~lanes, pc + 1);
        return SetPlace(w, lanes, i.target);
      case Kind::kExit:
        w.done |= lanes;
        if (lanes == group) return;
        group &= ~lanes;
        ++pc;
        break;
      case Kind::kMeet:
        if (lanes == Alive(w)) {
          RunInstruction(w, pc, lanes);
          ++pc;
          break;
        }
        w.at_meeting |= lanes;
        SetPlace(w, lanes, pc);
        return SetPlace(w, group & ~lanes, pc + 1);
      case Kind::kBarrier:
        w.at_barrier |= lanes;
        SetPlace(w, group, pc + 1);
        return;
    }
  }
}

// All that have not ended wait in one place for each other: they meet.
bool Meet(Warp& w) {
  if (w.at_meeting == 0 || w.at_meeting != Alive(w)) return false;
  const uint32_t pc = w.pc[static_cast<size_t>(__builtin_ctz(w.at_meeting))];
  bool together = true;
  ForLanes(w.at_meeting, [&](int l) { together = together && w.pc[static_cast<size_t>(l)] == pc; });
  if (!together) return false;
  const uint32_t lanes = w.at_meeting;
  w.at_meeting = 0;
  RunInstruction(w, pc, lanes);
  SetPlace(w, lanes, pc + 1);
  return true;
}

// Until every lane waits for others or has ended. False: nothing moved.
bool RunWarp(Warp& w) {
  bool moved = false;
  while (w.block->fault.empty()) {
    const uint32_t ready = Ready(w);
    if (ready == 0) {
      if (!Meet(w)) break;
      moved = true;
      continue;
    }
    uint32_t first = kNever, next = kNever, group = 0;
    ForLanes(ready, [&](int l) { first = std::min(first, w.pc[static_cast<size_t>(l)]); });
    ForLanes(ready, [&](int l) {
      const uint32_t pc = w.pc[static_cast<size_t>(l)];
      if (pc == first) {
        group |= 1u << l;
      } else {
        next = std::min(next, pc);
      }
    });
    RunGroup(w, group, first, next);
    moved = true;
  }
  return moved;
}

// A barrier that is aligned: the lanes of a warp come to the same one.
bool OpenBarrier(std::vector<std::unique_ptr<Warp>>& warps, size_t n) {
  bool any = false;
  for (size_t k = 0; k < n; ++k) {
    Warp& w = *warps[k];
    if (w.at_barrier != Alive(w)) return false;
    any = any || w.at_barrier != 0;
    if (w.at_barrier == 0) continue;
    const uint32_t pc = w.pc[static_cast<size_t>(__builtin_ctz(w.at_barrier))];
    ForLanes(w.at_barrier, [&](int l) {
      if (w.pc[static_cast<size_t>(l)] != pc)
        w.Fail(w.program->code[pc - 1], "lanes of a warp at different barriers");
    });
  }
  for (size_t k = 0; k < n; ++k) warps[k]->at_barrier = 0;
  return any;
}

void SetConstants(Warp& w) {
  const Program& p = *w.program;
  for (const Constant& c : p.constants) {
    for (int l = 0; l < kLanes; ++l) {
      const size_t at = size_t{c.arg.slot} * kLanes + static_cast<size_t>(l);
      uint64_t value = c.value;
      if (c.local)
        value += reinterpret_cast<uint64_t>(w.local.data()) + static_cast<uint64_t>(p.local_bytes * l);
      if (c.arg.file == File::k64) w.r64[at] = value;
      if (c.arg.file == File::k32) w.r32[at] = static_cast<uint32_t>(value);
    }
    if (c.arg.file == File::kPredicate) w.predicates[c.arg.slot] = static_cast<uint32_t>(c.value);
  }
}
void MakeWarps(Program* p, size_t n) {
  while (p->warps.size() < n) {
    auto w = std::make_unique<Warp>();
    w->program = p;
    w->r32.assign(size_t{p->n32} * kLanes, 0xa5c35a3cu);
    w->r64.assign(size_t{p->n64} * kLanes, 0xa5c35a3ca5c35a3cu);
    w->predicates.assign(p->n_predicates, 0xa5c35a3cu);
    w->local.assign(static_cast<size_t>(p->local_bytes) * kLanes / 8, 0xa5c35a3ca5c35a3cu);
    SetConstants(*w);
    p->warps.push_back(std::move(w));
  }
}
void BeginWarp(Warp& w, BlockOfWarps* block, size_t number) {
  const unsigned n = block->dim.x * block->dim.y * block->dim.z;
  w.block = block;
  w.first_thread = static_cast<unsigned>(number) * kLanes;
  const unsigned here = std::min<unsigned>(kLanes, n - w.first_thread);
  w.live = here == kLanes ? kAll : (1u << here) - 1;
  w.done = w.at_barrier = w.at_meeting = 0;
  w.pc.fill(0);
  for (LaneCopies& c : w.copies) c.queued.clear(), c.groups = 0;
  for (const Special& s : w.program->specials) {
    for (unsigned l = 0; l < kLanes; ++l) {
      const unsigned t = w.first_thread + l;
      const dim3 thread{t % block->dim.x, t / block->dim.x % block->dim.y, t / block->dim.x / block->dim.y};
      const dim3& of = s.which == 0   ? thread
                       : s.which == 1 ? block->dim
                       : s.which == 2 ? block->index
                                      : block->grid;
      w.r32[size_t{s.slot} * kLanes + l] = s.axis == 0 ? of.x : s.axis == 1 ? of.y : of.z;
    }
  }
}

bool Complains(const char* name, const std::string& what) {
  std::fprintf(stderr, "ptx: %s: %s\n", name, what.c_str());
  return false;
}

bool RunBlock(const Started& started, Program* p, BlockOfWarps* block, bool backward) {
  const unsigned threads = block->dim.x * block->dim.y * block->dim.z;
  const size_t n = (threads + kLanes - 1) / kLanes;
  MakeWarps(p, n);
  for (size_t k = 0; k < n; ++k) BeginWarp(*p->warps[k], block, k);
  while (true) {
    bool moved = false, alive = false;
    for (size_t k = 0; k < n; ++k) moved = RunWarp(*p->warps[backward ? n - 1 - k : k]) || moved;
    if (!block->fault.empty()) return Complains(started.name, block->fault);
    for (size_t k = 0; k < n; ++k) alive = alive || Alive(*p->warps[k]) != 0;
    if (!alive) break;
    moved = OpenBarrier(p->warps, n) || moved;
    if (!moved) return Complains(started.name, "a block cannot go on: its threads wait for each other");
  }
  size_t copies = 0;
  for (size_t k = 0; k < n; ++k) {
    for (const LaneCopies& c : p->warps[k]->copies) copies += c.queued.size();
  }
  if (copies > 0) return Complains(started.name, "threads end with copies on their way");
  if (started.early && block->waits != threads)
    return Complains(started.name, "threads have not waited for what lies before the kernel");
  return true;
}

}  // namespace

bool RunGrid(const Started& started, Program* program,
             const std::vector<std::vector<unsigned char>>& params) {
  const dim3 grid = started.grid, dim = started.block;
  if (started.early) ++GetCalls().early;
  GetCalls().kernels.insert(started.name);
  if (dim.x * dim.y * dim.z > program->most_threads)
    return Complains(started.name, "more threads in a block than it was compiled for");
  if (params.size() != program->params.size()) return Complains(started.name, "not its parameters");
  for (size_t i = 0; i < params.size(); ++i) {
    if (static_cast<int64_t>(params[i].size()) != program->params[i].second)
      return Complains(started.name, "a parameter of another size");
    std::memcpy(reinterpret_cast<uint8_t*>(program->param_words.data()) + program->params[i].first,
                params[i].data(), params[i].size());
  }
  std::vector<uint64_t> shared((static_cast<size_t>(program->static_shared) + started.shared + 7) / 8 + 2);
  uint8_t* at =
      reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared.data()) + 15) & ~uintptr_t{15});
  const unsigned n = grid.x * grid.y * grid.z;
  ++program->launches, program->blocks += n;
  unsigned stride = n / 2 + 1;
  while (std::gcd(stride, n) != 1) ++stride;
  const int order = GetOptions().order;
  for (unsigned i = 0; i < n; ++i) {
    const unsigned b = order == 1   ? n - 1 - i
                       : order == 2 ? static_cast<unsigned>(uint64_t{i} * stride % n)
                                    : i;
    BlockOfWarps block;
    block.index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    block.dim = dim, block.grid = grid;
    block.shared = at, block.shared_bytes = program->static_shared + static_cast<int64_t>(started.shared);
    std::memset(at, 0xff, static_cast<size_t>(block.shared_bytes));
    if (!RunBlock(started, program, &block, order != 0 && b % 2 == 0)) return false;
  }
  return true;
}

}  // namespace kvc::emu::ptx
