#include "models/convert/tensor_stream.h"

#include <algorithm>
#include <new>

#include "lib/base/half.h"
#include "lib/model/model_check.h"
#include "models/convert/columns_first.h"
#include "models/convert/convert_plan.h"
#include "models/convert/packed_mxfp4.h"

namespace kvc {
namespace {

// Of a part, or one row when that is longer, and of parts: their number is that of no machine, so that sums
// come out the same on all.
constexpr int64_t kPartElements = 1 << 17, kParts = 8;

int32_t ColsIn(const SourceTensor& tensor) {
  return tensor.source_cols > 0 ? tensor.source_cols : tensor.cols;
}

const PackedLinear* PackedOf(const SourceTensor& tensor, const SourceTensor::Run& run) {
  return run.packed == nullptr ? tensor.packed : run.packed;
}

// Of the rows from `row` on, the element with this index.
Status BadElement(const SourceTensor& tensor, int64_t row, int64_t index, const char* why, int32_t cols) {
  return Error(Code::kBadModel, "%s: tensor %s: row %lld, column %lld: the value %s",
               tensor.file->path().c_str(), tensor.name.c_str(), static_cast<long long>(row + index / cols),
               static_cast<long long>(index % cols), why);
}

// Elements of n rows as the model has them.
void Reorder(const SourceTensor& tensor, int64_t n, std::vector<float>* values) {
  const std::vector<float> before = *values;
  for (int64_t i = 0; i < n * tensor.cols; ++i) {
    const int64_t row = i / tensor.cols, at = tensor.order[static_cast<size_t>(i % tensor.cols)];
    (*values)[static_cast<size_t>(i)] = before[static_cast<size_t>(row * ColsIn(tensor) + at)];
  }
}

// n values as the target has them; the index of the first that cannot be coded, or -1.
int64_t Encode(const WeightTarget& target, const float* values, int64_t n, uint8_t* out, uint16_t* scales) {
  switch (target.type) {
    case WeightType::kInt8:
      return EncodeInt8(values, n, target.group, out, scales);
    case WeightType::kInt4:
      return EncodeInt4(values, n, target.group, out, scales);
    default: {
      uint16_t* halves = reinterpret_cast<uint16_t*>(out);
      const bool half = target.type == WeightType::kF16;
      for (int64_t i = 0; i < n; ++i) halves[i] = half ? FloatToF16(values[i]) : FloatToBf16(values[i]);
      return FirstNotFinite(target.type, halves, n);
    }
  }
}

// What n values x lost as y.
void Measure(const float* x, const float* y, int64_t n, double* all_squares, double* all_lost) {
  constexpr int64_t kRun = 64, kLanes = 8;  // summed in f32, in lanes that are added up last
  for (int64_t at = 0; at < n; at += kRun) {
    const int64_t end = std::min(at + kRun, n);
    float squares[kLanes] = {}, lost[kLanes] = {};
    for (int64_t i = at; i < end; i += kLanes) {
      const int64_t lanes = std::min(kLanes, end - i);
      for (int64_t j = 0; j < lanes; ++j) {
        const float apart = x[i + j] - y[i + j];
        squares[j] += x[i + j] * x[i + j], lost[j] += apart * apart;
      }
    }
    for (int64_t j = 0; j < kLanes; ++j) *all_squares += double{squares[j]}, *all_lost += double{lost[j]};
  }
}

}  // namespace

int64_t TensorStream::Part::bytes() const {
  return static_cast<int64_t>(in.capacity() + out.capacity() + read.capacity() +
                              (values.capacity() + stored.capacity()) * sizeof(float));
}

int64_t TensorStream::BufferBytes() const {
  int64_t n = static_cast<int64_t>(scales_.capacity() * sizeof(uint16_t)) + packed_.bytes() + lora_->bytes();
  for (const Part& part : parts_) n += part.bytes();
  return n;
}

bool TensorStream::Exact(const SourceTensor& tensor, const WeightTarget& target) const {
  return changes_ ? target.type == WeightType::kF32 : IsExact(tensor.type, target);
}

// What reads or changes a tensor as a whole keeps state between blocks.
bool TensorStream::IsSerial(const SourceTensor& tensor) const {
  return changes_ || !tensor.order.empty() || PackedOf(tensor, tensor.runs.front()) != nullptr;
}

void TensorStream::Reserve(const SourceTensor& tensor, const WeightTarget& target, int64_t rows,
                           int64_t n_parts) {
  const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(ColsIn(tensor));
  const bool keeps = KeepsBytes(tensor.type, target) && tensor.add == 0 && !IsSerial(tensor);
  parts_.resize(static_cast<size_t>(n_parts));
  for (Part& part : parts_) {
    part.in.resize(static_cast<size_t>(SourceBytes(tensor.type, static_cast<int64_t>(n))));
    part.values.resize(keeps ? 0 : n);
    part.stored.resize(keeps || Exact(tensor, target) ? 0 : n);
    part.out.resize(keeps ? 0
                          : static_cast<size_t>(rows) *
                                static_cast<size_t>(WeightRowBytes(target.type, tensor.cols)));
    if (tensor.runs.front().column_bytes > 0)
      part.read.resize(ColumnsFirstBytes(rows, tensor.runs.front().step, SourceBytes(tensor.type, 1)));
  }
  scales_.resize(static_cast<size_t>(tensor.rows) *
                 static_cast<size_t>(RowScales({target.type, {}, tensor.rows, tensor.cols, target.group})));
  report_->peak_buffer_bytes = std::max(report_->peak_buffer_bytes, BufferBytes());
}

Status TensorStream::Convert(const SourceTensor& tensor, const WeightTarget& target,
                             const std::function<bool(int64_t)>& after_block) {
  changes_ = lora_->Changes(tensor);
  const int64_t part_rows = std::min<int64_t>(tensor.rows, std::max<int64_t>(1, kPartElements / tensor.cols));
  const int64_t n_parts =
      IsSerial(tensor) ? 1 : std::min<int64_t>(kParts, (tensor.rows + part_rows - 1) / part_rows);
  Reserve(tensor, target, part_rows, n_parts);
  squares_ = lost_squares_ = 0;
  const int64_t written = report_->bytes_written;
  int64_t row = 0;
  for (const SourceTensor::Run& run : tensor.runs) {
    for (int64_t done = 0; done < run.rows;) {
      const int64_t n_rows = std::min<int64_t>(n_parts * part_rows, run.rows - done);
      KVC_RETURN_IF_ERROR(Block(tensor, target, {run, done, row, n_rows}, part_rows));
      done += n_rows, row += n_rows;
      const int64_t n_bytes = BytesInFile(tensor, n_rows);
      report_->bytes_read += n_bytes;
      if (!after_block(n_bytes)) return Error(Code::kCancelled, "converting was cancelled");
    }
  }
  KVC_RETURN_IF_ERROR(Write(scales_.data(), static_cast<int64_t>(scales_.size() * sizeof(uint16_t))));
  if (!IsVectorRole(tensor.role)) Count(tensor, target, report_->bytes_written - written);
  return {};
}

Status TensorStream::Block(const SourceTensor& tensor, const WeightTarget& target, const Rows& rows,
                           int64_t part_rows) {
  const auto rows_of = [&](int64_t i) {
    const int64_t first = i * part_rows;
    return Rows{rows.run, rows.first + first, rows.row + first, std::min(part_rows, rows.n - first)};
  };
  const auto one = [&](int64_t i, int) {
    Part* part = &parts_[static_cast<size_t>(i)];
    part->squares = part->lost_squares = 0;
    try {
      part->status = One(tensor, target, rows_of(i), part);
    } catch (const std::bad_alloc&) {
      part->status = Status(Code::kMemory, "out of memory");
    }
  };
  const int64_t n = (rows.n + part_rows - 1) / part_rows;
  pool_->ParallelFor(n, one);
  for (int64_t i = 0; i < n; ++i) {
    const Part& part = parts_[static_cast<size_t>(i)];
    KVC_RETURN_IF_ERROR(part.status);
    squares_ += part.squares, lost_squares_ += part.lost_squares;
    KVC_RETURN_IF_ERROR(Write(part.result, rows_of(i).n * WeightRowBytes(target.type, tensor.cols)));
  }
  report_->peak_buffer_bytes = std::max(report_->peak_buffer_bytes, BufferBytes());
  return {};
}

Status TensorStream::Read(const SourceTensor& tensor, const Rows& rows, Part* part) {
  const int64_t row_bytes = SourceBytes(tensor.type, ColsIn(tensor));
  const SourceTensor::Run& run = rows.run;
  const PackedLinear* packed = PackedOf(tensor, run);
  if (packed == nullptr) {
    const SourceFile& file = run.file == nullptr ? *tensor.file : *run.file;
    if (run.column_bytes > 0)
      return ReadColumnsFirst(file, run, rows.first, rows.n, tensor.cols, SourceBytes(tensor.type, 1),
                              part->read.data(), part->in.data());
    return file.Read(run.offset + rows.first * row_bytes, part->in.data(), rows.n * row_bytes);
  }
  if (packed->scheme.kind == PackedScheme::kMxfp4)
    return ReadMxfp4Rows(*packed, run.offset / row_bytes + rows.first * run.step, rows.n, run.step,
                         &part->read, part->in.data());
  KVC_RETURN_IF_ERROR(packed_.Load(*packed));
  packed_.Rows(run.offset / row_bytes + rows.first, rows.n, part->in.data());
  return {};
}

// Reads rows and leaves what is written of them in part->result.
Status TensorStream::One(const SourceTensor& tensor, const WeightTarget& target, const Rows& rows,
                         Part* part) {
  KVC_RETURN_IF_ERROR(Read(tensor, rows, part));
  const int64_t n_in = rows.n * ColsIn(tensor), n = rows.n * tensor.cols;
  const uint8_t* in = part->in.data();
  const int64_t no_number = FirstNotFiniteElement(tensor.type, in, n_in);
  if (no_number >= 0)
    return BadElement(tensor, rows.row, no_number, "is not a finite number", ColsIn(tensor));
  if (tensor.add == 0 && tensor.order.empty() && !changes_ && KeepsBytes(tensor.type, target)) {
    part->result = in;
    return {};
  }
  uint16_t* scales = scales_.empty() ? nullptr : scales_.data() + rows.row * (tensor.cols / target.group);
  const bool exact = Exact(tensor, target), keeps_codes = !changes_ && KeepsCodes(tensor.type, target);
  float* values = part->values.data();
  if (!exact || !keeps_codes) DecodeElements(tensor.type, in, n_in, values);
  if (!tensor.order.empty()) Reorder(tensor, rows.n, &part->values);
  for (int64_t i = 0; tensor.add != 0 && i < n; ++i) values[i] += tensor.add;
  if (changes_) KVC_RETURN_IF_ERROR(Adapt(tensor, rows, part));
  part->result = values;
  if (target.type == WeightType::kF32) return {};
  const int64_t bad = keeps_codes ? KeepCodes(tensor.type, target, in, n, part->out.data(), scales)
                                  : Encode(target, values, n, part->out.data(), scales);
  if (bad >= 0) {
    const std::string why = Format("or one of its group is too large for %s", WeightTypeName(target.type));
    return BadElement(tensor, rows.row, bad, why.c_str(), tensor.cols);
  }
  part->result = part->out.data();
  if (exact) return {};
  DecodeStored(target, part->out.data(), scales, n, part->stored.data());
  Measure(values, part->stored.data(), n, &part->squares, &part->lost_squares);
  return {};
}

// What adapters add to the values.
Status TensorStream::Adapt(const SourceTensor& tensor, const Rows& rows, Part* part) {
  KVC_RETURN_IF_ERROR(lora_->Add(tensor, rows.run, rows.first, rows.n, part->values.data()));
  const int64_t bad = FirstNotFinite(WeightType::kF32, part->values.data(), rows.n * tensor.cols);
  return bad < 0 ? Status() : BadElement(tensor, rows.row, bad, "with the adapter is too large", tensor.cols);
}

Status TensorStream::Write(const void* data, int64_t n_bytes) {
  report_->bytes_written += n_bytes;
  return writer_->Append(data, n_bytes);
}

void TensorStream::Count(const SourceTensor& tensor, const WeightTarget& target, int64_t bytes_out) {
  std::vector<ConvertedType>& types = report_->types;
  const auto same = [&](const ConvertedType& t) {
    return t.source == SourceTypeName(tensor.type) && t.stored == WeightTypeName(target.type) &&
           t.group == target.group;
  };
  auto found = std::find_if(types.begin(), types.end(), same);
  if (found == types.end()) {
    types.push_back({SourceTypeName(tensor.type), WeightTypeName(target.type), target.group});
    found = types.end() - 1;
  }
  ++found->n_tensors;
  found->bytes_read += BytesInFile(tensor, tensor.rows);
  found->bytes_written += bytes_out;
  found->squares += squares_, found->lost_squares += lost_squares_;
}

}  // namespace kvc
