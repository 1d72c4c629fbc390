// Bytes and flops: a prompt streams every weight once per chunk of kPromptChunk tokens (2 * parameters flops
// per token) and attends 2 * n^2 * D * H flops per layer; a step streams every weight once for all rows.
#include "lib/model/forward.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace kvc {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Rows of activations that are worked on at once.
int32_t ChunkRows(const PromptRequest& r) {
  return std::min(std::max(r.n, r.reread == nullptr ? 0 : r.reread->LongestSegment()), kPromptChunk);
}

int64_t ChunksOf(int64_t n) { return (n + kPromptChunk - 1) / kPromptChunk; }

}  // namespace

float Network::AttentionScale() const {
  return config->attention_scale > 0
             ? config->attention_scale
             : static_cast<float>(1.0 / std::sqrt(static_cast<double>(config->head_dim)));
}

int32_t Reread::LongestSegment() const {
  int32_t longest = 0, begin = 0;
  for (int32_t end : ends) {
    longest = std::max(longest, end - begin);
    begin = end;
  }
  return longest;
}

// ---- prompts ----

Status ChunkBuffers::Reserve(const Network& network, const PromptRequest& r, const DeviceMemory& memory) {
  const ModelConfig& c = *network.config;
  const int64_t n = ChunkRows(r), queries = n * c.n_heads * c.head_dim, keys = n * c.n_kv_heads * c.head_dim;
  const char* what = "activations of a chunk";
  KVC_RETURN_IF_ERROR(q_.Reserve(memory, queries, what));
  KVC_RETURN_IF_ERROR(attended_.Reserve(memory, queries, what));
  KVC_RETURN_IF_ERROR(k_.Reserve(memory, keys, what));
  KVC_RETURN_IF_ERROR(v_.Reserve(memory, keys, what));
  const int32_t rows = static_cast<int32_t>(n);
  KVC_RETURN_IF_ERROR(
      network_.Reserve(memory, memory.device->NetworkScratchBytes(network.weights->shape, rows), what));
  KVC_RETURN_IF_ERROR(place_.Reserve(memory, memory.device->PlaceScratchBytes(rows, c.head_dim), what));
  if (!r.column_sums && r.reread == nullptr) return {};
  return lse_.Reserve(memory, int64_t{c.n_heads} * kPromptChunk, "column sums");
}

void ChunkBuffers::Free() {
  q_.Free(), k_.Free(), v_.Free(), attended_.Free(), lse_.Free(), network_.Free(), place_.Free();
}

int64_t ChunkBuffers::bytes() const {
  return q_.bytes() + k_.bytes() + v_.bytes() + attended_.bytes() + lse_.bytes() + network_.bytes() +
         place_.bytes();
}

Status PromptRun::Begin(const Network& network, const PromptRequest& r, const DeviceMemory& memory) {
  network_ = network, request_ = r;
  const ModelConfig& c = *network.config;
  const int64_t again = r.reread == nullptr ? 0 : r.reread->LongestSegment(),
                entries = int64_t{r.max_cached} + r.n + again,
                rows = r.n + (r.reread == nullptr ? 0 : static_cast<int64_t>(r.reread->tokens.size()));
  KVC_RETURN_IF_ERROR(residual_.Reserve(memory, rows * c.hidden_size, "activations of the prompt"));
  KVC_RETURN_IF_ERROR(
      kv_.Reserve(memory, c.n_kv_heads, c.head_dim, entries, r.max_cached, r.n_aux, r.seen_masks));
  KVC_RETURN_IF_ERROR(observed_.Reserve(memory, c.n_heads, c.n_kv_heads, c.head_dim, entries,
                                        std::min(r.window_rows, r.n), r.column_sums, r.reread != nullptr));
  observed_.n_new = r.n;
  layer_ = part_ = at_ = 0;
  chunks_done_ = 0, chunks_ = ChunksOf(r.n);
  for (size_t i = 0; r.reread != nullptr && i < r.reread->ends.size(); ++i)
    chunks_ += ChunksOf(r.reread->ends[i] - (i == 0 ? 0 : r.reread->ends[i - 1]));
  chunks_ *= c.n_layers;
  n_layers_ = c.n_layers;
  return {};
}

void PromptRun::Free() { residual_.Free(), kv_.Free(), observed_.Free(); }

double PromptRun::progress() const {
  return chunks_ == 0 ? 0 : static_cast<double>(chunks_done_) / static_cast<double>(chunks_);
}

KeyTurning PromptRun::turning() const {
  return {network_.ropes[layer_], network_.config->rope_pairing, request_.positions_in_cache && !Slides()};
}

Status PromptRun::Embed(Stream* stream) {
  const Weights& w = *network_.weights;
  EmbedArgs args{&w.shape,      &w.embedding, request_.tokens, request_.n, network_.config->embedding_scale,
                 residual_.at()};
  KVC_RETURN_IF_ERROR(network_.device->Embed(stream, args));
  if (request_.reread == nullptr) return {};
  args.tokens = request_.reread->tokens.data(), args.n = static_cast<int32_t>(request_.reread->tokens.size());
  args.x = residual_.at() + int64_t{request_.n} * network_.config->hidden_size;
  return network_.device->Embed(stream, args);
}

Status PromptRun::Advance(Stream* stream, ChunkBuffers* buffers) {
  if (done()) return {};
  if (part_ == 0 && at_ == 0) {
    if (layer_ == 0) KVC_RETURN_IF_ERROR(Embed(stream));
    KVC_RETURN_IF_ERROR(request_.sink->BeginLayer(layer_, &kv_));
    base_ = kv_.len();
    if (!Slides()) KVC_RETURN_IF_ERROR(observed_.Clear(stream, network_.device));
  }
  const bool again = part_ > 0;
  const int32_t begin = !again       ? 0
                        : part_ == 1 ? 0
                                     : request_.reread->ends[static_cast<size_t>(part_) - 2],
                end = !again ? request_.n : request_.reread->ends[static_cast<size_t>(part_) - 1],
                n = std::min(kPromptChunk, end - begin - at_);
  // Segments of a second reading follow the prompt one at a time, each in the place of the one before.
  const Rows rows{(again ? request_.n : 0) + begin + at_, n, (again ? request_.n : 0) + at_, again};
  const double start = Now();
  KVC_RETURN_IF_ERROR(Chunk(stream, rows, buffers));
  if (again) extras_.reread += Now() - start;
  at_ += n;
  ++chunks_done_;
  return at_ < end - begin ? Status() : EndOfPart(stream);
}

// Behind the last part the layer is complete.
Status PromptRun::EndOfPart(Stream*) {
  at_ = 0;
  if (request_.reread != nullptr && part_ < static_cast<int32_t>(request_.reread->ends.size())) {
    ++part_;
    return {};
  }
  if (part_ > 0) {
    for (size_t g = 0; g < base_.size(); ++g) kv_.view().len[g] = base_[g] + request_.n;
  }
  KVC_RETURN_IF_ERROR(request_.sink->EndLayer(layer_, &kv_, &observed_));
  part_ = 0;
  ++layer_;
  return {};
}

Status PromptRun::Chunk(Stream* stream, const Rows& rows, ChunkBuffers* b) {
  const ModelConfig& c = *network_.config;
  const Weights& weights = *network_.weights;
  const LayerMatrices& w = weights.layers[static_cast<size_t>(layer_)];
  Device& device = *network_.device;
  const DevicePtr<float> x = residual_.at() + int64_t{rows.row} * c.hidden_size;
  const PromptRows where{base_.data(), rows.offset, rows.n};
  KVC_RETURN_IF_ERROR(device.Project(
      stream, {&weights.shape, &w, x, rows.n, b->q_.at(), b->k_.at(), b->v_.at(), b->network_.raw()}));
  KVC_RETURN_IF_ERROR(device.Place(stream, {kv_.view(), where, c.n_heads, request_.first_position, turning(),
                                            b->q_.at(), b->k_.at(), b->v_.at(), b->place_.raw()}));
  if (!rows.reread && !Slides()) KVC_RETURN_IF_ERROR(RecordWindow(stream, rows, b));
  const bool columns = (rows.reread || request_.column_sums) && !Slides();
  KVC_RETURN_IF_ERROR(device.AttendPrompt(
      stream, {kv_.view(), where, c.n_heads, c.layers[static_cast<size_t>(layer_)].attention_window,
               network_.AttentionScale(), b->q_.at(), b->attended_.at(),
               columns ? b->lse_.at() : DevicePtr<float>(), kPromptChunk, c.attention_cap, w.sinks}));
  if (columns) KVC_RETURN_IF_ERROR(FoldColumns(stream, rows, b));
  // Of the last layer only the last token goes on to the logits.
  const bool last_layer = layer_ + 1 == c.n_layers;
  const int32_t skip = !last_layer ? 0 : rows.row + rows.n == request_.n ? rows.n - 1 : rows.n;
  if (skip == rows.n) return {};
  return device.Finish(
      stream, {&weights.shape, &w, b->attended_.at() + int64_t{skip} * c.n_heads * c.head_dim, rows.n - skip,
               c.residual_scale, x + int64_t{skip} * c.hidden_size, b->network_.raw()});
}

Status PromptRun::RecordWindow(Stream* stream, const Rows& rows, ChunkBuffers* b) {
  const int32_t first = request_.n - observed_.n_rows, begin = std::max(0, first - rows.offset);
  if (begin >= rows.n) return {};
  const int64_t width = int64_t{network_.config->n_heads} * network_.config->head_dim;
  const DevicePtr<float> to = observed_.queries() + (rows.offset + begin - first) * width,
                         from = b->q_.at() + begin * width;
  const PageCopy copy{to.As<uint8_t>(), from.As<uint8_t>(), 4 * width * (rows.n - begin)};
  return network_.device->Copy(stream, {&copy, 1});
}

// What the rows look at: the prompt's own are summed, of those that read it again the largest counts, and
// only over the prompt and what was cached before.
Status PromptRun::FoldColumns(Stream* stream, const Rows& rows, ChunkBuffers* b) {
  const double start = Now();
  const Status status =
      network_.device->FoldColumns(stream, {kv_.view(),
                                            {base_.data(), rows.offset, rows.n},
                                            network_.config->n_heads,
                                            rows.reread ? request_.n : rows.offset + rows.n,
                                            network_.AttentionScale(),
                                            b->q_.at(),
                                            b->lse_.at(),
                                            kPromptChunk,
                                            rows.reread ? observed_.maxima() : observed_.sums(),
                                            rows.reread,
                                            network_.config->attention_cap});
  if (!rows.reread) extras_.column_sums += Now() - start;
  return status;
}

// ---- steps ----

Status StepBuffers::Reserve(const Network& network, int32_t n_rows, const DeviceMemory& memory) {
  const ModelConfig& c = *network.config;
  const int64_t n = n_rows, queries = n * c.n_heads * c.head_dim, keys = n * c.n_kv_heads * c.head_dim;
  const char* what = "activations of a step";
  KVC_RETURN_IF_ERROR(x_.Reserve(memory, n * c.hidden_size, what));
  KVC_RETURN_IF_ERROR(q_.Reserve(memory, queries, what));
  KVC_RETURN_IF_ERROR(attended_.Reserve(memory, queries, what));
  KVC_RETURN_IF_ERROR(k_.Reserve(memory, keys, what));
  KVC_RETURN_IF_ERROR(v_.Reserve(memory, keys, what));
  return network_.Reserve(memory, memory.device->NetworkScratchBytes(network.weights->shape, n_rows), what);
}

Status StepBuffers::ReserveAttention(const Network&, const StepShape& shape, const DeviceMemory& memory) {
  return attention_.Reserve(memory, memory.device->StepScratchBytes(shape), "attention workspace");
}

Status StepBuffers::ReserveHeads(const Network& network, int32_t n_rows, const DeviceMemory& memory) {
  const ModelConfig& c = *network.config;
  KVC_RETURN_IF_ERROR(picked_.Reserve(memory, int64_t{n_rows} * c.hidden_size, "logits"));
  KVC_RETURN_IF_ERROR(logits_.Reserve(memory, int64_t{n_rows} * c.vocab_size, "logits"));
  return network_.Reserve(memory, memory.device->NetworkScratchBytes(network.weights->shape, n_rows),
                          "logits");
}

void StepBuffers::Free() {
  x_.Free(), q_.Free(), k_.Free(), v_.Free(), attended_.Free(), picked_.Free(), logits_.Free();
  network_.Free(), attention_.Free();
}

int64_t StepBuffers::bytes() const {
  return x_.bytes() + q_.bytes() + k_.bytes() + v_.bytes() + attended_.bytes() + picked_.bytes() +
         logits_.bytes() + network_.bytes() + attention_.bytes();
}

Status RunSteps(const Network& network, Stream* stream, const int32_t* tokens, const StepRow* rows, int32_t n,
                const StepShape& shape, const AngleTable* angles, StepSink* sink, StepBuffers* b) {
  const ModelConfig& c = *network.config;
  const Weights& weights = *network.weights;
  Device& device = *network.device;
  Gathering gathering(stream);
  KVC_RETURN_IF_ERROR(
      device.Embed(stream, {&weights.shape, &weights.embedding, tokens, n, c.embedding_scale, b->x_.at()}));
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const LayerMatrices& w = weights.layers[static_cast<size_t>(layer)];
    KVC_RETURN_IF_ERROR(device.Project(
        stream, {&weights.shape, &w, b->x_.at(), n, b->q_.at(), b->k_.at(), b->v_.at(), b->network_.raw()}));
    StepArgs args{};
    args.layer = layer, args.rows = rows, args.n_rows = n, args.n_heads = c.n_heads;
    args.scale = network.AttentionScale(),
    args.window = c.layers[static_cast<size_t>(layer)].attention_window;
    args.rope = network.ropes[layer], args.pairing = c.rope_pairing;
    if (angles != nullptr) args.angles = angles[layer];
    args.q = b->q_.at(), args.k = b->k_.at(), args.v = b->v_.at(), args.out = b->attended_.at();
    args.shape = shape, args.scratch = b->attention_.raw(), args.cap = c.attention_cap;
    args.sinks = w.sinks;
    KVC_RETURN_IF_ERROR(device.Step(stream, args));
    if (sink != nullptr) KVC_RETURN_IF_ERROR(sink->AfterAttention(layer, args));
    KVC_RETURN_IF_ERROR(device.Finish(
        stream, {&weights.shape, &w, b->attended_.at(), n, c.residual_scale, b->x_.at(), b->network_.raw()}));
  }
  return gathering.Issue();
}

Status Heads(const Network& network, Stream* stream, const DevicePtr<float>* x, int32_t n, StepBuffers* b) {
  constexpr int32_t kMostCopies = 64;
  const ModelConfig& c = *network.config;
  const Weights& w = *network.weights;
  PageCopy copies[kMostCopies];
  for (int32_t i = 0; n > 1 && i < n;) {
    size_t k = 0;
    for (; i < n && k < kMostCopies; ++i, ++k) {
      const DevicePtr<float> to = b->picked_.at() + int64_t{i} * c.hidden_size;
      copies[k] = {to.As<uint8_t>(), x[i].As<uint8_t>(), 4 * int64_t{c.hidden_size}};
    }
    KVC_RETURN_IF_ERROR(network.device->Copy(stream, {copies, k}));
  }
  return network.device->Logits(
      stream, {&w.shape, w.final_norm, &w.output_head, n > 1 ? b->picked_.at() : x[0], n, c.logit_scale,
               b->logits_.at(), b->network_.raw(), c.logit_cap, w.final_norm_bias});
}

}  // namespace kvc
