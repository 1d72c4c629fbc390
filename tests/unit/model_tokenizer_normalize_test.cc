// Normal form C in pieces is that of the whole, wherever a piece ends.
#include "lib/model/tokenizer_normalize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

Span<const uint8_t> Bytes(const std::string& s) {
  return Span<const uint8_t>(reinterpret_cast<const uint8_t*>(s.data()), s.size());
}

std::string Nfc(const std::string& text) {
  Buffer<uint8_t> storage;
  Span<const uint8_t> out;
  const Status status = NormalizeNfc(Bytes(text), nullptr, &storage, &out);
  EXPECT_TRUE(status.ok()) << status.message();
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

struct Case {
  const char *text, *form;  // UAX #15
};
const Case kCases[] = {
    {"e\xCC\x81", "\xC3\xA9"},                                 // e, acute
    {"q\xCC\x87\xCC\xA3", "q\xCC\xA3\xCC\x87"},                // dots change places
    {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"},  // Hangul from three parts
    {"\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81"},              // from two
    {"\xE0\xA7\x87\xE0\xA6\xBE", "\xE0\xA7\x8B"},              // Bengali vowel of two parts
    {"\xE2\x84\xAB", "\xC3\x85"},                              // Angstrom sign
    {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"},              // excluded from composition
    {"\xF0\x9D\x85\x9E", "\xF0\x9D\x85\x97\xF0\x9D\x85\xA5"},  // a musical symbol
    {"\xC3\xA9", "\xC3\xA9"},
};

TEST(NormalizeNfc, IsThatOfTheWholeWhereverAPieceEnds) {
  for (const Case& c : kCases) {
    const std::string text = c.text, form = c.form;
    EXPECT_EQ(Nfc(text), form);
    for (size_t before = 4080; before <= 4100; ++before) {
      for (const char* filler : {"x", "\xE4\xB8\x80"}) {
        std::string start;
        while (start.size() < before) start += filler;
        EXPECT_EQ(Nfc(start + text + text + "y"), start + form + form + "y") << before;
        EXPECT_EQ(Nfc(start + text + start + text), start + form + start + form) << before;
      }
    }
  }
}

TEST(NormalizeNfc, TextInNormalFormIsNotCopied) {
  std::string text;
  while (text.size() < 100000) text += "caf\xC3\xA9 \xE4\xB8\x80 and more\n";
  Buffer<uint8_t> storage;
  Span<const uint8_t> out;
  ASSERT_TRUE(NormalizeNfc(Bytes(text), nullptr, &storage, &out).ok());
  EXPECT_EQ(reinterpret_cast<const char*>(out.data()), text.data());
  EXPECT_EQ(out.size(), text.size());
  EXPECT_EQ(storage.size(), 0);
}

// Longer than a piece: sorted as a whole, though quadratic sorting would take minutes.
TEST(NormalizeNfc, ARunOfMarks) {
  std::string text = "q", above, below;
  for (int i = 0; i < 200000; ++i) text += "\xCC\x87\xCC\xA3", above += "\xCC\x87", below += "\xCC\xA3";
  EXPECT_EQ(Nfc(text + "a"), "q" + below + above + "a");
}

// Runs of marks of many classes, short and long: by class (UnicodeData.txt), and else as they came.
TEST(NormalizeNfc, RunsOfMarksOfManyClasses) {
  using Mark = std::pair<int, int32_t>;  // class, character
  const Mark marks[] = {{230, 0x0301}, {220, 0x0323}, {202, 0x0327}, {10, 0x05B0}, {27, 0x064B},
                        {7, 0x093C},   {240, 0x0345}, {1, 0x0334},   {230, 0x0302}};
  std::mt19937 random(8);
  for (size_t round = 0; round < 300; ++round) {
    std::string text, expected;
    for (int part = 0; part < 4; ++part) {
      std::vector<Mark> run(random() % (round % 10 == 0 ? 200 : 24));
      for (Mark& mark : run) mark = marks[random() % std::size(marks)];
      text += "q", expected += "q";  // which composes with none
      for (const Mark& mark : run) AppendUtf8(mark.second, &text);
      std::stable_sort(run.begin(), run.end(),
                       [](const Mark& a, const Mark& b) { return a.first < b.first; });
      for (const Mark& mark : run) AppendUtf8(mark.second, &expected);
    }
    ASSERT_EQ(Nfc(text), expected) << round;
  }
}

}  // namespace
}  // namespace kvc
