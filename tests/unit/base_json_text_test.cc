// JSON text, read back by another library.
#include "lib/base/json_text.h"

#include <gtest/gtest.h>

#include <charconv>
#include <clocale>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/half.h"
#include "lib/base/hash.h"
#include "lib/base/philox.h"

namespace kvc {
namespace {

nlohmann::json Parsed(const std::string& text) {
  std::string out;
  AppendJsonString(&out, text.data(), text.size());
  return nlohmann::json::parse(out);
}

TEST(JsonText, EveryByteAndCharacterSurvivesOrIsReplaced) {
  for (int c = 0; c < 128; ++c) {
    const std::string text = std::string("a") + static_cast<char>(c) + "b";
    EXPECT_EQ(Parsed(text), text) << c;
  }
  for (const char* text :
       {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf", "\xc2\x80"}) {
    EXPECT_EQ(Parsed(text), text);
  }
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(Parsed("\x80"), r);
  EXPECT_EQ(Parsed("\xc3"), r) << "cut";
  EXPECT_EQ(Parsed("\xe2\x82 "), r + r + " ");
  EXPECT_EQ(Parsed("\xc0\xaf"), r + r) << "overlong";
  EXPECT_EQ(Parsed("\xe0\x80\x80"), r + r + r);
  EXPECT_EQ(Parsed("\xf0\x80\x80\x80"), r + r + r + r);
  EXPECT_EQ(Parsed("\xed\xa0\x80"), r + r + r) << "surrogate";
  EXPECT_EQ(Parsed("\xf4\x90\x80\x80"), r + r + r + r) << "above U+10FFFF";
  EXPECT_EQ(Parsed("\xff"), r);
}

TEST(JsonText, RandomBytesAlwaysParse) {
  for (uint32_t i = 0; i < 2000; ++i) {
    std::string text;
    for (const uint32_t word : Philox(i, 0, 0, 0, 5)) {
      for (int b = 0; b < 4; ++b) text.push_back(static_cast<char>(word >> (8 * b)));
    }
    EXPECT_TRUE(Parsed(text).is_string());
  }
}

template <typename T>
void ExpectLikeToChars(T value) {
  if (!std::isfinite(value)) return;
  char expected[64];
  std::string text;
  AppendJsonNumber(&text, value);
  EXPECT_EQ(text, std::string(expected, std::to_chars(expected, expected + sizeof(expected), value).ptr));
}

TEST(JsonText, NumbersAreWhatToCharsWrites) {
  for (uint32_t i = 0; i < 2000; ++i) {
    const auto words = Philox(i, 2, 0, 0, 5);
    double d;
    std::memcpy(&d, &words[2], 8);
    ExpectLikeToChars(BitsToFloat(words[0]));
    ExpectLikeToChars(d);
    ExpectLikeToChars(static_cast<double>(words[1]) / 1000);
    ExpectLikeToChars(std::ldexp(static_cast<double>(words[3]), static_cast<int>(words[1] % 80) - 40));
  }
  for (int e = -30; e <= 30; ++e) {
    for (const double digits : {1.0, 1.5, 9.99, 1.2345678901234567, -3.0}) {
      ExpectLikeToChars(digits * std::pow(10.0, e));
      ExpectLikeToChars(static_cast<float>(digits * std::pow(10.0, e)));
    }
  }
  for (const double d :
       {0.0, -0.0, 5e-324, std::numeric_limits<double>::max(), std::numeric_limits<double>::min()})
    ExpectLikeToChars(d);
  for (const float f : {0.0f, 1e-45f, std::numeric_limits<float>::max(), std::numeric_limits<float>::min()})
    ExpectLikeToChars(f);
}

TEST(JsonText, NumbersReadBackExactly) {
  std::setlocale(LC_NUMERIC, "de_DE.UTF-8");  // where installed, its decimal comma must not appear
  for (uint32_t i = 0; i < 2000; ++i) {
    const auto words = Philox(i, 1, 0, 0, 5);
    const float f = BitsToFloat(words[0]);
    double d;
    std::memcpy(&d, &words[2], 8);
    if (std::isfinite(f)) {
      std::string text;
      AppendJsonNumber(&text, f);
      EXPECT_EQ(nlohmann::json::parse(text).get<float>(), f) << text;
    }
    if (std::isfinite(d)) {
      std::string text;
      AppendJsonNumber(&text, d);
      EXPECT_EQ(nlohmann::json::parse(text).get<double>(), d) << text;
    }
  }
  std::setlocale(LC_NUMERIC, "C");
  std::string text;
  AppendJsonNumber(&text, 0.1f);
  text += ' ';
  AppendJsonNumber(&text, std::numeric_limits<int64_t>::min());
  text += ' ';
  AppendJsonNumber(&text, std::nan(""));
  EXPECT_EQ(text, "0.1 -9223372036854775808 null");
}

TEST(JsonText, TheWriterPutsTheCommas) {
  std::string text;
  JsonWriter json(&text);
  json.BeginObject();
  json.Field("a", 1);
  json.Field("b", true);
  json.Key("c").BeginArray();
  json.Value("x"), json.Value(0.5), json.Value(std::nan(""));
  json.BeginObject(), json.EndObject();
  json.BeginArray(), json.EndArray();
  json.EndArray();
  json.Field("d", int64_t{1} << 60);
  json.EndObject();
  EXPECT_EQ(text, R"({"a":1,"b":true,"c":["x",0.5,null,{},[]],"d":1152921504606846976})");
}

// Values of the xxHash library's own test program (XXH3, seed 0, empty input) and independence of the split.
TEST(Hash64, KnownValueAndAnySplit) {
  EXPECT_EQ(Hash64("", 0), 0x2d06800538d394c2u);
  std::string bytes;
  for (uint32_t i = 0; i < 5000; ++i) bytes.push_back(static_cast<char>(Philox(i, 0, 0, 0, 9)[0]));
  const uint64_t want = Hash64(bytes.data(), bytes.size());
  for (const size_t step : {size_t{1}, size_t{7}, size_t{256}, size_t{4999}}) {
    Hasher64 hasher;
    for (size_t i = 0; i < bytes.size(); i += step)
      hasher.Update(bytes.data() + i, std::min(step, bytes.size() - i));
    hasher.Update(nullptr, 0);
    EXPECT_EQ(hasher.Digest(), want) << step;
    EXPECT_EQ(hasher.Digest(), want) << "asking does not change it";
  }
}

}  // namespace
}  // namespace kvc
