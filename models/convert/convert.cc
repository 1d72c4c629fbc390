#include "models/convert/convert.h"

#include <algorithm>
#include <cstring>

#include "include/kvc/kvc.h"
#include "lib/model/model_check.h"
#include "lib/ops/devices.h"
#include "models/convert/convert_plan.h"
#include "models/convert/gguf_parts.h"
#include "models/convert/head_scores_json.h"
#include "models/convert/lora.h"
#include "models/convert/output_file.h"
#include "models/convert/printable.h"
#include "models/convert/sources.h"
#include "models/convert/tensor_stream.h"
#include "models/convert/weight_codec.h"

namespace kvc {
namespace {

constexpr int64_t kMaxHeadScoreBytes = 1 << 26;

Result<Checkpoint> ReadSource(const std::string& source, const RopeOptions& options) {
  if (DirectoryExists(source)) return ReadHfDirectory(source, options);
  auto file = SourceFile::Open(source);
  if (!file.ok()) return file.status();
  uint8_t start[9] = {};
  KVC_RETURN_IF_ERROR(file.value()->Read(0, start, std::min<int64_t>(9, file.value()->size())));
  const auto begins = [&](const char* magic) { return std::memcmp(start, magic, std::strlen(magic)) == 0; };
  if (begins("GGUF")) return ReadGguf(source, options);
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
  KVC_RETURN_IF_ERROR(RefuseLfsPointer(*file.value()));
  if (NamedGguf(source))
    return Error(Code::kBadModel, "%s: does not begin with GGUF: not a GGUF file, or an incomplete download",
                 source.c_str());
  return ReadLlama2c(source, options);
}

// An extension of rotations has to have some, and says what it does.
Status NoteExtension(const std::string& source, Checkpoint* checkpoint) {
  const ExtendedRope& extended = checkpoint->extended;
  if (extended.by.kind == RopeExtension::kNone) return {};
  const std::vector<LayerConfig>& layers = checkpoint->content.config.layers;
  const bool rotates =
      layers.empty() ||
      std::any_of(layers.begin(), layers.end(), [](const LayerConfig& layer) { return layer.rope == 0; });
  if (!rotates) {
    return Error(Code::kUnsupported, "%s: no layer rotates with its positions, so %s has nothing to extend",
                 source.c_str(), RopeExtensionText(extended.by).c_str());
  }
  for (std::string& note : RopeExtensionNotes(extended)) checkpoint->warnings.push_back(std::move(note));
  return {};
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
  if (options.rope.kind != RopeExtension::kNone)
    content.source += " + rope " + RopeExtensionText(options.rope);
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
  return {"none",       "native",     "avx2", "avxvnni", "avx512",
          "avx512vnni", "avx512bf16", "neon", "neondot", "neoni8mm"};
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
  auto read = ReadSource(source, {options.context, options.rope});
  if (!read.ok()) return read.status();
  Checkpoint& checkpoint = read.value();
  KVC_RETURN_IF_ERROR(NoteExtension(source, &checkpoint));
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
  const auto pool = ThreadPool::Create(0);
  if (!pool.ok()) return pool.status();
  auto writer =
      ModelWriter::Create(out_path, std::move(checkpoint.content), std::move(plans), pool.value().get());
  if (!writer.ok()) return writer.status();
  ConvertProgress progress;
  progress.tensors_total = report->n_tensors;
  for (const SourceTensor& t : checkpoint.tensors) progress.bytes_total += BytesInFile(t, t.rows);
  const auto after_block = [&](int64_t n_bytes) {
    progress.bytes_done += n_bytes;
    return options.progress == nullptr || options.progress(progress);
  };
  TensorStream stream(writer.value().get(), &lora, pool.value().get(), report);
  for (size_t i = 0; i < targets.size(); ++i) {
    KVC_RETURN_IF_ERROR(stream.Convert(checkpoint.tensors[i], targets[i], after_block));
    ++progress.tensors_done;
  }
  return writer.value()->Finish();
}

}  // namespace kvc
