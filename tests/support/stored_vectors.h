// What a cache holds of the tokens of a model in whose one layer with one KV head an entry is its token's,
// whatever was attended before.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/engine/session.h"

namespace kvc::test {

// Of every token of the vocabulary, as the network makes them: keys without a rotation.
struct TokenVectors {
  std::vector<std::vector<float>> keys, values;  // [V][D]
};
TokenVectors VectorsOfTokens(const std::shared_ptr<const Model>& model);

// Empty where every value that the session holds is what the policy, which quantises, makes of its token's,
// to the bit: the vector in f16 while it waits for its code, the code, or one of these from where it was the
// other. So is every key that is coded by token and not turned; those that are turned by their slot are as
// near as codes are. Keys that are coded by channel share scales with who lies beside them, and are not
// looked at. tokens: of the entries, by position.
std::string CheckStored(const Session& s, const Policy& policy, const TokenVectors& vectors,
                        const std::vector<int32_t>& tokens);

// Keeps everything, stored as the policy, which quantises, stores it; empty where bits go by head.
std::string SameStorage(const Policy& policy);

// Whether both hold the same keys and values of the one KV head.
bool SameEntries(const Session& a, const Session& b);

}  // namespace kvc::test
