#include "models/convert/lora.h"

#include <algorithm>
#include <cmath>

#include "models/convert/packed_linear.h"
#include "models/convert/weight_codec.h"

namespace kvc {
namespace {

const void* OriginOf(const SourceFile* file, const PackedLinear* packed) {
  return packed != nullptr ? static_cast<const void*>(packed) : static_cast<const void*>(file);
}

const void* OriginOf(const SourceTensor& tensor, const SourceTensor::Run& run) {
  return OriginOf(run.file == nullptr ? tensor.file : run.file,
                  run.packed == nullptr ? tensor.packed : run.packed);
}

Status LoadElements(const FoundTensor& tensor, std::vector<float>* out) {
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor.n_bytes));
  const int64_t n = tensor.shape[0] * tensor.shape[1];
  KVC_RETURN_IF_ERROR(tensor.file->Read(tensor.offset, bytes.data(), tensor.n_bytes));
  const int64_t bad = FirstNotFiniteElement(tensor.type, bytes.data(), n);
  if (bad >= 0) {
    return Error(Code::kBadModel, "%s: tensor %.200s: element %lld is not a finite number",
                 tensor.file->path().c_str(), tensor.name.c_str(), static_cast<long long>(bad));
  }
  out->resize(static_cast<size_t>(n));
  DecodeElements(tensor.type, bytes.data(), n, out->data());
  return {};
}

}  // namespace

Status LoraMerge::Bind(std::vector<LoraPair> pairs, const Checkpoint& checkpoint, const std::string& where) {
  std::map<std::string, const FoundTensor*> named;
  for (const FoundTensor& tensor : checkpoint.found) named.emplace(tensor.name, &tensor);
  for (LoraPair& pair : pairs) {
    const auto it = named.find(pair.target);
    if (it == named.end()) {
      return Error(Code::kInvalid, "%s: is of another model: this one has no tensor %.200s", where.c_str(),
                   pair.target.c_str());
    }
    const FoundTensor& matrix = *it->second;
    const int64_t rows = pair.b.shape[0], cols = pair.a.shape[1];
    if (matrix.shape != std::vector<int64_t>{rows, cols}) {
      return Error(Code::kInvalid, "%s: is of another model: %.200s would have %lld rows and %lld columns",
                   where.c_str(), pair.target.c_str(), static_cast<long long>(rows),
                   static_cast<long long>(cols));
    }
    Target& target = targets_[{OriginOf(matrix.file, matrix.packed), matrix.offset}];
    target.row_bytes = SourceBytes(matrix.type, cols);
    target.begin = matrix.offset, target.end = matrix.offset + rows * target.row_bytes;
    target.pairs.push_back(std::move(pair));
  }
  for (const auto& entry : targets_) {
    const Target& target = entry.second;  // a structured binding could not be captured below (C++17)
    const bool used =
        std::any_of(checkpoint.tensors.begin(), checkpoint.tensors.end(), [&](const SourceTensor& tensor) {
          return std::any_of(tensor.runs.begin(), tensor.runs.end(),
                             [&](const SourceTensor::Run& run) { return Find(tensor, run) == &target; });
        });
    if (used) continue;
    return Error(Code::kUnsupported, "%s: changes %.200s, which this model does not use", where.c_str(),
                 target.pairs[0].target.c_str());
  }
  return {};
}

const LoraMerge::Target* LoraMerge::Find(const SourceTensor& tensor, const SourceTensor::Run& run) const {
  const void* const origin = OriginOf(tensor, run);
  auto it = targets_.upper_bound({origin, run.offset});
  if (it == targets_.begin()) return nullptr;
  --it;
  return it->first.first == origin && run.offset < it->second.end ? &it->second : nullptr;
}

bool LoraMerge::Changes(const SourceTensor& tensor) const {
  return std::any_of(tensor.runs.begin(), tensor.runs.end(),
                     [&](const SourceTensor::Run& run) { return Find(tensor, run) != nullptr; });
}

Status LoraMerge::Load(const Target& target) {
  if (current_ == &target) return {};
  current_ = nullptr, loaded_.clear();
  for (const LoraPair& pair : target.pairs) {
    Loaded loaded;
    loaded.pair = &pair;
    KVC_RETURN_IF_ERROR(LoadElements(pair.a, &loaded.a));
    KVC_RETURN_IF_ERROR(LoadElements(pair.b, &loaded.b));
    loaded_.push_back(std::move(loaded));
  }
  current_ = &target;
  return {};
}

Status LoraMerge::Add(const SourceTensor& tensor, const SourceTensor::Run& run, int64_t first, int64_t n,
                      float* values) {
  const Target* const target = Find(tensor, run);
  if (target == nullptr) return {};
  KVC_RETURN_IF_ERROR(Load(*target));
  const int64_t row = (run.offset - target->begin) / target->row_bytes + first;
  std::vector<float> sum(static_cast<size_t>(tensor.cols));  // of one row, before the weight is added to it
  for (const Loaded& loaded : loaded_) {
    const int64_t rank = loaded.pair->a.shape[0];
    for (int64_t r = 0; r < n; ++r) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = loaded.b[static_cast<size_t>((row + r) * rank + k)];
        const float* const a = &loaded.a[static_cast<size_t>(k * tensor.cols)];
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += factor * a[c];
      }
      float* const out = values + r * tensor.cols;
      for (size_t c = 0; c < sum.size(); ++c) out[c] += loaded.pair->scale * sum[c];
    }
  }
  return {};
}

int64_t LoraMerge::bytes() const {
  size_t n = 0;
  for (const Loaded& loaded : loaded_) n += loaded.a.capacity() + loaded.b.capacity();
  return static_cast<int64_t>(4 * n);
}

}  // namespace kvc
