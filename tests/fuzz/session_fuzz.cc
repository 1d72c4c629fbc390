// Saved sessions, damaged on purpose and with the checksum made right again: whatever a file says, restoring
// ends with a message or with a session that can go on. The input picks a policy and is a list of changes to
// a file that was really saved, so that it stays useful when the layout changes.
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "lib/base/hash.h"
#include "lib/engine/session.h"
#include "tests/support/tiny_model.h"

namespace {

using Bytes = std::vector<uint8_t>;

struct Kind {
  const char* policy;
  kvc::OnFull on_full;
};

// Prompts of 60 tokens and 8 steps; those with on_full have made room.
constexpr int kPrompt = 60, kSteps = 8;
const Kind kKinds[] = {{"full", kvc::OnFull::kError},
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
                       {"snapkv:budget=24,window=8,decode=reobserve", kvc::OnFull::kEvict}};

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
  kvc::test::AlignedBytes model_bytes = kvc::test::TinyModelBytes({});
  std::shared_ptr<const kvc::Model> model;
  std::vector<Bytes> saved;

  World() {
    kvc::ModelParams params;
    params.n_threads = 1;
    model =
        Must(kvc::Model::OpenMemory(model_bytes.data(), static_cast<int64_t>(model_bytes.size()), params));
    for (const Kind& kind : kKinds) {
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

// Changes of four bytes each: where (2), with what, how.
void Change(const uint8_t* data, size_t size, Bytes* file) {
  for (; size >= 4; data += 4, size -= 4) {
    const size_t share = static_cast<size_t>(data[0]) | static_cast<size_t>(data[1]) << 8;
    const size_t at = data[3] & 64 ? share % file->size() : share * file->size() / 65536;
    const auto place = file->begin() + static_cast<ptrdiff_t>(at);
    switch (data[3] % 4) {
      case 0:
        *place = data[2];
        break;
      case 1:
        std::fill(place, file->end() - place < 4 ? file->end() : place + 4, data[2]);
        break;
      case 2:
        file->erase(place, file->end() - place <= data[2] ? file->end() : place + data[2]);
        break;
      default:
        file->insert(place, data[2], data[2]);
        break;
    }
    if (file->empty()) return;
  }
}

void Write(const std::string& path, const Bytes& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) std::abort();
  std::fclose(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  if (size == 0) return 0;
  Bytes bytes = world.saved[data[0] % std::size(kKinds)];
  bytes.resize(bytes.size() - sizeof(uint64_t));
  Change(data + 1, size - 1, &bytes);
  const uint64_t digest = kvc::Hash64(bytes.data(), bytes.size());
  const auto* digest_bytes = reinterpret_cast<const uint8_t*>(&digest);
  bytes.insert(bytes.end(), digest_bytes, digest_bytes + sizeof digest);
  Write(world.folder / "changed", bytes);
  const auto restored = kvc::Session::Restore(world.model, world.folder / "changed");
  if (!restored.ok()) {
    if (restored.status().message().empty()) std::abort();
    return 0;
  }
  kvc::Session& session = *restored.value();
  // Whatever these say, they must say it.
  int32_t token = 0;
  for (int i = 0; i < 3 && session.Step(&token).ok(); ++i) {
  }
  const auto fork = session.Fork();
  const kvc::Status compressed = session.Recompress(20, nullptr), rewound = session.Rewind(1);
  const std::vector<int32_t> more = {1, 2, 3};
  const kvc::Status fed = session.Prefill(more, true), stepped = session.Step(&token);
  uint8_t text[64];
  while (session.text().Pull(text, sizeof text) > 0) {
  }
  if (session.text().Available() > 0) std::abort();
  for (const kvc::Status& status :
       {fork.ok() ? kvc::Status() : fork.status(), compressed, rewound, fed, stepped}) {
    if (!status.ok() && status.message().empty()) std::abort();
  }
  return 0;
}
