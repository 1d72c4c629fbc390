// What devices do to a cache: entries go to pages and come back, and steps read them.
#pragma once
#include "bench/device_bench.h"

namespace kvc::bench {

// Pages of 8 KiB taken and given back, 32 MiB of them, as a layer of the 8B shape keeps 8,192 tokens: what a
// device's memory takes to come and go. Bytes: those of the pages, whose contents are not touched.
void PagesTakenAndGivenBack(DeviceBench* bench);
// store, load and step of 8,192 entries by type of page, in as many layers as no cache of the device holds.
void CacheOperations(DeviceBench* bench);
// One layer's attention of several sessions at once: heads of equal and of ragged lengths, by type of page;
// and of one session with a budget of 1,024 in as many layers.
void StepAttention(DeviceBench* bench);

}  // namespace kvc::bench
