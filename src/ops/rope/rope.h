// Rotary positions, rotate-half (Hugging Face): dimensions j and j+D/2 rotate together.
#pragma once

#include "core/memory.h"

namespace bhyt {

struct RopeScaling {
  enum class Kind { none, llama3 } kind = Kind::none;
  double factor = 32, low = 1, high = 4, original = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// cos and sin of every position and frequency, computed in double: [positions, D], the first D/2 columns cos, the rest sin. fp32.
OwnedTensor rope_table(Context& ctx, std::int64_t positions, std::int64_t head_dim, double theta, const RopeScaling& scaling);

// Rotates the first `heads` heads of every row of x [N, ≥ heads·D] in place. position of row i: positions[i] (int32 [N]) where given, else
// start + i % seq. inverse = true is the backward.
struct RopeOptions {
  std::int64_t heads = 1;
  std::int64_t head_dim = 2;
  std::int64_t seq = 1;
  std::int64_t start = 0;
  Tensor positions = {};
  bool inverse = false;
};
void rope(Context& ctx, const Tensor& x, const Tensor& table, const RopeOptions& options);

namespace cpu {
void rope(Context& ctx, const Tensor& x, const Tensor& table, const RopeOptions& options);
}
namespace cuda {
void rope(Context& ctx, const Tensor& x, const Tensor& table, const RopeOptions& options);
}

}  // namespace bhyt
