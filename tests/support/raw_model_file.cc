#include "tests/support/raw_model_file.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kvc_model_generated.h"
#include "lib/base/hash.h"
#include "lib/model/model_check.h"
#include "models/convert/model_directory.h"

namespace kvc::test {

RawModelFile RawModelFile::Tiny(const TinyModelOptions& options) {
  RawModelFile raw;
  raw.content = TinyModelContent(options);
  raw.tensors = TinyModelTensors(options);
  for (TensorPlan& plan : raw.tensors) {
    std::vector<uint8_t> bytes = TinyTensorBytes(options, plan);
    Weight weight;
    weight.type = plan.type, weight.rows = plan.rows, weight.cols = plan.cols, weight.group = plan.group;
    const WeightPlace layout = PlaceOf(weight);
    const auto gap = layout.scales_bytes > 0 ? layout.scales_offset - layout.data_bytes : 0;
    bytes.insert(bytes.begin() + layout.data_bytes, static_cast<size_t>(gap), uint8_t{0});
    if (plan.layout == WeightLayout::kPanels16) {
      plan.plain_checksum = Hash64(bytes.data(), bytes.size());
      weight.data = bytes.data();
      if (layout.scales_bytes > 0)
        weight.scales = reinterpret_cast<const uint16_t*>(bytes.data() + layout.scales_offset);
      std::vector<uint8_t> panels(static_cast<size_t>(PlaceOf(ShapeInPanels(weight)).n_bytes));
      for (int32_t p = 0; p < PanelsOf(weight.rows); ++p) PackPanel(weight, p, panels.data());
      bytes = std::move(panels);
    }
    raw.section_bytes.push_back(std::move(bytes));
    if (HasBlocks(plan.type)) raw.version = 3;
  }
  return raw;
}

AlignedBytes RawModelFile::Build() const {
  std::vector<SectionEntry> sections(section_bytes.size());
  const uint64_t directory_bytes = BuildDirectory(content, tensors, sections).size();
  uint64_t end = kHeaderBytes + directory_bytes;
  for (size_t i = 0; i < sections.size(); ++i) {
    const std::vector<uint8_t>& bytes = section_bytes[i];
    const uint64_t offset = (end + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
    sections[i] = {i < tensors.size() ? kTensorSection : uint16_t{77}, offset, bytes.size(),
                   Hash64(bytes.data(), bytes.size())};
    end = offset + bytes.size();
  }
  std::vector<uint8_t> file(end);
  for (size_t i = 0; i < sections.size(); ++i) {
    const auto offset = static_cast<int64_t>(sections[i].offset);
    std::copy(section_bytes[i].begin(), section_bytes[i].end(), file.begin() + offset);
  }
  if (edit_sections) edit_sections(&sections);
  const std::vector<uint8_t> directory = BuildDirectory(content, tensors, sections);
  std::copy(directory.begin(), directory.end(), file.begin() + kHeaderBytes);
  EncodeHeader({version, directory.size(), file.size(), Hash64(directory.data(), directory.size())},
               file.data());
  return AlignedBytes(file.data(), file.size());
}

namespace {

// Places are found before anything is written: tables may lie upon each other, and what was verified is so no
// more once a checksum stands in it.
void RepairSections(uint8_t* directory, uint64_t directory_bytes, const uint8_t* file, uint64_t file_bytes) {
  flatbuffers::Verifier verifier(directory, directory_bytes, 8, 1 << 17);
  if (!schema::VerifyDirectoryBuffer(verifier)) return;
  std::vector<std::pair<uint8_t*, uint64_t>> repairs;
  for (const schema::Section* section : *schema::GetDirectory(directory)->sections()) {
    if (section->offset() > file_bytes || section->size() > file_bytes - section->offset()) continue;
    const auto* table = reinterpret_cast<const flatbuffers::Table*>(section);
    const auto* field = reinterpret_cast<const uint8_t*>(table->GetAddressOf(schema::Section::VT_CHECKSUM));
    if (field == nullptr) continue;
    repairs.emplace_back(directory + (field - directory), Hash64(file + section->offset(), section->size()));
  }
  for (const auto& [at, checksum] : repairs) std::memcpy(at, &checksum, sizeof checksum);
}

// Where the last section ends, 0 if the directory cannot be read.
uint64_t SectionsEnd(const uint8_t* directory, size_t n_bytes) {
  flatbuffers::Verifier verifier(directory, n_bytes, 8, 1 << 17);
  uint64_t end = 0;
  if (!schema::VerifyDirectoryBuffer(verifier)) return end;
  for (const schema::Section* section : *schema::GetDirectory(directory)->sections()) {
    end = std::max(end, section->offset() + section->size());
  }
  return end;
}

}  // namespace

AlignedBytes WrapDirectory(const uint8_t* directory, size_t n_bytes) {
  constexpr uint64_t kMost = 1 << 20;
  std::vector<uint8_t> file(kHeaderBytes + n_bytes);
  EncodeHeader({kModelFileVersion, n_bytes, 0, 0}, file.data());
  if (n_bytes > 0) std::memcpy(file.data() + kHeaderBytes, directory, n_bytes);
  const AlignedBytes aligned(directory, n_bytes);
  file.resize(std::max<uint64_t>(file.size(), std::min(SectionsEnd(aligned.data(), n_bytes), kMost)));
  AlignedBytes wrapped(file.data(), file.size());
  RepairHashes(&wrapped);
  return wrapped;
}

void ShareHeadScores(AlignedBytes* file) {
  const schema::Directory* directory = schema::GetDirectory(file->data() + kHeaderBytes);
  const auto* first = reinterpret_cast<const uint8_t*>(directory->head_scores()->Get(0)->scores());
  for (const schema::HeadScores* table : *directory->head_scores()) {
    const auto* raw = reinterpret_cast<const flatbuffers::Table*>(table);
    auto* field = const_cast<uint8_t*>(raw->GetAddressOf(schema::HeadScores::VT_SCORES));
    const auto offset = static_cast<uint32_t>(first - field);
    std::memcpy(field, &offset, sizeof offset);
  }
  RepairHashes(file);
}

void RepairHashes(AlignedBytes* file) {
  if (file->size() < static_cast<size_t>(kHeaderBytes)) return;
  uint32_t version;
  uint64_t directory_bytes;
  std::memcpy(&version, file->data() + 4, 4);
  std::memcpy(&directory_bytes, file->data() + 8, 8);
  uint8_t* directory = file->data() + kHeaderBytes;
  const uint64_t n = std::min<uint64_t>(directory_bytes, file->size() - kHeaderBytes);
  RepairSections(directory, n, file->data(), file->size());
  EncodeHeader({version, directory_bytes, file->size(), Hash64(directory, n)}, file->data());
}

}  // namespace kvc::test
