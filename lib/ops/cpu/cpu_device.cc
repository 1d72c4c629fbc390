#include "lib/ops/cpu/cpu_device.h"

#include "lib/base/system_memory.h"

namespace kvc::cpu {

CpuDevice::CpuDevice(std::unique_ptr<ThreadPool> pool, const KernelTable& kernels)
    : pool_(std::move(pool)), kernels_(kernels) {
  info_.name = "cpu";
  info_.n_threads = pool_->n_threads();
  info_.description = Format("%d threads, %s", pool_->n_threads(), kernels.name);
  const KernelTable* tables[8];
  const int n_tables = RunnableKernels(tables, 8);
  const std::string best = tables[n_tables - 1]->name;
  if (best != kernels.name) {
    info_.description += Format(", as KVC_ISA says (%s is faster here)", best.c_str());
  } else if (const char* wanted = WantedKernels(); wanted != nullptr && best != wanted) {
    info_.description += ", as KVC_ISA names none of its instruction sets";
  }
  for (int i = n_tables; i > 0; --i) info_.instruction_sets.push_back(tables[i - 1]->name);
  info_.granule = PageBytes();
}

Result<std::unique_ptr<Device>> CpuDevice::Create(const ThreadOptions& threads) {
  Result<std::unique_ptr<ThreadPool>> pool = CreatePool(threads);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<Device>(new CpuDevice(std::move(pool.value()), BestKernels()));
}

}  // namespace kvc::cpu
