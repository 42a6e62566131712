// One decoder block. Its forward is the paper's Algorithm 1; the norms come from the block's plan, never from a method's name.
#pragma once

#include <optional>

#include "model/config.h"
#include "model/observer.h"
#include "model/weights.h"
#include "ops/attention/attention.h"
#include "ops/embedding/embedding.h"
#include "ops/norm/norm.h"

namespace bhyt {

// What one block's backward needs of its forward. Letters in core/tensor.h.
struct Kept {
  Tensor x;               // [N,C] the residual stream at the entrance
  Tensor stats1, stats2;  // [2,N] of the two norms
  Tensor exact;           // [N] the second site's own mean square, for the auxiliary loss
  Tensor z1, z2;          // [N,C] the norms' outputs; their gradients take their place
  Tensor qkv;             // [N,(H+2K)·D] rotated by RoPE
  Tensor att;             // [N,H·D]
  Tensor lse;             // [B,H,T]
  Tensor x2;              // [N,C] the stream between attention and MLP
  Tensor gate_up, h;      // [N,2F], [N,F]; their gradients take their place
  Tensor out1, out2;      // [N,C] the sublayers' outputs where a norm follows them
  Tensor stats_out1, stats_out2;
  Tensor constant;  // [1] C of this layer, made by the forward from the weights of the moment
};

// Scratch that all blocks share.
struct BlockScratch {
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
  Tensor table;             // rope_table
  Tensor positions, first;  // int32 [N] or empty
};

// The residual stream between blocks: x, and what is still to be added to it by the next norm's kernel.
struct Stream {
  Tensor x, pending;
};

class Block {
 public:
  // layer from 1; c_attn is this layer's fp32 [1].
  Block(const ModelConfig& config, const NormPlan& norms, std::int64_t layer, const LayerWeights& weights, Tensor c_attn);

  void refresh_constant(Context& ctx, std::int64_t seq_len) const;  // c_attn from the current weights
  // Writes keep, leaves the MLP's output pending in the stream. aux: weight of the auxiliary loss per token, 0 = off.
  void forward(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, const Positions& at, float aux,
               const Observers& see) const;
  // Site 1 and site 2 only, from kept x and x2: what backward needs again when z was not kept.
  void recompute_norms(Context& ctx, const Kept& keep) const;
  void backward(Context& ctx, const Kept& keep, const BlockScratch& scratch, const Positions& at, const LayerWeights& gradients,
                const BackwardOptions& options) const;

  // A forward in two parts, for passes with an attention of their own: up to the rotated q, k and v; and from attention's output on.
  // by_row: every row is computed as if it were alone, to the last bit (LinearOptions).
  void before_attention(Context& ctx, Stream& stream, const Kept& keep, const Positions& at, const Observers& see,
                        bool by_row = false) const;
  void after_attention(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, float aux, const Observers& see,
                       bool by_row = false) const;

  const BlockPlan& plan() const { return plan_; }
  const NormSite& site1() const { return site1_; }
  const NormSite& site2() const { return site2_; }

 private:
  AttentionShape shape(const Positions& at) const;
  Given given(const Kept& keep, float aux) const;
  void show_site(Context& ctx, const Observers& see, bool second, const Kept& keep) const;
  void mlp_backward(Context& ctx, const Kept& keep, const BlockScratch& s, const LayerWeights& gradients,
                    const BackwardOptions& options) const;
  void attention_backward_pass(Context& ctx, const Kept& keep, const BlockScratch& s, const Positions& at, const LayerWeights& gradients,
                               const BackwardOptions& options) const;

  ModelConfig config_;
  BlockPlan plan_;
  bool stop_gradient_;
  std::int64_t layer_;
  LayerWeights w_;
  Tensor c_attn_;
  NormSite site1_, site2_;
  std::optional<NormSite> out1_, out2_;
};

// A site's kernel description from its plan and its weights.
NormSite make_site(const SitePlan& plan, const SiteWeights& weights);
NormGrads site_grads(const SiteWeights& gradients);

}  // namespace bhyt
