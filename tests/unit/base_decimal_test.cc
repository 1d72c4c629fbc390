// Decimal numbers in text: the same grammar on every standard library, whatever the locale.
#include "lib/base/decimal.h"

#include <gtest/gtest.h>

#include <clocale>
#include <limits>

namespace kvc {
namespace {

TEST(Decimal, ReadsAllOfIt) {
  double value = 0;
  EXPECT_TRUE(ReadDecimal("-1.5e-3", &value));
  EXPECT_EQ(value, -0.0015);
  EXPECT_TRUE(ReadDecimal("0.1", &value));
  EXPECT_EQ(value, 0.1);
  EXPECT_TRUE(ReadDecimal("5.", &value));
  EXPECT_EQ(value, 5);
  EXPECT_TRUE(ReadDecimal(".5", &value));
  EXPECT_EQ(value, 0.5);
}

TEST(Decimal, RefusesWhatIsNone) {
  double value = 0;
  for (const char* text :
       {"", " 1", "1 ", "+1", "--1", "1,5", "0x10", "inf", "nan", "-inf", "1e", "e5", ".", "1.5f", "1e999"}) {
    EXPECT_FALSE(ReadDecimal(text, &value)) << text;
  }
  EXPECT_FALSE(ReadDecimal(std::string_view("1\0002", 3), &value));
}

// Down to the smallest there is; what would be 0 is none.
TEST(Decimal, ReadsNumbersThatAreNotNormal) {
  double value = 0;
  EXPECT_TRUE(ReadDecimal("-1e-310", &value));
  EXPECT_EQ(value, -1e-310);
  EXPECT_TRUE(ReadDecimal("4.9406564584124654e-324", &value));
  EXPECT_EQ(value, std::numeric_limits<double>::denorm_min());
  EXPECT_FALSE(ReadDecimal("1e-999", &value));
  EXPECT_TRUE(ReadDecimal("0e-999", &value));
  EXPECT_EQ(value, 0);
}

TEST(Decimal, HasNoLocale) {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  if (std::setlocale(LC_ALL, "de_DE.UTF-8") == nullptr) GTEST_SKIP() << "no locale with a decimal comma here";
  double value = 0;
  EXPECT_TRUE(ReadDecimal("1.5", &value));
  EXPECT_EQ(value, 1.5);
  std::setlocale(LC_ALL, before.c_str());
}

}  // namespace
}  // namespace kvc
