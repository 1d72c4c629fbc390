// Saved sessions, damaged on purpose and with the checksum made right again: whatever a file says, restoring
// ends with a message or with a session that goes on: with any calls, and as itself again when it is saved
// and restored once more. The input picks a policy and is a list of changes to a file that was really saved,
// so that it stays useful when the layout changes, and of calls on what was restored.
//
// Input: the policy (1 byte), then records of 4 bytes. The last of them has what the record is: a call (bit
// 7; operation and argument come first) or a change.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "lib/base/hash.h"
#include "tests/fuzz/play_session.h"
#include "tests/support/tiny_model.h"

namespace {

using Bytes = std::vector<uint8_t>;
using kvc::test::Played;

constexpr size_t kRecord = 4;

struct Kind {
  const char* policy;
  kvc::OnFull on_full;
};

// Prompts of 60 tokens and 8 steps; those with on_full have made room.
constexpr int kPrompt = 60, kSteps = 8;
const Kind kKinds[] = {
    {"full", kvc::OnFull::kError},
    {"snapkv:budget=24,window=8", kvc::OnFull::kError},
    {"h2o:budget=24", kvc::OnFull::kError},
    {"streaming:budget=24", kvc::OnFull::kError},
    {"scissorhands:budget=24,recent=4,drop=8,history=40", kvc::OnFull::kError},
    {"weightedkv:budget=24", kvc::OnFull::kError},
    {"cokv-mixed:budget=24,quant_group=8", kvc::OnFull::kError},
    {"spindlekv:budget=24,window=8", kvc::OnFull::kError},
    {"snapkv:budget=24,window=8,decode=reobserve,slack=3", kvc::OnFull::kError},
    {"full:kv=int8,quant_group=8,residual=4,key_axis=channel", kvc::OnFull::kError},
    {"tova:budget=24,kv=int4,quant_group=8,residual=4", kvc::OnFull::kEvict},
    {"full", kvc::OnFull::kSlide},
    {"cokv:budget=24,window=8", kvc::OnFull::kSlide},
    {"spindlekv:budget=24,window=8", kvc::OnFull::kEvict},
    {"snapkv:budget=24,window=8,pos_mode=incache", kvc::OnFull::kEvict},
    {"snapkv:budget=24,window=8,decode=reobserve", kvc::OnFull::kEvict},
    {"spindlekv:budget=24,window=8,spindle_scope=layer,spindle_code=always", kvc::OnFull::kEvict}};
// The same on a model whose first layer attends to its newest tokens only.
const Kind kWindowKinds[] = {{"full", kvc::OnFull::kError},
                             {"h2o:budget=24,kv=int8,quant_group=8,residual=4", kvc::OnFull::kError},
                             {"snapkv:budget=24,window=8,decode=reobserve,slack=3", kvc::OnFull::kSlide},
                             {"spindlekv:budget=24,window=8", kvc::OnFull::kEvict}};
// With an entry a head for what was dropped.
const Kind kRestKinds[] = {
    {"snapkv:budget=24,window=8,reducer=rest", kvc::OnFull::kError},
    {"ada-snapkv:budget=24,window=8,kv=f32,reducer=rest", kvc::OnFull::kError},
    {"expected-attention:budget=24,n_sink=0,reducer=rest", kvc::OnFull::kError},
    {"kvzip:budget=24,kv=int4,quant_group=8,residual=0,reducer=rest", kvc::OnFull::kError}};
// Of the first byte.
constexpr uint8_t kFirstWindowKind = 236, kWindowKindsEnd = 247, kFirstRestKind = 250, kRestKindsEnd = 254;

template <typename T>
T Must(kvc::Result<T> result) {
  if (!result.ok()) std::abort();
  return std::move(result.value());
}

void Must(const kvc::Status& status) {
  if (!status.ok()) std::abort();
}

struct World {
  kvc::test::TempFolder folder;
  const kvc::test::AlignedBytes model_bytes;
  std::shared_ptr<const kvc::Model> model;
  std::vector<Bytes> saved;

  static kvc::test::AlignedBytes ModelBytes(bool windows) {
    kvc::test::TinyModelOptions options;
    if (windows) options.layers = {{10, 0}, {0, 0}};
    return kvc::test::TinyModelBytes(options);
  }

  World(kvc::Span<const Kind> kinds, bool windows) : model_bytes(ModelBytes(windows)) {
    kvc::ModelParams params;
    params.threads = 1;
    model =
        Must(kvc::Model::OpenMemory(model_bytes.data(), static_cast<int64_t>(model_bytes.size()), params));
    for (const Kind& kind : kinds) {
      const kvc::Policy policy = Must(kvc::ParsePolicy(kind.policy));
      kvc::SessionParams session_params;
      session_params.on_full = kind.on_full;
      if (kind.on_full != kvc::OnFull::kError) session_params.max_tokens = kPrompt + kSteps / 2;
      const std::unique_ptr<kvc::Session> session =
          Must(kvc::Session::Create(model, &policy, session_params));
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < kPrompt; ++i) prompt.push_back(i * 37 % 256);
      Must(session->Prefill(prompt, true));
      int32_t token = 0;
      for (int i = 0; i < kSteps; ++i) Must(session->Step(&token));
      Must(session->Save(folder / "session"));
      saved.push_back(Read(folder / "session"));
    }
  }

  static Bytes Read(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) std::abort();
    Bytes bytes;
    uint8_t block[4096];
    for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;)
      bytes.insert(bytes.end(), block, block + n);
    std::fclose(file);
    return bytes;
  }
};

bool IsCall(const uint8_t* record) { return (record[3] & 128) != 0; }

// Numbers of four bytes: one of them moved to another place, or made larger or smaller by a little.
void ChangeNumber(const uint8_t* record, size_t at, Bytes* file) {
  if (file->size() < 8) return;
  at = std::min(at / 4 * 4, file->size() / 4 * 4 - 8);
  uint32_t number[2];
  std::memcpy(number, file->data() + at, sizeof number);
  if (record[3] % 4 < 2) {
    std::swap(number[0], number[1]);
  } else {
    number[0] += static_cast<uint32_t>(static_cast<int8_t>(record[2]));
  }
  std::memcpy(file->data() + at, number, sizeof number);
}

// Where (2 bytes), with what, how.
void Change(const uint8_t* record, Bytes* file) {
  const size_t share = static_cast<size_t>(record[0]) | static_cast<size_t>(record[1]) << 8;
  const size_t at = record[3] & 64 ? share % file->size() : share * file->size() / 65536;
  const auto place = file->begin() + static_cast<ptrdiff_t>(at);
  if (record[3] & 32) return ChangeNumber(record, at, file);
  switch (record[3] % 4) {
    case 0:
      *place = record[2];
      break;
    case 1:
      std::fill(place, file->end() - place < 4 ? file->end() : place + 4, record[2]);
      break;
    case 2:
      file->erase(place, file->end() - place <= record[2] ? file->end() : place + record[2]);
      break;
    default:
      file->insert(place, record[2], record[2]);
      break;
  }
}

void Write(const std::string& path, const Bytes& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) std::abort();
  std::fclose(file);
}

// A call on a session whose numbers may be any: it ends well or says why not, and leaves a cache that holds
// together. What a step that finds no finite logit has fed stays fed.
void Call(int operation, uint8_t argument, const std::string& path, bool rest, Played* played,
          Played* other) {
  const bool finite = kvc::test::HasFiniteLogits(*played->session);
  const kvc::test::Seen before = kvc::test::Look(*played->session);
  bool strong = false;
  const kvc::Status status = kvc::test::Operate(operation, argument, path, played, other, &strong);
  if (!status.ok()) {
    KVC_REQUIRE(!status.message().empty());
    KVC_REQUIRE(status.code() != kvc::Code::kInternal && status.code() != kvc::Code::kMemory);
    if (strong && finite && status.code() != kvc::Code::kBadModel)
      KVC_REQUIRE(kvc::test::Same(kvc::test::Look(*played->session), before));
  }
  kvc::test::CheckCache(*played->session, /*finite=*/false, rest);
}

void GoOn(std::unique_ptr<kvc::Session> session, const std::string& path, bool rest, const uint8_t* data,
          size_t size) {
  Played played = {std::move(session), {}, false}, other = {nullptr, {}, false};
  kvc::test::CheckCache(*played.session, /*finite=*/false, rest);
  for (; size >= kRecord; data += kRecord, size -= kRecord) {
    if (IsCall(data)) Call(kvc::test::OperationOf(data[0]), data[1], path, rest, &played, &other);
  }
  // Steps, a fork, a trim, a rewind, a prompt, an accepted token; then saved, restored and compared.
  constexpr uint8_t kCalls[][2] = {{0, 0}, {1, 0}, {6, 0}, {5, 20}, {4, 1}, {2, 3}, {0, 0}, {14, 65}, {8, 0}};
  for (const auto& call : kCalls) Call(call[0], call[1], path, rest, &played, &other);
  uint8_t text[64];
  while (played.session->text().Pull(text, sizeof text) > 0) {
  }
  KVC_REQUIRE(played.session->text().Available() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static World plain({kKinds, std::size(kKinds)}, false),
      with_windows({kWindowKinds, std::size(kWindowKinds)}, true),
      with_rest({kRestKinds, std::size(kRestKinds)}, false);
  const bool windows = data[0] >= kFirstWindowKind && data[0] < kWindowKindsEnd,
             rest = data[0] >= kFirstRestKind && data[0] < kRestKindsEnd;
  const World& world = windows ? with_windows : rest ? with_rest : plain;
  Bytes bytes = world.saved[data[0] % world.saved.size()];
  bytes.resize(bytes.size() - sizeof(uint64_t));
  ++data, --size;
  for (size_t at = 0; at + kRecord <= size && !bytes.empty(); at += kRecord) {
    if (!IsCall(data + at)) Change(data + at, &bytes);
  }
  const uint64_t digest = kvc::Hash64(bytes.data(), bytes.size());
  const auto* digest_bytes = reinterpret_cast<const uint8_t*>(&digest);
  bytes.insert(bytes.end(), digest_bytes, digest_bytes + sizeof digest);
  Write(world.folder / "changed", bytes);
  const int64_t held = world.model->meter()->used();
  auto restored = kvc::Session::Restore(world.model, world.folder / "changed");
  if (restored.ok()) {
    GoOn(std::move(restored.value()), world.folder / "session", rest, data, size);
  } else {
    KVC_REQUIRE(!restored.status().message().empty());
  }
  KVC_REQUIRE(world.model->meter()->used() == held);
  return 0;
}
