#include "tools/bench_batch.h"

#include <algorithm>

namespace kvc::tool {
namespace {

// Sessions that step together.
class Batch {
 public:
  Batch(const Model& model, const Policy& policy, const kvc_session_params& params, TokenList prompt,
        int32_t n)
      : instead_(prompt.back()) {
    for (int32_t i = 0; i < n; ++i) {
      sessions_.emplace_back(model, policy, params);
      sessions_.back().Prefill(prompt);
      std::rotate(prompt.begin(), prompt.begin() + 1, prompt.end());
    }
    Step();  // takes the prompts' tokens: the first to pass the network is that of the next step
  }
  int32_t size() const { return static_cast<int32_t>(sessions_.size()); }
  double Step() { return StepWith(nullptr, nullptr); }  // seconds
  // The same with a guest, which reads or steps too.
  double StepWith(Session* guest, bool* guest_reads) {
    handles_.clear();
    for (const Session& session : sessions_) handles_.push_back(session.get());
    if (guest != nullptr) handles_.push_back(guest->get());
    const Clock::time_point start = Clock::now();
    StepBatch(handles_, &tokens_);
    for (size_t i = 0; i < sessions_.size(); ++i) {
      if (tokens_[i] == KVC_TOKEN_NONE) sessions_[i].Accept(instead_);
    }
    const double seconds = SecondsSince(start);
    if (guest != nullptr) *guest_reads = tokens_.back() == KVC_TOKEN_READING;
    return seconds;
  }

 private:
  const int32_t instead_;
  std::vector<Session> sessions_;
  std::vector<kvc_session*> handles_;
  TokenList tokens_;
};

double Longest(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

template <typename F>
std::vector<double> Times(int32_t n, const F& step) {
  std::vector<double> seconds;
  for (int32_t i = 0; i < n; ++i) seconds.push_back(step());
  return seconds;
}

// Seconds of each call that reads a chunk of the prompt, among the sessions of `beside` or alone.
std::vector<double> ReadQueued(const Model& model, const Policy& policy, const TokenList& prompt,
                               Batch* beside) {
  kvc_session_params params = DefaultSessionParams();
  params.max_tokens = static_cast<int32_t>(prompt.size()) + 1;
  Session session(model, policy, params);
  session.Enqueue(prompt);
  std::vector<double> seconds;
  TokenList tokens;
  for (bool reads = true; reads;) {
    if (beside != nullptr) {
      seconds.push_back(beside->StepWith(&session, &reads));
      continue;
    }
    const Clock::time_point start = Clock::now();
    StepBatch({session.get()}, &tokens);
    seconds.push_back(SecondsSince(start));
    reads = tokens[0] == KVC_TOKEN_READING;
  }
  return seconds;
}

kvc_session_params ParamsFor(const TokenList& prompt, const BatchWork& work, size_t n_chunks) {
  const int64_t steps = work.gen + 2 * static_cast<int64_t>(n_chunks),
                most = static_cast<int64_t>(prompt.size()) + (int64_t{work.repeat} + 1) * 2 * steps + 2;
  if (most > INT32_MAX) throw UsageError("--prompt, --gen, --arrive and --repeat are too large together");
  kvc_session_params params = DefaultSessionParams();
  params.max_tokens = static_cast<int32_t>(most);
  return params;
}

// In turns: one session alone, then each of the batches. The first round is left out: pages touched for the
// first time, clocks not yet up.
void MeasureSteps(Session* alone, int32_t instead, const BatchWork& work, Progress* progress,
                  std::vector<Batch>* batches, BatchResult* result) {
  struct Rounds {
    std::vector<double> mean, median, alone, ratio;
  };
  std::vector<Rounds> all(batches->size());
  for (int32_t round = 0; round <= work.repeat; ++round) {
    progress->Update(round, work.repeat + 1, "one session alone");
    const std::vector<double> one = Times(work.gen, [&] {
      const Clock::time_point start = Clock::now();
      StepOn(alone, instead);
      return SecondsSince(start);
    });
    for (size_t b = 0; b < all.size(); ++b) {
      Batch& batch = (*batches)[b];
      progress->Update(round, work.repeat + 1, Format("%d sessions as one batch", batch.size()));
      const std::vector<double> together = Times(work.gen, [&] { return batch.Step(); });
      if (round == 0) continue;
      all[b].mean.push_back(Mean(together));
      all[b].median.push_back(Median(together));
      all[b].alone.push_back(Mean(one));
      all[b].ratio.push_back(Ratio(batch.size() * Mean(one), Mean(together)));
    }
  }
  for (size_t b = 0; b < all.size(); ++b) {
    result->batches.push_back({(*batches)[b].size(), Median(all[b].mean), Median(all[b].median),
                               Median(all[b].alone), Median(all[b].ratio)});
  }
}

// In turns: steps as before, chunks of the prompt read alone, steps in which it is read, as many of each.
ArrivalDelay MeasureArrival(const Model& model, const Policy& policy, const TokenList& arriving,
                            int32_t rounds, Batch* batch) {
  ArrivalDelay out;
  out.n_sessions = batch->size();
  std::vector<double> before, chunk, chunk_longest, median, longest;
  for (int32_t round = 0; round <= rounds; ++round) {
    const std::vector<double> chunks = ReadQueued(model, policy, arriving, nullptr),
                              steps =
                                  Times(static_cast<int32_t>(chunks.size()), [&] { return batch->Step(); }),
                              reading = ReadQueued(model, policy, arriving, batch);
    if (round == 0) continue;
    before.push_back(Median(steps));
    chunk.push_back(Median(chunks));
    chunk_longest.push_back(Longest(chunks));
    median.push_back(Median(reading));
    longest.push_back(Longest(reading));
    out.n_steps = static_cast<int32_t>(reading.size());
  }
  out.step = Median(before), out.chunk = Median(chunk), out.chunk_longest = Median(chunk_longest);
  out.reading_median = Median(median), out.reading_longest = Median(longest),
  out.reading_worst = Longest(longest);
  return out;
}

}  // namespace

double ArrivalDelay::InChunks(double seconds) const { return Ratio(seconds - step, chunk); }

BatchResult MeasureBatches(const Model& model, const Policy& policy, const TokenList& prompt,
                           const BatchWork& work) {
  BatchResult result;
  Progress progress("bench");
  TokenList arriving;
  size_t n_chunks = 0;
  if (work.arriving > 0) {
    arriving = SyntheticTokens(work.arriving, model.info().vocab_size);
    n_chunks = ReadQueued(model, policy, arriving, nullptr).size();
  }
  const kvc_session_params params = ParamsFor(prompt, work, n_chunks);
  Session alone(model, policy, params);
  alone.Prefill(prompt);
  StepOn(&alone, prompt.back());
  std::vector<Batch> batches;
  for (const int32_t n : work.sizes) {
    progress.Update(static_cast<double>(batches.size()), static_cast<double>(work.sizes.size()),
                    Format("prompts of %d sessions", n));
    batches.emplace_back(model, policy, params, prompt, n);
  }
  MeasureSteps(&alone, prompt.back(), work, &progress, &batches, &result);
  for (Batch& batch : batches) {
    if (arriving.empty()) break;
    progress.Update(static_cast<double>(result.arrivals.size()), static_cast<double>(batches.size()),
                    Format("a prompt arrives among %d sessions", batch.size()));
    result.arrivals.push_back(MeasureArrival(model, policy, arriving, work.repeat, &batch));
  }
  return result;
}

Json BatchesJson(const BatchResult& result) {
  Json rows = Json::array();
  for (const BatchSpeed& batch : result.batches) {
    rows.push_back({{"n_sessions", batch.n_sessions},
                    {"tokens_per_second", Ratio(batch.n_sessions, batch.step_mean)},
                    {"step_seconds_mean", batch.step_mean},
                    {"step_seconds_median", batch.step_median},
                    {"alone_tokens_per_second", Ratio(1, batch.alone_step_mean)},
                    {"times_alone", batch.times_alone}});
  }
  return rows;
}

Json ArrivalsJson(const BatchResult& result) {
  Json rows = Json::array();
  for (const ArrivalDelay& arrival : result.arrivals) {
    rows.push_back({{"n_sessions", arrival.n_sessions},
                    {"n_steps", arrival.n_steps},
                    {"chunk_seconds_median", arrival.chunk},
                    {"chunk_seconds_longest", arrival.chunk_longest},
                    {"step_seconds_median", arrival.step},
                    {"reading_step_seconds_median", arrival.reading_median},
                    {"reading_step_seconds_longest", arrival.reading_longest},
                    {"reading_step_seconds_worst", arrival.reading_worst},
                    {"delay_chunks_median", arrival.InChunks(arrival.reading_median)},
                    {"delay_chunks_longest", arrival.InChunks(arrival.reading_longest)}});
  }
  return rows;
}

std::string BatchText(const BatchResult& result, const BatchWork& work) {
  if (result.batches.empty()) return "";
  Table speed({"sessions as one batch", "step, median", "tokens/s", "one alone", "times one alone"}, "rrrrr");
  for (const BatchSpeed& batch : result.batches) {
    speed.AddRow({std::to_string(batch.n_sessions), FormatSeconds(batch.step_median),
                  Format("%.1f", Ratio(batch.n_sessions, batch.step_mean)),
                  Format("%.1f", Ratio(1, batch.alone_step_mean)), Format("%.2f", batch.times_alone)});
  }
  if (result.arrivals.empty()) return "\n" + speed.Text();
  Table delay({"sessions", "step", "chunk alone", "step while reading", "longest", "delay", "longest"},
              "rrrrrrr");
  for (const ArrivalDelay& arrival : result.arrivals) {
    delay.AddRow({std::to_string(arrival.n_sessions), FormatSeconds(arrival.step),
                  FormatSeconds(arrival.chunk), FormatSeconds(arrival.reading_median),
                  FormatSeconds(arrival.reading_longest),
                  Format("%.2f chunks", arrival.InChunks(arrival.reading_median)),
                  Format("%.2f chunks", arrival.InChunks(arrival.reading_longest))});
  }
  return "\n" + speed.Text() +
         Format("\na prompt of %d tokens arrives, read in %s\n", work.arriving,
                Counted(result.arrivals[0].n_steps, "step", "steps").c_str()) +
         delay.Text();
}

}  // namespace kvc::tool
