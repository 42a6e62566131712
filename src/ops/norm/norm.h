// The norm family: z = out_factor · (γ ⊙ f(a·x + c) + β) with a per-token scale a made from a statistic, and an element-wise map f.
// One kernel family, templated on statistic × map, serves every method (methods.h says which method is which).
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

enum class Stat : std::uint8_t {
  none,      // a = factor · scale
  rms,       // a = factor · scale / √(mean x² + eps)
  mean_var,  // the same with the variance, on x − mean
  mean_std,  // a = factor · scale / (√(var + eps) + factor·|mean|): with factor = 1/κ this is λ/(κ·s + |μ|)
  given,     // a = factor · scale / √(s̃² + eps), s̃² from the block's input (Given below)
};
enum class Map : std::uint8_t { id, tanh, erf };

// One place where a norm stands. Parameters are fp32 in every run.
struct NormSite {
  Stat stat = Stat::rms;
  Map map = Map::id;
  float factor = 1;  // the constant part of a: 1/κ, 1/√ℓ
  float eps = 1e-5f;
  float out_factor = 1;  // constant, outside the map; of β too
  Tensor gamma;          // [C]; empty = 1, without a gate, forward only
  Tensor beta;           // [C] or empty
  Tensor scale;          // λ or α, [1] or empty (= 1)
  Tensor shift;          // σ, [1] or empty
  Tensor gate;           // SeeDNorm's g, [C] or empty: γ becomes tanh(x·b)·g + γ
  Tensor direction;      // SeeDNorm's b, [C]
};

// Where the gradients of a site's parameters are added; fp32, empty = not wanted.
struct NormGrads {
  Tensor gamma, beta, scale, shift, gate, direction;
  bool columns() const { return gamma || beta || gate || direction; }  // whether some sum over the rows of every column is wanted
};

constexpr std::int32_t kFilling = -2;  // the target of a token that belongs to no text: it only fills a row up

// The second site's statistic without looking at its input: s̃² = calibration · (ms·(1 + ms_correction) + constant_correction·C).
struct Given {
  Tensor ms;                                  // [N] mean of squares of the block's input, kept by site 1
  Tensor constant;                            // [1] C of this layer
  Tensor ms_correction, constant_correction;  // [1] learned, or empty (0 and 1)
  float calibration = 1;
  Tensor dms_correction, dconstant_correction;  // += in the backward; empty = not wanted
  Tensor dms;                                   // [N] written in the backward: what flows back to the block's input; empty = stopped
  // Auxiliary loss aux · (log(s̃²+1e-8) − log(rms(x')²+1e-8))² per token, gradient only; needs `exact`, written by the forward.
  float aux = 0;
  Tensor exact;    // [N] mean of squares of the site's own input; empty when aux is off
  Tensor aux_by;   // fp32 [1] or empty: aux is multiplied by what it holds
  Tensor targets;  // int32 [N] or empty: rows whose target is kFilling do not count
};

struct NormForward {
  Tensor x;      // [N,C]
  Tensor add;    // [N,C] or empty: the norm sees x + add …
  Tensor sum;    // … which is written here (may be x itself)
  Tensor z;      // [N,C]
  Tensor stats;  // fp32 [2,N], for the backward: mean of squares (rms) or variance; mean, or SeeDNorm's x·b. Empty: not kept
  const Given* given = nullptr;
  std::size_t past_cache_bytes = std::size_t{256} << 20;  // CPU: outputs this large are written past the cache
};

struct NormBackward {
  Tensor x;                // [N,C] what the norm saw (the sum)
  Tensor stats;            // as the forward wrote it
  Tensor dz;               // [N,C]
  Tensor dx;               // [N,C]
  bool accumulate = true;  // dx += instead of dx =
  Tensor dms;              // [N] or empty: further gradient with respect to this site's mean of squares (from a given site)
  const Given* given = nullptr;
};

void norm(Context& ctx, const NormSite& site, const NormForward& call);
void norm_backward(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call);

// For whoever looks inside, from what the forward kept: the statistic of every row (mean square, variance, or s̃² of a given one; 0 where a
// site has none) and its scale a; fp32 [N] each.
void norm_scales(Context& ctx, const NormSite& site, const Tensor& stats, const Given* given, const Tensor& statistic, const Tensor& a);

// C [1] = c_attn · (factor·scale)² · (gamma ? mean γ² : 1): the constant of the approximation, from the first site. factor is the product
// of the site's constant factors, inside the map and outside (factor · out_factor).
void norm_constant(Context& ctx, const Tensor& c_attn, const Tensor& scale, float factor, const Tensor& gamma, const Tensor& constant);

// c_attn [1] = ‖W_V W_O‖_F² / (T·d) with grouped heads expanded: heads that share V add up in W_O first (S), then tr((W_V W_Vᵀ)(SᵀS)).
// wv [K·D,C], wo [C,H·D] as stored ([out,in]).
void attention_constant(Context& ctx, const Tensor& wv, const Tensor& wo, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_len,
                        const Tensor& c_attn);

// out fp32 [4]: token means of ‖x‖₂, of |x|, of the centred variance over features, of the mean square. x [N,C].
void row_moments(Context& ctx, const Tensor& x, const Tensor& out);

namespace cpu {
void attention_constant(Context& ctx, const Tensor& wv, const Tensor& wo, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_len,
                        const Tensor& c_attn);
void norm(Context& ctx, const NormSite& site, const NormForward& call);
void norm_backward(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call);
void norm_constant(Context& ctx, const Tensor& c_attn, const Tensor& scale, float factor, const Tensor& gamma, const Tensor& constant);
void norm_scales(Context& ctx, const NormSite& site, const Tensor& stats, const Given* given, const Tensor& statistic, const Tensor& a);
void row_moments(Context& ctx, const Tensor& x, const Tensor& out);
}  // namespace cpu
namespace cuda {
void attention_constant(Context& ctx, const Tensor& wv, const Tensor& wo, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_len,
                        const Tensor& c_attn);
void norm(Context& ctx, const NormSite& site, const NormForward& call);
void norm_backward(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call);
void norm_constant(Context& ctx, const Tensor& c_attn, const Tensor& scale, float factor, const Tensor& gamma, const Tensor& constant);
void norm_scales(Context& ctx, const NormSite& site, const Tensor& stats, const Given* given, const Tensor& statistic, const Tensor& a);
void row_moments(Context& ctx, const Tensor& x, const Tensor& out);
}  // namespace cuda

}  // namespace bhyt
