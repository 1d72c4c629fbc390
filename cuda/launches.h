// Kernels that were launched and have not gone to the GPU yet: what a stream keeps back between Gather and
// Issue.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace kvc::cuda {

// A kernel as the runtime knows it. early: it waits by itself for what lies in front of it (gpu.h).
struct Kernel {
  const void* function;
  const char* name;
  bool early = false;
};

// What a launch comes behind where a piece is a graph; launched one by one, all come behind each other. Most
// come behind everything. Those that are `beside` come behind everything too, but only what names their slot
// comes behind them: the rest of their piece goes on.
struct LaunchOrder {
  static constexpr uint8_t kSlots = 2, kAllSlots = (1 << kSlots) - 1;
  bool beside = false;
  uint8_t slot = 0;            // of those beside
  uint8_t behind = kAllSlots;  // bits of the slots whose launches have ended before this one begins

  bool operator==(const LaunchOrder& o) const {
    return beside == o.beside && slot == o.slot && behind == o.behind;
  }
};

struct Launch {
  Kernel kernel;
  LaunchOrder order;
  dim3 grid, block;
  size_t shared;
  size_t first_param, n_params;  // in LaunchList::params
};

class LaunchList {
 public:
  size_t size() const { return launches_.size(); }
  bool empty() const { return launches_.empty(); }
  const Launch& operator[](size_t i) const { return launches_[i]; }
  void Clear() { launches_.clear(), params_.clear(), bytes_.clear(); }

  template <typename... Params>
  void Add(const Kernel& kernel, const LaunchOrder& order, dim3 grid, dim3 block, size_t shared,
           const std::tuple<Params...>& values) {
    Launch launch{kernel, order, grid, block, shared, params_.size(), sizeof...(Params)};
    std::apply([this](const Params&... value) { (AddParam(&value, sizeof value), ...); }, values);
    launches_.push_back(launch);
  }
  // Where the parameters of launch i lie, as the runtime wants them; `pointers` holds them for the call.
  void** ParamsOf(size_t i, std::vector<void*>* pointers) {
    const Launch& launch = launches_[i];
    pointers->clear();
    for (size_t p = 0; p < launch.n_params; ++p)
      pointers->push_back(bytes_.data() + params_[launch.first_param + p].at);
    return pointers->data();
  }
  // In the same order.
  bool HasKernelsOf(const LaunchList& o) const {
    bool same = size() == o.size();
    for (size_t i = 0; same && i < size(); ++i) {
      const Launch &a = launches_[i], &b = o.launches_[i];
      same = a.kernel.function == b.kernel.function && a.order == b.order;
    }
    return same;
  }
  // Launch i as that of another list with the same kernels. Bytes between members count: where they differ
  // a launch is sent anew without need.
  bool IsAsIn(const LaunchList& o, size_t i) const {
    const Launch &a = launches_[i], &b = o.launches_[i];
    const auto same = [](const dim3& x, const dim3& y) { return x.x == y.x && x.y == y.y && x.z == y.z; };
    if (!same(a.grid, b.grid) || !same(a.block, b.block) || a.shared != b.shared) return false;
    for (size_t p = 0; p < a.n_params; ++p) {
      const Param &x = params_[a.first_param + p], &y = o.params_[b.first_param + p];
      if (x.size != y.size || std::memcmp(bytes_.data() + x.at, o.bytes_.data() + y.at, x.size) != 0)
        return false;
    }
    return true;
  }

 private:
  struct Param {
    size_t at, size;
  };
  void AddParam(const void* value, size_t size) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + size);
    std::memcpy(bytes_.data() + at, value, size);
    params_.push_back({at, size});
  }
  std::vector<Launch> launches_;
  std::vector<Param> params_;
  std::vector<unsigned char> bytes_;  // malloc's alignment, and so that of every parameter
};

}  // namespace kvc::cuda
