// Lines of the log: whole characters, however long what they tell of is.
#include "lib/base/log.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

class LogLine : public testing::Test {
 protected:
  void SetUp() override { SetLog(kLogDebug, &LogLine::Take, &line_); }
  void TearDown() override { SetLog(0, nullptr, nullptr); }
  static void Take(void* user, int32_t, const char* text) { *static_cast<std::string*>(user) = text; }
  std::string line_;
};

TEST_F(LogLine, ALineThatIsTooLongEndsBehindAWholeCharacter) {
  for (const std::string character : {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    std::string name;
    while (name.size() < 2000) name += character;
    for (size_t before = 0; before < 4; ++before) {
      SCOPED_TRACE(testing::Message() << character << " behind " << before);
      const std::string lead(before, '.'), whole = lead + name;
      Log(kLogInfo, "%s%s", lead.c_str(), name.c_str());
      EXPECT_TRUE(IsUtf8(line_));
      EXPECT_EQ(line_, whole.substr(0, line_.size()));
      EXPECT_LE(line_.size(), 1023u);
      EXPECT_GT(line_.size() + character.size(), 1023u) << "no more is lost than one character";
    }
  }
}

TEST_F(LogLine, WhatFitsStaysAsItIs) {
  const std::string text = std::string(1021, '.') + "\xc3\xa9", cut_elsewhere = "/tmp/\xe2\x82";
  for (const std::string& each : {text, cut_elsewhere}) {
    Log(kLogInfo, "%s", each.c_str());
    EXPECT_EQ(line_, each);
  }
}

// A name of a file may be any bytes: those that are no text are as many as fit.
TEST_F(LogLine, BytesThatAreNoTextAreCutAnywhere) {
  for (const char byte : {'\x80', '\xff'}) {
    Log(kLogInfo, "%s", std::string(2000, byte).c_str());
    EXPECT_EQ(line_, std::string(1023, byte));
  }
}

TEST_F(LogLine, ControlCharactersAreQuestionMarks) {
  Log(kLogInfo, "a\nb\x7f%s", "\t\xc3\xa9");
  EXPECT_EQ(line_, "a?b??\xc3\xa9");
}

}  // namespace
}  // namespace kvc
