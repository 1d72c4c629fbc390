// What kvc report measures: policies at several budgets on tasks, where answers stand, what is kept of a
// text.
#pragma once
#include <string>
#include <vector>

#include "tools/report/page.h"
#include "tools/tune/search.h"

namespace kvc::tool {

// All rungs of all ladders on all tasks, protocol ask; adds curves and the grids of the rungs in `shown`, one
// of each ladder.
void MeasureCurves(const Model& model, const std::vector<Task>& tasks, std::vector<TuneLadder>* ladders,
                   const std::vector<size_t>& shown, Report* report);

// What a policy keeps of the context of a task.
KeptContext MeasureKept(const Model& model, const Policy& policy, const Task& task);

}  // namespace kvc::tool
