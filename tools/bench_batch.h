// Many sessions at once, for kvc bench: their steps as one batch beside those of one session alone, and what
// a prompt that arrives among them costs each step.
#pragma once
#include <vector>

#include "tools/bench_work.h"

namespace kvc::tool {

constexpr int32_t kMostInBatch = 256;  // of kvc_batch_step

struct BatchWork {
  std::vector<int32_t> sizes;  // sessions of each batch
  int32_t arriving = 0;        // tokens of the prompt that arrives; 0: none does
  int32_t gen = 0;             // steps of a round
  int32_t repeat = 0;          // rounds that count
};

// Medians over the rounds.
struct BatchSpeed {
  int32_t n_sessions = 0;
  double step_mean = 0, step_median = 0;        // seconds of a step of all
  double alone_step_mean = 0, times_alone = 0;  // of one session in the same rounds; ratio of tokens a second
};

struct ArrivalDelay {
  int32_t n_sessions = 0;                          // beside the one whose prompt arrives
  int32_t n_steps = 0;                             // in which the prompt was read
  double step = 0;                                 // seconds of a step before
  double chunk = 0, chunk_longest = 0;             // of calls that read the prompt alone
  double reading_median = 0, reading_longest = 0;  // of steps in which it is read
  double reading_worst = 0;                        // the longest of all rounds
  double InChunks(double seconds) const;           // how much longer than before, in times of a chunk
};

struct BatchResult {
  std::vector<BatchSpeed> batches;
  std::vector<ArrivalDelay> arrivals;
};

// Every session reads `prompt`, each from another place on, and then goes on from round to round, so that at
// any time all are as long as each other.
BatchResult MeasureBatches(const Model& model, const Policy& policy, const TokenList& prompt,
                           const BatchWork& work);

Json BatchesJson(const BatchResult& result);   // [batches]
Json ArrivalsJson(const BatchResult& result);  // [batches], empty where no prompt arrived
std::string BatchText(const BatchResult& result, const BatchWork& work);

}  // namespace kvc::tool
