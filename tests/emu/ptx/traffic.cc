// What the addresses of a warp cost: sectors of device memory, wavefronts of shared memory. By what is known
// of GPUs since compute capability 8.0, where 32 lanes ask for up to 128 bytes at once: with 8 bytes each
// half of them, with 16 a quarter.
#include <algorithm>

#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

constexpr int64_t kSector = 32, kBankBytes = 4, kBanks = 32;

// Bytes, each once, in units of so many that they lie in and that they would fill.
struct Units {
  int64_t touched = 0, least = 0;
};
Units CountUnits(const Trace& t, int64_t unit) {
  std::array<int64_t, kLanes> at{};
  size_t n = 0;
  ForLanes(t.lanes, [&](int l) { at[n++] = t.at[static_cast<size_t>(l)]; });
  std::sort(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(n));
  Units units;
  int64_t bytes = 0, end = 0, last = -1;
  for (size_t i = 0; i < n; ++i) {
    const int64_t to = at[i] + t.bytes;
    bytes += std::max<int64_t>(0, to - std::max(at[i], end));
    end = std::max(end, to);
    for (int64_t u = at[i] / unit; u <= (to - 1) / unit; ++u) {
      if (u > last) ++units.touched, last = u;
    }
  }
  units.least = (bytes + unit - 1) / unit;
  return units;
}

// Words of four bytes: the most that one bank has to give to a group of addresses, summed over the groups.
int64_t CountWavefronts(const Trace& t) {
  const size_t group = t.bytes >= 16 ? 8 : t.bytes == 8 ? 16 : 32;
  std::vector<int64_t> at;
  ForLanes(t.lanes, [&](int l) {
    const int64_t address = t.at[static_cast<size_t>(l)];
    if (std::find(at.begin(), at.end(), address) == at.end()) at.push_back(address);
  });
  int64_t all = 0;
  for (size_t first = 0; first < at.size(); first += group) {
    std::array<std::vector<int64_t>, kBanks> banks;
    for (size_t i = first; i < std::min(first + group, at.size()); ++i) {
      for (int64_t word = at[i] / kBankBytes; word <= (at[i] + t.bytes - 1) / kBankBytes; ++word) {
        std::vector<int64_t>& bank = banks[static_cast<size_t>(word % kBanks)];
        if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
      }
    }
    size_t most = 0;
    for (const auto& bank : banks) most = std::max(most, bank.size());
    all += static_cast<int64_t>(most);
  }
  return all;
}

}  // namespace

void CountTraffic(Warp& w, Work* work) {
  if (w.traces[0].lanes != 0) {
    const Units sectors = CountUnits(w.traces[0], kSector);
    work->sectors += sectors.touched, work->least_sectors += sectors.least;
  }
  if (w.traces[1].lanes != 0) {
    work->wavefronts += CountWavefronts(w.traces[1]);
    work->least_wavefronts += CountUnits(w.traces[1], kBankBytes * kBanks).least;
  }
}

}  // namespace kvc::emu::ptx
