// Any bytes as a model file. Input that begins with KVCM is a file, tried as it is and with its hashes made
// right; any other input is a directory, put into a file with right hashes, so that the checks behind them
// are reached. Files that are accepted are run.
#include <cstdlib>
#include <cstring>

#include "lib/model/model_file.h"
#include "lib/ops/weight_panels.h"
#include "tests/fuzz/run_model.h"
#include "tests/support/raw_model_file.h"

namespace {

void Open(const kvc::test::AlignedBytes& bytes) {
  const auto opened = kvc::ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr);
  if (!opened.ok()) {
    if (opened.status().message().empty()) std::abort();
    return;
  }
  // What was accepted must be usable: every byte of every tensor readable, every text describable.
  const kvc::ModelFile& file = *opened.value();
  unsigned sum = 0;
  for (const kvc::TensorEntry& t : file.tensors()) {
    const auto* data = static_cast<const uint8_t*>(t.weight.data);
    const kvc::WeightPlace place = kvc::PlaceOf(t.weight);
    for (int64_t i = 0; i < place.data_bytes; ++i) sum += data[i];
    for (int64_t i = 0; i < place.scales_bytes / 2; ++i) sum += t.weight.scales[i];
  }
  if (file.DescribeJson().size() + sum == 0) std::abort();
  kvc::test::ModelRun::Run(bytes, static_cast<uint8_t>(bytes.size() + sum));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size >= 4 && std::memcmp(data, "KVCM", 4) == 0) {
    kvc::test::AlignedBytes bytes(data, size);
    Open(bytes);
    kvc::test::RepairHashes(&bytes);
    Open(bytes);
  } else {
    Open(kvc::test::WrapDirectory(data, size));
  }
  return 0;
}
