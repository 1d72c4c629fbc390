#include "models/convert/packed_linear.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "lib/base/half.h"
#include "lib/base/limits.h"
#include "models/convert/gguf_blocks.h"

namespace kvc {
namespace {

constexpr int32_t kPerWord = 8;  // numbers of four bits in an int32
constexpr int64_t kMaxSide = int64_t{1} << 27;

// AWQ packs neighbours for its kernels: row j of eight stands in these four bits.
constexpr int32_t kAwqPlace[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};

int32_t Nibble(uint32_t word, int32_t place) { return static_cast<int32_t>(word >> (4 * place) & 15); }

Status Refuse(const JsonObject& object, const char* key, const std::string& value, const char* supported) {
  return Error(Code::kUnsupported, "%s: %s = %.40s is not supported; supported: %s", object.where().c_str(),
               key, value.c_str(), supported);
}

Status ReadBits(const JsonObject& object, const char* key) {
  int32_t bits = 4;
  KVC_RETURN_IF_ERROR(object.Int(key, 1, 64, &bits));
  return bits == 4 ? Status() : Refuse(object, key, std::to_string(bits), "4");
}

Status ReadGptq(const JsonObject& object, PackedScheme* scheme) {
  scheme->kind = PackedScheme::kGptq;
  std::string format = "gptq", words = "int32";
  bool marlin = false;
  KVC_RETURN_IF_ERROR(ReadBits(object, "bits"));
  KVC_RETURN_IF_ERROR(object.String("checkpoint_format", &format));
  KVC_RETURN_IF_ERROR(object.String("pack_dtype", &words));
  if (format != "gptq" && format != "gptq_v2")
    return Refuse(object, "checkpoint_format", format, "gptq, gptq_v2");
  KVC_RETURN_IF_ERROR(object.Bool("is_marlin_format", &marlin));
  if (marlin) return Refuse(object, "is_marlin_format", "true", "gptq, gptq_v2");
  if (words != "int32") return Refuse(object, "pack_dtype", words, "int32");
  const Json* dynamic = object.Find("dynamic");
  if (dynamic != nullptr && !dynamic->empty())
    return Error(Code::kUnsupported, "%s: dynamic, settings of single layers, is not supported",
                 object.where().c_str());
  scheme->zero_step = format == "gptq" ? 1 : 0;
  return object.Int("group_size", -1, INT32_MAX, &scheme->group_size);
}

Status ReadAwq(const JsonObject& object, PackedScheme* scheme) {
  scheme->kind = PackedScheme::kAwq;
  std::string version = "gemm";
  KVC_RETURN_IF_ERROR(ReadBits(object, object.Has("w_bit") ? "w_bit" : "bits"));
  KVC_RETURN_IF_ERROR(object.String("version", &version));
  if (version != "gemm" && version != "GEMM") return Refuse(object, "version", version, "gemm");
  return object.Int(object.Has("q_group_size") ? "q_group_size" : "group_size", -1, INT32_MAX,
                    &scheme->group_size);
}

// The shape a part must have; type kI32, or kF16 of scales.
Status CheckPart(const FoundTensor& part, const std::string& name, SourceType type,
                 const std::vector<int64_t>& shape) {
  if (part.file == nullptr)
    return Error(Code::kBadModel, "tensor %.200s is missing beside its packed weights", name.c_str());
  if (part.type != type) {
    return Error(Code::kUnsupported, "%s: tensor %s: type %s is not supported; supported: %s",
                 part.file->path().c_str(), name.c_str(), SourceTypeName(part.type), SourceTypeName(type));
  }
  if (part.shape == shape) return {};
  return Error(Code::kBadModel, "%s: tensor %s does not fit the packed weights beside it",
               part.file->path().c_str(), name.c_str());
}

Status ReadShape(const std::string& name, PackedLinear* layer) {
  const FoundTensor& codes = layer->codes;
  const std::string title = name + ".qweight";
  if (codes.file == nullptr)
    return Error(Code::kBadModel, "tensor %.200s is missing beside its scales and zeros", title.c_str());
  if (codes.shape.size() != 2 || codes.shape[0] < 1 || codes.shape[1] < 1 || codes.shape[0] > kMaxSide ||
      codes.shape[1] > kMaxSide) {
    return Error(Code::kBadModel, "%s: tensor %s is no matrix of packed weights", codes.file->path().c_str(),
                 title.c_str());
  }
  const bool awq = layer->scheme.kind == PackedScheme::kAwq;
  const int64_t rows = codes.shape[1] * (awq ? kPerWord : 1), cols = codes.shape[0] * (awq ? 1 : kPerWord);
  const int64_t group = layer->scheme.group_size < 0 ? cols : layer->scheme.group_size;
  if (group < 32 || group % 32 != 0 || cols % group != 0 || rows % kPerWord != 0) {
    return Error(Code::kUnsupported,
                 "%s: tensor %s: %lld rows, %lld columns in groups of %lld are not supported",
                 codes.file->path().c_str(), title.c_str(), static_cast<long long>(rows),
                 static_cast<long long>(cols), static_cast<long long>(group));
  }
  layer->rows = static_cast<int32_t>(rows), layer->cols = static_cast<int32_t>(cols);
  layer->group = static_cast<int32_t>(group);
  KVC_RETURN_IF_ERROR(CheckPart(codes, title, SourceType::kI32, codes.shape));
  KVC_RETURN_IF_ERROR(
      CheckPart(layer->zeros, name + ".qzeros", SourceType::kI32, {cols / group, rows / kPerWord}));
  KVC_RETURN_IF_ERROR(CheckPart(layer->scales, name + ".scales", SourceType::kF16, {cols / group, rows}));
  if (layer->order.file != nullptr)
    KVC_RETURN_IF_ERROR(CheckPart(layer->order, name + ".g_idx", SourceType::kI32, {cols}));
  layer->n_bytes = codes.n_bytes + layer->zeros.n_bytes + layer->scales.n_bytes + layer->order.n_bytes;
  return {};
}

template <typename T>
Status ReadPart(const FoundTensor& part, std::vector<T>* out) {
  out->resize(static_cast<size_t>(part.n_bytes) / sizeof(T));
  return part.file == nullptr ? Status() : part.file->Read(part.offset, out->data(), part.n_bytes);
}

// Groups of neighbours, which are as if there were no order.
Status ReadOrder(const std::string& name, PackedLinear* layer, bool* neighbours) {
  std::vector<uint32_t> order;
  KVC_RETURN_IF_ERROR(ReadPart(layer->order, &order));
  *neighbours = true;
  for (size_t c = 0; c < order.size(); ++c) {
    if (order[c] >= static_cast<uint32_t>(layer->cols / layer->group)) {
      return Error(Code::kBadModel, "%s: tensor %s.g_idx: column %zu is in group %d of %d",
                   layer->order.file->path().c_str(), name.c_str(), c, static_cast<int32_t>(order[c]),
                   layer->cols / layer->group);
    }
    *neighbours &= order[c] == c / static_cast<size_t>(layer->group);
  }
  return {};
}

// Codes less zeros of 8 fit four bits, others take one more.
Status ChooseType(const std::string& name, PackedLinear* layer) {
  bool neighbours = true;
  KVC_RETURN_IF_ERROR(ReadOrder(name, layer, &neighbours));
  if (!neighbours) {
    layer->type = SourceType::kUnordered4;
    return {};
  }
  layer->order = {};
  std::vector<uint32_t> zeros;
  KVC_RETURN_IF_ERROR(ReadPart(layer->zeros, &zeros));
  const uint32_t eights = 0x88888888u - 0x11111111u * static_cast<uint32_t>(layer->scheme.zero_step);
  const bool near = std::all_of(zeros.begin(), zeros.end(), [=](uint32_t z) { return z == eights; });
  using S = SourceType;
  if (layer->group % 128 == 0)
    layer->type = near ? S::kNear128 : S::kFar128;
  else if (layer->group % 64 == 0)
    layer->type = near ? S::kNear64 : S::kFar64;
  else
    layer->type = near ? S::kNear32 : S::kFar32;
  return {};
}

// Some tools store biases of 0 where the model has none.
Status MarkZero(FoundTensor* bias) {
  std::vector<uint8_t> bytes;
  KVC_RETURN_IF_ERROR(ReadPart(*bias, &bytes));
  bias->all_zero = std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
  return {};
}

// NAME of NAME.ending.
bool EndsWith(const std::string& text, const char* ending, std::string* name) {
  const size_t n = std::strlen(ending);
  if (text.size() <= n || text.compare(text.size() - n, n, ending) != 0) return false;
  *name = text.substr(0, text.size() - n);
  return true;
}

FoundTensor* PartOf(const std::string& tensor, PackedLinear* layer, std::string* name) {
  if (EndsWith(tensor, ".qweight", name)) return &layer->codes;
  if (EndsWith(tensor, ".qzeros", name)) return &layer->zeros;
  if (EndsWith(tensor, ".scales", name)) return &layer->scales;
  if (EndsWith(tensor, ".g_idx", name)) return &layer->order;
  return nullptr;
}

}  // namespace

Result<PackedScheme> ReadPackedScheme(const JsonObject& object) {
  PackedScheme scheme;
  std::string method = "gptq";
  KVC_RETURN_IF_ERROR(object.String("quant_method", &method));
  if (method == "mxfp4") {
    scheme.kind = PackedScheme::kMxfp4;
    return scheme;
  }
  if (method != "gptq" && method != "awq") {
    return Error(
        Code::kUnsupported,
        "%s: weights that %.40s quantised are not supported; supported: gptq and awq with 4 bits, mxfp4",
        object.where().c_str(), method.c_str());
  }
  KVC_RETURN_IF_ERROR(method == "gptq" ? ReadGptq(object, &scheme) : ReadAwq(object, &scheme));
  return scheme;
}

Status CollectPacked(const PackedScheme& scheme, std::vector<FoundTensor>* found,
                     std::vector<std::unique_ptr<PackedLinear>>* layers) {
  std::map<std::string, std::unique_ptr<PackedLinear>> by_name;
  std::vector<FoundTensor> rest;
  for (FoundTensor& tensor : *found) {
    std::string name;
    PackedLinear unused;
    if (PartOf(tensor.name, &unused, &name) == nullptr) {
      rest.push_back(std::move(tensor));
      continue;
    }
    std::unique_ptr<PackedLinear>& layer = by_name[name];
    if (layer == nullptr) layer = std::make_unique<PackedLinear>();
    layer->scheme = scheme;
    *PartOf(tensor.name, layer.get(), &name) = std::move(tensor);
  }
  for (auto& [name, layer] : by_name) {
    KVC_RETURN_IF_ERROR(ReadShape(name, layer.get()));
    KVC_RETURN_IF_ERROR(ChooseType(name, layer.get()));
    FoundTensor tensor;
    tensor.name = name + ".weight", tensor.type = layer->type, tensor.shape = {layer->rows, layer->cols};
    tensor.file = layer->codes.file, tensor.n_bytes = layer->n_bytes, tensor.packed = layer.get();
    rest.push_back(std::move(tensor));
    layers->push_back(std::move(layer));
  }
  for (FoundTensor& tensor : rest) {
    std::string name;
    if (!EndsWith(tensor.name, ".bias", &name)) continue;
    if (by_name.count(name) != 0) KVC_RETURN_IF_ERROR(MarkZero(&tensor));
  }
  *found = std::move(rest);
  return {};
}

Status PackedReader::Load(const PackedLinear& layer) {
  if (layer_ == &layer) return {};
  layer_ = nullptr;
  KVC_RETURN_IF_ERROR(ReadPart(layer.codes, &codes_));
  KVC_RETURN_IF_ERROR(ReadPart(layer.zeros, &zeros_));
  KVC_RETURN_IF_ERROR(ReadPart(layer.scales, &scales_));
  KVC_RETURN_IF_ERROR(ReadPart(layer.order, &order_));
  layer_ = &layer;
  return {};
}

int32_t PackedReader::Code(int64_t row, int64_t col) const {
  if (layer_->scheme.kind == PackedScheme::kGptq)
    return Nibble(codes_[static_cast<size_t>(col / kPerWord * layer_->rows + row)],
                  static_cast<int32_t>(col % kPerWord));
  return Nibble(codes_[static_cast<size_t>(col * (layer_->rows / kPerWord) + row / kPerWord)],
                kAwqPlace[row % kPerWord]);
}

int32_t PackedReader::Zero(int64_t row, int64_t group) const {
  const uint32_t word = zeros_[static_cast<size_t>(group * (layer_->rows / kPerWord) + row / kPerWord)];
  const auto place = static_cast<int32_t>(row % kPerWord);
  if (layer_->scheme.kind == PackedScheme::kAwq) return Nibble(word, kAwqPlace[place]);
  return (Nibble(word, place) + layer_->scheme.zero_step) & 15;
}

// Columns outside, rows inside: the packed rows are the columns.
void PackedReader::Rows(int64_t first, int64_t n, uint8_t* out) const {
  const PackedLinear& layer = *layer_;
  const int64_t row_bytes = SourceBytes(layer.type, layer.cols);
  const auto scale = [&](int64_t row, int64_t group) {
    return scales_[static_cast<size_t>(group * layer.rows + row)];
  };
  if (layer.type == SourceType::kUnordered4) {
    for (int64_t c = 0; c < layer.cols; ++c) {
      const int64_t g = order_[static_cast<size_t>(c)];
      for (int64_t r = first; r < first + n; ++r) {
        const float value = F16ToFloat(scale(r, g)) * static_cast<float>(Code(r, c) - Zero(r, g));
        std::memcpy(out + (r - first) * row_bytes + 4 * c, &value, 4);
      }
    }
    return;
  }
  const BlockFormat& block = *BlockFormatOf(layer.type);
  for (int64_t c = 0; c < layer.cols; c += block.elements) {
    uint8_t* to = out + c / block.elements * block.bytes;
    for (int64_t r = first; r < first + n; ++r, to += row_bytes) {
      const int64_t g = c / layer.group;
      const uint16_t bits = scale(r, g);
      const int32_t zero = Zero(r, g);
      to[0] = static_cast<uint8_t>(bits), to[1] = static_cast<uint8_t>(bits >> 8);
      for (int32_t i = 0; i < block.elements; ++i) to[2 + i] = static_cast<uint8_t>(Code(r, c + i) - zero);
    }
  }
}

}  // namespace kvc
