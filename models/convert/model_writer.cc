#include "models/convert/model_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/atomic_file.h"
#include "lib/base/hash.h"
#include "lib/model/model_check.h"
#include "lib/model/model_file_container.h"
#include "lib/model/tensor_scan.h"
#include "models/convert/model_directory.h"

namespace kvc {
namespace {

constexpr int64_t kBlockBytes =
    256 * 1024;  // bytes collected before they are hashed and written; a multiple of 64

constexpr int64_t kPackBytes = 4 << 20;  // of panels made before they are written

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

TensorEntry EntryOf(const TensorPlan& plan) {
  TensorEntry entry;
  entry.role = plan.role, entry.layer = plan.layer;
  entry.weight.type = plan.type, entry.weight.rows = plan.rows, entry.weight.cols = plan.cols;
  entry.weight.group = plan.group, entry.weight.layout = plan.layout;
  return entry;
}

// A vocabulary may have more rows than the tokenizer has pieces (padding to a round number): the rest are
// unused.
void FillPieces(int32_t vocab_size, TokenizerSpec* spec) {
  const size_t n = static_cast<size_t>(vocab_size);
  if (vocab_size > kMaxVocab || spec->pieces.size() >= n || spec->piece_kinds.size() != spec->pieces.size())
    return;
  if (!spec->scores.empty() && spec->scores.size() == spec->pieces.size()) spec->scores.resize(n, 0.0f);
  spec->pieces.resize(n);
  spec->piece_kinds.resize(n, PieceKind::kUnused);
}

// The oldest version of the container that can hold all of this.
uint32_t VersionFor(const ModelConfig& config, const TokenizerSpec& tokenizer,
                    const std::vector<TensorEntry>& entries) {
  if (tokenizer.n_byte_patterns > 0) return 6;
  if (!tokenizer.begin_tokens.empty()) return 5;
  const auto newest = [](const TensorEntry& t) { return IsVersion4Role(t.role); };
  if (!config.fits_version_3() || std::any_of(entries.begin(), entries.end(), newest)) return 4;
  const auto newer = [](const TensorEntry& t) { return HasBlocks(t.weight.type); };
  if (std::any_of(entries.begin(), entries.end(), newer)) return 3;
  return config.fits_version_1() ? 1 : 2;
}

class FileWriter final : public ModelWriter {
 public:
  FileWriter(std::unique_ptr<AtomicFile> file, std::string path, ModelFileContent content,
             std::vector<TensorPlan> plans, std::vector<TensorEntry> entries, ThreadPool* pool)
      : pool_(pool),
        file_(std::move(file)),
        path_(std::move(path)),
        content_(std::move(content)),
        plans_(std::move(plans)),
        entries_(std::move(entries)),
        sections_(entries_.size()),
        block_(kBlockBytes) {
    for (SectionEntry& section : sections_) section.kind = kTensorSection;
  }

  // Leaves room for header and directory.
  Status Begin() {
    directory_bytes_ = static_cast<int64_t>(BuildDirectory(content_, plans_, sections_).size());
    if (directory_bytes_ > kMaxDirectoryBytes) {
      return Error(Code::kBadModel, "%s: the directory takes %lld bytes, the limit is %lld", path_.c_str(),
                   static_cast<long long>(directory_bytes_), static_cast<long long>(kMaxDirectoryBytes));
    }
    KVC_RETURN_IF_ERROR(WriteZeros(kHeaderBytes + directory_bytes_));
    return BeginTensor();
  }

  Status Append(const void* data, int64_t n_bytes) override {
    const uint8_t* bytes = static_cast<const uint8_t*>(data);
    while (n_bytes > 0) {
      if (index_ == entries_.size()) {
        return Error(Code::kInternal, "%s: %lld bytes after the last tensor", path_.c_str(),
                     static_cast<long long>(n_bytes));
      }
      if (packs_) {
        KVC_RETURN_IF_ERROR(Keep(&bytes, &n_bytes));
        continue;
      }
      // The zeros between codes and scales are ours to write.
      const bool in_data = position_ < layout_.data_bytes;
      const int64_t n = std::min(n_bytes, (in_data ? layout_.data_bytes : layout_.n_bytes) - position_);
      KVC_RETURN_IF_ERROR(Collect(bytes, n));
      bytes += n, n_bytes -= n;
      if (position_ == layout_.data_bytes && layout_.scales_bytes > 0) {
        static constexpr uint8_t kZeros[64] = {};
        KVC_RETURN_IF_ERROR(Collect(kZeros, layout_.scales_offset - layout_.data_bytes));
      }
      if (position_ == layout_.n_bytes) KVC_RETURN_IF_ERROR(EndTensor());
    }
    return {};
  }

  Status Finish(bool durable) override {
    if (index_ != entries_.size()) {
      return Error(Code::kInternal, "%s: %s has %lld of %lld bytes", path_.c_str(), Title().c_str(),
                   static_cast<long long>(position_), static_cast<long long>(layout_.n_bytes));
    }
    const std::vector<uint8_t> directory = BuildDirectory(content_, plans_, sections_);
    if (static_cast<int64_t>(directory.size()) != directory_bytes_) {
      return Error(Code::kInternal, "%s: the directory changed its size", path_.c_str());
    }
    ContainerHeader header;
    header.version = VersionFor(content_.config, content_.tokenizer, entries_);
    header.directory_bytes = directory.size();
    header.file_bytes = static_cast<uint64_t>(file_->size());
    header.directory_hash = Hash64(directory.data(), directory.size());
    uint8_t bytes[kHeaderBytes];
    EncodeHeader(header, bytes);
    KVC_RETURN_IF_ERROR(file_->WriteAt(0, bytes, kHeaderBytes));
    KVC_RETURN_IF_ERROR(file_->WriteAt(kHeaderBytes, directory.data(), directory_bytes_));
    return file_->Commit(durable);
  }

 private:
  std::string Title() const { return TensorTitle(entries_[index_].role, entries_[index_].layer); }

  Status WriteZeros(int64_t n_bytes) {
    std::fill(block_.begin(), block_.end(), uint8_t{0});
    for (int64_t left = n_bytes; left > 0; left -= kBlockBytes) {
      KVC_RETURN_IF_ERROR(file_->Write(block_.data(), std::min(left, kBlockBytes)));
    }
    return {};
  }

  Status BeginTensor() {
    KVC_RETURN_IF_ERROR(WriteZeros(RoundUp(file_->size(), kSectionAlignment) - file_->size()));
    sections_[index_].offset = static_cast<uint64_t>(file_->size());
    layout_ = PlaceOf(entries_[index_].weight);
    sections_[index_].size = static_cast<uint64_t>(layout_.n_bytes);
    position_ = 0;
    packs_ = plans_[index_].layout != WeightLayout::kRowMajor && plans_[index_].plain_checksum == 0;
    if (packs_) {
      Weight rows = entries_[index_].weight;
      rows.layout = WeightLayout::kRowMajor;
      plain_ = PlaceOf(rows);
      rows_.assign(static_cast<size_t>(plain_.n_bytes), uint8_t{0});
    }
    scan_ = std::make_unique<TensorScan>(entries_[index_]);
    return {};
  }

  // Takes the next bytes of a tensor that is packed once it is whole; first codes, then scales, zeros between
  // them.
  Status Keep(const uint8_t** bytes, int64_t* n_bytes) {
    const bool in_data = position_ < plain_.data_bytes;
    const int64_t n = std::min(*n_bytes, (in_data ? plain_.data_bytes : plain_.n_bytes) - position_);
    std::memcpy(rows_.data() + position_, *bytes, static_cast<size_t>(n));
    position_ += n, *bytes += n, *n_bytes -= n;
    if (position_ == plain_.data_bytes && plain_.scales_bytes > 0) position_ = plain_.scales_offset;
    return position_ == plain_.n_bytes ? Pack() : Status();
  }

  Status Pack() {
    TensorEntry rows = entries_[index_];
    rows.weight.layout = WeightLayout::kRowMajor;
    TensorScan scan(rows);
    scan.Update(rows_.data(), plain_.n_bytes);
    const Status finite = scan.CheckFinite();
    if (!finite.ok()) return Status(finite.code(), path_ + ": " + finite.message());
    plans_[index_].plain_checksum = scan.checksum();
    Weight from = rows.weight;
    from.data = rows_.data();
    if (plain_.scales_bytes > 0)
      from.scales = reinterpret_cast<const uint16_t*>(rows_.data() + plain_.scales_offset);
    position_ = 0, packs_ = false;
    const int64_t panel = PanelBytes(from), n_panels = PanelsOf(from.rows),
                  batch = std::min(n_panels, std::max<int64_t>(1, kPackBytes / panel));
    std::vector<uint8_t> panels(static_cast<size_t>(batch * panel));
    for (int64_t first = 0; first < n_panels; first += batch) {
      const int64_t n = std::min(batch, n_panels - first);
      const auto pack = [&](int64_t i, int) {
        PackElements(from, static_cast<int32_t>(first + i), panels.data() + i * panel);
      };
      if (pool_ != nullptr) {
        pool_->ParallelFor(n, pack);
      } else {
        for (int64_t i = 0; i < n; ++i) pack(i, 0);
      }
      KVC_RETURN_IF_ERROR(Collect(panels.data(), n * panel));
    }
    std::vector<uint16_t> scales(static_cast<size_t>(PanelScales(from)));
    for (int32_t p = 0; p < PanelsOf(from.rows) && !scales.empty(); ++p) {
      PackScales(from, p, scales.data());
      KVC_RETURN_IF_ERROR(Collect(reinterpret_cast<const uint8_t*>(scales.data()), 2 * PanelScales(from)));
    }
    rows_ = {};
    return EndTensor();
  }

  Status EndTensor() {
    KVC_RETURN_IF_ERROR(WriteBlock());
    const Status finite = scan_->CheckFinite();
    if (!finite.ok()) return Status(finite.code(), path_ + ": " + finite.message());
    sections_[index_].checksum = scan_->checksum();
    return ++index_ < entries_.size() ? BeginTensor() : Status();
  }

  Status Collect(const uint8_t* bytes, int64_t n_bytes) {
    while (n_bytes > 0) {
      if (n_collected_ == 0 && n_bytes >= kBlockBytes) {
        KVC_RETURN_IF_ERROR(WriteBytes(bytes, kBlockBytes));
        position_ += kBlockBytes, bytes += kBlockBytes, n_bytes -= kBlockBytes;
        continue;
      }
      const int64_t n = std::min(n_bytes, kBlockBytes - n_collected_);
      std::memcpy(block_.data() + n_collected_, bytes, static_cast<size_t>(n));
      n_collected_ += n, position_ += n, bytes += n, n_bytes -= n;
      if (n_collected_ == kBlockBytes) KVC_RETURN_IF_ERROR(WriteBlock());
    }
    return {};
  }

  Status WriteBlock() {
    KVC_RETURN_IF_ERROR(WriteBytes(block_.data(), n_collected_));
    n_collected_ = 0;
    return {};
  }

  Status WriteBytes(const uint8_t* bytes, int64_t n_bytes) {
    scan_->Update(bytes, n_bytes);
    return file_->Write(bytes, n_bytes);
  }

  ThreadPool* const pool_;
  const std::unique_ptr<AtomicFile> file_;
  const std::string path_;
  const ModelFileContent content_;
  std::vector<TensorPlan> plans_;
  const std::vector<TensorEntry> entries_;
  std::vector<SectionEntry> sections_;
  int64_t directory_bytes_ = 0;
  size_t index_ = 0;      // tensor being written
  WeightPlace layout_;    // of it
  int64_t position_ = 0;  // in its section
  std::unique_ptr<TensorScan> scan_;
  bool packs_ = false;          // it comes in row major and goes out in panels
  WeightPlace plain_;           // of it in row major
  std::vector<uint8_t> rows_;   // its bytes so far
  std::vector<uint8_t> block_;  // its newest bytes, not yet written
  int64_t n_collected_ = 0;
};

Status CheckContent(const ModelFileContent& content, const std::vector<TensorEntry>& entries) {
  KVC_RETURN_IF_ERROR(CheckConfig(content.config));
  KVC_RETURN_IF_ERROR(CheckTokenizerSpec(content.tokenizer, content.config));
  KVC_RETURN_IF_ERROR(CheckTurnFormat(content.turn_format));
  KVC_RETURN_IF_ERROR(CheckHeadScores(content.head_scores, content.config));
  const auto n_created_by = static_cast<int64_t>(content.created_by.size());
  const auto n_source = static_cast<int64_t>(content.source.size());
  KVC_RETURN_IF_ERROR(CheckCount("created_by", n_created_by, kMaxStringBytes, "bytes"));
  KVC_RETURN_IF_ERROR(CheckCount("source", n_source, kMaxStringBytes, "bytes"));
  return CheckTensors(entries, content.config);
}

}  // namespace

Status CompleteContent(ModelFileContent* content, const std::vector<TensorPlan>& tensors) {
  std::vector<TensorEntry> entries;
  for (const TensorPlan& plan : tensors) entries.push_back(EntryOf(plan));
  FillPieces(content->config.vocab_size, &content->tokenizer);
  return CheckContent(*content, entries);
}

Result<std::unique_ptr<ModelWriter>> ModelWriter::Create(const std::string& path, ModelFileContent content,
                                                         std::vector<TensorPlan> tensors, ThreadPool* pool) {
  std::vector<TensorEntry> entries;
  for (const TensorPlan& plan : tensors) entries.push_back(EntryOf(plan));
  const Status status = CompleteContent(&content, tensors);
  if (!status.ok()) return Status(status.code(), path + ": cannot be written: " + status.message());
  Result<std::unique_ptr<AtomicFile>> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  auto writer = std::make_unique<FileWriter>(std::move(file.value()), path, std::move(content),
                                             std::move(tensors), std::move(entries), pool);
  KVC_RETURN_IF_ERROR(writer->Begin());
  return std::unique_ptr<ModelWriter>(std::move(writer));
}

Status RewriteHeadScores(const std::string& in_path, const std::string& out_path,
                         const std::vector<HeadScoreTable>& tables) {
  MemoryMeter meter(0);
  Result<std::unique_ptr<ModelFile>> opened = ModelFile::Open(in_path, &meter);
  if (!opened.ok()) return opened.status();
  const ModelFile& in = *opened.value();
  std::vector<TensorPlan> plans;
  for (const TensorEntry& t : in.tensors()) {
    plans.push_back({t.role, t.layer, t.weight.type, t.weight.rows, t.weight.cols, t.weight.group,
                     t.weight.layout, t.plain_checksum});
  }
  ModelFileContent content{in.config(), in.tokenizer_spec(), in.turn_format(),
                           tables,      in.created_by(),     in.source()};
  Result<std::unique_ptr<ModelWriter>> writer =
      ModelWriter::Create(out_path, std::move(content), std::move(plans));
  if (!writer.ok()) return writer.status();
  for (const TensorEntry& t : in.tensors()) {
    const WeightPlace layout = PlaceOf(t.weight);
    KVC_RETURN_IF_ERROR(writer.value()->Append(t.weight.data, layout.data_bytes));
    if (layout.scales_bytes > 0)
      KVC_RETURN_IF_ERROR(writer.value()->Append(t.weight.scales, layout.scales_bytes));
  }
  return writer.value()->Finish();
}

}  // namespace kvc
