// WeightedKV: keys go by average attention, values are mixed into the right neighbour.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodWeightedkv = {"weightedkv",
                                      "Drops keys with the least average attention and merges their values "
                                      "into the next token, weighted by attention",
                                      "WeightedKV: Attention Scores Weighted Key-Value Cache Merging for "
                                      "Large Language Models; methods.md 2.15",
                                      &kAllocatorUniform,
                                      &kScorerAvgAccum,
                                      &kReducerWeighted,
                                      DecodeMode::kStep,
                                      PositionMode::kOriginal,
                                      {{OptionId::kNSink, 4}}};

}  // namespace kvc
