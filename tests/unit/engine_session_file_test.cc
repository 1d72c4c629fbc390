// Saved sessions: damaged and foreign files, disks that are full, processes that die while saving.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "lib/base/hash.h"
#include "lib/engine/session.h"
#include "tests/support/emulated.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::SavedBytes;
using test::Steps;
using test::TinyPrompt;

std::shared_ptr<const Model> Tiny(uint64_t seed = 1) {
  test::TinyModelOptions options;
  options.seed = seed;
  static std::map<uint64_t, test::AlignedBytes> files;
  test::AlignedBytes& bytes = files[seed];
  if (bytes.size() == 0) bytes = test::TinyModelBytes(options);
  return test::OpenTiny(bytes, 1);
}

std::unique_ptr<Session> Fed(const std::shared_ptr<const Model>& model, const char* spec, int prompt,
                             int steps) {
  std::unique_ptr<Session> session = test::FedSession(model, spec, prompt);
  Steps(*session, steps);
  return session;
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// In place: some file systems wait for the disk when a file is cut to nothing and written again.
void Write(const std::string& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT, 0666);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(bytes.size())), 0);
  ::close(fd);
}

void WriteWithItsChecksum(const std::string& path, std::string bytes) {
  const uint64_t digest = Hash64(bytes.data(), bytes.size() - sizeof(uint64_t));
  std::memcpy(&bytes[bytes.size() - sizeof digest], &digest, sizeof digest);
  Write(path, bytes);
}

int FilesIn(const std::string& folder) {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

const char* const kSmall = "snapkv:budget=16,window=8";

TEST(SessionFile, EveryFlippedByteIsRefused) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  ASSERT_TRUE(Fed(model, kSmall, 20, 2)->Save(path).ok());
  const std::string good = Read(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    Write(path, bad);
    const auto restored = Session::Restore(model, path);
    ASSERT_FALSE(restored.ok()) << "byte " << i << " of " << good.size();
    ASSERT_EQ(restored.status().code(), Code::kBadModel) << restored.status().message();
    ASSERT_NE(restored.status().message().find(path), std::string::npos) << "says which file";
  }
  Write(path, good);
  EXPECT_TRUE(Session::Restore(model, path).ok());
}

TEST(SessionFile, EveryCutAndEveryAdditionIsRefused) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  ASSERT_TRUE(Fed(model, kSmall, 20, 2)->Save(path).ok());
  const std::string good = Read(path);
  for (size_t n = 0; n < good.size(); ++n) {
    Write(path, good.substr(0, n));
    const auto restored = Session::Restore(model, path);
    ASSERT_FALSE(restored.ok()) << n << " of " << good.size() << " bytes";
    ASSERT_EQ(restored.status().code(), Code::kBadModel) << restored.status().message();
  }
  for (size_t n : {1u, 7u, 8u, 4096u}) {
    Write(path, good + std::string(n, '\0'));
    EXPECT_FALSE(Session::Restore(model, path).ok());
  }
}

// Tokens that are read and taken back again count on, as far as counts go.
TEST(SessionFile, ASessionThatCountedToTheEndIsSavedAndRestored) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  ASSERT_TRUE(Fed(model, "full", 20, 3)->Save(path).ok());
  std::string bytes = Read(path);
  const int32_t counts[] = {22, 20, 3, 0};  // tokens, of prompts, of answers; compressions
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(counts), sizeof counts));
  ASSERT_NE(at, std::string::npos);
  const int32_t most[] = {kMaxPosition - 1, kMaxPosition - 1};
  std::memcpy(&bytes[at + sizeof(int32_t)], most, sizeof most);
  WriteWithItsChecksum(path, bytes);
  for (int round = 0; round < 2; ++round) {
    auto restored = Session::Restore(model, path);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    Session& s = *restored.value();
    ASSERT_TRUE(s.Prefill(TinyPrompt(3), false).ok());    // as rows of a step
    ASSERT_TRUE(s.Prefill(TinyPrompt(300), false).ok());  // a layer at a time
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(s.Accept(1).ok());
    EXPECT_EQ(s.Stats().n_prompt, kMaxPosition);
    EXPECT_EQ(s.Stats().n_answer, kMaxPosition);
    ASSERT_TRUE(s.Save(path).ok());
  }
}

// Someone changes bytes and makes the checksum right again: refused, or a session that works, never more.
TEST(SessionFile, ChangedContentWithARightChecksumDoesNoHarm) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  std::mt19937 random(3);
  for (const char* spec :
       {kSmall, "h2o:budget=16,kv=int8,quant_group=16,residual=4", "streaming:budget=16",
        "spindlekv:budget=16,window=4", "snapkv:budget=16,window=4,decode=reobserve,slack=4",
        "scissorhands:budget=24,recent=4,history=16", "weightedkv:budget=16"}) {
    ASSERT_TRUE(Fed(model, spec, 30, 3)->Save(path).ok());
    const std::string good = Read(path);
    int restored_count = 0;
    // Fields first, which lie before the pages; pages by samples.
    for (size_t i = 16; i + 8 < good.size(); i += test::EveryNth(29) * (i < 1500 ? 1 : 13)) {
      std::string bad = good;
      bad[i] = static_cast<char>(random() % 3 == 0   ? 0xFF
                                 : random() % 2 == 0 ? 0x80
                                                     : bad[i] ^ (1 << (i % 8)));
      WriteWithItsChecksum(path, bad);
      auto restored = Session::Restore(model, path);
      if (!restored.ok()) {
        ASSERT_EQ(restored.status().code(), Code::kBadModel) << restored.status().message();
        ASSERT_EQ(restored.status().message().find(path + ": "), 0u) << restored.status().message();
        continue;
      }
      ++restored_count;
      Session& s = *restored.value();
      s.ObserveAttention(false);
      for (int step = 0; step < 12; ++step) {
        int32_t token = -1;
        if (!s.Step(&token).ok()) break;
        ASSERT_LT(token, model->config().vocab_size);
      }
      static_cast<void>(s.Recompress(0, nullptr));
      static_cast<void>(s.Prefill(TinyPrompt(20), true));
      static_cast<void>(s.Rewind(1));
      std::vector<int32_t> kept;
      EXPECT_TRUE(s.Kept(1, 1, &kept).ok());
      s.Stats();
    }
    EXPECT_GT(restored_count, 0) << spec;
  }
}

// Fields that are fine by themselves and contradict each other.
TEST(SessionFile, RoomMadeInAnotherWayIsRefused) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  SessionParams params;
  params.max_tokens = 22, params.on_full = OnFull::kEvict;
  const auto session = test::FedSession(model, kSmall, 20, params);
  Steps(*session, 5);
  ASSERT_TRUE(session->Save(path).ok());
  const std::string good = Read(path);
  ASSERT_TRUE(Session::Restore(model, path).ok());
  const int32_t fields[] = {params.max_tokens, static_cast<int32_t>(params.on_full)};
  const size_t at = good.find(std::string(reinterpret_cast<const char*>(fields), sizeof fields));
  ASSERT_NE(at, std::string::npos);
  for (const OnFull other : {OnFull::kError, OnFull::kSlide}) {
    std::string bad = good;
    bad[at + sizeof(int32_t)] = static_cast<char>(other);
    WriteWithItsChecksum(path, bad);
    const auto restored = Session::Restore(model, path);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), Code::kBadModel);
    EXPECT_NE(restored.status().message().find("damaged"), std::string::npos) << restored.status().message();
  }
}

TEST(SessionFile, AnotherModelIsRefused) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  ASSERT_TRUE(Fed(Tiny(1), kSmall, 20, 2)->Save(path).ok());
  const auto restored = Session::Restore(Tiny(2), path);
  ASSERT_FALSE(restored.ok());
  EXPECT_EQ(restored.status().code(), Code::kBadModel);
  EXPECT_NE(restored.status().message().find("another model"), std::string::npos);
}

TEST(SessionFile, TheSameSessionGivesTheSameBytes) {
  const test::TempFolder folder;
  const auto model = Tiny();
  const auto a = Fed(model, kSmall, 20, 2), b = Fed(model, kSmall, 20, 2);
  ASSERT_TRUE(a->Save(folder / "a").ok());
  ASSERT_TRUE(a->Save(folder / "again").ok());
  EXPECT_EQ(Read(folder / "a"), Read(folder / "again"));
  auto back = Session::Restore(model, folder / "a");
  ASSERT_TRUE(back.ok());
  ASSERT_TRUE(back.value()->Save(folder / "restored").ok());
  EXPECT_EQ(Read(folder / "a"), Read(folder / "restored"));
}

// Sessions at odd moments, of a model with a stop token (257). set: what a reset leaves.
struct Moment {
  const char* name;
  const char* policy;
  void (*set)(Session&);
  void (*bring)(Session&);
};

void Say(Session& s, Role role, const std::string& text, bool answer) {
  const Status said =
      s.Say(role, {reinterpret_cast<const uint8_t*>(text.data()), text.size()}, answer, false);
  ASSERT_TRUE(said.ok()) << said.message();
}

void Choose257(Session& s) {
  const int32_t stop = 257;
  const float more = 1000, none = 0;
  ASSERT_TRUE(s.SetBias({&stop, 1}, &more).ok());
  int32_t token = 0;
  ASSERT_TRUE(s.Step(&token).ok());
  ASSERT_EQ(token, -1);
  ASSERT_TRUE(s.SetBias({&stop, 1}, &none).ok());
}

void SetNothing(Session&) {}

void SetMarks(Session& s) { ASSERT_TRUE(s.SetTurnMarks(Role::kUser, "<u>", ";").ok()); }

void SetChoice(Session& s) {
  SamplerParams p;
  p.temperature = 0.5f, p.min_p = 0.1f, p.repeat_penalty = 1.5f, p.repeat_window = 20, p.seed = 9;
  ASSERT_TRUE(s.SetSampling(p).ok());
}

void Rewound(Session& s) {
  Steps(s, 6);
  ASSERT_TRUE(s.Rewind(3).ok());
}

void SaidTwice(Session& s) {
  Say(s, Role::kUser, "hi", true), Steps(s, 3), Choose257(s);
  Say(s, Role::kUser, "and", true), Steps(s, 2);
}

const Moment kMoments[] = {
    {"a token waits", "full", SetNothing, [](Session& s) { Steps(s, 5); }},
    {"a stop token was chosen", "full", SetNothing, [](Session& s) { Steps(s, 2), Choose257(s); }},
    {"tokens were taken back", "full", SetNothing, Rewound},
    {"half a character waits", "full", SetNothing, [](Session& s) { ASSERT_TRUE(s.Accept(0xE2).ok()); }},
    {"how it chooses was set", "full", SetChoice, [](Session& s) { Steps(s, 3); }},
    {"two turns were said", "full", SetMarks, SaidTwice},
    {"queries are kept", "snapkv:budget=16,window=8,decode=reobserve,slack=2", SetNothing,
     [](Session& s) { Steps(s, 7); }},
    {"entries leave at steps", "h2o:budget=16", SetNothing, [](Session& s) { Steps(s, 7); }},
    {"tokens may be run again", kSmall, SetNothing, [](Session& s) { Steps(s, 7); }},
    {"a prompt waits", "full", SetNothing,
     [](Session& s) { ASSERT_TRUE(s.Enqueue(TinyPrompt(9), true).ok()); }},
    {"heads are masked", "full", SetNothing,
     [](Session& s) { ASSERT_TRUE(s.MaskHeads(std::vector<uint8_t>(4, 0), 8).ok()); }}};

// The bytes of `s`, in which nothing says how long what took, what its cache had at most or which text nobody
// read. as: of which it is a copy, that was saved as like_bytes.
std::vector<uint8_t> BytesBut(Session& s, const SessionStats& as, const std::vector<uint8_t>& like_bytes) {
  const double times[] = {as.prefill_seconds, as.compress_seconds, as.decode_seconds};
  const auto* begin = reinterpret_cast<const uint8_t*>(times);
  const auto found = std::search(like_bytes.begin(), like_bytes.end(), begin, begin + sizeof times);
  EXPECT_NE(found, like_bytes.end());
  std::vector<uint8_t> bytes = SavedBytes(s);
  EXPECT_EQ(bytes.size(), like_bytes.size());
  std::fill_n(bytes.begin() + (found - like_bytes.begin()), sizeof times + sizeof(int64_t), uint8_t{0});
  bytes.resize(bytes.size() - sizeof(uint64_t));
  return bytes;
}

void PullAll(Session& s) {
  uint8_t text[256];
  while (s.text().Pull(text, sizeof text) > 0) {
  }
}

// Nothing of a session is missing in its fork.
TEST(SessionFile, AForkIsSavedAsTheSameBytes) {
  const auto model = Tiny();
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    const auto session = Fed(model, moment.policy, 40, 0);
    moment.set(*session), moment.bring(*session);
    PullAll(*session);
    const auto fork = std::move(session->Fork().value());
    const SessionStats stats = session->Stats();
    const std::vector<uint8_t> saved = SavedBytes(*session);
    EXPECT_TRUE(BytesBut(*fork, stats, saved) == BytesBut(*session, stats, saved));
  }
}

// A session that is empty again is as one that has seen nothing, and so it goes on.
TEST(SessionFile, AResetSessionIsSavedAsANewOne) {
  const auto model = Tiny();
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(moment.name);
    const auto fresh = test::NewSession(model, moment.policy);
    const auto used = Fed(model, moment.policy, 40, 0);
    moment.set(*fresh), moment.set(*used), moment.bring(*used);
    used->Reset();
    if (std::string(moment.policy) == "full") {
      EXPECT_TRUE(SavedBytes(*used) == SavedBytes(*fresh));
    }
    for (Session* s : {used.get(), fresh.get()}) {
      ASSERT_TRUE(s->Prefill(TinyPrompt(50, 2), true).ok());
      Steps(*s, 6);
      PullAll(*s);
    }
    const std::vector<uint8_t> of_used = SavedBytes(*used), of_fresh = SavedBytes(*fresh);
    EXPECT_TRUE(BytesBut(*used, used->Stats(), of_used) == BytesBut(*fresh, fresh->Stats(), of_fresh));
  }
}

// Whatever was taken back: the files are the same but for the three durations.
TEST(SessionFile, NothingOfTokensThatWereTakenBackIsThere) {
  const test::TempFolder folder;
  const auto model = Tiny();
  for (const char* spec :
       {"full", "full:kv=f32", "quest:read=32", "snapkv:budget=80,window=8,decode=reobserve"}) {
    SCOPED_TRACE(spec);
    std::vector<std::string> files;
    for (const uint32_t secret : {21u, 22u}) {
      const auto session = test::FedSession(model, spec, 20);
      test::FeedTokens(*session, TinyPrompt(30, secret));
      ASSERT_TRUE(session->Rewind(30).ok());
      const std::string path = folder / std::to_string(secret);
      ASSERT_TRUE(session->Save(path).ok());
      files.push_back(Read(path));
      auto restored = Session::Restore(model, path);
      ASSERT_TRUE(restored.ok()) << restored.status().message();
      for (Session* s : {session.get(), restored.value().get()})
        ASSERT_TRUE(s->Prefill(TinyPrompt(5, 3), true).ok());
      EXPECT_EQ(Steps(*session, 8), Steps(*restored.value(), 8));
    }
    ASSERT_EQ(files[0].size(), files[1].size());
    size_t first = files[0].size() - sizeof(uint64_t), last = 0;
    for (size_t i = 0; i + sizeof(uint64_t) < files[0].size(); ++i) {
      if (files[0][i] != files[1][i]) first = std::min(first, i), last = i;
    }
    EXPECT_LT(last, first + 3 * sizeof(double)) << first << " to " << last << " of " << files[0].size();
  }
}

// Of a policy whose layers drop one set of tokens.
TEST(SessionFile, HeadsOfOneSetHaveOneBudget) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  ASSERT_TRUE(Fed(model, "tova:budget=17", 30, 3)->Save(path).ok());
  const std::string good = Read(path);
  ASSERT_TRUE(Session::Restore(model, path).ok());
  const int32_t caps[] = {17, 17, 17, 17};
  const size_t at = good.find(std::string(reinterpret_cast<const char*>(caps), sizeof caps));
  ASSERT_NE(at, std::string::npos);
  std::string bad = good;
  bad[at + sizeof(int32_t)] = 16;
  WriteWithItsChecksum(path, bad);
  const auto restored = Session::Restore(model, path);
  ASSERT_FALSE(restored.ok());
  EXPECT_EQ(restored.status().code(), Code::kBadModel);
}

// Before budget_bytes bounded it, a raw tail that was left open was the method's own: such files go on as
// they were.
TEST(SessionFile, AnOpenRawTailOfAnOlderFileIsTheMethodsOwn) {
  const test::TempFolder folder;
  const std::string path = folder / "s", number = "residual=32,", open = "residual=auto,";
  const auto model = Tiny();
  auto session = Fed(model, "snapkv:budget_bytes=24000,window=32,kv=int4,quant_group=8,residual=32", 90, 3);
  ASSERT_TRUE(session->Save(path).ok());
  std::string bytes = Read(path);
  const size_t at = bytes.find(number), begin = bytes.find("snapkv:");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, number.size(), open);
  int64_t length = 0;
  std::memcpy(&length, &bytes[begin - sizeof length], sizeof length);
  length += static_cast<int64_t>(open.size() - number.size());
  std::memcpy(&bytes[begin - sizeof length], &length, sizeof length);
  WriteWithItsChecksum(path, bytes);
  auto restored = Session::Restore(model, path);
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ(restored.value()->Stats().cache_bytes, session->Stats().cache_bytes);
  EXPECT_EQ(Steps(*restored.value(), 8), Steps(*session, 8));
}

// The saved session, which holds nothing, becomes one with pages of so many slots.
void ChangePages(const std::string& path, int32_t from, int32_t to) {
  std::string bytes = Read(path);
  const int32_t then[] = {from, 0, 0, 0, 0, -1};  // no token, and none pending
  const std::string known(reinterpret_cast<const char*>(then), sizeof then);
  const size_t at = bytes.find(known);
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(bytes.find(known, at + 1), std::string::npos);
  std::memcpy(&bytes[at], &to, sizeof to);
  WriteWithItsChecksum(path, bytes);
}

// A session keeps the pages it was saved with, and its bytes are counted in those.
TEST(SessionFile, BudgetsOfBytesHoldInPagesOfOlderFiles) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  for (const char* method : {"snapkv-w8", "cokv", "ada-snapkv", "kvzip"}) {
    SCOPED_TRACE(method);
    const int64_t budget = 12000;
    const std::string spec = Format("%s:budget_bytes=%lld", method, static_cast<long long>(budget));
    ASSERT_TRUE(test::NewSession(model, spec.c_str())->Save(path).ok());
    ChangePages(path, 4, 16);
    auto restored = Session::Restore(model, path);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    for (const int more : {90, 3, 40}) {
      ASSERT_TRUE(restored.value()->Prefill(TinyPrompt(more), true).ok());
      EXPECT_LE(restored.value()->Stats().cache_bytes, budget);
      EXPECT_GT(restored.value()->Stats().cache_bytes, budget / 2);
    }
  }
}

// Until format 10 what is not coded of a head with a window could be longer than the window and its slack:
// such files have other pages. All others of that model are read.
TEST(SessionFile, LongerResidualsThanAWindowHoldsAreOfTheNewestFormat) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  test::TinyModelOptions options;
  options.layers.assign(static_cast<size_t>(options.n_layers), {0, 0});
  options.layers[0] = {8, 0};
  const test::AlignedBytes file = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(file, 1);
  for (const int residual : {40, 41}) {
    SCOPED_TRACE(residual);
    const std::string spec = "full:kv=int8,quant_group=8,residual=" + std::to_string(residual);
    const auto session = Fed(model, spec.c_str(), 90, 3);
    ASSERT_TRUE(session->Save(path).ok());
    std::string bytes = Read(path);
    uint32_t version = 0;
    std::memcpy(&version, &bytes[4], sizeof version);
    EXPECT_EQ(version == 10, residual > 40) << version;
    auto restored = Session::Restore(model, path);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ(Steps(*restored.value(), 8), Steps(*session, 8));
    version = 6;
    std::memcpy(&bytes[4], &version, sizeof version);
    WriteWithItsChecksum(path, bytes);
    restored = Session::Restore(model, path);
    EXPECT_EQ(restored.ok(), residual <= 40);
    if (residual > 40) {
      EXPECT_EQ(restored.status().code(), Code::kUnsupported);
      EXPECT_NE(restored.status().message().find("read its prompt again"), std::string::npos);
    }
  }
}

// Until format 10 small pages had more between their parts. Pages that lie as they did then are read.
TEST(SessionFile, PagesThatLayOtherwiseAreOfTheNewestFormat) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  const std::pair<const char*, bool> cases[] = {
      {"snapkv:budget=40,window=8", false},
      {"snapkv:budget=40,window=8,kv=int8,quant_group=16,residual=4", true},
      {"snapkv:budget=200,window=8,kv=int8,quant_group=8,residual=4", false},
      {"full:kv=int8,quant_group=8,residual=4", false},
      {"snapkv:budget=40,window=8,kv=int4,kv_values=int2,quant_group=8,residual=0", true},
      {"full:kv=int4,kv_values=int2,quant_group=8,residual=0", false}};
  for (const auto& [spec, anew] : cases) {
    SCOPED_TRACE(spec);
    const auto session = Fed(model, spec, 90, 3);
    ASSERT_TRUE(session->Save(path).ok());
    std::string bytes = Read(path);
    uint32_t version = 0;
    std::memcpy(&version, &bytes[4], sizeof version);
    EXPECT_EQ(version == 11, anew) << version;
    auto restored = Session::Restore(model, path);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ(Steps(*restored.value(), 8), Steps(*session, 8));
    if (!anew) continue;
    version = 8;
    std::memcpy(&bytes[4], &version, sizeof version);
    WriteWithItsChecksum(path, bytes);
    restored = Session::Restore(model, path);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), Code::kUnsupported);
    EXPECT_NE(restored.status().message().find("read its prompt again"), std::string::npos);
  }
}

// What the pages of a policy are made for counts on their size.
TEST(SessionFile, PagesThatAPolicyNeverHasAreRefused) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  const std::pair<const char*, int32_t> cases[] = {
      {"quest:read=32", 16}, {"snapkv:budget=40,kv=int8,quant_group=16,key_axis=channel", 32}};
  for (const auto& [spec, slots] : cases) {
    SCOPED_TRACE(spec);
    ASSERT_TRUE(test::NewSession(model, spec)->Save(path).ok());
    EXPECT_TRUE(Session::Restore(model, path).ok());
    ChangePages(path, slots, 4);
    const auto restored = Session::Restore(model, path);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), Code::kBadModel);
    EXPECT_NE(restored.status().message().find("pages of 4 slots"), std::string::npos)
        << restored.status().message();
  }
}

TEST(SessionFile, AFullDiskKeepsTheOldFile) {
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  auto session = Fed(model, "full", 20, 2);
  ASSERT_TRUE(session->Save(path).ok());
  const std::string old = Read(path);
  const std::vector<int32_t> expected = Steps(*Fed(model, "full", 20, 2), 8);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (rlim_t most : {rlim_t{0}, rlim_t{100}, static_cast<rlim_t>(old.size() - 1)}) {
    const rlimit limit = {most, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const Status status = session->Save(path);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(status.code(), Code::kIo) << status.message();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    EXPECT_EQ(Read(path), old);
    EXPECT_EQ(FilesIn(folder.path()), 1) << "no temporary file stays";
  }
  EXPECT_EQ(Steps(*session, 8), expected) << "the session goes on";
  EXPECT_TRUE(session->Save(path).ok());
}

TEST(SessionFile, AProcessKilledWhileSavingLeavesAWholeFile) {
  if (std::getenv("KVC_TEST_DEVICE") != nullptr) GTEST_SKIP() << "a child cannot go on with a GPU";
  const test::TempFolder folder;
  const std::string path = folder / "s";
  const auto model = Tiny();
  const auto one = Fed(model, "full:kv=f32", 100, 1), two = Fed(model, "full:kv=f32", 150, 1);
  ASSERT_TRUE(one->Save(path).ok());
  std::mt19937 random(11);
  int seen[2] = {0, 0};
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 0;; ++i) {
        if (!(i % 2 == 0 ? two : one)->Save(path).ok()) ::_exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    ASSERT_TRUE(WIFSIGNALED(how)) << "the child stopped by itself: a save failed";
    const auto restored = Session::Restore(model, path);
    ASSERT_TRUE(restored.ok()) << "round " << round << ": " << restored.status().message();
    const int32_t n = restored.value()->Stats().n_prompt;
    ASSERT_TRUE(n == 100 || n == 150);
    ++seen[n == 150];
  }
  EXPECT_EQ(seen[0] + seen[1], 40);
}

}  // namespace
}  // namespace kvc
