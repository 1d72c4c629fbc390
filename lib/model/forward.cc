// Bytes and flops: a prompt streams every weight once per chunk (2 * parameters flops
// per token) and attends 2 * n^2 * D * H flops per layer; a step streams every weight once for all rows.
#include "lib/model/forward.h"

#include <algorithm>
#include <cmath>

#include "lib/base/clock.h"

namespace kvc {
namespace {

// Tokens of a chunk.
int32_t ChunkOf(const Device& device, const PromptRequest& r) {
  return r.reread == nullptr ? device.info().prompt_rows : kPromptChunk;
}
// Rows of activations that are worked on at once.
int32_t ChunkRows(const Device& device, const PromptRequest& r) {
  return std::min(std::max(r.n, r.reread == nullptr ? 0 : r.reread->LongestPart()), ChunkOf(device, r));
}

}  // namespace

KvType Network::LayerType(const CacheLayout& layout) const {
  if (!device->info().half_layers || weights->shape.f32_weights) return KvType::kF32;
  for (const PageFormat& f : layout.formats) {
    if (f.coding == EntryCoding::kVectors && f.type == KvType::kF32) return KvType::kF32;
  }
  return KvType::kF16;
}

float Network::AttentionScale() const {
  return config->attention_scale > 0
             ? config->attention_scale
             : static_cast<float>(1.0 / std::sqrt(static_cast<double>(config->head_dim)));
}

// ---- prompts ----

Status ChunkBuffers::Reserve(const Network& network, const PromptRequest& r, const DeviceMemory& memory) {
  const ModelConfig& c = *network.config;
  const int64_t n = ChunkRows(*memory.device, r), queries = n * c.n_heads * c.head_dim,
                keys = n * c.n_kv_heads * c.head_dim;
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
  KVC_RETURN_IF_ERROR(lse_.Reserve(memory, int64_t{c.n_heads} * ChunkOf(*memory.device, r), "column sums"));
  if (r.reread == nullptr) return {};
  fold_entries_ = r.reread->local ? Reread::kFirst + r.reread->LongestSight() : int64_t{r.max_cached} + r.n;
  return fold_.Reserve(memory, memory.device->AttendAndFoldScratchBytes(rows, c.n_heads, fold_entries_),
                       what);
}

void ChunkBuffers::Free() {
  q_.Free(), k_.Free(), v_.Free(), attended_.Free(), lse_.Free(), network_.Free(), place_.Free(),
      fold_.Free();
}

int64_t ChunkBuffers::bytes() const {
  return q_.bytes() + k_.bytes() + v_.bytes() + attended_.bytes() + lse_.bytes() + network_.bytes() +
         place_.bytes() + fold_.bytes();
}

Status PromptRun::Begin(const Network& network, const PromptRequest& r, const DeviceMemory& memory) {
  network_ = network, request_ = r;
  const ModelConfig& c = *network.config;
  const Reread* again = r.reread;
  const int64_t entries = int64_t{r.max_cached} + r.n + (again == nullptr ? 0 : again->Behind()),
                rows = int64_t{r.n} + (again == nullptr ? 0 : again->n_tokens);
  chunk_ = ChunkOf(*network.device, r);
  const bool halves = r.layer_type == KvType::kF16 && rows > network.device->info().most_float_rows;
  KVC_RETURN_IF_ERROR(residual_.Reserve(memory, rows, c.hidden_size, chunk_, halves));
  KVC_RETURN_IF_ERROR(kv_.Reserve(memory, c.n_kv_heads, c.head_dim, entries, r.max_cached, r.n_aux,
                                  r.seen_masks, r.layer_type));
  KVC_RETURN_IF_ERROR(observed_.Reserve(memory, c.n_heads, c.n_kv_heads, c.head_dim, entries,
                                        std::min(r.window_rows, r.n), r.column_sums, again != nullptr));
  if (again != nullptr && again->local)
    KVC_RETURN_IF_ERROR(seen_.Reserve(memory, *again, c.n_kv_heads, c.head_dim, r.seen_masks, r.layer_type));
  if (again != nullptr && again->own)
    KVC_RETURN_IF_ERROR(
        remembered_.Reserve(memory, again->Remembered(), c.n_heads, c.n_kv_heads, c.head_dim));
  observed_.n_new = r.n;
  if (!memory.meter->counting()) tasks_ = TasksOf(r.n, again, chunk_);
  task_ = 0, layer_ = 0, n_layers_ = c.n_layers;
  return {};
}

void PromptRun::Free() { residual_.Free(), kv_.Free(), observed_.Free(), seen_.Free(), remembered_.Free(); }

double PromptRun::progress() const {
  if (n_layers_ < 1 || tasks_.empty()) return 0;
  const double n = static_cast<double>(tasks_.size());
  return (layer_ * n + static_cast<double>(task_)) / (n_layers_ * n);
}

KeyTurning PromptRun::turning() const {
  return {network_.ropes[layer_], network_.config->rope_pairing, request_.positions_in_cache && !Slides()};
}

// Rows behind the prompt's are those of what is read again.
Status PromptRun::Embed(Stream* stream, const Rows& rows) {
  const Weights& w = *network_.weights;
  const int32_t* tokens = rows.row < request_.n ? request_.tokens + rows.row
                                                : request_.reread->tokens.data() + (rows.row - request_.n);
  return network_.device->Embed(stream, {&w.shape, &w.embedding, tokens, rows.where.n,
                                         network_.config->embedding_scale, residual_.Place(rows.row)});
}

Status PromptRun::Advance(Stream* stream, Stream* side, ChunkBuffers* buffers) {
  if (done()) return {};
  if (task_ == 0) KVC_RETURN_IF_ERROR(BeginLayer(stream));
  const bool last = task_ + 1 == tasks_.size(), beside = last && side != nullptr;
  Status status = Read({stream, beside ? side : stream}, tasks_[task_], buffers);
  if (status.ok()) {
    ++task_;
    if (last) status = EndLayer();
  }
  if (!beside) return status;
  // Behind an error too: what the other works on is used for something else from here on.
  const Status followed = stream->Follow(side);
  return status.ok() ? followed : status;
}

Status PromptRun::Read(const Streams& s, const PromptTask& task, ChunkBuffers* b) {
  if (task.part < 0) return ReadFirst(s, task, b);
  const double start = Seconds();
  KVC_RETURN_IF_ERROR(ReadAgain(s, task, b));
  extras_.reread += Seconds() - start;
  return {};
}

Status PromptRun::BeginLayer(Stream* stream) {
  KVC_RETURN_IF_ERROR(request_.sink->BeginLayer(layer_, &kv_));
  base_ = kv_.len();
  return Slides() ? Status() : observed_.Clear(stream, network_.device);
}

// What stands behind the prompt goes.
Status PromptRun::EndLayer() {
  for (size_t g = 0; g < base_.size(); ++g) kv_.view().len[g] = base_[g] + request_.n;
  KVC_RETURN_IF_ERROR(request_.sink->EndLayer(layer_, &kv_, &observed_));
  task_ = 0;
  ++layer_;
  return {};
}

Status PromptRun::ReadFirst(const Streams& s, const PromptTask& task, ChunkBuffers* b) {
  Stream* const stream = s.stream;
  const Rows rows{kv_.view(), {base_.data(), task.at, task.n}, request_.first_position, task.at};
  KVC_RETURN_IF_ERROR(Project(stream, rows, b));
  if (request_.reread != nullptr && request_.reread->own && !Slides())
    KVC_RETURN_IF_ERROR(
        remembered_.Store(stream, network_.device, {b->q_.at(), b->k_.at(), b->v_.at()}, task.at, task.n));
  KVC_RETURN_IF_ERROR(Place(stream, rows, b));
  if (!Slides()) KVC_RETURN_IF_ERROR(RecordWindow(stream, rows, b));
  const bool columns = request_.column_sums && !Slides();
  // Of the last layer only the last token goes on to the logits.
  const bool last_layer = layer_ + 1 == n_layers_, last_row = task.at + task.n == request_.n;
  const bool goes_on = !last_layer || last_row;
  if (goes_on || columns)
    KVC_RETURN_IF_ERROR(network_.device->AttendPrompt(stream, AttentionOf(rows, goes_on, columns, b)));
  if (columns) {
    const double start = Seconds();
    KVC_RETURN_IF_ERROR(network_.device->FoldColumns(
        stream, ColumnsOf(rows, task.at + task.n, observed_.sums(), ColumnFold::kSums, b)));
    extras_.column_sums += Seconds() - start;
  }
  return Finish(s, rows, !last_layer ? 0 : last_row ? task.n - 1 : task.n, b);
}

// Parts follow what they see one at a time, each in the place of the one before. The largest probabilities
// count, or the squares of all, over the prompt and what was cached before it only.
Status PromptRun::ReadAgain(const Streams& s, const PromptTask& task, ChunkBuffers* b) {
  Stream* const stream = s.stream;
  const Reread& again = *request_.reread;
  if (again.own && Slides()) return {};
  const Reread::Part& part = again.parts[static_cast<size_t>(task.part)];
  Device* device = network_.device;
  Rows rows{kv_.view(), {base_.data(), request_.n + task.at, task.n}, request_.first_position, 0};
  if (again.local) {
    if (task.at == 0)
      KVC_RETURN_IF_ERROR(seen_.Load(stream, device, part, base_, kv_.view(), observed_.maxima()));
    rows.layer = seen_.view(), rows.where = {seen_.base(), task.at, task.n};
    rows.first_position += part.last;
  }
  if (again.own) {
    KVC_RETURN_IF_ERROR(
        remembered_.Load(stream, device, {b->q_.at(), b->k_.at(), b->v_.at()}, part.begin + task.at, task.n));
  } else {
    rows.row = request_.n + part.begin + task.at;
    KVC_RETURN_IF_ERROR(Project(stream, rows, b));
  }
  KVC_RETURN_IF_ERROR(Place(stream, rows, b));
  const bool goes_on = !again.own && layer_ + 1 < n_layers_;
  if (Slides()) {
    if (goes_on) KVC_RETURN_IF_ERROR(device->AttendPrompt(stream, AttentionOf(rows, true, false, b)));
  } else {
    const DevicePtr<float> into = again.local ? seen_.maxima() : observed_.maxima();
    const ColumnFold fold = again.squares ? ColumnFold::kSquares : ColumnFold::kMaxima;
    KVC_RETURN_IF_ERROR(device->AttendAndFold(
        stream,
        {AttentionOf(rows, goes_on, true, b), ColumnsOf(rows, again.local ? 0 : request_.n, into, fold, b),
         b->fold_.raw(), b->fold_entries_}));
  }
  if (again.local && !Slides() && task.at + task.n == part.end - part.begin)
    KVC_RETURN_IF_ERROR(seen_.Store(stream, device));
  return goes_on ? Finish(s, rows, 0, b) : Status();
}

// ---- a chunk of rows, operation by operation ----

Status PromptRun::Project(Stream* stream, const Rows& rows, ChunkBuffers* b) {
  const Weights& weights = *network_.weights;
  KVC_RETURN_IF_ERROR(layer_ == 0 ? Embed(stream, rows)
                                  : residual_.Load(stream, network_.device, rows.row, rows.where.n));
  return network_.device->Project(
      stream, {&weights.shape, &weights.layers[static_cast<size_t>(layer_)], residual_.Place(rows.row),
               rows.where.n, b->q_.at(), b->k_.at(), b->v_.at(), b->network_.raw()});
}

Status PromptRun::Place(Stream* stream, const Rows& rows, ChunkBuffers* b) {
  return network_.device->Place(
      stream, {rows.layer, rows.where, network_.config->n_heads, rows.first_position, turning(), b->q_.at(),
               b->k_.at(), b->v_.at(), b->place_.raw()});
}

PromptAttentionArgs PromptRun::AttentionOf(const Rows& rows, bool goes_on, bool columns,
                                           ChunkBuffers* b) const {
  const ModelConfig& c = *network_.config;
  const size_t layer = static_cast<size_t>(layer_);
  return {rows.layer,
          rows.where,
          c.n_heads,
          c.layers[layer].attention_window,
          network_.AttentionScale(),
          b->q_.at(),
          goes_on ? b->attended_.at() : DevicePtr<float>(),
          columns ? b->lse_.at() : DevicePtr<float>(),
          chunk_,
          c.attention_cap,
          network_.weights->layers[layer].sinks};
}

// skip: so many of the rows go no further. Of the last layer one row does.
Status PromptRun::Finish(const Streams& s, const Rows& rows, int32_t skip, ChunkBuffers* b) {
  const ModelConfig& c = *network_.config;
  const Weights& weights = *network_.weights;
  if (skip == rows.where.n) return {};
  Device* device = network_.device;
  if (s.finish != s.stream) KVC_RETURN_IF_ERROR(s.finish->Follow(s.stream));
  KVC_RETURN_IF_ERROR(device->Finish(
      s.finish,
      {&weights.shape, &weights.layers[static_cast<size_t>(layer_)],
       b->attended_.at() + int64_t{skip} * c.n_heads * c.head_dim, rows.where.n - skip, c.residual_scale,
       residual_.Place(rows.row) + int64_t{skip} * c.hidden_size, b->network_.raw()}));
  return layer_ + 1 < n_layers_ ? residual_.Store(s.finish, device, rows.row, rows.where.n)
                                : residual_.KeepLast(s.finish, device, rows.row, skip);
}

Status PromptRun::RecordWindow(Stream* stream, const Rows& rows, ChunkBuffers* b) {
  const int32_t first = request_.n - observed_.n_rows, offset = rows.where.offset,
                begin = std::max(0, first - offset), n = rows.where.n;
  if (begin >= n) return {};
  const int64_t width = int64_t{network_.config->n_heads} * network_.config->head_dim;
  const DevicePtr<float> to = observed_.queries() + (offset + begin - first) * width,
                         from = b->q_.at() + begin * width;
  const PageCopy copy{to.As<uint8_t>(), from.As<uint8_t>(), 4 * width * (n - begin)};
  return network_.device->Copy(stream, {&copy, 1});
}

// What the rows look at, over the first base + limit entries.
ColumnArgs PromptRun::ColumnsOf(const Rows& rows, int32_t limit, DevicePtr<float> into, ColumnFold fold,
                                ChunkBuffers* b) const {
  return {rows.layer,
          rows.where,
          network_.config->n_heads,
          limit,
          network_.AttentionScale(),
          b->q_.at(),
          b->lse_.at(),
          chunk_,
          into,
          fold,
          network_.config->attention_cap};
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

Status StepBuffers::ReserveAttention(const StepShape& shape, const DeviceMemory& memory) {
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
    args.same_angles = layer > 0 && network.ropes[layer] == network.ropes[layer - 1];
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
