#include "models/convert/stored_matrix.h"

#include "lib/model/model_file.h"
#include "lib/ops/weight_panels.h"
#include "models/convert/weight_codec.h"

namespace kvc {
namespace {

std::vector<float> Widened(const Weight& w) {
  const size_t cols = static_cast<size_t>(w.cols), n_scales = static_cast<size_t>(RowScales(w)),
               row_bytes = static_cast<size_t>(WeightRowBytes(w.type, w.cols));
  std::vector<float> out(static_cast<size_t>(w.rows) * cols);
  std::vector<uint8_t> unpacked(row_bytes);
  std::vector<uint16_t> unpacked_scales(n_scales);
  for (int32_t r = 0; r < w.rows; ++r) {
    const size_t row = static_cast<size_t>(r);
    const uint8_t* data = static_cast<const uint8_t*>(w.data) + row * row_bytes;
    const uint16_t* scales = w.scales == nullptr ? nullptr : w.scales + row * n_scales;
    if (w.layout != WeightLayout::kRowMajor) {
      UnpackRow(w, r, unpacked.data(), unpacked_scales.data());
      data = unpacked.data(), scales = unpacked_scales.data();
    }
    DecodeStored({w.type, w.group}, data, scales, w.cols, out.data() + row * cols);
  }
  return out;
}

}  // namespace

Result<std::vector<std::vector<float>>> ReadOutputProjections(const std::string& path) {
  Result<std::unique_ptr<ModelFile>> opened = ModelFile::Open(path, nullptr);
  if (!opened.ok()) return opened.status();
  const ModelFile& file = *opened.value();
  std::vector<std::vector<float>> all(static_cast<size_t>(file.config().n_layers));
  for (const TensorEntry& tensor : file.tensors()) {
    if (tensor.role == TensorRole::kOutput) all[static_cast<size_t>(tensor.layer)] = Widened(tensor.weight);
  }
  for (const std::vector<float>& layer : all) {
    if (layer.empty()) return file.Fault(Error(Code::kBadModel, "a layer has no output projection"));
  }
  return all;
}

}  // namespace kvc
