// What one micro-batch brings; all on the model's device.
#pragma once

#include "core/tensor.h"

namespace bhyt {

struct Batch {
  std::int64_t batch = 0, seq = 0;
  Tensor tokens;     // int32 [B,T]
  Tensor targets;    // int32 [B,T]; negative = not scored, kFilling (ops/norm/norm.h) = no part of any text
  Tensor weights;    // fp32 [B,T] or empty (= 1)
  Tensor positions;  // int32 [B,T] or empty (0…T−1 in every row): restarts at each document with attend: document
  Tensor first;      // int32 [B,T] or empty: first position each token may see (ops/attention/attention.h)
  // Where few tokens are scored, which they are and what follows them: int32 [M], places in [0, B·T) and targets, −1 where there is
  // nothing. Empty: all tokens go to the LM head.
  Tensor scored, scored_targets;
};

}  // namespace bhyt
