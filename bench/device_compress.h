// What devices do to a prompt's layer for a method that looks at its last rows.
#pragma once
#include "bench/device_bench.h"

namespace kvc::bench {

// What SnapKV scores a layer by.
void Scoring(DeviceBench* bench);
// All of it for a layer of the 8B shape: scored, the best 1,024 of 8,192 entries chosen, stored.
void Compression(DeviceBench* bench);

}  // namespace kvc::bench
