#include "models/convert/packed_mxfp4.h"

#include <cstring>
#include <map>
#include <string>

namespace kvc {
namespace {

constexpr int32_t kColumns = 32, kCodeBytes = 16, kBlockBytes = kCodeBytes + 1;  // of a block
constexpr int64_t kMaxRows = INT32_MAX;

bool TakeEnding(const std::string& name, const char* ending, std::string* front) {
  const size_t n = std::strlen(ending);
  if (name.size() <= n || name.compare(name.size() - n, n, ending) != 0) return false;
  *front = name.substr(0, name.size() - n);
  return true;
}

// The shape of the scales is that of the blocks without its last dimension.
Status Fit(const std::string& name, PackedLinear* layer) {
  const FoundTensor &codes = layer->codes, &scales = layer->scales;
  for (const auto& [part, other] : {std::pair(&codes, &scales), {&scales, &codes}}) {
    if (part->file != nullptr) continue;
    return Error(Code::kBadModel, "%s: tensor %.200s stands alone: MXFP4 has blocks and scales",
                 other->file->path().c_str(), other->name.c_str());
  }
  if (codes.type != SourceType::kU8 || scales.type != SourceType::kU8) {
    return Error(Code::kUnsupported, "%s: tensor %.200s: blocks and scales of MXFP4 must be U8",
                 codes.file->path().c_str(), name.c_str());
  }
  const std::vector<int64_t>& shape = codes.shape;
  int64_t rows = 1;
  bool fits = shape.size() >= 3 && shape.back() == kCodeBytes &&
              std::vector<int64_t>(shape.begin(), shape.end() - 1) == scales.shape;
  for (size_t i = 0; fits && i + 2 < shape.size(); ++i) fits = !__builtin_mul_overflow(rows, shape[i], &rows);
  if (!fits || rows < 1 || rows > kMaxRows || shape[shape.size() - 2] < 1 ||
      shape[shape.size() - 2] > INT32_MAX / kColumns) {
    return Error(Code::kBadModel, "%s: tensor %.200s: blocks and scales of MXFP4 do not fit each other",
                 codes.file->path().c_str(), name.c_str());
  }
  layer->rows = static_cast<int32_t>(rows);
  layer->cols = static_cast<int32_t>(shape[shape.size() - 2]) * kColumns;
  layer->group = kColumns, layer->type = SourceType::kMxfp4;
  layer->n_bytes = codes.n_bytes + scales.n_bytes;
  return {};
}

}  // namespace

Status CollectMxfp4(std::vector<FoundTensor>* found, std::vector<std::unique_ptr<PackedLinear>>* layers) {
  std::map<std::string, std::unique_ptr<PackedLinear>> by_name;
  std::vector<FoundTensor> rest;
  for (FoundTensor& tensor : *found) {
    std::string name;
    const bool codes = TakeEnding(tensor.name, "_blocks", &name);
    if (!codes && !TakeEnding(tensor.name, "_scales", &name)) {
      rest.push_back(std::move(tensor));
      continue;
    }
    std::unique_ptr<PackedLinear>& layer = by_name[name];
    if (layer == nullptr) layer = std::make_unique<PackedLinear>();
    layer->scheme.kind = PackedScheme::kMxfp4;
    (codes ? layer->codes : layer->scales) = std::move(tensor);
  }
  for (auto& [name, layer] : by_name) {
    KVC_RETURN_IF_ERROR(Fit(name, layer.get()));
    FoundTensor tensor;
    tensor.name = name + "_blocks", tensor.type = layer->type;
    tensor.shape.assign(layer->codes.shape.begin(), layer->codes.shape.end() - 2);
    tensor.shape.push_back(layer->cols);
    tensor.file = layer->codes.file, tensor.n_bytes = layer->n_bytes, tensor.packed = layer.get();
    rest.push_back(std::move(tensor));
    layers->push_back(std::move(layer));
  }
  *found = std::move(rest);
  return {};
}

Status ReadMxfp4Rows(const PackedLinear& layer, int64_t first, int64_t n, int32_t step,
                     std::vector<uint8_t>* read, uint8_t* out) {
  const int64_t blocks = layer.cols / kColumns, rows = (n - 1) * step + 1;
  read->resize(static_cast<size_t>(rows * blocks * kBlockBytes));
  uint8_t *codes = read->data(), *scales = codes + rows * blocks * kCodeBytes;
  KVC_RETURN_IF_ERROR(layer.codes.file->Read(layer.codes.offset + first * blocks * kCodeBytes, codes,
                                             rows * blocks * kCodeBytes));
  KVC_RETURN_IF_ERROR(layer.scales.file->Read(layer.scales.offset + first * blocks, scales, rows * blocks));
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t b = r * step * blocks; b < (r * step + 1) * blocks; ++b, out += kBlockBytes) {
      const uint8_t* in = codes + b * kCodeBytes;
      out[0] = scales[b];
      // GGUF has the first half of the columns below, the second above.
      for (int32_t i = 0; i < kCodeBytes; ++i) {
        const int low = in[i / 2] >> (i % 2 * 4) & 15, high = in[8 + i / 2] >> (i % 2 * 4) & 15;
        out[1 + i] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
  return {};
}

}  // namespace kvc
