// One pass over a tensor's section: its checksum, and whether its values and scales are finite.
#pragma once
#include <cstdint>

#include "lib/base/hash.h"
#include "lib/base/status.h"
#include "lib/model/model_check.h"

namespace kvc {

class TensorScan {
 public:
  // tensor: role, layer and weight, checked (CheckTensors); data is not read. Must outlive the scan.
  explicit TensorScan(const TensorEntry& tensor) : tensor_(tensor), layout_(PlaceOf(tensor.weight)) {}
  // The next bytes of the section, in order; every call but the last one brings a multiple of 4 bytes.
  void Update(const uint8_t* bytes, int64_t n_bytes);
  uint64_t checksum() const { return hasher_.Digest(); }
  // kBadModel naming tensor, row and column of the first value, or group or block of the first scale, that is
  // not finite, or the byte of a scale in panels that has more bits than it may.
  Status CheckFinite() const;

 private:
  void Scan(WeightType type, int64_t begin, int64_t end, const uint8_t* bytes, int64_t n_bytes,
            int64_t* first) const;
  void ScanHalves(const uint8_t* bytes, int64_t n_bytes);
  void ScanSixBits(const uint8_t* bytes, int64_t n_bytes);
  const TensorEntry& tensor_;
  const WeightPlace layout_;
  Hasher64 hasher_;
  int64_t position_ = 0;                     // in the section
  int64_t bad_value_ = -1, bad_scale_ = -1;  // element index, -1 none
  int64_t bad_byte_ = -1;                    // in the section
};

}  // namespace kvc
