// Sources that ask for more than their size is worth: memory and work stay in proportion to what was read.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "models/convert/gguf.h"
#include "models/convert/hf_config.h"
#include "models/convert/source_file.h"
#include "models/convert/tokenizer_hf.h"
#include "tests/support/heap_faults.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

int64_t PeakOf(const std::function<void()>& call) {
  const int64_t before = test::HeapBytes();
  test::ResetHeapPeak();
  call();
  return test::HeapPeak() - before;
}

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A GGUF header with one array of n elements.
std::string ArrayHeader(uint32_t type, uint64_t n, const std::string& element) {
  std::string bytes = "GGUF" + Raw<uint32_t>(3) + Raw<uint64_t>(0) + Raw<uint64_t>(1);
  bytes += Raw<uint64_t>(1) + "k" + Raw<uint32_t>(9) + Raw<uint32_t>(type) + Raw<uint64_t>(n);
  for (uint64_t i = 0; i < n; ++i) bytes += element;
  return bytes;
}

TEST(ConvertLimits, GgufArraysTakeTheirOwnSize) {
  const struct {
    uint32_t type;
    std::string element;
    double most;                                // bytes for a byte
  } cases[] = {{0, std::string(1, '\1'), 1.1},  // u8
               {7, std::string(1, '\1'), 1.1},  // bool
               {2, Raw<uint16_t>(7), 1.1},      // u16
               {10, Raw<uint64_t>(7), 1.1},     // u64
               {12, Raw<double>(0.5), 1.1},     // f64
               {8, Raw<uint64_t>(0), 4.5},      // empty strings, the shortest there are
               {8, Raw<uint64_t>(16) + std::string(16, 'a'), 4.5}};
  for (const auto& c : cases) {
    const std::string bytes = ArrayHeader(c.type, (8 << 20) / c.element.size(), c.element);
    const int64_t peak = PeakOf([&] {
      const auto header = ParseGguf(BytesOf(bytes), static_cast<int64_t>(bytes.size()), "x");
      ASSERT_TRUE(header.ok()) << header.status().message();
    });
    EXPECT_LE(static_cast<double>(peak), c.most * static_cast<double>(bytes.size())) << c.type;
  }
}

// The beginning of a file that claims to be huge: the claim alone takes nothing.
TEST(ConvertLimits, GgufClaimsTakeNothing) {
  for (const uint32_t type : {0u, 8u, 10u}) {
    const std::string bytes = ArrayHeader(type, 0, "").substr(0, 41) + Raw<uint64_t>(INT32_MAX);
    const int64_t peak = PeakOf([&] {
      const auto header = ParseGguf(BytesOf(bytes), int64_t{1} << 50, "x");
      EXPECT_EQ(header.status().code(), Code::kBufferTooSmall) << header.status().message();
    });
    EXPECT_LE(peak, 1 << 16) << type;
  }
}

TEST(ConvertLimits, GgufNumbersReadBack) {
  const auto value = [](uint32_t type, const std::string& element) {
    const std::string bytes = ArrayHeader(type, 2, element);
    return ParseGguf(BytesOf(bytes), static_cast<int64_t>(bytes.size()), "x").value().metadata.at("k");
  };
  EXPECT_EQ(value(0, Raw<uint8_t>(200)).Whole(1), 200);
  EXPECT_EQ(value(1, Raw<int8_t>(-100)).Whole(1), -100);
  EXPECT_EQ(value(2, Raw<uint16_t>(60000)).Whole(1), 60000);
  EXPECT_EQ(value(3, Raw<int16_t>(-30000)).Whole(1), -30000);
  EXPECT_EQ(value(4, Raw<uint32_t>(4000000000u)).Whole(1), 4000000000);
  EXPECT_EQ(value(5, Raw<int32_t>(-7)).Whole(1), -7);
  EXPECT_EQ(value(6, Raw<float>(0.5f)).Floating(1), 0.5);
  EXPECT_EQ(value(7, Raw<uint8_t>(1)).Whole(1), 1);
  EXPECT_EQ(value(10, Raw<uint64_t>(INT64_MAX)).Whole(1), INT64_MAX);
  EXPECT_EQ(value(11, Raw<int64_t>(INT64_MIN)).Whole(1), INT64_MIN);
  EXPECT_EQ(value(12, Raw<double>(0.1)).Floating(1), 0.1);
  EXPECT_EQ(value(5, Raw<int32_t>(-7)).n_whole(), 2u);
  EXPECT_EQ(value(5, Raw<int32_t>(-7)).n_floating(), 0u);
  EXPECT_EQ(value(12, Raw<double>(0.1)).n_whole(), 0u);
  const std::string bad_bool = ArrayHeader(7, 1, Raw<uint8_t>(2)),
                    large = ArrayHeader(10, 1, Raw(~uint64_t{0}));
  for (const std::string& bytes : {bad_bool, large})
    EXPECT_EQ(ParseGguf(BytesOf(bytes), static_cast<int64_t>(bytes.size()), "x").status().code(),
              Code::kBadModel);
}

// Two million ids, compared with one another, would take an hour.
TEST(ConvertLimits, TooManyStopTokensAreRefusedAtOnce) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), SmallTensors("BF16"));
  std::string ids = "0";
  for (int i = 1; i < 2000000; ++i) ids += "," + std::to_string(i % 10);
  WriteAll(scratch / "model/generation_config.json", "{\"eos_token_id\":[" + ids + "]}");
  ExpectError(Convert(scratch / "model", scratch / "out.kvc", {}, nullptr), Code::kBadModel,
              {"generation_config.json", "eos_token_id holds 2000000 ids, the limit is 1024"});
}

// One far id would take a place for every id before it.
TEST(ConvertLimits, IdsAreInProportionToTheTokens) {
  nlohmann::json tokenizer = nlohmann::json::parse(SmallTokenizer());
  const auto with_id = [&](int64_t id) {
    tokenizer["added_tokens"][0]["id"] = id;
    return ReadHfTokenizer(tokenizer.dump()).status();
  };
  const int64_t peak = PeakOf([&] {
    ExpectError(with_id((1 << 21) - 1), Code::kBadModel, {"<|bos|>", "2097151", "out of range"});
  });
  EXPECT_LE(peak, 8 << 20);
  EXPECT_TRUE(with_id(60000).ok()) << with_id(60000).message();
}

// A configuration of nothing but unknown settings is not told line by line.
TEST(ConvertLimits, WarningsAreCounted) {
  nlohmann::json config = SmallConfig("LlamaForCausalLM");
  for (int i = 0; i < 1000; ++i) config["unknown_" + std::to_string(i)] = "x";
  const std::string text = config.dump();
  const auto parsed = ParseHfConfig(BytesOf(text), "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed.value().warnings.size(), 17u);
  EXPECT_EQ(parsed.value().warnings.back(), "984 more settings are not known");
}

TEST(ConvertLimits, FilesAreReadUpToALimit) {
  ScratchDirectory scratch;
  const std::string text(1000, 'a');
  WriteAll(scratch / "file", text);
  EXPECT_EQ(ReadWholeFile(scratch / "file", 1000).value(), text);
  EXPECT_EQ(ReadWholeFile(scratch / "file", 999).status().code(), Code::kUnsupported);
  EXPECT_EQ(ReadWholeFile("/dev/null", 0).value(), "");
  const int64_t peak = PeakOf([] {
    const Status status = ReadWholeFile("/dev/zero", 1 << 20).status();
    EXPECT_NE(status.message().find("/dev/zero: more than the limit of 1048576 bytes"), std::string::npos);
  });
  EXPECT_LE(peak, 5 << 20);
  EXPECT_EQ(ReadWholeFile(scratch / "none", 1).status().code(), Code::kNotFound);
  EXPECT_EQ(ReadWholeFile("", 1).status().code(), Code::kInvalid);
  EXPECT_EQ(ReadWholeFile(scratch / "", 1).status().code(), Code::kIo);
  EXPECT_EQ(ReadDescriptor(-1, "standard input", 1).status().code(), Code::kIo);
}

TEST(ConvertLimits, PipesAreReadToTheirEnd) {
  ScratchDirectory scratch;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::thread writer([&] {
    const std::string part(100000, 'b');  // more than a pipe holds
    for (int i = 0; i < 5; ++i) EXPECT_EQ(write(ends[1], part.data(), part.size()), 100000);
    close(ends[1]);
  });
  EXPECT_EQ(ReadDescriptor(ends[0], "pipe", 1 << 20).value().size(), 500000u);
  writer.join();
  close(ends[0]);
  const std::string fifo = scratch / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::thread late([&] {
    usleep(100000);
    const int fd = open(fifo.c_str(), O_WRONLY);
    usleep(100000);  // open, and nothing written yet
    EXPECT_EQ(write(fd, "text", 4), 4);
    close(fd);
  });
  EXPECT_EQ(ReadWholeFile(fifo, 100).value(), "text");
  late.join();
  EXPECT_NE(ReadWholeFile(fifo, 100).status().message().find("nobody writes"), std::string::npos);
}

}  // namespace
}  // namespace kvc
