// Master weights: the fp32 values that an optimizer updates, whatever type the model computes in. Of several processes each keeps the
// masters of its shard.
#pragma once

#include <vector>

#include "core/memory.h"
#include "model/shard.h"

namespace bhyt::train {

// In an fp32 run the weights themselves; in a bf16 run the weights together with the low 16 bits that bf16 leaves out (core/dtype.h).
class Masters {
 public:
  Masters(const Parameters& parameters, const Shard& shard);  // of the weights as they are; low bits zero

  Tensor low_bits() const { return low_bits_; }  // uint16, an arena of the shard; empty in an fp32 run
  std::size_t bytes() const { return low_bits_.memory.bytes(); }

  std::vector<float> read(const Shard::Part& part) const;
  // Elements [first, first + n): low bits as far as the shard has them, and the weight that goes with them.
  void write(const Parameter& p, std::int64_t first, std::int64_t n, const float* values);
  // For what makes or reads weights in fp32, so that no bit is lost; empty where the weights hold every bit.
  ValueSink sink();

 private:
  const Parameters* parameters_;
  const Shard* shard_;
  OwnedTensor low_bits_;
};

}  // namespace bhyt::train
