// One decoder block. Its forward is the paper's Algorithm 1; the norms come from the block's plan, never from a method's name.
#pragma once

#include <optional>
#include <string>

#include "model/parameters.h"
#include "ops/attention/attention.h"
#include "ops/norm/norm.h"

namespace bhyt {

// What one block's backward needs of its forward. Letters in core/tensor.h.
struct Kept {
  Tensor x;               // [N,C] the residual stream at the entrance
  Tensor stats1, stats2;  // [2,N] of the two norms
  Tensor exact;           // [N] the second site's own mean square, for the auxiliary loss
  Tensor z1, z2;          // [N,C] the norms' outputs; their gradients take their place
  Tensor qkv;             // [N,(H+2K)·D] turned by RoPE
  Tensor att;             // [N,H·D]
  Tensor lse;             // [B,H,T]
  Tensor x2;              // [N,C] the stream between attention and MLP
  Tensor gate_up, h;      // [N,2F], [N,F]; their gradients take their place
  Tensor out1, out2;      // [N,C] the sublayers' outputs where a norm follows them
  Tensor stats_out1, stats_out2;
};

// Scratch that all blocks share.
struct Scratch {
  Tensor branch;      // [N,C] a sublayer's output, not yet added to the stream
  Tensor dx;          // [N,C] gradient of the residual stream, updated in place from the end to the start
  Tensor dbranch;     // [N,C]
  Tensor dqkv, datt;  // [N,(H+2K)·D], [N,H·D]
  Tensor dms;         // [N] from the second site to the block's statistic
};

// How one backward goes.
struct BackwardOptions {
  float aux = 0;           // weight of the auxiliary loss per token, 0 = off
  bool accumulate = true;  // false: products overwrite the gradients of their weights
  bool h_was_kept = true;  // false: SwiGLU's backward makes h again as it goes
};

// Where the tokens stand.
struct Positions {
  std::int64_t batch = 1, seq = 1;
  std::int64_t start = 0;   // of the first token, when decoding
  Tensor table;             // rope_table
  Tensor positions, first;  // int32 [N] or empty
};

// The residual stream between blocks: x, and what is still to be added to it by the next norm's kernel.
struct Stream {
  Tensor x, pending;
};

class Block {
 public:
  // layer from 0; c_attn and constant are this layer's fp32 [1].
  Block(const ModelConfig& config, const BlockPlan& plan, const NormPlan& norms, const Parameters& parameters, std::int64_t layer,
        Tensor c_attn, Tensor constant);

  void refresh_constant(std::int64_t seq_len) const;  // c_attn from the current weights
  // Writes keep, leaves the MLP's output pending in the stream. aux: weight of the auxiliary loss per token, 0 = off.
  void forward(Stream& stream, const Kept& keep, const Scratch& scratch, const Positions& at, float aux) const;
  // Site 1 and site 2 only, from kept x and x2: what backward needs again when z was not kept.
  void recompute_norms(const Kept& keep) const;
  void backward(const Kept& keep, const Scratch& scratch, const Positions& at, const Tensor& gradients,
                const BackwardOptions& options) const;
  // Decoding: keys_values [capacity, 2·K·D] holds positions 0…start−1 and receives the new ones.
  void decode(Stream& stream, const Kept& keep, const Scratch& scratch, const Positions& at, const Tensor& keys_values) const;

  const BlockPlan& plan() const { return plan_; }
  const NormSite& site1() const { return site1_; }
  const NormSite& site2() const { return site2_; }

 private:
  Given given(const Kept& keep, float aux) const;
  void first_half(Stream& stream, const Kept& keep, const Positions& at) const;
  void second_half(Stream& stream, const Kept& keep, const Scratch& scratch, float aux) const;
  void mlp_backward(const Kept& keep, const Scratch& scratch, const Tensor& gradients, const BackwardOptions& options) const;

  ModelConfig config_;
  BlockPlan plan_;
  bool stop_gradient_;
  const Parameters* parameters_;
  std::int64_t layer_;
  std::string name_;
  Tensor c_attn_, constant_;
  Tensor qkv_, o_, gate_up_, down_;
  NormSite site1_, site2_;
  std::optional<NormSite> out1_, out2_;
  Tensor ms_correction_, constant_correction_;  // of the approximation, or empty
};

// A site's kernel description from its plan and the parameters under `name`.
NormSite make_site(const SitePlan& plan, const Parameters& parameters, const std::string& name);
NormGrads site_grads(const Parameters& parameters, const Tensor& gradients, const std::string& name);

}  // namespace bhyt
