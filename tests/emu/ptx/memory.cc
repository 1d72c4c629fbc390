// Loads, stores, atomic sums and copies to shared memory (PTX ISA, 9.7.9 and 9.7.13). An address is one of
// this process, but in shared memory, where it is an offset in the block's.
#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {

uint8_t* AddressOf(Warp& w, const Instruction& i, const Arg& base, int lane, bool shared, int64_t bytes) {
  const size_t at = size_t{base.slot} * kLanes + static_cast<size_t>(lane);
  const uint64_t value = base.file == File::k64 ? w.r64[at] : w.r32[at];
  const int64_t address = static_cast<int64_t>(value) + base.offset;
  Trace& trace = w.traces[shared ? 1 : 0];
  trace.lanes |= 1u << lane;
  trace.bytes = bytes;
  trace.at[static_cast<size_t>(lane)] = address;
  if (address % bytes != 0) {
    w.Fail(i, "an address that is not aligned");
    return nullptr;
  }
  if (!shared) {
    if (address >= 0 && address < 4096) w.Fail(i, "a null pointer");
    return w.block->fault.empty() ? reinterpret_cast<uint8_t*>(address) : nullptr;
  }
  if (address < 0 || address + bytes > w.block->shared_bytes) {
    w.Fail(i, "beyond the block's shared memory");
    return nullptr;
  }
  return w.block->shared + address;
}

namespace {

enum Mode : int { kElsewhere = 0, kShared = 1 };

template <typename M>
void Load(Warp& w, const Instruction& i, uint32_t lanes) {
  const int n = i.n_results;
  const Arg& base = i.args[static_cast<size_t>(n)];
  ForLanes(lanes, [&](int l) {
    const uint8_t* from = AddressOf(w, i, base, l, i.mode == kShared, static_cast<int64_t>(sizeof(M)) * n);
    if (from == nullptr) return;
    for (int k = 0; k < n; ++k) {
      M value;
      std::memcpy(&value, from + sizeof(M) * static_cast<size_t>(k), sizeof value);
      const Arg& to = i.args[static_cast<size_t>(k)];
      const size_t at = size_t{to.slot} * kLanes + static_cast<size_t>(l);
      if (to.file == File::k64) {
        w.r64[at] = static_cast<uint64_t>(value);
      } else {
        w.r32[at] = static_cast<uint32_t>(value);
      }
    }
  });
}
template <typename M>
void Store(Warp& w, const Instruction& i, uint32_t lanes) {
  const int n = i.n_args - 1;
  ForLanes(lanes, [&](int l) {
    uint8_t* to = AddressOf(w, i, i.args[0], l, i.mode == kShared, static_cast<int64_t>(sizeof(M)) * n);
    if (to == nullptr) return;
    for (int k = 0; k < n; ++k) {
      const Arg& from = i.args[static_cast<size_t>(k) + 1];
      const size_t at = size_t{from.slot} * kLanes + static_cast<size_t>(l);
      const M value = static_cast<M>(from.file == File::k64 ? w.r64[at] : w.r32[at]);
      std::memcpy(to + sizeof(M) * static_cast<size_t>(k), &value, sizeof value);
    }
  });
}
template <typename M>
void AddAtomically(Warp& w, const Instruction& i, uint32_t lanes) {
  Raw<M>*out = SlotOf<M>(w, i.args[0]), *x = SlotOf<M>(w, i.args[2]);
  ForLanes(lanes, [&](int l) {
    uint8_t* at = AddressOf(w, i, i.args[1], l, i.mode == kShared, sizeof(M));
    if (at == nullptr) return;
    M before;
    std::memcpy(&before, at, sizeof before);
    const M after = static_cast<M>(before + x[l]);
    std::memcpy(at, &after, sizeof after);
    out[l] = before;
  });
}

void Nothing(Warp&, const Instruction&, uint32_t) {}

void Trap(Warp& w, const Instruction& i, uint32_t) { w.Fail(i, "a trap"); }

// As late as they may be. Until then there are no numbers.
void CopyLater(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const size_t lane = static_cast<size_t>(l);
    const int bytes = static_cast<int>(w.r32[size_t{i.args[2].slot} * kLanes + lane]);
    const int there = i.n_args < 4 ? bytes : static_cast<int>(w.r32[size_t{i.args[3].slot} * kLanes + lane]);
    uint8_t* to = AddressOf(w, i, i.args[0], l, true, bytes);
    const uint8_t* from = there == 0 ? nullptr : AddressOf(w, i, i.args[1], l, false, bytes);
    if (to == nullptr || (there != 0 && (from == nullptr || there != bytes))) {
      w.Fail(i, "a copy of no whole vector");
      return;
    }
    std::memset(to, 0xff, static_cast<size_t>(bytes));
    w.copies[lane].queued.push_back({w.copies[lane].groups, {to, from, bytes}});
  });
}
void CloseCopies(Warp& w, const Instruction&, uint32_t lanes) {
  ForLanes(lanes, [&](int l) { ++w.copies[static_cast<size_t>(l)].groups; });
}
void WaitForCopies(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    LaneCopies& mine = w.copies[static_cast<size_t>(l)];
    const uint32_t newest = w.r32[size_t{i.args[0].slot} * kLanes + static_cast<size_t>(l)];
    while (!mine.queued.empty() && mine.queued.front().first + newest < mine.groups) {
      const Copy copy = mine.queued.front().second;
      mine.queued.pop_front();
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, static_cast<size_t>(copy.bytes));
      } else {
        std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
      }
    }
  });
}
// Of whole vectors that are there; what they are is of no account.
void Prefetch(Warp& w, const Instruction& i, uint32_t lanes) {
  ForLanes(lanes, [&](int l) {
    const auto bytes = static_cast<int32_t>(w.r32[size_t{i.args[1].slot} * kLanes + static_cast<size_t>(l)]);
    const uint8_t* from = AddressOf(w, i, i.args[0], l, false, 16);
    if (from == nullptr || bytes <= 0 || bytes % 16 != 0) {
      w.Fail(i, "no whole vectors to be fetched");
      return;
    }
    for (int32_t at = 0; at < bytes; at += 16)
      static_cast<void>(*static_cast<const volatile uint8_t*>(from + at));
    emu::Prefetch(from, bytes);
  });
}
void WaitForEarlier(Warp& w, const Instruction&, uint32_t lanes) {
  w.block->waits += static_cast<unsigned>(__builtin_popcount(lanes));
}

// From an offset in shared memory to an address and back.
void ToGeneric(Warp& w, const Instruction& i, uint32_t lanes) {
  uint64_t* const out = SlotOf<uint64_t>(w, i.args[0]);
  ForLanes(lanes, [&](int l) {
    const size_t at = size_t{i.args[1].slot} * kLanes + static_cast<size_t>(l);
    out[l] =
        reinterpret_cast<uint64_t>(w.block->shared) + (i.args[1].file == File::k64 ? w.r64[at] : w.r32[at]);
  });
}
void ToShared(Warp& w, const Instruction& i, uint32_t lanes) {
  const uint64_t* const in = SlotOf<uint64_t>(w, i.args[1]);
  ForLanes(lanes, [&](int l) {
    const uint64_t offset = in[l] - reinterpret_cast<uint64_t>(w.block->shared);
    const size_t at = size_t{i.args[0].slot} * kLanes + static_cast<size_t>(l);
    if (i.args[0].file == File::k64) {
      w.r64[at] = offset;
    } else {
      w.r32[at] = static_cast<uint32_t>(offset);
    }
  });
}
void Same(Warp& w, const Instruction& i, uint32_t lanes) {
  uint64_t* const out = SlotOf<uint64_t>(w, i.args[0]);
  const uint64_t* const in = SlotOf<uint64_t>(w, i.args[1]);
  ForLanes(lanes, [&](int l) { out[l] = in[l]; });
}

}  // namespace

Handler FindMemory(const Opcode& op, Instruction* i) {
  if (op.Is("trap")) return Trap;
  if (op.Is("membar") || op.Is("fence")) return Nothing;
  if (op.Is("cvta")) {
    if (!op.Has("shared")) return op.Type() == "u64" ? Same : nullptr;
    return op.Has("to") ? ToShared : ToGeneric;
  }
  const std::string_view type = op.Type();
  i->mode = op.Has("shared") ? kShared : kElsewhere;
  if (op.Is("atom")) {
    if (!op.Has("add") || i->n_args != 3) return nullptr;
    return type == "u32" || type == "s32" ? AddAtomically<uint32_t>
           : type == "u64"                ? AddAtomically<uint64_t>
                                          : nullptr;
  }
  const bool load = op.Is("ld");
  if (!load && !op.Is("st")) return nullptr;
  if (type == "s8") return load ? Load<int8_t> : Store<int8_t>;
  if (type == "s16") return load ? Load<int16_t> : Store<int16_t>;
  if (type == "s32") return load ? Load<int32_t> : Store<int32_t>;
  const std::string_view bits = type.substr(1);
  if (bits == "8") return load ? Load<uint8_t> : Store<uint8_t>;
  if (bits == "16") return load ? Load<uint16_t> : Store<uint16_t>;
  if (bits == "32") return load ? Load<uint32_t> : Store<uint32_t>;
  if (bits == "64") return load ? Load<uint64_t> : Store<uint64_t>;
  return nullptr;
}

Handler FindCopy(const Opcode& op, Instruction* i) {
  if (op.Is("griddepcontrol")) return op.Has("wait") ? WaitForEarlier : Nothing;
  if (!op.Is("cp") || !op.Has("async")) return nullptr;
  if (op.Has("bulk")) return op.Has("prefetch") && op.Has("L2") && i->n_args == 2 ? Prefetch : nullptr;
  if (op.Has("commit_group")) return CloseCopies;
  if (op.Has("wait_group")) return WaitForCopies;
  return op.Has("ca") || op.Has("cg") ? CopyLater : nullptr;
}

}  // namespace kvc::emu::ptx
