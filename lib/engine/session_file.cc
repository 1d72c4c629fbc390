// Saved sessions: magic, version, size, model fingerprint, everything a session needs to go on, and a
// checksum over all of it.
#include <algorithm>
#include <cmath>

#include "lib/base/archive.h"
#include "lib/base/atomic_file.h"
#include "lib/base/input_file.h"
#include "lib/engine/session.h"

namespace kvc {
namespace {

constexpr char kMagic[4] = {'K', 'V', 'C', 'S'};
// 11 where no rewind finds the beginning of a text; 10 where besides pages lie as they did then; 9 where
// besides no window makes the part of a head that is not coded smaller; 8 where besides no budget of bytes
// was replaced by one of slots (kvc_session_trim); 7 where besides no rewind finds the end of an answer and
// pages have 16 slots or more; 6 where besides it finds one turn only; 5 where besides no layer has a window
// (heads that do not begin at token 0) and no system text is the last.
constexpr uint32_t kSessionFileVersion = 12;
constexpr uint32_t kOldestVersion = 4;  // the cache as pages of one layout; older ones are refused
constexpr int64_t kMaxText = 1 << 30;

struct FileHeader {
  char magic[4];
  uint32_t version;
  uint64_t fingerprint;  // of the model
};

// Field by field: the struct has padding.
template <typename Archive>
Status ArchiveParams(Archive& a, SessionParams& p) {
  KVC_RETURN_IF_ERROR(ArchiveValue(a, p.max_tokens));
  KVC_RETURN_IF_ERROR(ArchiveValue(a, p.on_full));
  KVC_RETURN_IF_ERROR(ArchiveValue(a, p.sampler.temperature));
  KVC_RETURN_IF_ERROR(ArchiveValue(a, p.sampler.top_p));
  KVC_RETURN_IF_ERROR(ArchiveValue(a, p.sampler.top_k));
  KVC_RETURN_IF_ERROR(ArchiveValue(a, p.sampler.seed));
  const int32_t on_full = static_cast<int32_t>(p.on_full);
  if (on_full >= 0 && on_full <= static_cast<int32_t>(OnFull::kSlide)) return {};
  return Error(Code::kBadModel, "damaged: on_full is %d", on_full);
}

// The checksum of all before the last n_behind bytes, in one pass over them.
Result<uint64_t> DigestOf(ByteSource* source, int64_t n_behind) {
  Hasher64 hasher;
  source->Seek(0);
  for (int64_t left = source->size() - n_behind; left > 0;) {
    const Result<Span<const uint8_t>> next = source->Next(left);
    if (!next.ok()) return next.status();
    hasher.Update(next.value().data(), next.value().size());
    left -= static_cast<int64_t>(next.value().size());
  }
  return hasher.Digest();
}

// What is around the payload, and the payload whole. The source is at the payload then, of so many bytes.
Status CheckFile(const Model& model, ByteSource* source, uint32_t* version, int64_t* payload_bytes) {
  const auto refuse = [](const char* why) { return Error(Code::kBadModel, "%s", why); };
  FileHeader header;
  uint64_t digest;
  constexpr int64_t kAround = sizeof header + sizeof digest;
  if (source->size() < kAround) return refuse("truncated: too short for a saved session");
  KVC_RETURN_IF_ERROR(source->Read(&header, sizeof header));
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return refuse("not a saved session");
  if (header.version > kSessionFileVersion) {
    return Error(Code::kBadModel, "saved by a newer version (format %u, this library reads %u)",
                 header.version, kSessionFileVersion);
  }
  if (header.version < kOldestVersion && header.version > 0) {
    return Error(Code::kUnsupported,
                 "saved by an older version (format %u, this library reads %u): read its prompt again",
                 header.version, kSessionFileVersion);
  }
  const Result<uint64_t> found = DigestOf(source, sizeof digest);
  if (!found.ok()) return found.status();
  KVC_RETURN_IF_ERROR(source->Read(&digest, sizeof digest));
  if (found.value() != digest) return refuse("damaged or truncated: the checksum does not match");
  if (header.version == 0) return refuse("damaged: a format that never was");
  if (header.fingerprint != model.file().fingerprint()) return refuse("saved with another model");
  source->Seek(sizeof header);
  *version = header.version, *payload_bytes = source->size() - kAround;
  return {};
}

// Whether a window makes the newest part of a head, which is not coded, smaller than the policy says.
bool WindowsShortenResidual(const CacheLayout& layout, const Policy& policy) {
  for (int32_t head = 0; head < layout.n_heads_total(); ++head) {
    const int32_t ring = layout.ring_slots(head);
    if (layout.window(head / layout.n_kv_heads) > 0 && ring > 0 &&
        ring < layout.heads[static_cast<size_t>(head)].settle + Residual(policy))
      return true;
  }
  return false;
}

// Whether small pages have less between their parts than before version 11.
bool LiesAnew(const CacheLayout& layout) {
  return std::any_of(layout.formats.begin(), layout.formats.end(), [](const PageFormat& f) {
    return f.packed && (f.slots % 4 != 0 || f.slots * f.scale_bytes % 16 != 0);
  });
}

// Pairs of a place, at least `apart` behind the one before and at first `least`, and what is there, a number
// below `end`.
bool ArePlaces(Span<const int32_t> pairs, int32_t least, int32_t apart, int32_t end) {
  bool good = pairs.size() % 2 == 0;
  for (size_t i = 0; good && i < pairs.size(); i += 2) {
    const int64_t first = i == 0 ? least : int64_t{pairs[i - 2]} + apart;
    good = pairs[i] >= first && pairs[i + 1] >= 0 && pairs[i + 1] < end;
  }
  return good;
}

}  // namespace

// The residual of the newest token, of sequences that have one; after a rewind, where it is that of a token
// that is gone, zeros.
template <typename Archive>
Status Session::ArchiveHidden(Archive& a, Stream* stream) {
  if (n_tokens_ == 0) return {};
  std::vector<float> hidden(static_cast<size_t>(model_->config().hidden_size));
  const int64_t bytes = static_cast<int64_t>(hidden.size() * sizeof(float));
  Device* device = executor()->device();
  if (!Archive::kReading && !rewound_)
    KVC_RETURN_IF_ERROR(device->Read(stream, hidden_.raw(), hidden.data(), bytes));
  KVC_RETURN_IF_ERROR(a.Bytes(hidden.data(), bytes));
  if (!Archive::kReading) return {};
  KVC_RETURN_IF_ERROR(ReserveHidden());
  return device->Write(stream, hidden_.raw(), hidden.data(), bytes);
}

// The fields that are plain numbers or sequences; pages follow.
template <typename Archive>
Status Session::ArchiveFields(Archive& a, Stream* stream) {
  for (int32_t* field :
       {&n_tokens_, &n_prompt_, &n_answer_, &n_compactions_, &pending_, &changed_at_, &stop_token_})
    KVC_RETURN_IF_ERROR(ArchiveValue(a, *field));
  bool made_room = compressor_->keeps_lengths();  // the compressor says it again
  for (bool* field : {&finished_, &made_room, &rewound_}) {
    uint8_t value = *field ? 1 : 0;
    KVC_RETURN_IF_ERROR(ArchiveValue(a, value));
    *field = value != 0;
  }
  for (double* field : {&prefill_seconds_, &compress_seconds_, &decode_seconds_})
    KVC_RETURN_IF_ERROR(ArchiveValue(a, *field));
  KVC_RETURN_IF_ERROR(ArchiveValue(a, cache_bytes_peak_));
  KVC_RETURN_IF_ERROR(ArchiveSequence(a, tokens_, kMaxPosition));
  KVC_RETURN_IF_ERROR(ArchiveHidden(a, stream));
  KVC_RETURN_IF_ERROR(text_.Archive(a, kMaxText));
  KVC_RETURN_IF_ERROR(
      compressor_->ArchiveState(a, params_.on_full == OnFull::kSlide, executor()->device(), stream));
  return made_room == compressor_->keeps_lengths()
             ? Status()
             : Error(Code::kBadModel, "damaged: whether room was made is said in two ways");
}

// They ascend; older files may have several turns at a place, of which the last counts. Whether the
// session holds as many tokens as the last one says, CheckRestored asks.
Status Session::TakeTurns(Span<const int32_t> spans) {
  if (!ArePlaces(spans, 0, /*apart=*/0, static_cast<int32_t>(Turn::kAfterSystem) + 1))
    return Error(Code::kBadModel, "damaged: whose turn it is");
  for (size_t i = 0; i < spans.size(); i += 2) {
    if (i > 0 && spans[i] == spans[i - 2]) turns_.pop_back();
    turns_.push_back({spans[i], static_cast<Turn>(spans[i + 1])});
  }
  return {};
}

Status Session::TakeAnswerEnds(Span<const int32_t> ends) {
  if (!ArePlaces(ends, 1, /*apart=*/1, model_->config().vocab_size))
    return Error(Code::kBadModel, "damaged: where answers end");
  for (size_t i = 0; i < ends.size(); i += 2) answer_ends_.push_back({ends[i], ends[i + 1]});
  return {};
}

// Files of older formats say of the newest text alone whether it has begun: what a rewind leaves is taken as
// that.
void Session::TakeNewestText() {
  if (!text_.at_start()) texts_.push_back({1, false});
}

// Whether a rewind finds another beginning of a text than in a session of TakeNewestText.
bool Session::RewindsToTexts() const {
  if (!model_->tokenizer().drops_spaces()) return false;
  int32_t from = 0;  // of a span, which ends in front of the next one
  bool at_start = true, found = false;
  const auto look = [&](int32_t end) {
    // Before the first token every text begins.
    found = found || (at_start != text_.at_start() && std::max({from, changed_at_, 1}) < end);
  };
  for (const TextSpan& span : texts_) {
    look(span.from);
    from = span.from, at_start = span.at_start;
  }
  look(held() + 1);
  return found;
}

Status Session::TakeTexts(Span<const int32_t> texts) {
  if (!ArePlaces(texts, 1, /*apart=*/1, 2)) return Error(Code::kBadModel, "damaged: where texts begin");
  for (size_t i = 0; i < texts.size(); i += 2) texts_.push_back({texts[i], texts[i + 1] != 0});
  const bool at_start = texts_.empty() || texts_.back().at_start;
  return at_start == text_.at_start() ? Status() : Error(Code::kBadModel, "damaged: where texts begin");
}

// What sessions have had since format 5.
template <typename Archive>
Status Session::ArchiveConversation(Archive& a, uint32_t version) {
  const bool turns = version >= 7;
  KVC_RETURN_IF_ERROR(sampler_.Archive(a, model_->config().vocab_size));
  uint8_t now = static_cast<uint8_t>(turn()), has_marks = marks_ != nullptr ? 1 : 0;
  KVC_RETURN_IF_ERROR(ArchiveValue(a, now));
  KVC_RETURN_IF_ERROR(ArchiveValue(a, has_marks));
  // From, turn, and so on; files without have the last one, from the beginning.
  std::vector<int32_t> spans;
  for (const TurnSpan& span : turns_) spans.insert(spans.end(), {span.from, static_cast<int32_t>(span.turn)});
  if (turns)
    KVC_RETURN_IF_ERROR(ArchiveSequence(a, spans, kMaxPosition));
  else
    spans.assign({0, int32_t{now}});
  if (Archive::kReading) KVC_RETURN_IF_ERROR(TakeTurns(spans));
  std::vector<int32_t> ends;  // how many tokens there are then, the newest of them, and so on
  for (const AnswerEnd& end : answer_ends_) ends.insert(ends.end(), {end.at, end.token});
  if (version >= 8) KVC_RETURN_IF_ERROR(ArchiveSequence(a, ends, kMaxPosition));
  if (Archive::kReading) KVC_RETURN_IF_ERROR(TakeAnswerEnds(ends));
  std::vector<int32_t> texts;  // from, whether the next piece begins one, and so on
  for (const TextSpan& span : texts_) texts.insert(texts.end(), {span.from, span.at_start ? 1 : 0});
  if (version >= 12) KVC_RETURN_IF_ERROR(ArchiveSequence(a, texts, kMaxPosition));
  if (Archive::kReading && version >= 12) KVC_RETURN_IF_ERROR(TakeTexts(texts));
  if (static_cast<uint8_t>(turn()) != now) return Error(Code::kBadModel, "damaged: whose turn it is");
  if (has_marks == 0) return {};
  if (marks_ == nullptr) marks_ = std::make_unique<TurnMarks>();
  return marks_->Archive(a);
}

// What was read must be what calls of a session can leave: it is used without another look. Here is what
// later code relies on, beside what the cache and the compressor check of themselves:
// 1. every counter is in a range in which counting on cannot overflow;
// 2. tokens that will be fed are ids, and as many as the newest prompts can ask for;
// 3. a session past its end makes room, and only one that may;
// 4. since `changed_at` every head has every token (rewinds count on it), and before the first token no
//    head has any;
// 5. where entries are stored late, or side values watch every step, nothing can be taken back.
Status Session::CheckRestored() const {
  const auto refuse = [](const char* why) { return Error(Code::kBadModel, "damaged: %s", why); };
  const bool made_room = compressor_->keeps_lengths();
  bool good = n_tokens_ >= 0 && n_tokens_ <= (made_room ? kMaxPosition : params_.max_tokens);
  for (int32_t count : {n_prompt_, n_answer_, n_compactions_})
    good = good && count >= 0 && count <= kMaxPosition;
  good = good && changed_at_ >= 0 && changed_at_ <= n_tokens_ && cache_bytes_peak_ >= 0;
  for (double seconds : {prefill_seconds_, compress_seconds_, decode_seconds_})
    good = good && std::isfinite(seconds) && seconds >= 0;
  if (!good) return refuse("a count is out of range");
  if (!turns_.empty() && turns_.back().from > held()) return refuse("whose turn it is");
  if (!answer_ends_.empty() && answer_ends_.back().at > held()) return refuse("where answers end");
  if (!texts_.empty() && texts_.back().from > held()) return refuse("where texts begin");
  for (int32_t token : {pending_, stop_token_})
    good = good && token >= -1 && token < model_->config().vocab_size;
  good = good && (n_tokens_ > 0 || (pending_ < 0 && !finished_)) && CheckTokenIds(tokens_).ok();
  const int32_t replay = keeps_tokens_ ? std::min(compressor_->plan().ReplayRows(n_tokens_), n_tokens_) : 0,
                remembered = static_cast<int32_t>(tokens_.size());
  if (!good || remembered < replay || remembered > (keeps_tokens_ ? n_tokens_ : 0))
    return refuse("the tokens do not fit");
  if (made_room && params_.on_full == OnFull::kError) return refuse("room was made where on_full is error");
  if (!CanTakeBack() && changed_at_ != n_tokens_)
    return refuse("tokens that cannot be taken back are said to be");
  return text_.IsWhole() ? Status() : refuse("text that is not UTF-8");
}

Status Session::Save(const std::string& path) {
  Result<std::unique_ptr<AtomicFile>> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  KVC_RETURN_IF_ERROR(SaveTo(file.value().get()));
  return file.value()->Commit();
}

Status Session::SaveTo(ByteSink* sink) {
  KVC_RETURN_IF_ERROR(FinishPrompt());
  Result<Executor::Lease> lease = executor()->Acquire();
  if (!lease.ok()) return lease.status();
  Stream* stream = lease.value()->stream.get();
  ArchiveWriter out(sink);
  ForgetAnswerEnds();
  // A turn from the beginning says itself, and so does one that no rewind can go behind.
  const bool turns = turns_.size() > 1 || (!turns_.empty() && turns_[0].from > changed_at_),
             newer = !cache_->layout().windows.empty() || turn() == Turn::kAfterSystem,
             tiny = cache_->layout().page_slots < 16;
  double replaced = compressor_->plan().replaced_bytes();
  const uint32_t version = RewindsToTexts()             ? kSessionFileVersion
                           : LiesAnew(cache_->layout()) ? 11
                           : WindowsShortenResidual(cache_->layout(), compressor_->policy()) ? 10
                           : replaced > 0                                                    ? 9
                           : !answer_ends_.empty() || tiny                                   ? 8
                           : turns                                                           ? 7
                           : newer                                                           ? 6
                                                                                             : 5;
  FileHeader header{{kMagic[0], kMagic[1], kMagic[2], kMagic[3]}, version, model_->file().fingerprint()};
  KVC_RETURN_IF_ERROR(ArchiveValue(out, header));
  std::string policy = DescribePolicy(compressor_->policy());
  Policy given = compressor_->policy();
  std::vector<double> scores = compressor_->plan().head_scores().values;
  int32_t alpha = compressor_->plan().head_scores().alpha;
  KVC_RETURN_IF_ERROR(ArchiveSequence(out, policy, kMaxText));
  KVC_RETURN_IF_ERROR(ArchiveSequence(out, given.table, kMaxContext));
  KVC_RETURN_IF_ERROR(ArchiveSequence(out, scores, kMaxContext));
  KVC_RETURN_IF_ERROR(ArchiveValue(out, alpha));
  SessionParams params = params_;
  params.sampler = sampler_.params();
  KVC_RETURN_IF_ERROR(ArchiveParams(out, params));
  int32_t page_slots = cache_->layout().page_slots;
  KVC_RETURN_IF_ERROR(ArchiveValue(out, page_slots));
  if (version >= 9) KVC_RETURN_IF_ERROR(ArchiveValue(out, replaced));
  KVC_RETURN_IF_ERROR(ArchiveFields(out, stream));
  KVC_RETURN_IF_ERROR(ArchiveConversation(out, version));
  KVC_RETURN_IF_ERROR(cache_->SaveTo(out, stream));
  uint64_t digest = out.Digest();
  return sink->Write(&digest, static_cast<int64_t>(sizeof digest));
}

Result<std::unique_ptr<Session>> Session::Restore(std::shared_ptr<const Model> model,
                                                  const std::string& path) {
  Result<FileSource> file = FileSource::Open(path);
  if (!file.ok()) return file.status();
  return RestoreFrom(std::move(model), &file.value(), path.c_str());
}

Result<std::unique_ptr<Session>> Session::RestoreFrom(std::shared_ptr<const Model> model,
                                                      Span<const uint8_t> bytes) {
  MemorySource source(bytes);
  return RestoreFrom(std::move(model), &source, "session in memory");
}

Result<std::unique_ptr<Session>> Session::RestoreFrom(std::shared_ptr<const Model> model, ByteSource* source,
                                                      const char* name) {
  Result<std::unique_ptr<Session>> read = ReadFrom(std::move(model), source);
  const Status& status = read.status();
  if (read.ok() || status.code() == Code::kMemory || status.code() == Code::kIo) return read;
  // Nor is what a device cannot do a fault of the file.
  const Code codes[] = {Code::kUnsupported, Code::kDevice, Code::kInternal};
  if (std::count(std::begin(codes), std::end(codes), status.code()) > 0)
    return Error(status.code(), "%s: %s", name, status.message().c_str());
  // A policy or a parameter that nobody could have saved is damage too.
  const char* damaged = status.code() == Code::kBadModel ? "" : "damaged: ";
  return Error(Code::kBadModel, "%s: %s%s", name, damaged, status.message().c_str());
}

Result<std::unique_ptr<Session>> Session::ReadFrom(std::shared_ptr<const Model> model, ByteSource* source) {
  uint32_t version = 0;
  int64_t payload_bytes = 0;
  KVC_RETURN_IF_ERROR(CheckFile(*model, source, &version, &payload_bytes));
  ArchiveReader in(source, payload_bytes);
  std::string text;
  KVC_RETURN_IF_ERROR(ArchiveSequence(in, text, kMaxText));
  Result<Policy> policy = ParsePolicy(text.c_str());
  if (!policy.ok()) return policy.status();
  // A number since budget_bytes bounds it; files from before have what it was then.
  double& residual = policy.value().options[static_cast<int>(OptionId::kResidual)];
  if (policy.value().budget_kind == BudgetKind::kBytes) residual = Residual(policy.value());
  HeadScores scores;
  SessionParams params;
  KVC_RETURN_IF_ERROR(ArchiveSequence(in, policy.value().table, kMaxContext));
  KVC_RETURN_IF_ERROR(ArchiveSequence(in, scores.values, kMaxContext));
  KVC_RETURN_IF_ERROR(ArchiveValue(in, scores.alpha));
  KVC_RETURN_IF_ERROR(ArchiveParams(in, params));
  int32_t page_slots = 0;
  KVC_RETURN_IF_ERROR(ArchiveValue(in, page_slots));
  if (page_slots != 4 && page_slots != 16 && page_slots != 32 && page_slots != 64)
    return Error(Code::kBadModel, "damaged: pages of %d slots", page_slots);
  double replaced = 0;
  if (version >= 9) KVC_RETURN_IF_ERROR(ArchiveValue(in, replaced));
  Result<Executor::Lease> lease = model->executor()->Acquire();
  if (!lease.ok()) return lease.status();
  Stream* stream = lease.value()->stream.get();
  Result<std::unique_ptr<Session>> made =
      CreateWithScores(model, policy.value(), std::move(scores), params, page_slots);
  if (!made.ok()) return made.status();
  Session& s = *made.value();
  if (version < 11 && LiesAnew(s.cache_->layout())) {
    return Error(Code::kUnsupported,
                 "saved by an older version, where codes lay otherwise in small pages: read its prompt "
                 "again");
  }
  if (version < 10 && WindowsShortenResidual(s.cache_->layout(), s.compressor_->policy())) {
    return Error(Code::kUnsupported,
                 "saved by an older version, with a residual longer than what layers with windows hold: read "
                 "its prompt again");
  }
  KVC_RETURN_IF_ERROR(s.compressor_->SetReplacedBytes(replaced));
  KVC_RETURN_IF_ERROR(s.ArchiveFields(in, stream));
  if (version >= 5) KVC_RETURN_IF_ERROR(s.ArchiveConversation(in, version));
  KVC_RETURN_IF_ERROR(s.CheckRestored());
  if (version < 12) s.TakeNewestText();
  KVC_RETURN_IF_ERROR(s.cache_->RestoreFrom(in, stream, s.n_tokens_, s.changed_at_,
                                            s.compressor_->turns_keys(), s.compressor_->plan().one_set()));
  if (in.left() != 0) return Error(Code::kBadModel, "damaged: there is something behind the end");
  return made;
}

}  // namespace kvc
