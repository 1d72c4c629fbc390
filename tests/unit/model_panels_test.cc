// Model files whose matrices lie in panels: the same model, used where it lies, and held to the same rules.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>

#include "lib/base/half.h"
#include "lib/base/hash.h"
#include "lib/model/weights.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/devices.h"
#include "lib/ops/weight_panels.h"
#include "models/convert/convert.h"
#include "tests/support/process_memory.h"
#include "tests/support/raw_model_file.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::AlignedBytes;
using test::RawModelFile;
using test::TinyModelOptions;

constexpr WeightType kTypes[] = {WeightType::kF32,  WeightType::kF16, WeightType::kBf16, WeightType::kInt8,
                                 WeightType::kInt4, WeightType::kQ4K, WeightType::kQ6K};

TinyModelOptions Tiny(WeightType type, WeightLayout layout) {
  TinyModelOptions o;
  o.type = type, o.layout = layout, o.query_key_value_bias = true, o.tied_head = true;
  o.head_dim = 8, o.n_heads = 3, o.n_kv_heads = 1, o.hidden_size = 40,
  o.group = 8;  // rows that fill no panel
  if (HasBlocks(type)) o.hidden_size = o.ffn_size = 256;
  return o;
}

std::unique_ptr<ModelFile> Open(const AlignedBytes& bytes) {
  auto file = ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(file.value()) : nullptr;
}

Status OpenStatus(const AlignedBytes& bytes) {
  return ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr).status();
}

// Both have every tensor in the same order; those of `packed` say the same.
void ExpectSameTensors(const ModelFile& plain, const ModelFile& packed) {
  ASSERT_EQ(plain.tensors().size(), packed.tensors().size());
  for (size_t i = 0; i < plain.tensors().size(); ++i) {
    const Weight &a = plain.tensors()[i].weight, &b = packed.tensors()[i].weight;
    ASSERT_EQ(a.rows, b.rows);
    ASSERT_EQ(a.cols, b.cols);
    ASSERT_EQ(a.type, b.type);
    if (b.layout == WeightLayout::kRowMajor) {
      EXPECT_EQ(plain.tensors()[i].checksum, packed.tensors()[i].checksum);
      continue;
    }
    EXPECT_EQ(plain.tensors()[i].checksum, packed.tensors()[i].plain_checksum);
    const size_t bytes = static_cast<size_t>(WeightRowBytes(a.type, a.cols)),
                 groups = static_cast<size_t>(RowScales(a));
    std::vector<uint8_t> row(bytes);
    std::vector<uint16_t> scales(groups);
    for (int32_t r = 0; r < a.rows; ++r) {
      UnpackRow(b, r, row.data(), scales.data());
      ASSERT_EQ(0, std::memcmp(row.data(),
                               static_cast<const uint8_t*>(a.data) + static_cast<size_t>(r) * bytes, bytes));
      ASSERT_TRUE(std::equal(scales.begin(), scales.end(), a.scales + static_cast<size_t>(r) * groups));
    }
  }
}

int64_t CountPacked(const ModelFile& file) {
  int64_t n = 0;
  for (const TensorEntry& t : file.tensors()) n += t.weight.layout == WeightLayout::kPanels16;
  return n;
}

TEST(PackedFile, IsTheSameModel) {
  for (WeightType type : kTypes) {
    const AlignedBytes a = test::TinyModelBytes(Tiny(type, WeightLayout::kRowMajor)),
                       b = test::TinyModelBytes(Tiny(type, WeightLayout::kPanels16));
    const auto plain = Open(a), packed = Open(b);
    ASSERT_TRUE(plain && packed);
    EXPECT_EQ(0, CountPacked(*plain));
    EXPECT_EQ(1 + 2 * 7, CountPacked(*packed));
    EXPECT_EQ(plain->fingerprint(), packed->fingerprint());
    ExpectSameTensors(*plain, *packed);
    EXPECT_EQ(std::string::npos, plain->DescribeJson().find("panels16"));
    EXPECT_NE(std::string::npos, packed->DescribeJson().find("\"layout\":\"panels16\""));
    // An independent writer of the same bytes.
    const AlignedBytes raw = RawModelFile::Tiny(Tiny(type, WeightLayout::kPanels16)).Build();
    ASSERT_EQ(raw.size(), b.size());
    EXPECT_EQ(0, std::memcmp(raw.data(), b.data(), raw.size()));
  }
}

TEST(PackedFile, IsUsedWhereItLies) {
  // The processor itself: behind the fence of tests nothing is used where it lies.
  const auto device = std::move(cpu::CpuDevice::Create(1).value());
  const bool packs = PreferredLayout() == WeightLayout::kPanels16;
  for (WeightType type : kTypes) {
    for (bool packed : {false, true}) {
      const AlignedBytes bytes =
          test::TinyModelBytes(Tiny(type, packed ? WeightLayout::kPanels16 : WeightLayout::kRowMajor));
      const auto file = Open(bytes);
      MemoryMeter meter(0);
      int64_t replaced = 0;
      {
        auto weights = Weights::Prepare(*file, device.get(), &meter);
        ASSERT_TRUE(weights.ok());
        const Weights& w = weights.value();
        replaced = w.replaced_bytes;
        EXPECT_EQ(replaced > 0, packs && !packed) << "the caller's memory counts no more";
        EXPECT_EQ(w.memory.bytes() - replaced, meter.used());
        EXPECT_EQ(packs && !packed, w.memory.bytes() > 0);
        const uint8_t* data = Raw(w.layers[1].qkv.parts[2].data);
        EXPECT_EQ(packed || !packs, data >= bytes.data() && data < bytes.data() + bytes.size());
      }
      EXPECT_EQ(-replaced, meter.used());  // freed with the weights
    }
  }
}

// Whether this machine uses the panels of the file, makes the same ones, or multiplies rows.
TEST(PackedFile, GeneratesWhatThePlainFileDoes) {
  const test::TempFolder folder;
  const bool packs = PreferredLayout() == WeightLayout::kPanels16;
  for (WeightType type : kTypes) {
    SCOPED_TRACE(static_cast<int>(type));
    const AlignedBytes a = test::TinyModelBytes(Tiny(type, WeightLayout::kRowMajor)),
                       b = test::TinyModelBytes(Tiny(type, WeightLayout::kPanels16));
    const auto plain = test::OpenTiny(a), packed = test::OpenTiny(b);
    const auto of_plain = test::FedSession(plain, "snapkv:budget=24,window=8", 40),
               of_packed = test::FedSession(packed, "snapkv:budget=24,window=8", 40);
    EXPECT_EQ(test::Steps(*of_plain, 16), test::Steps(*of_packed, 16));
    if (packs) {
      EXPECT_EQ(test::LogitsOf(*of_plain), test::LogitsOf(*of_packed));
    }
    test::ExpectSameKept(*of_plain, *of_packed);
    // What one saved goes on with the other.
    ASSERT_TRUE(of_plain->Save(folder / "session").ok());
    auto restored = Session::Restore(packed, folder / "session");
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ(test::Steps(*of_plain, 8), test::Steps(*restored.value(), 8));
  }
}

TEST(PackedFile, PreparingStopsAtTheLimit) {
  const auto device = std::move(OpenDevice("cpu", 1).value());
  if (PreferredLayout() != WeightLayout::kPanels16) GTEST_SKIP() << "nothing is packed for these kernels";
  const AlignedBytes bytes = test::TinyModelBytes(Tiny(WeightType::kInt8, WeightLayout::kRowMajor));
  const auto file = Open(bytes);
  const int64_t weights = file->weight_bytes();
  MemoryMeter all(0);
  ASSERT_TRUE(all.Take(weights, "the weights").ok());
  { ASSERT_TRUE(Weights::Prepare(*file, device.get(), &all).ok()); }
  const int64_t more = all.peak() - weights;
  ASSERT_GT(more, 2);
  for (int64_t limit : {weights, weights + more / 2, weights + more - 1}) {
    MemoryMeter meter(limit);
    ASSERT_TRUE(meter.Take(weights, "the weights").ok());
    EXPECT_EQ(Code::kMemory, Weights::Prepare(*file, device.get(), &meter).status().code());
    EXPECT_LE(meter.used(), weights) << "nothing that was prepared stays";
    EXPECT_LE(meter.peak(), limit);
  }
}

// The file's pages go as soon as they are verified, and again as their panels come: together they never take
// much more than one of the two. The embedding is a quarter of the file and is packed first.
TEST(PackedFile, PreparingAMappedFileDoesNotHoldItTwice) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers hold memory of their own";
  const test::TempFolder folder;
  TinyModelOptions o;
  o.type = WeightType::kBf16, o.n_layers = 12, o.hidden_size = 256, o.ffn_size = 4096, o.vocab_size = 48000;
  ASSERT_TRUE(test::WriteTinyModel(o, folder / "m.kvc").ok());
  const auto device = std::move(OpenDevice("cpu", 1).value());
  int64_t file_bytes = 0;
  {
    const auto file = std::move(ModelFile::Open(folder / "m.kvc", nullptr).value());
    file_bytes = file->file_bytes();
    MemoryMeter meter(0);
    ASSERT_TRUE(meter.Take(file->weight_bytes(), "the weights").ok());
    const auto weights = Weights::Prepare(*file, device.get(), &meter);
    ASSERT_TRUE(weights.ok());
    EXPECT_LT(meter.used(), file_bytes * 102 / 100);  // pages at the ends of tensors stay
    EXPECT_LT(meter.peak(), file_bytes * 102 / 100)
        << "what is packed next has left, the system's to take back";
  }
  const int64_t growth = test::PeakGrowth([&] {
    const auto file = std::move(ModelFile::Open(folder / "m.kvc", nullptr).value());
    const auto weights = Weights::Prepare(*file, device.get());
    if (!weights.ok()) std::abort();
  });
  ASSERT_GT(growth, 0);
  EXPECT_LT(growth, file_bytes * 115 / 100);
}

TEST(PackedFile, AnyChangedByteIsRefused) {
  for (WeightType type : kTypes) {
    if (HasBlocks(type)) continue;  // too large for this, and bytes are bytes
    TinyModelOptions o = Tiny(type, WeightLayout::kPanels16);
    o.n_layers = 1, o.hidden_size = 8, o.ffn_size = 8, o.vocab_size = 259;
    AlignedBytes bytes = test::TinyModelBytes(o);
    ASSERT_TRUE(OpenStatus(bytes).ok());
    for (size_t i = 0; i < bytes.size(); i += 1 + i % 7) {
      bytes[i] ^= 0x41;
      ASSERT_FALSE(OpenStatus(bytes).ok()) << i;
      bytes[i] ^= 0x41;
    }
  }
}

Status Changed(WeightType type, void (*change)(RawModelFile*)) {
  RawModelFile raw = RawModelFile::Tiny(Tiny(type, WeightLayout::kPanels16));
  change(&raw);
  return OpenStatus(raw.Build());
}

TEST(PackedFile, ClaimsThatDoNotHoldAreRefused) {
  const Status unknown = Changed(
      WeightType::kF32, [](RawModelFile* raw) { raw->tensors[0].layout = static_cast<WeightLayout>(2); });
  EXPECT_EQ(Code::kUnsupported, unknown.code());
  EXPECT_NE(std::string::npos, unknown.message().find("tensor embedding: layout 2 is not known"))
      << unknown.message();
  for (WeightType type : kTypes) {
    // Rows without those that fill the last panel; one byte too many.
    EXPECT_EQ(Code::kBadModel, Changed(type, [](RawModelFile* raw) {
                                 raw->section_bytes[0].resize(raw->section_bytes[0].size() - 4);
                               }).code());
    EXPECT_EQ(Code::kBadModel,
              Changed(type, [](RawModelFile* raw) { raw->section_bytes[0].push_back(0); }).code());
    EXPECT_EQ(Code::kBadModel, Changed(type, [](RawModelFile* raw) {
                                 raw->tensors[0].layout =
                                     WeightLayout::kRowMajor;  // panels of 262 rows have more bytes
                               }).code());
  }
  for (WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    for (int32_t group : {0, 8, 64}) {
      RawModelFile raw = RawModelFile::Tiny(Tiny(type, WeightLayout::kRowMajor));
      raw.tensors[0].group = group;
      const Status status = OpenStatus(raw.Build());
      EXPECT_EQ(Code::kBadModel, status.code());
      const char* why = type == WeightType::kQ4K ? "those of q4_k are 32" : "those of q6_k are 16";
      EXPECT_NE(std::string::npos, status.message().find(why)) << status.message();
    }
  }
  const Status blocks = Changed(WeightType::kF32, [](RawModelFile* raw) {
    raw->tensors[0].type = WeightType::kQ4K, raw->tensors[0].group = 32;
  });
  EXPECT_EQ(Code::kBadModel, blocks.code());
  EXPECT_NE(std::string::npos, blocks.message().find("40 columns, blocks of q4_k have 256"))
      << blocks.message();
  const Status norm =
      Changed(WeightType::kF32, [](RawModelFile* raw) { raw->tensors[1].layout = WeightLayout::kPanels16; });
  EXPECT_EQ(Code::kBadModel, norm.code());
  EXPECT_NE(std::string::npos, norm.message().find("does not lie in panels")) << norm.message();
  const Status group = Changed(WeightType::kInt4, [](RawModelFile* raw) { raw->tensors[0].group = 10; });
  EXPECT_EQ(Code::kBadModel, group.code());
  EXPECT_NE(std::string::npos, group.message().find("does not lie in panels")) << group.message();
}

TEST(PackedFile, ANumberThatIsNoneIsFoundWhereItStands) {
  RawModelFile raw = RawModelFile::Tiny(Tiny(WeightType::kF32, WeightLayout::kPanels16));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&raw.section_bytes[0][((2 * 40 + 7) * 16 + 5) * 4], &nan, 4);  // panel 2, column 7, lane 5
  const Status value = OpenStatus(raw.Build());
  EXPECT_NE(std::string::npos, value.message().find("the value at row 37, column 7 is NaN"))
      << value.message();
  raw = RawModelFile::Tiny(Tiny(WeightType::kInt8, WeightLayout::kPanels16));
  const uint16_t infinite = 0x7c00;
  const size_t codes = size_t{17} * 16 * 40;  // 262 rows are 17 panels
  std::memcpy(&raw.section_bytes[0][codes + ((1 * 5 + 3) * 16 + 9) * 2], &infinite, 2);
  const Status scale = OpenStatus(raw.Build());
  EXPECT_NE(std::string::npos, scale.message().find("the scale at row 25, group 3 is NaN"))
      << scale.message();
}

// The halves of blocks, in either layout; nothing else of a block is taken for one.
TEST(PackedFile, AHalfOfABlockThatIsNoneIsFoundWhereItStands) {
  const uint16_t infinite = 0xfc00;
  const auto change = [&](WeightType type, WeightLayout layout, size_t at) {
    TinyModelOptions o = Tiny(type, layout);
    o.hidden_size = 512;
    RawModelFile raw = RawModelFile::Tiny(o);
    std::memcpy(&raw.section_bytes[0][at], &infinite, 2);
    return OpenStatus(raw.Build()).message();
  };
  constexpr auto kRows = WeightLayout::kRowMajor, kPanels = WeightLayout::kPanels16;
  const struct {
    WeightType type;
    WeightLayout layout;
    size_t at;
    const char* where;
  } cases[] = {{WeightType::kQ4K, kRows, (2 * 37 + 1) * 144, "row 37, block 1 "},
               {WeightType::kQ4K, kRows, (2 * 261 + 0) * 144 + 2, "row 261, block 0 "},
               {WeightType::kQ6K, kRows, (2 * 37 + 1) * 210 + 208, "row 37, block 1 "},
               {WeightType::kQ4K, kPanels, (2 * 2 + 1) * 16 * 148 + 2 * 5, "row 37, block 1 "},
               {WeightType::kQ4K, kPanels, (2 * 2 + 0) * 16 * 148 + 32 + 2 * 5, "row 37, block 0 "},
               {WeightType::kQ6K, kPanels, (2 * 16 + 1) * 16 * 212 + 2 * 4, "row 260, block 1 "}};
  for (const auto& c : cases) {
    const std::string message = change(c.type, c.layout, c.at);
    EXPECT_NE(std::string::npos, message.find("the scale at " + std::string(c.where))) << message;
  }
  // infinite as two bytes of scales of six bits: 0x00, then 0xfc.
  EXPECT_NE(std::string::npos, change(WeightType::kQ4K, kPanels, 3 * 16 * 148 + 64)
                                   .find("byte 7169 of its panels, a scale of six bits, has more"));
  EXPECT_NE(std::string::npos, change(WeightType::kQ4K, kPanels, 3 * 16 * 148 + 318).find("byte 7423 of"));
  EXPECT_EQ("", change(WeightType::kQ4K, kPanels, 3 * 16 * 148 + 320));
  EXPECT_EQ("", change(WeightType::kQ4K, kRows, (2 * 37 + 1) * 144 + 4));
  EXPECT_EQ("", change(WeightType::kQ6K, kPanels, (2 * 16 + 1) * 16 * 212 + 64));
}

// What needs no block is written as before, so that older readers read it.
TEST(PackedFile, BlocksNeedVersionThree) {
  for (WeightType type : kTypes) {
    const auto file = Open(test::TinyModelBytes(Tiny(type, WeightLayout::kRowMajor)));
    EXPECT_EQ(HasBlocks(type) ? 3u : 1u, file->version()) << static_cast<int>(type);
  }
}

std::string FileBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(PackedWriter, PiecesOfAnySizeMakeTheSameFile) {
  const test::TempFolder folder;
  for (WeightType type : kTypes) {
    const TinyModelOptions o = Tiny(type, WeightLayout::kPanels16);
    ASSERT_TRUE(test::WriteTinyModel(o, folder / "whole.kvc").ok());
    const std::vector<TensorPlan> plans = test::TinyModelTensors(o);
    auto writer =
        std::move(ModelWriter::Create(folder / "pieces.kvc", test::TinyModelContent(o), plans).value());
    std::vector<uint8_t> all;
    for (const TensorPlan& plan : plans) {
      const std::vector<uint8_t> bytes = test::TinyTensorBytes(o, plan);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    for (size_t at = 0, n = 1; at < all.size(); at += n, n = n * 5 % 1009 + 1) {
      n = std::min(n, all.size() - at);
      ASSERT_TRUE(writer->Append(all.data() + at, static_cast<int64_t>(n)).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
    EXPECT_EQ(FileBytes(folder / "whole.kvc"), FileBytes(folder / "pieces.kvc"));
    // New score tables leave the panels alone.
    ASSERT_TRUE(RewriteHeadScores(folder / "whole.kvc", folder / "scores.kvc", {}).ok());
    const auto before = std::move(ModelFile::Open(folder / "whole.kvc", nullptr).value());
    const auto after = std::move(ModelFile::Open(folder / "scores.kvc", nullptr).value());
    EXPECT_EQ(before->fingerprint(), after->fingerprint());
    for (size_t i = 0; i < before->tensors().size(); ++i)
      EXPECT_EQ(before->tensors()[i].checksum, after->tensors()[i].checksum);
  }
}

TEST(PackedConvert, StoresWhatIsMultiplied) {
  const test::TempFolder folder;
  const std::string source = std::string(KVC_SOURCE_DIR) + "/models/recall";
  for (WeightChoice weights : {WeightChoice::kKeep, WeightChoice::kInt8, WeightChoice::kInt4}) {
    ConvertOptions options;
    options.weights = weights;
    ASSERT_TRUE(Convert(source, folder / "plain.kvc", options, nullptr).ok());
    options.layout = LayoutFor("avx512").value();
    ConvertReport report;
    ASSERT_TRUE(Convert(source, folder / "packed.kvc", options, &report).ok());
    EXPECT_EQ(1 + 6 * 7, report.n_packed);
    const auto plain = std::move(ModelFile::Open(folder / "plain.kvc", nullptr).value());
    const auto packed = std::move(ModelFile::Open(folder / "packed.kvc", nullptr).value());
    EXPECT_EQ(plain->fingerprint(), packed->fingerprint());
    ExpectSameTensors(*plain, *packed);
  }
}

TEST(PackedConvert, KnowsItsTargets) {
  EXPECT_EQ(WeightLayout::kRowMajor, LayoutFor("none").value());
  EXPECT_EQ(PreferredLayout(), LayoutFor("native").value());
  for (const std::string& target : PackTargets()) EXPECT_TRUE(LayoutFor(target).ok()) << target;
  const Status status = LayoutFor("abacus").status();
  EXPECT_EQ(Code::kInvalid, status.code());
  EXPECT_NE(std::string::npos, status.message().find("neondot")) << status.message();
}

}  // namespace
}  // namespace kvc
