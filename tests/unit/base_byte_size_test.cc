// Sizes in text: one grammar for budget_bytes of a policy and for the options of the program.
#include "lib/base/byte_size.h"

#include <gtest/gtest.h>

#include <string>

#include "models/convert/size_text.h"

namespace kvc {
namespace {

TEST(ByteSize, ReadsUnits) {
  const struct {
    const char* text;
    double bytes;
  } kCases[] = {{"65536", 65536},
                {"1e6", 1e6},
                {"5E6", 5e6},
                {"4096B", 4096},
                {"2kB", 2000},
                {"2KB", 2000},
                {"2K", 2048},
                {"2KiB", 2048},
                {"3MB", 3e6},
                {"3M", 3145728},
                {"3MiB", 3145728},
                {"1.5GB", 1.5e9},
                {"1.5G", 1610612736},
                {"1.5GiB", 1610612736},
                {"2TB", 2e12},
                {"2T", 2199023255552},
                {"2TiB", 2199023255552},
                {" 512 MiB\t", 536870912},
                {"0.5", 0.5},
                {"-1K", -1024}};
  for (const auto& c : kCases) {
    double own = 0, of_program = 0;
    EXPECT_TRUE(ReadByteSize(c.text, &own)) << c.text;
    EXPECT_TRUE(ReadSize(c.text, &of_program)) << c.text;
    EXPECT_EQ(own, c.bytes) << c.text;
    EXPECT_EQ(of_program, c.bytes) << c.text;
  }
}

TEST(ByteSize, RefusesWhatIsNone) {
  for (const char* text : {"", " ", "B", "KiB", "1 2", "1b", "1kib", "1Ki", "1KBs", "1MiBB", "1PB", "e6",
                           "1e", "+1", "0x10", "inf", "nanB", "1,5K", "1e400"}) {
    double value = 0;
    EXPECT_FALSE(ReadByteSize(text, &value)) << text;
    EXPECT_FALSE(ReadSize(text, &value)) << text;
  }
  double value = 0;
  EXPECT_FALSE(ReadSize(std::string("1\0K", 3), &value));
}

}  // namespace
}  // namespace kvc
