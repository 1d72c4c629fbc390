// The lookups of tokenizers against plain ones, and with keys that were chosen to make them slow.
#include "lib/model/tokenizer_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "lib/model/tokenizer_spec.h"

namespace kvc {
namespace {

const uint8_t* Data(const std::string& s) { return reinterpret_cast<const uint8_t*>(s.data()); }

TokenizerSpec SpecOf(const std::vector<std::string>& pieces, PieceKind kind) {
  TokenizerSpec spec;
  spec.pieces = pieces;
  spec.piece_kinds.assign(pieces.size(), kind);
  return spec;
}

std::string RandomText(std::mt19937* random, size_t most, int letters) {
  std::string text((*random)() % most + 1, ' ');
  for (char& c : text) c = static_cast<char>('a' + (*random)() % static_cast<unsigned>(letters));
  return text;
}

// Keys of one place: with this seed a table of them is a list, and building it would take a step for each
// pair.
std::vector<uint64_t> CollidingKeys(uint64_t seed, size_t count) {
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; keys.size() < count; ++key) {
    if (Hash64(&key, sizeof key, seed) >> 52 == 7) keys.push_back(key);
  }
  return keys;
}

// How many of the keys go in before the table says that they crowd one place.
size_t Fill(const std::vector<uint64_t>& keys, uint64_t seed, HashIndex* index) {
  EXPECT_TRUE(index->Init(nullptr, keys.size(), keys.size(), "test").ok());
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const auto same = [&](uint32_t other) { return keys[other] == keys[i]; };
    uint32_t other = 0;
    if (index->Add(Hash64(&keys[i], 8, seed), i, same, &other) != HashIndex::Added::kYes) return i;
  }
  return keys.size();
}

TEST(HashIndex, FindsWhatWasAddedAndNothingElse) {
  std::mt19937 random(1);
  std::map<uint64_t, uint32_t> known;
  std::vector<uint64_t> keys;
  HashIndex index;
  ASSERT_TRUE(index.Init(nullptr, 5000, 5000, "test").ok());
  const auto find = [&](uint64_t key) {
    return index.Find(Hash64(&key, 8, 3), [&](uint32_t i) { return keys[i] == key; });
  };
  EXPECT_EQ(find(5), HashIndex::kNone);
  for (uint32_t i = 0; i < 5000; ++i) {
    const uint64_t key = random() % 20000;
    uint32_t other = HashIndex::kNone;
    const auto number = static_cast<uint32_t>(keys.size());
    const auto added = index.Add(
        Hash64(&key, 8, 3), number, [&](uint32_t n) { return keys[n] == key; }, &other);
    if (known.count(key) > 0) {
      EXPECT_EQ(added, HashIndex::Added::kThere);
      EXPECT_EQ(other, known[key]);
    } else {
      ASSERT_EQ(added, HashIndex::Added::kYes);
      known[key] = number;
      keys.push_back(key);
    }
  }
  for (uint64_t key = 0; key < 20000; ++key)
    EXPECT_EQ(find(key), known.count(key) > 0 ? known[key] : HashIndex::kNone);
}

TEST(HashIndex, ChosenKeysCrowdOneSeedOnly) {
  const std::vector<uint64_t> keys = CollidingKeys(99, 4000);
  HashIndex index;
  EXPECT_LE(Fill(keys, 99, &index), static_cast<size_t>(HashIndex::kMaxProbes) + 2) << "and there it ends";
  EXPECT_EQ(Fill(keys, 100, &index), keys.size());
  EXPECT_EQ(Fill(keys, RandomSeed(), &index), keys.size());
  EXPECT_NE(RandomSeed(), RandomSeed());
}

// The largest table there can be, at any seed: no search comes near the bound.
TEST(HashIndex, ChanceCrowdsNoTable) {
  std::vector<uint64_t> keys(size_t{1} << 21);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  HashIndex index;
  EXPECT_EQ(Fill(keys, RandomSeed(), &index), keys.size());
}

TEST(PieceTable, AgreesWithAMap) {
  std::mt19937 random(2);
  std::set<std::string> set;
  while (set.size() < 3000) set.insert(RandomText(&random, 12, 3));
  const std::vector<std::string> pieces(set.begin(), set.end());
  const FlatTokenizer flat(SpecOf(pieces, PieceKind::kNormal));
  PieceTable table;
  ASSERT_TRUE(table.Build(flat.view(), {PieceKind::kNormal}, nullptr).ok());
  for (int i = 0; i < 20000; ++i) {
    const std::string text = RandomText(&random, 14, 3);
    const auto at = std::lower_bound(pieces.begin(), pieces.end(), text);
    const bool there = at != pieces.end() && *at == text;
    EXPECT_EQ(table.Find(Data(text), text.size()), there ? at - pieces.begin() : -1);
  }
  EXPECT_EQ(table.Find(Data("a"), 0), -1);
  EXPECT_FALSE(PieceTable()
                   .Build(FlatTokenizer(SpecOf({"a", "b", "a"}, PieceKind::kNormal)).view(),
                          {PieceKind::kNormal}, nullptr)
                   .ok());
  EXPECT_TRUE(PieceTable()
                  .Build(FlatTokenizer(SpecOf({"", "b", ""}, PieceKind::kUnused)).view(),
                         {PieceKind::kUnused}, nullptr)
                  .ok());
}

TEST(TokenMatcher, FindsTheLongestAsATryOfAllDoes) {
  std::mt19937 random(3);
  for (int letters : {1, 2, 3}) {
    std::set<std::string> set;
    for (int i = 0; i < 300; ++i) set.insert(RandomText(&random, letters == 1 ? 40 : 8, letters));
    const std::vector<std::string> pieces(set.begin(), set.end());
    const FlatTokenizer flat(SpecOf(pieces, PieceKind::kControl));
    TokenMatcher matcher;
    ASSERT_TRUE(matcher.Build(flat.view(), {PieceKind::kControl}, nullptr).ok());
    for (int i = 0; i < 3000; ++i) {
      const std::string text = RandomText(&random, 60, letters + i % 2);
      size_t expected = 0;
      for (const std::string& piece : pieces) {
        if (text.compare(0, piece.size(), piece) == 0) expected = std::max(expected, piece.size());
      }
      int32_t id = -1;
      ASSERT_EQ(matcher.Longest(Data(text), text.size(), &id), expected) << text;
      if (expected > 0) {
        EXPECT_EQ(pieces[static_cast<size_t>(id)], text.substr(0, expected));
      }
    }
  }
}

TEST(TokenMatcher, RefusesTwoThatAreEqual) {
  TokenMatcher matcher;
  const FlatTokenizer flat(SpecOf({"ab", "a", "abc", "ab"}, PieceKind::kControl));
  const Status status = matcher.Build(flat.view(), {PieceKind::kControl}, nullptr);
  EXPECT_NE(status.message().find("pieces 0 and 3 are both \"ab\""), std::string::npos) << status.message();
}

TEST(PieceJoints, AreTheNeighboursInsidePieces) {
  const std::vector<std::string> pieces = {"ab", " the", "\xC3\xA9t", "x"};
  const FlatTokenizer flat(SpecOf(pieces, PieceKind::kNormal));
  PieceJoints joints;
  joints.Build(flat.view(), {PieceKind::kNormal});
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string both = {static_cast<char>(a), static_cast<char>(b)};
      const bool inside = std::any_of(pieces.begin(), pieces.end(), [&](const std::string& piece) {
        return piece.find(both) != std::string::npos;
      });
      EXPECT_EQ(joints.IsBorder(static_cast<uint8_t>(a), static_cast<uint8_t>(b)), !inside) << both;
    }
  }
}

// What lies in a mapped file may change under us: then pieces are others, but never outside.
TEST(TokenizerView, APieceIsNeverOutside) {
  const uint8_t bytes[4] = {'a', 'b', 'c', 'd'};
  const std::vector<uint32_t> ends = {2, 1, 4000000000u, 3, 4};
  TokenizerView view;
  view.piece_bytes = {bytes, 4};
  view.piece_ends = ends;
  for (size_t i = 0; i < ends.size(); ++i) {
    const Span<const uint8_t> piece = view.Piece(i);
    if (piece.empty()) continue;
    EXPECT_TRUE(piece.data() >= bytes && piece.data() + piece.size() <= bytes + 4);
  }
  EXPECT_EQ(view.Piece(0).size(), 2u);
  EXPECT_EQ(view.Piece(4).size(), 1u);
}

}  // namespace
}  // namespace kvc
