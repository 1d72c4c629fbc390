#include "models/convert/convert.h"

#include <algorithm>
#include <cstring>

#include "include/kvc/kvc.h"
#include "lib/base/half.h"
#include "lib/model/model_check.h"
#include "lib/ops/devices.h"
#include "models/convert/convert_plan.h"
#include "models/convert/head_scores_json.h"
#include "models/convert/lora.h"
#include "models/convert/output_file.h"
#include "models/convert/packed_mxfp4.h"
#include "models/convert/printable.h"
#include "models/convert/sources.h"
#include "models/convert/weight_codec.h"

namespace kvc {
namespace {

constexpr int64_t kBlockElements = 1 << 20;  // converted at a time, or one row when that is longer
constexpr int64_t kMaxHeadScoreBytes = 1 << 26;

Result<Checkpoint> ReadSource(const std::string& source, int32_t context) {
  if (DirectoryExists(source)) return ReadHfDirectory(source, context);
  auto file = SourceFile::Open(source);
  if (!file.ok()) return file.status();
  uint8_t start[9] = {};
  KVC_RETURN_IF_ERROR(file.value()->Read(0, start, std::min<int64_t>(9, file.value()->size())));
  const auto begins = [&](const char* magic) { return std::memcmp(start, magic, std::strlen(magic)) == 0; };
  if (begins("GGUF")) return ReadGguf(source, context);
  if (begins(kModelFileMagic)) return Error(Code::kInvalid, "%s: is a .kvc file already", source.c_str());
  if (begins("PK\3\4"))
    return Error(Code::kUnsupported, "%s: PyTorch files are not supported: save the weights as safetensors",
                 source.c_str());
  if (begins("24ka"))
    return Error(Code::kUnsupported,
                 "%s: only the legacy format of llama2.c is supported (export with version 0)",
                 source.c_str());
  if (start[8] == '{')
    return Error(Code::kUnsupported,
                 "%s: a safetensors file alone lacks its configuration: give the directory", source.c_str());
  return ReadLlama2c(source);
}

WeightTarget TargetOf(const SourceTensor& tensor, const ConvertOptions& options, bool changes) {
  if (IsVectorRole(tensor.role)) return {WeightType::kF32, 0};
  WeightTarget kept = KeptAs(tensor.type);
  // Four bits were chosen for the values that an adapter has changed: rounded to them again it would be lost.
  if (changes && kept.group != 0) kept = {WeightType::kInt8, 32};
  const bool codes = options.weights == WeightChoice::kInt8 || options.weights == WeightChoice::kInt4;
  if (codes && tensor.role == TensorRole::kRouter) return kept;
  switch (options.weights) {
    case WeightChoice::kKeep:
      return kept;
    case WeightChoice::kF32:
      return {WeightType::kF32, 0};
    case WeightChoice::kBf16:
      return {WeightType::kBf16, 0};
    case WeightChoice::kInt8:
    case WeightChoice::kInt4:
      break;
  }
  const bool table = tensor.role == TensorRole::kEmbedding || tensor.role == TensorRole::kOutputHead;
  const bool int4 = options.weights == WeightChoice::kInt4;
  if (int4 && kept.type == WeightType::kInt4) return kept;
  for (int32_t group = options.group; group >= 32; group /= 2) {
    if (tensor.cols % group == 0) return {int4 && !table ? WeightType::kInt4 : WeightType::kInt8, group};
  }
  return kept;
}

// Streams one tensor after the other from the source into the writer, in blocks of whole rows.
class TensorStream {
 public:
  TensorStream(ModelWriter* writer, LoraMerge* lora, ConvertReport* report)
      : writer_(writer), lora_(lora), report_(report) {}

  // after_block(bytes of the source): false stops with kCancelled.
  template <typename F>
  Status Convert(const SourceTensor& tensor, const WeightTarget& target, F&& after_block) {
    const int64_t row_bytes = SourceBytes(tensor.type, ColsIn(tensor));
    const int64_t max_rows =
        std::min<int64_t>(tensor.rows, std::max<int64_t>(1, kBlockElements / tensor.cols));
    changes_ = lora_->Changes(tensor);
    Reserve(tensor, target, max_rows);
    squares_ = lost_squares_ = 0;
    const int64_t written = report_->bytes_written;
    int64_t row = 0;
    for (const SourceTensor::Run& run : tensor.runs) {
      for (int64_t done = 0; done < run.rows;) {
        const int64_t n_rows = std::min<int64_t>(max_rows, run.rows - done);
        KVC_RETURN_IF_ERROR(Read(tensor, run, done, n_rows, row_bytes));
        KVC_RETURN_IF_ERROR(Block(tensor, target, {run, done, row, n_rows}));
        done += n_rows, row += n_rows;
        const int64_t n_bytes = BytesInFile(tensor, n_rows);
        report_->bytes_read += n_bytes;
        if (!after_block(n_bytes)) return Error(Code::kCancelled, "converting was cancelled");
      }
    }
    KVC_RETURN_IF_ERROR(Write(scales_.data(), static_cast<int64_t>(scales_.size()) * 2));
    if (!IsVectorRole(tensor.role)) Count(tensor, target, report_->bytes_written - written);
    return {};
  }

 private:
  static int32_t ColsIn(const SourceTensor& tensor) {
    return tensor.source_cols > 0 ? tensor.source_cols : tensor.cols;
  }

  // Rows [first, first + n) of a run, the first of them row `row` of the tensor.
  struct Rows {
    const SourceTensor::Run& run;
    int64_t first, row, n;
  };

  // Rows [first, first + n) of a run into in_.
  Status Read(const SourceTensor& tensor, const SourceTensor::Run& run, int64_t first, int64_t n,
              int64_t row_bytes) {
    const PackedLinear* packed = run.packed == nullptr ? tensor.packed : run.packed;
    if (packed == nullptr) {
      const SourceFile& file = run.file == nullptr ? *tensor.file : *run.file;
      return file.Read(run.offset + first * row_bytes, in_.data(), n * row_bytes);
    }
    if (packed->scheme.kind == PackedScheme::kMxfp4)
      return ReadMxfp4Rows(*packed, run.offset / row_bytes + first * run.step, n, run.step, &blocks_,
                           in_.data());
    KVC_RETURN_IF_ERROR(packed_.Load(*packed));
    packed_.Rows(run.offset / row_bytes + first, n, in_.data());
    report_->peak_buffer_bytes = std::max(report_->peak_buffer_bytes, BufferBytes());
    return {};
  }

  int64_t BufferBytes() const {
    return static_cast<int64_t>(in_.capacity() + blocks_.capacity() +
                                (values_.capacity() + stored_.capacity()) * 4 + out_.capacity() +
                                scales_.capacity() * 2) +
           packed_.bytes() + lora_->bytes();
  }

  void Reserve(const SourceTensor& tensor, const WeightTarget& target, int64_t max_rows) {
    const size_t n = static_cast<size_t>(max_rows) * static_cast<size_t>(ColsIn(tensor));
    in_.resize(static_cast<size_t>(SourceBytes(tensor.type, static_cast<int64_t>(n))));
    values_.resize(n);
    stored_.resize(Exact(tensor, target) ? 0 : n);
    out_.resize(static_cast<size_t>(max_rows) *
                static_cast<size_t>(WeightRowBytes(target.type, tensor.cols)));
    scales_.resize(static_cast<size_t>(tensor.rows) *
                   static_cast<size_t>(RowScales({target.type, {}, tensor.rows, tensor.cols, target.group})));
    report_->peak_buffer_bytes = std::max(report_->peak_buffer_bytes, BufferBytes());
  }

  // Whether what is written is what was read, or what an adapter made of it.
  bool Exact(const SourceTensor& tensor, const WeightTarget& target) const {
    return changes_ ? target.type == WeightType::kF32 : IsExact(tensor.type, target);
  }

  Status Write(const void* data, int64_t n_bytes) {
    report_->bytes_written += n_bytes;
    return writer_->Append(data, n_bytes);
  }

  void Count(const SourceTensor& tensor, const WeightTarget& target, int64_t bytes_out) {
    std::vector<ConvertedType>& types = report_->types;
    const auto same = [&](const ConvertedType& t) {
      return t.source == SourceTypeName(tensor.type) && t.stored == WeightTypeName(target.type) &&
             t.group == target.group;
    };
    auto found = std::find_if(types.begin(), types.end(), same);
    if (found == types.end()) {
      types.push_back({SourceTypeName(tensor.type), WeightTypeName(target.type), target.group});
      found = types.end() - 1;
    }
    ++found->n_tensors;
    found->bytes_read += BytesInFile(tensor, tensor.rows);
    found->bytes_written += bytes_out;
    found->squares += squares_, found->lost_squares += lost_squares_;
  }

  // The rows that stand in in_.
  Status Block(const SourceTensor& tensor, const WeightTarget& target, const Rows& rows) {
    const int64_t row = rows.row, n_in = rows.n * ColsIn(tensor), n = rows.n * tensor.cols,
                  out_bytes = rows.n * WeightRowBytes(target.type, tensor.cols);
    const int64_t no_number = FirstNotFiniteElement(tensor.type, in_.data(), n_in);
    if (no_number >= 0) return BadElement(tensor, row, no_number, "is not a finite number", ColsIn(tensor));
    if (tensor.add == 0 && tensor.order.empty() && !changes_ && KeepsBytes(tensor.type, target))
      return Write(in_.data(), out_bytes);
    uint16_t* scales = scales_.empty() ? nullptr : scales_.data() + row * (tensor.cols / target.group);
    const bool exact = Exact(tensor, target), keeps_codes = !changes_ && KeepsCodes(tensor.type, target);
    if (!exact || !keeps_codes) DecodeElements(tensor.type, in_.data(), n_in, values_.data());
    if (!tensor.order.empty()) Reorder(tensor, rows.n);
    for (int64_t i = 0; tensor.add != 0 && i < n; ++i) values_[static_cast<size_t>(i)] += tensor.add;
    if (changes_) KVC_RETURN_IF_ERROR(Adapt(tensor, rows));
    if (target.type == WeightType::kF32) return Write(values_.data(), out_bytes);
    const int64_t bad = keeps_codes ? KeepCodes(tensor.type, target, in_.data(), n, out_.data(), scales)
                                    : Encode(target, n, scales);
    if (bad >= 0) {
      const std::string why = Format("or one of its group is too large for %s", WeightTypeName(target.type));
      return BadElement(tensor, row, bad, why.c_str());
    }
    if (!exact) Measure(target, scales, n);
    return Write(out_.data(), out_bytes);
  }

  // Elements of n rows of values_ as the model has them.
  void Reorder(const SourceTensor& tensor, int64_t n) {
    const std::vector<float> row_before = values_;
    for (int64_t i = 0; i < n * tensor.cols; ++i) {
      const int64_t row = i / tensor.cols, at = tensor.order[static_cast<size_t>(i % tensor.cols)];
      values_[static_cast<size_t>(i)] = row_before[static_cast<size_t>(row * ColsIn(tensor) + at)];
    }
  }

  // What adapters add to values_.
  Status Adapt(const SourceTensor& tensor, const Rows& rows) {
    KVC_RETURN_IF_ERROR(lora_->Add(tensor, rows.run, rows.first, rows.n, values_.data()));
    report_->peak_buffer_bytes = std::max(report_->peak_buffer_bytes, BufferBytes());
    const int64_t bad = FirstNotFinite(WeightType::kF32, values_.data(), rows.n * tensor.cols);
    return bad < 0 ? Status() : BadElement(tensor, rows.row, bad, "with the adapter is too large");
  }

  // values_ into out_; the index of the first that cannot be coded, or -1.
  int64_t Encode(const WeightTarget& target, int64_t n, uint16_t* scales) {
    switch (target.type) {
      case WeightType::kInt8:
        return EncodeInt8(values_.data(), n, target.group, out_.data(), scales);
      case WeightType::kInt4:
        return EncodeInt4(values_.data(), n, target.group, out_.data(), scales);
      default: {
        uint16_t* out = reinterpret_cast<uint16_t*>(out_.data());
        const bool half = target.type == WeightType::kF16;
        for (int64_t i = 0; i < n; ++i) {
          const float value = values_[static_cast<size_t>(i)];
          out[i] = half ? FloatToF16(value) : FloatToBf16(value);
        }
        return FirstNotFinite(target.type, out, n);
      }
    }
  }

  // What values_ lost in out_.
  void Measure(const WeightTarget& target, const uint16_t* scales, int64_t n) {
    DecodeStored(target, out_.data(), scales, n, stored_.data());
    constexpr int64_t kRun = 64;  // summed in f32
    for (int64_t at = 0; at < n; at += kRun) {
      const float *x = &values_[static_cast<size_t>(at)], *y = &stored_[static_cast<size_t>(at)];
      float squares = 0, lost = 0;
      for (int64_t i = 0; i < std::min(kRun, n - at); ++i)
        squares += x[i] * x[i], lost += (x[i] - y[i]) * (x[i] - y[i]);
      squares_ += double{squares}, lost_squares_ += double{lost};
    }
  }

  // Of the rows from `row` on, the element with this index.
  static Status BadElement(const SourceTensor& tensor, int64_t row, int64_t index, const char* why) {
    return BadElement(tensor, row, index, why, tensor.cols);
  }
  static Status BadElement(const SourceTensor& tensor, int64_t row, int64_t index, const char* why,
                           int32_t cols) {
    return Error(Code::kBadModel, "%s: tensor %s: row %lld, column %lld: the value %s",
                 tensor.file->path().c_str(), tensor.name.c_str(), static_cast<long long>(row + index / cols),
                 static_cast<long long>(index % cols), why);
  }

  ModelWriter* writer_;
  LoraMerge* lora_;
  ConvertReport* report_;
  bool changes_ = false;  // an adapter changes the tensor
  PackedReader packed_;
  std::vector<uint8_t> in_, out_, blocks_;  // blocks_: of MXFP4 as they were read
  std::vector<float> values_, stored_;
  double squares_ = 0, lost_squares_ = 0;  // of the tensor: its values, and what they differ by once stored
  std::vector<uint16_t> scales_;           // of the whole tensor: they follow its codes
};

Status ReadHeadScores(const ConvertOptions& options, Checkpoint* checkpoint) {
  ModelFileContent& content = checkpoint->content;
  for (const std::string& path : options.head_score_files) {
    checkpoint->inputs.Add(path);
    auto bytes = ReadWholeFile(path, kMaxHeadScoreBytes);
    if (!bytes.ok()) return bytes.status();
    auto tables = ParseHeadScores(BytesOf(bytes.value()), path, content.config);
    if (!tables.ok()) return tables.status();
    for (HeadScoreTable& table : tables.value()) content.head_scores.push_back(std::move(table));
  }
  return {};
}

Status ReadAdapters(const ConvertOptions& options, Checkpoint* checkpoint, LoraMerge* lora,
                    ConvertReport* report) {
  for (const LoraChoice& choice : options.adapters) {
    auto pairs = ReadLora(choice, checkpoint);
    if (!pairs.ok()) return pairs.status();
    report->n_adapted.push_back(static_cast<int32_t>(pairs.value().size()));
    KVC_RETURN_IF_ERROR(lora->Bind(std::move(pairs.value()), *checkpoint, choice.path));
  }
  return {};
}

Status CheckOptions(const std::string& source, const std::string& out_path, const ConvertOptions& options) {
  if (options.group != 32 && options.group != 64 && options.group != 128) {
    return Error(Code::kInvalid, "group is %d; allowed: 32, 64, 128", options.group);
  }
  if (options.context < 0 || options.context > kMaxContext)
    return Error(Code::kInvalid, "context is %d; allowed: 0 to %d", options.context, kMaxContext);
  for (const LoraChoice& choice : options.adapters) {
    if (choice.strength >= -100 && choice.strength <= 100) continue;
    return Error(Code::kInvalid, "%s: strength %g; allowed: -100 to 100", choice.path.c_str(),
                 double{choice.strength});
  }
  InputFiles inputs;  // those that are known before anything is read
  inputs.Add(source);
  for (const std::string& path : options.head_score_files) inputs.Add(path);
  return options.dry_run ? Status() : inputs.CheckOutput(out_path);
}

void Describe(const std::string& source, const ConvertOptions& options, Checkpoint* checkpoint) {
  ModelFileContent& content = checkpoint->content;
  const Result<std::string> canonical = ResolveOutput(source);  // "." has a name too
  const std::string base = Printable(BaseName(canonical.ok() ? canonical.value() : source));
  if (!options.name.empty()) content.config.name = options.name;
  if (content.config.name.empty())
    content.config.name = DirectoryExists(source) ? base : base.substr(0, base.find_last_of('.'));
  content.created_by =
      Format("kvc %d.%d.%d", KVC_VERSION / 10000, KVC_VERSION / 100 % 100, KVC_VERSION % 100);
  content.source = checkpoint->kind + ": " + base;
  for (const LoraChoice& choice : options.adapters)
    content.source += " + " + Printable(BaseName(choice.path));
}

// Matrices that are multiplied; of a table that is only looked up few rows are ever read.
bool Packs(const SourceTensor& tensor, const TensorPlan& plan, const ConvertOptions& options,
           const ModelConfig& config) {
  if (options.layout == WeightLayout::kRowMajor || IsVectorRole(tensor.role)) return false;
  if (tensor.role == TensorRole::kEmbedding && !config.tied_head) return false;
  return FitsPanels({plan.type, WeightLayout::kRowMajor, plan.rows, plan.cols, plan.group, nullptr, nullptr,
                     StackOf(config, plan.role)});
}

std::vector<TensorPlan> PlanTensors(const ConvertOptions& options, const LoraMerge& lora,
                                    Checkpoint* checkpoint, std::vector<WeightTarget>* targets) {
  std::vector<TensorPlan> plans;
  int32_t n_kept = 0;
  for (const SourceTensor& tensor : checkpoint->tensors) {
    const WeightTarget target = TargetOf(tensor, options, lora.Changes(tensor));
    const bool wanted_codes =
        options.weights == WeightChoice::kInt8 || options.weights == WeightChoice::kInt4;
    if (wanted_codes && !IsVectorRole(tensor.role) && tensor.role != TensorRole::kRouter && target.group == 0)
      ++n_kept;
    targets->push_back(target);
    plans.push_back({tensor.role, tensor.layer, target.type, tensor.rows, tensor.cols, target.group});
    if (Packs(tensor, plans.back(), options, checkpoint->content.config))
      plans.back().layout = options.layout;
  }
  if (n_kept > 0) {
    checkpoint->warnings.push_back(
        Format("%d matrices keep their type: their columns do not divide into groups of 32", n_kept));
  }
  return plans;
}

}  // namespace

std::vector<std::string> PackTargets() {
  return {"none", "native", "avx2", "avxvnni", "avx512", "avx512vnni", "neon", "neondot", "neoni8mm"};
}

// One geometry serves them all.
Result<WeightLayout> LayoutFor(const std::string& target) {
  if (target == "none") return WeightLayout::kRowMajor;
  if (target == "native") return PreferredLayout();
  const std::vector<std::string> targets = PackTargets();
  if (std::find(targets.begin(), targets.end(), target) != targets.end()) return WeightLayout::kPanels16;
  std::string names;
  for (const std::string& name : targets) names += (names.empty() ? "" : ", ") + name;
  return Error(Code::kInvalid, "weights cannot be packed for \"%.32s\"; allowed: %s", target.c_str(),
               names.c_str());
}

Status Convert(const std::string& source, const std::string& out_path, const ConvertOptions& options,
               ConvertReport* report) {
  ConvertReport unused;
  if (report == nullptr) report = &unused;
  *report = {};
  KVC_RETURN_IF_ERROR(CheckOptions(source, out_path, options));
  const bool writes = !options.dry_run;
  auto read = ReadSource(source, options.context);
  if (!read.ok()) return read.status();
  Checkpoint& checkpoint = read.value();
  KVC_RETURN_IF_ERROR(ReadHeadScores(options, &checkpoint));
  LoraMerge lora;
  KVC_RETURN_IF_ERROR(ReadAdapters(options, &checkpoint, &lora, report));
  if (writes) KVC_RETURN_IF_ERROR(checkpoint.inputs.CheckOutput(out_path));
  Describe(source, options, &checkpoint);
  std::vector<WeightTarget> targets;
  std::vector<TensorPlan> plans = PlanTensors(options, lora, &checkpoint, &targets);
  report->kind = checkpoint.kind, report->architecture = checkpoint.content.config.architecture;
  report->name = checkpoint.content.config.name, report->n_tensors = static_cast<int32_t>(plans.size());
  for (const TensorPlan& plan : plans) report->n_packed += plan.layout != WeightLayout::kRowMajor;
  report->warnings = checkpoint.warnings;
  const Status content = CompleteContent(&checkpoint.content, plans);
  if (!content.ok()) return Status(content.code(), source + ": " + content.message());
  const Status tokenizer = TryTokenizer(checkpoint.content.tokenizer);
  if (!tokenizer.ok()) return Status(tokenizer.code(), source + ": tokenizer: " + tokenizer.message());
  if (options.planned != nullptr) options.planned(MakeConvertPlan(checkpoint, targets, plans));
  if (!writes) return {};
  auto writer = ModelWriter::Create(out_path, std::move(checkpoint.content), std::move(plans));
  if (!writer.ok()) return writer.status();
  ConvertProgress progress;
  progress.tensors_total = report->n_tensors;
  for (const SourceTensor& t : checkpoint.tensors) progress.bytes_total += BytesInFile(t, t.rows);
  const auto after_block = [&](int64_t n_bytes) {
    progress.bytes_done += n_bytes;
    return options.progress == nullptr || options.progress(progress);
  };
  TensorStream stream(writer.value().get(), &lora, report);
  for (size_t i = 0; i < targets.size(); ++i) {
    KVC_RETURN_IF_ERROR(stream.Convert(checkpoint.tensors[i], targets[i], after_block));
    ++progress.tensors_done;
  }
  return writer.value()->Finish();
}

}  // namespace kvc
