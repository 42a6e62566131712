// The optimizer step and the global gradient norm, over the whole parameter arena.
#pragma once

#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// One parameter's stretch of the arena. Gradients and moments are fp32 and share offsets (in elements) with the low bits; the value the
// model computes with has its own type and place. The master weight is an fp32: the value itself, or a bf16 value and its low bits
// (core/dtype.h).
struct ArenaSpan {
  std::int64_t offset = 0, size = 0;
  Tensor value;
  bool decays = false;
};

struct AdamW {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;  // of this update, from 1: bias correction
  Tensor grad_norm;       // fp32 [1] on the device: the global norm of the gradients
  Tensor loss;            // fp32 [1] on the device, or empty
  double clip = 0;        // gradients are scaled by min(1, clip / grad_norm); 0 = off
  // A norm or a loss that is not finite leaves everything as it was (the caller reads them and records the skipped step).
};

// norm fp32 [1] = √Σ g² over the spans; the sum is cut by size, not by threads.
void gradient_norm(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& norm);

// The same in two steps, for gradients that several processes hold parts of: sum fp64 [1] = Σ g², and the root of what it then holds.
void sum_of_squares(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& sum);
void square_root(Context& ctx, const Tensor& sum, const Tensor& norm);

// gradients, m, v: fp32, one arena each; low_bits: uint16 likewise, empty when no value is bf16.
// Decoupled weight decay: w −= lr·(m̂/(√v̂+eps) + wd·w).
void adamw(Context& ctx, const Tensor& low_bits, const Tensor& gradients, const Tensor& m, const Tensor& v,
           const std::vector<ArenaSpan>& spans, const AdamW& step);

namespace cpu {
void sum_of_squares(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& sum);
void square_root(Context& ctx, const Tensor& sum, const Tensor& norm);
void adamw(Context& ctx, const Tensor& low_bits, const Tensor& gradients, const Tensor& m, const Tensor& v,
           const std::vector<ArenaSpan>& spans, const AdamW& step);
}  // namespace cpu
namespace cuda {
void sum_of_squares(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& sum);
void square_root(Context& ctx, const Tensor& sum, const Tensor& norm);
void adamw(Context& ctx, const Tensor& low_bits, const Tensor& gradients, const Tensor& m, const Tensor& v,
           const std::vector<ArenaSpan>& spans, const AdamW& step);
}  // namespace cuda

}  // namespace bhyt
