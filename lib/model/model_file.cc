#include "lib/model/model_file.h"

#include <algorithm>
#include <utility>

#include "lib/base/hash.h"
#include "lib/base/mapped_file.h"
#include "lib/model/model_check.h"
#include "lib/model/model_file_container.h"
#include "lib/model/model_file_describe.h"
#include "lib/model/model_file_directory.h"
#include "lib/model/model_fingerprint.h"
#include "lib/model/tensor_scan.h"

namespace kvc {
namespace {

constexpr int64_t kScanBlock = 256 * 1024;  // bytes: hashed, then looked through while still in the L2 cache

// The kind of failure goes in front, so that a message says what is wrong with the file as a whole.
Status Classify(const Status& status) {
  if (status.code() == Code::kUnsupported) return Status(status.code(), "unsupported: " + status.message());
  if (status.code() == Code::kBadModel) return Status(status.code(), "damaged: " + status.message());
  return status;
}

Status Prefix(const std::string& name, const Status& status) {
  return status.ok() ? status : Status(status.code(), name + ": " + status.message());
}

class VerifiedFile final : public ModelFile {
 public:
  // name goes in front of every message. The bytes are file's, or data[n_bytes] of the caller.
  static Result<std::unique_ptr<ModelFile>> Create(const std::string& name, MappedFile file,
                                                   const uint8_t* data, int64_t n_bytes, MemoryMeter* meter,
                                                   CallState* watch, bool trusted) {
    std::unique_ptr<VerifiedFile> model(new VerifiedFile(name, std::move(file), data, n_bytes));
    KVC_RETURN_IF_ERROR(Prefix(name, model->Verify(meter, watch, trusted)));
    return std::unique_ptr<ModelFile>(std::move(model));
  }

  const std::string& name() const override { return name_; }
  const ModelConfig& config() const override { return content_.config; }
  const TokenizerView& tokenizer() const override { return content_.tokenizer; }
  const TurnFormat& turn_format() const override { return content_.turn_format; }
  const std::vector<HeadScoreTable>& head_scores() const override { return content_.head_scores; }
  const std::vector<TensorEntry>& tensors() const override { return content_.tensors; }
  uint64_t fingerprint() const override { return fingerprint_; }
  uint32_t version() const override { return header_.version; }
  int64_t file_bytes() const override { return n_bytes_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  int64_t Drop(const TensorEntry& t) const override { return file_.Drop(t.offset, t.size); }
  bool borrowed() const override { return file_.size() == 0; }
  bool weights_are_metered() const override { return file_.size() > 0 && !file_.mapped(); }
  const std::string& created_by() const override { return content_.created_by; }
  const std::string& source() const override { return content_.source; }
  std::string DescribeJson() const override { return DescribeModelFile(*this); }

 private:
  VerifiedFile(const std::string& name, MappedFile file, const uint8_t* data, int64_t n_bytes)
      : name_(name), file_(std::move(file)), data_(data), n_bytes_(n_bytes) {}

  Status Verify(MemoryMeter* meter, CallState* watch, bool trusted) {
    KVC_RETURN_IF_ERROR(DecodeHeader(data_, n_bytes_, &header_));
    const int64_t directory_bytes = static_cast<int64_t>(header_.directory_bytes);
    KVC_RETURN_IF_ERROR(
        Classify(ReadDirectory(data_ + kHeaderBytes, directory_bytes, meter, &charge_, &content_)));
    KVC_RETURN_IF_ERROR(Classify(CheckContent()));
    if (content_.config.layers.empty()) {
      content_.config.layers.assign(static_cast<size_t>(content_.config.n_layers),
                                    {content_.config.sliding_window, 0});
    }
    KVC_RETURN_IF_ERROR(Classify(CheckSections(data_, header_, content_.sections)));
    KVC_RETURN_IF_ERROR(Classify(BindTensors()));
    AskForHugePages();
    if (!trusted) KVC_RETURN_IF_ERROR(Classify(ScanSections(watch)));
    if (watch != nullptr) watch->SetProgress(kVerifyShare);
    fingerprint_ = Fingerprint(content_.config, content_.tokenizer, content_.tensors);
    return {};
  }

  Status CheckContent() const {
    KVC_RETURN_IF_ERROR(CheckConfig(content_.config));
    KVC_RETURN_IF_ERROR(CheckTokenizer(content_.tokenizer, content_.config.vocab_size));
    KVC_RETURN_IF_ERROR(CheckHeadScores(content_.head_scores, content_.config));
    return CheckTensors(content_.tensors, content_.config);
  }

  // Each tensor has a section of its own, of the size its shape and type ask for.
  Status BindTensors() {
    std::vector<bool> taken(content_.sections.size());
    for (size_t i = 0; i < content_.tensors.size(); ++i) {
      TensorEntry& t = content_.tensors[i];
      const uint32_t index = content_.tensor_sections[i];
      const std::string title = TensorTitle(t.role, t.layer);
      if (index >= taken.size() || content_.sections[index].kind != kTensorSection || taken[index]) {
        return Error(Code::kBadModel, "%s: section %u is %s", title.c_str(), index,
                     index >= taken.size() ? "not there"
                     : taken[index]        ? "another tensor's"
                                           : "not a tensor's");
      }
      taken[index] = true;
      const SectionEntry& section = content_.sections[index];
      const WeightPlace layout = PlaceOf(t.weight);
      if (section.size != static_cast<uint64_t>(layout.n_bytes)) {
        return Error(Code::kBadModel, "%s: its section has %llu bytes, shape [%d, %d] in %s needs %lld",
                     title.c_str(), static_cast<unsigned long long>(section.size), t.weight.rows,
                     t.weight.cols, WeightTypeName(t.weight.type), static_cast<long long>(layout.n_bytes));
      }
      t.offset = static_cast<int64_t>(section.offset), t.size = layout.n_bytes, t.checksum = section.checksum;
      t.weight.data = data_ + t.offset;
      if (layout.scales_bytes > 0) {
        t.weight.scales = reinterpret_cast<const uint16_t*>(data_ + t.offset + layout.scales_offset);
      }
      weight_bytes_ += t.size;
    }
    return {};
  }

  Status ScanSections(CallState* watch) const {
    std::vector<const TensorEntry*> owner(content_.sections.size());
    for (size_t i = 0; i < content_.tensors.size(); ++i)
      owner[content_.tensor_sections[i]] = &content_.tensors[i];
    double scanned = 0;
    for (size_t i = 0; i < owner.size(); ++i) {
      const SectionEntry& s = content_.sections[i];
      scanned += static_cast<double>(s.size);
      if (watch != nullptr) KVC_RETURN_IF_ERROR(watch->Check("opening"));
      if (owner[i] != nullptr) {
        KVC_RETURN_IF_ERROR(ScanTensor(*owner[i]));
        // Rows are read once more at most, to be packed: until then the process need not have them in memory,
        // or the highest it ever takes would be the file and the packed weights.
        if (file_.mapped() && owner[i]->weight.layout == WeightLayout::kRowMajor) Drop(*owner[i]);
      } else if (Hash64(data_ + s.offset, s.size) != s.checksum) {
        return Mismatch(Format("section %zu", i), static_cast<int64_t>(s.offset),
                        static_cast<int64_t>(s.size));
      }
      if (watch != nullptr) watch->SetProgress(kVerifyShare * scanned / static_cast<double>(n_bytes_));
    }
    return {};
  }

  // Panels are multiplied where they lie: everything from the first to the last streams past once a token.
  void AskForHugePages() const {
    int64_t begin = n_bytes_, end = 0;
    for (const TensorEntry& t : content_.tensors) {
      if (t.weight.layout == WeightLayout::kRowMajor) continue;
      begin = std::min(begin, t.offset), end = std::max(end, t.offset + t.size);
    }
    if (begin < end) file_.AskForHugePages(begin, end - begin);
  }

  Status ScanTensor(const TensorEntry& t) const {
    TensorScan scan(t);
    for (int64_t done = 0; done < t.size; done += kScanBlock) {
      scan.Update(data_ + t.offset + done, std::min(kScanBlock, t.size - done));
    }
    if (scan.checksum() != t.checksum) return Mismatch(TensorTitle(t.role, t.layer), t.offset, t.size);
    return scan.CheckFinite();
  }

  static Status Mismatch(const std::string& what, int64_t offset, int64_t size) {
    return Error(Code::kBadModel, "%s (bytes %lld to %lld) does not match its checksum", what.c_str(),
                 static_cast<long long>(offset), static_cast<long long>(offset + size));
  }

  const std::string name_;
  const MappedFile file_;  // empty when the bytes are the caller's
  const uint8_t* const data_;
  const int64_t n_bytes_;
  ContainerHeader header_;
  MeterCharge charge_;  // of content_
  DirectoryContent content_;
  int64_t weight_bytes_ = 0;
  uint64_t fingerprint_ = 0;
};

Result<std::unique_ptr<ModelFile>> Verified(const std::string& name, Result<MappedFile> file,
                                            MemoryMeter* meter, CallState* watch, bool trusted) {
  if (!file.ok()) return file.status();
  const uint8_t* data = file.value().data();
  const int64_t n_bytes = file.value().size();
  return VerifiedFile::Create(name, std::move(file.value()), data, n_bytes, meter, watch, trusted);
}

}  // namespace

Status ModelFile::Fault(const Status& status) const { return Prefix(name(), Classify(status)); }

Result<std::unique_ptr<ModelFile>> ModelFile::Open(const std::string& path, MemoryMeter* meter,
                                                   CallState* watch, bool trusted) {
  return Verified(path, MappedFile::Open(path, meter), meter, watch, trusted);
}

Result<std::unique_ptr<ModelFile>> ModelFile::OpenFd(int fd, int64_t offset, int64_t n_bytes,
                                                     MemoryMeter* meter, CallState* watch, bool trusted) {
  const std::string name = Format("descriptor %d at byte %lld", fd, static_cast<long long>(offset));
  return Verified(name, MappedFile::FromFd(fd, offset, n_bytes, name, meter), meter, watch, trusted);
}

Result<std::unique_ptr<ModelFile>> ModelFile::OpenMemory(const uint8_t* data, int64_t n_bytes,
                                                         MemoryMeter* meter, bool trusted) {
  if (n_bytes < 0 || (data == nullptr && n_bytes > 0)) {
    return Error(Code::kInvalid, "model in memory: no data, or %lld bytes of it",
                 static_cast<long long>(n_bytes));
  }
  if (reinterpret_cast<uintptr_t>(data) % 64 != 0) {
    return Error(Code::kInvalid, "model in memory: its address is not a multiple of 64");
  }
  return VerifiedFile::Create("model in memory", MappedFile(), data, n_bytes, meter, nullptr, trusted);
}

}  // namespace kvc
