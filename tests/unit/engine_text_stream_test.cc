#include "lib/engine/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "lib/base/utf8.h"
#include "tests/support/heap_faults.h"

namespace kvc {
namespace {

void Push(TextStream* stream, const std::string& bytes) {
  stream->Push({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, false);
}

std::string Pull(TextStream* stream, int32_t cap = 1 << 20) {
  std::string out(static_cast<size_t>(std::max(std::min(cap, stream->Available()), 1)), '\0');
  out.resize(static_cast<size_t>(stream->Pull(reinterpret_cast<uint8_t*>(&out[0]), cap)));
  return out;
}

bool IsUtf8(const std::string& s) {
  for (size_t at = 0; at < s.size();) {
    const size_t n = Utf8Length(reinterpret_cast<const uint8_t*>(s.data()) + at, s.size() - at);
    if (n == 0) return false;
    at += n;
  }
  return true;
}

TEST(TextStream, AnEmojiWaitsForItsLastByte) {
  TextStream stream;
  const std::string family = "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80";  // woman, joiner, rocket
  std::string out;
  for (size_t i = 0; i < family.size(); ++i) {
    Push(&stream, family.substr(i, 1));
    const std::string now = Pull(&stream);
    EXPECT_EQ(now.empty(), i != 3 && i != 6 && i != 10) << i;
    out += now;
  }
  EXPECT_EQ(out, family);
}

TEST(TextStream, BytesOfTokensThatWentGoWithThem) {
  TextStream stream;
  Push(&stream, "a\xF0");
  Push(&stream, "\x9F\x91");
  stream.TakeBack(2);  // of the second token
  EXPECT_EQ(Pull(&stream), "a");
  Push(&stream, "\x9A\x80\x80");
  EXPECT_EQ(Pull(&stream), "\xF0\x9A\x80\x80");
  Push(&stream, "b\xE2");
  stream.TakeBack(100);  // what is complete stays
  Push(&stream, "c");
  EXPECT_EQ(Pull(&stream), "bc");
}

TEST(TextStream, BehindAPromptATextBegins) {
  TextStream stream;
  EXPECT_TRUE(stream.at_start());
  stream.Push({}, true);
  EXPECT_TRUE(stream.at_start()) << "a token without text";
  Push(&stream, "one\xE2");
  EXPECT_FALSE(stream.at_start());
  stream.DropWaiting();
  EXPECT_TRUE(stream.at_start());
  EXPECT_EQ(Pull(&stream), "one");
}

TEST(TextStream, InvalidBytesBecomeReplacementCharacters) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\x80z", "a\uFFFDz"},                            // a continuation byte alone
      {"\xC0\xAF", "\uFFFD\uFFFD"},                      // overlong
      {"\xED\xA0\x80!", "\uFFFD\uFFFD\uFFFD!"},          // a surrogate
      {"\xF5\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // beyond U+10FFFF
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE2\x82"
       "A",
       "\uFFFD\uFFFD"
       "A"},  // cut by an ASCII letter
      {"\xFF\xFE", "\uFFFD\uFFFD"},
  };
  for (const auto& [in, expected] : cases) {
    TextStream whole, bytewise;
    Push(&whole, in);
    for (const char* p = in; *p != 0; ++p) Push(&bytewise, std::string(1, *p));
    EXPECT_EQ(Pull(&whole), expected) << in;
    EXPECT_EQ(Pull(&bytewise), expected) << in;
  }
}

TEST(TextStream, TheEndCompletesNothing) {
  TextStream stream;
  Push(&stream, "ok\xF0\x9F\x91");
  EXPECT_EQ(Pull(&stream), "ok");
  EXPECT_EQ(stream.Available(), 0);
  stream.Flush();
  EXPECT_EQ(Pull(&stream), "\uFFFD");
  stream.Flush();
  EXPECT_EQ(Pull(&stream), "");
}

TEST(TextStream, SmallBuffersSplitNoCharacter) {
  TextStream stream;
  Push(&stream, "a\xC3\xA9\xF0\x9F\x9A\x80z");
  EXPECT_EQ(Pull(&stream, 2), "a");
  EXPECT_EQ(Pull(&stream, 2), "\xC3\xA9");
  EXPECT_EQ(Pull(&stream, 3), "") << "no room for four bytes";
  EXPECT_EQ(Pull(&stream, 4), "\xF0\x9F\x9A\x80");
  EXPECT_EQ(Pull(&stream, 0), "");
  EXPECT_EQ(Pull(&stream, -5), "");
  EXPECT_EQ(Pull(&stream, 9), "z");
}

// Any bytes in any pieces: valid UTF-8 comes out, valid input comes out unchanged, and pieces do not matter.
TEST(TextStream, PiecesDoNotMatter) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    const bool valid = round % 2 == 0;
    for (int i = 0; i < 60; ++i) {
      if (valid) {
        static const char* const kPieces[] = {"a",  "\xC3\xA9",         "\xE2\x82\xAC", "\xF0\x9F\x9A\x80",
                                              "\n", "\xF4\x8F\xBF\xBF", "\xEF\xBF\xBD"};
        text += kPieces[random() % 7];
      } else {
        text += static_cast<char>(random() % 3 == 0 ? random() % 128 : random() % 256);
      }
    }
    TextStream whole, pieces;
    Push(&whole, text);
    whole.Flush();
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t n = random() % 5;
      Push(&pieces, text.substr(at, n));
      at += n;
      out += Pull(&pieces, static_cast<int32_t>(random() % 9));
    }
    pieces.Flush();
    out += Pull(&pieces);
    EXPECT_TRUE(IsUtf8(out));
    EXPECT_EQ(out, Pull(&whole));
    if (valid) {
      EXPECT_EQ(out, text);
    }
  }
}

// What a file says may be no text: unread bytes are complete characters, waiting ones the start of one.
TEST(TextStream, WhatWasReadBackIsChecked) {
  const auto whole = [](const std::string& unread, const std::string& waiting) {
    std::string bytes;
    for (const std::string& part : {unread, waiting}) {
      const int64_t n = static_cast<int64_t>(part.size());
      bytes.append(reinterpret_cast<const char*>(&n), sizeof n).append(part);
    }
    bytes.push_back('\1');
    MemorySource source({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    ArchiveReader in(&source, source.size());
    TextStream stream;
    EXPECT_TRUE(stream.Archive(in, 100).ok());
    return stream.IsWhole();
  };
  EXPECT_TRUE(whole("", ""));
  EXPECT_TRUE(whole("a\xC3\xA4\xF0\x9F\x99\x82", "\xE2\x82"));
  EXPECT_FALSE(whole("\x80", ""));
  EXPECT_FALSE(whole("a\xC3", ""));
  EXPECT_FALSE(whole("a", "b"));
  EXPECT_FALSE(whole("a", "\x80"));
  EXPECT_FALSE(whole("a", "\xC3\xA4"));
}

TEST(TextStream, ReadingForeverTakesNoMore) {
  TextStream stream;
  const int64_t before = test::HeapBytes();
  for (int i = 0; i < 200000; ++i) {
    Push(&stream, "abc");
    Pull(&stream, stream.Available() - 1);  // never quite all of it
  }
  EXPECT_LT(test::HeapBytes() - before, 64 << 10);
}

TEST(TextStream, AnotherTextBeginsWithItsOwnCharacters) {
  TextStream stream;
  Push(&stream, "a\xE2\x82");
  EXPECT_EQ(Pull(&stream), "a");
  stream.DropWaiting();
  Push(&stream, "b");
  EXPECT_EQ(Pull(&stream), "b");
}

// A fork goes on within the character and the text; what is ready stays with the other.
TEST(TextStream, GoesOnFromAnother) {
  TextStream one, other;
  Push(&one, "a\xE2\x82");
  other.GoOnFrom(one);
  EXPECT_FALSE(other.at_start());
  Push(&other, "\xAC b");
  EXPECT_EQ(Pull(&other), "\xE2\x82\xAC b");
  Push(&one, "\xAC");
  EXPECT_EQ(Pull(&one), "a\xE2\x82\xAC");
}

}  // namespace
}  // namespace kvc
