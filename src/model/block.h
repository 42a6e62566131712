// One decoder block. Its forward is the paper's Algorithm 1; the norms come from the block's plan, never from a method's name.
#pragma once

#include <optional>

#include "model/config.h"
#include "model/observer.h"
#include "model/weights.h"
#include "ops/attention/paged.h"
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
  Tensor constant;                     // [1] C of this layer, made by the forward from the weights of the moment
  std::array<Tensor, kProducts> lora;  // [N,k·r] what B multiplies, of every product with adapters; its gradient takes its place
};

// Scratch that all blocks share.
struct BlockScratch {
  Tensor branch;      // [N,C] a sublayer's output, not yet added to the stream
  Tensor dx;          // [N,C] gradient of the residual stream, updated in place from the end to the start
  Tensor dbranch;     // [N,C]
  Tensor dqkv, datt;  // [N,(H+2K)·D], [N,H·D]
  Tensor dms;         // [N] from the second site to the block's statistic
  Tensor dropped;     // room for the input of any product, where adapters have dropout
};

// How one forward goes.
struct ForwardOptions {
  float aux = 0;              // weight of the auxiliary loss per token, 0 = off
  Dropout dropout = {};       // of adapters: p and seed; each product has a stream of its own
  bool by_row = false;        // every row is computed as if it were alone, to the last bit (LinearOptions)
  std::int64_t left_out = 0;  // the block that the stream goes past unchanged, from 1; 0: none. Not where a backward follows
};

// How one backward goes.
struct BackwardOptions {
  float aux = 0;           // weight of the auxiliary loss per token, 0 = off
  Tensor aux_by = {};      // fp32 [1] or empty: … times what it holds
  Tensor targets = {};     // int32 [N] or empty: kFilling where a token does not count in it
  bool accumulate = true;  // false: products overwrite the gradients of their weights
  bool h_was_kept = true;  // false: SwiGLU's backward makes h again as it goes
  Dropout dropout = {};    // as the forward had it
};

// Where the tokens stand.
struct Positions {
  std::int64_t batch = 1, seq = 1;
  Tensor table;             // rope_table
  Tensor positions, first;  // int32 [N] or empty
  // Where keys and values are to go beside qkv, for passes that continue sequences.
  Tensor pages = {};
  const PagedRows* paged = nullptr;
};

// The residual stream between blocks: x, and what is still to be added to it by the next norm's kernel.
struct Stream {
  Tensor x, pending;
};

class Block {
 public:
  // layer from 1; c_attn is this layer's fp32 [1]; lora_scale is α/r of its adapters.
  Block(const ModelConfig& config, const NormPlan& norms, std::int64_t layer, const LayerWeights& weights, Tensor c_attn,
        float lora_scale = 1);

  void refresh_constant(Context& ctx, std::int64_t seq_len) const;  // c_attn from the current weights, without adapters
  // Writes keep, leaves the MLP's output pending in the stream.
  void forward(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, const Positions& at, const ForwardOptions& how,
               const Observers& see) const;
  // Site 1 and site 2 only, from kept x and x2: what backward needs again when z was not kept.
  void recompute_norms(Context& ctx, const Kept& keep) const;
  void backward(Context& ctx, const Kept& keep, const BlockScratch& scratch, const Positions& at, const LayerWeights& gradients,
                const BackwardOptions& options) const;

  // A forward in two parts, for passes with an attention of their own: up to the rotated q, k and v; and from attention's output on.
  void before_attention(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, const Positions& at,
                        const ForwardOptions& how, const Observers& see) const;
  void after_attention(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, const ForwardOptions& how,
                       const Observers& see) const;

  // For passes that put a step together in their own way: a given statistic from C and the block's input's mean squares.
  Given given(const Tensor& ms, const Tensor& constant) const;
  const LayerWeights& weights() const { return w_; }
  const std::optional<NormSite>& out1() const { return out1_; }
  const std::optional<NormSite>& out2() const { return out2_; }

  // C of this layer from the current weights, into fp32 [1]; nothing where the method has none.
  void compute_constant(Context& ctx, const Tensor& to) const;
  // Goes on with other weights, and with sites that lack what these hold of them; C stays what it is.
  struct Repacked {
    LayerWeights weights;
    NormSite site1, site2;
    Tensor constant;  // [1]
  };
  void repack(const Repacked& to);

  const BlockPlan& plan() const { return plan_; }
  const NormSite& site1() const { return site1_; }
  const NormSite& site2() const { return site2_; }

 private:
  void project_qkv(Context& ctx, const Kept& keep, const BlockScratch& scratch, const Positions& at, const ForwardOptions& how) const;
  void gate_and_up(Context& ctx, const Kept& keep, const BlockScratch& scratch, const ForwardOptions& how, const Observers& see) const;
  // y = x Wᵀ with what adapters add; and its gradients: an empty x leaves out those of weights, which then follow in a call without dx.
  void multiply(Context& ctx, Product product, const Tensor& x, const Tensor& y, const Kept& keep, const BlockScratch& scratch,
                const ForwardOptions& how) const;
  void multiply_backward(Context& ctx, Product product, const Tensor& x, const Tensor& dy, const Tensor& dx, const Kept& keep,
                         const BlockScratch& scratch, const LayerWeights& gradients, const BackwardOptions& options) const;
  LoraOptions adapting(Product product, const BlockScratch& scratch, const Dropout& dropout) const;
  AttentionShape shape(const Positions& at) const;
  Given given_of(const Kept& keep, float aux) const;
  void show_site(Context& ctx, const Observers& see, bool second, const Kept& keep) const;
  void mlp_backward(Context& ctx, const Kept& keep, const BlockScratch& s, const LayerWeights& gradients,
                    const BackwardOptions& options) const;
  void attention_backward_pass(Context& ctx, const Kept& keep, const BlockScratch& s, const Positions& at, const LayerWeights& gradients,
                               const BackwardOptions& options) const;

  ModelConfig config_;
  BlockPlan plan_;
  bool stop_gradient_;
  std::int64_t layer_;
  float lora_scale_;
  LayerWeights w_;
  Tensor c_attn_, constant_;  // constant_: C where it does not change any more, else empty
  NormSite site1_, site2_;
  std::optional<NormSite> out1_, out2_;
};

// A site's kernel description from its plan and its weights.
NormSite make_site(const SitePlan& plan, const SiteWeights& weights);
NormGrads site_grads(const SiteWeights& gradients);

}  // namespace bhyt
