#include "lib/ops/cpu/weight_arena.h"

#include <algorithm>

#include "lib/base/system_memory.h"

namespace kvc::cpu {
namespace {

// Addresses of a chunk; memory comes with the pages that are written to.
constexpr int64_t kChunkBytes = 64 << 20;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

WeightArena::~WeightArena() {
  for (const Chunk& chunk : chunks_) UnmapBlock(chunk.block, chunk.end - chunk.block);
}

bool WeightArena::Map(int64_t least, Chunk* out) {
  const int64_t page = HugePageBytes();
  if (page == 0 || least > INT64_MAX - 2 * page - kChunkBytes) return false;
  const int64_t bytes = RoundUp(std::max(least, kChunkBytes), page) + page;
  out->block = static_cast<uint8_t*>(MapBlock(bytes));
  if (out->block == nullptr) return false;
  out->begin = out->block + (page - static_cast<int64_t>(reinterpret_cast<uintptr_t>(out->block) % page));
  out->end = out->block + bytes;
  AskForHugePages(out->begin, out->end - out->begin);
  return true;
}

uint8_t* WeightArena::Take(int64_t bytes) {
  bytes = RoundUp(bytes, 64);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (chunks_.empty() || chunks_.back().end - chunks_.back().begin - chunks_.back().used < bytes) {
    chunks_.reserve(chunks_.size() + 1);  // may fail; behind it nothing does
    Chunk chunk;
    if (!Map(bytes, &chunk)) return nullptr;
    chunks_.push_back(chunk);
  }
  Chunk& last = chunks_.back();
  uint8_t* at = last.begin + last.used;
  last.used += bytes, last.live += bytes;
  return at;
}

bool WeightArena::Return(const uint8_t* at, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto chunk = std::find_if(chunks_.begin(), chunks_.end(),
                                  [at](const Chunk& c) { return at >= c.begin && at < c.end; });
  if (chunk == chunks_.end()) return false;
  chunk->live -= RoundUp(bytes, 64);
  if (chunk->live == 0) {
    UnmapBlock(chunk->block, chunk->end - chunk->block);
    chunks_.erase(chunk);
  }
  return true;
}

}  // namespace kvc::cpu
