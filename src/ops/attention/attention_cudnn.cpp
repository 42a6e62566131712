// Attention by cuDNN's fused kernels (cudnn-frontend). A plan is built once per shape; a shape that the installed cuDNN does not take is
// remembered, and the plain kernels do it.
#include "ops/attention/attention.cuh"

#ifdef BHYT_CUDNN
#define CUDNN_FRONTEND_SKIP_JSON_LIB  // graphs are neither written nor read, and it takes half as long again to compile
#include <cudnn_frontend.h>

#include <cmath>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "core/cuda_host.h"
#endif

namespace bhyt::cuda {

#ifdef BHYT_CUDNN

namespace {

namespace fe = cudnn_frontend;

enum Uid : std::int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

// What a plan depends on.
struct Key {
  std::int64_t batch, seq, heads, kv_heads, head_dim, ld_qkv, ld_out, ld_dout, ld_dqkv;
  int kind;  // 0 forward without statistics, 1 forward, 2 backward
  auto operator<=>(const Key&) const = default;
};

struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;  // null: cuDNN does not take it
  std::int64_t workspace = 0;
};

// A context's handle and plans; a null handle: cuDNN is not to be had.
struct Library {
  cudnnHandle_t handle = nullptr;
  std::map<Key, Plan> plans;
  explicit Library(Context& ctx) {
    if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) handle = nullptr;
    if (handle) cudnnSetStream(handle, stream(ctx));
  }
  ~Library() {
    plans.clear();
    if (handle) cudnnDestroy(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

// heads × D columns of a matrix with row distance ld, as [B, heads, T, D].
Attributes tensor(fe::graph::Graph& g, Uid uid, const Key& k, std::int64_t heads, std::int64_t ld) {
  return g.tensor(fe::graph::Tensor_attributes()
                      .set_uid(uid)
                      .set_dim({k.batch, heads, k.seq, k.head_dim})
                      .set_stride({k.seq * ld, k.head_dim, ld, 1})
                      .set_data_type(fe::DataType_t::BFLOAT16));
}
void output(const Attributes& t, Uid uid, const Key& k, std::int64_t heads, std::int64_t ld) {
  t->set_output(true).set_uid(uid).set_dim({k.batch, heads, k.seq, k.head_dim}).set_stride({k.seq * ld, k.head_dim, ld, 1});
}

Plan build(cudnnHandle_t handle, const Key& k) {
  auto g = std::make_shared<fe::graph::Graph>();
  g->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(k.head_dim)));
  const Attributes q = tensor(*g, kQ, k, k.heads, k.ld_qkv), key = tensor(*g, kK, k, k.kv_heads, k.ld_qkv),
                   value = tensor(*g, kV, k, k.kv_heads, k.ld_qkv);
  if (k.kind < 2) {
    auto options =
        fe::graph::SDPA_attributes().set_name("attention").set_causal_mask(true).set_attn_scale(scale).set_generate_stats(k.kind == 1);
    auto [out, stats] = g->sdpa(q, key, value, options);
    output(out, kO, k, k.heads, k.ld_out);
    if (k.kind == 1) stats->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
  } else {
    const Attributes out = tensor(*g, kO, k, k.heads, k.ld_out), dout = tensor(*g, kDO, k, k.heads, k.ld_dout);
    const Attributes stats = g->tensor(fe::graph::Tensor_attributes()
                                           .set_uid(kStats)
                                           .set_dim({k.batch, k.heads, k.seq, 1})
                                           .set_stride({k.heads * k.seq, k.seq, 1, 1})
                                           .set_data_type(fe::DataType_t::FLOAT));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_causal_mask(true)
                       .set_attn_scale(scale)
                       .set_deterministic_algorithm(true);
    auto [dq, dk, dv] = g->sdpa_backward(q, key, value, out, dout, stats, options);
    output(dq, kDQ, k, k.heads, k.ld_dqkv);
    output(dk, kDK, k, k.kv_heads, k.ld_dqkv);
    output(dv, kDV, k, k.kv_heads, k.ld_dqkv);
  }
  if (!g->build(handle, {fe::HeurMode_t::A}).is_good()) return {};
  Plan p{g, 0};
  if (!g->get_workspace_size(p.workspace).is_good()) return {};
  return p;
}

bool run(Context& ctx, const Key& k, std::unordered_map<std::int64_t, void*> pack) {
  Library& library = ctx.keep<Library>();
  if (!library.handle) return false;
  auto it = library.plans.find(k);
  if (it == library.plans.end()) it = library.plans.emplace(k, build(library.handle, k)).first;
  const Plan& p = it->second;
  if (!p.graph) return false;
  void* workspace = p.workspace > 0 ? ctx.scratch(static_cast<std::size_t>(p.workspace)) : nullptr;
  auto status = p.graph->execute(library.handle, pack, workspace);
  if (!status.is_good()) fail("[attention] cuDNN: " + status.get_message());
  return true;
}

bool takes(const Tensor& qkv, const AttentionShape& s) {
  return qkv.dtype == DType::bf16 && s.head_dim % 8 == 0 && s.head_dim <= 128 && aligned16(qkv);
}

void* at(const Tensor& t, std::int64_t column) { return t.as<bf16>() + column; }

}  // namespace

bool attention_cudnn(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& s) {
  if (!takes(qkv, s)) return false;
  const Key k{s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, qkv.ld, out.ld, 0, 0, lse ? 1 : 0};
  const std::int64_t keys = s.heads * s.head_dim, values = keys + s.kv_heads * s.head_dim;
  std::unordered_map<std::int64_t, void*> pack{{kQ, qkv.data}, {kK, at(qkv, keys)}, {kV, at(qkv, values)}, {kO, out.data}};
  if (lse) pack[kStats] = lse.data;
  return run(ctx, k, std::move(pack));
}

bool attention_cudnn_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& dout, const Tensor& dqkv,
                              const AttentionShape& s) {
  if (!takes(qkv, s)) return false;
  const Key k{s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, qkv.ld, out.ld, dout.ld, dqkv.ld, 2};
  const std::int64_t keys = s.heads * s.head_dim, values = keys + s.kv_heads * s.head_dim;
  return run(ctx, k,
             {{kQ, qkv.data},
              {kK, at(qkv, keys)},
              {kV, at(qkv, values)},
              {kO, out.data},
              {kStats, lse.data},
              {kDO, dout.data},
              {kDQ, dqkv.data},
              {kDK, at(dqkv, keys)},
              {kDV, at(dqkv, values)}});
}

#else

bool attention_cudnn(Context&, const Tensor&, const Tensor&, const Tensor&, const AttentionShape&) { return false; }
bool attention_cudnn_backward(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionShape&) {
  return false;
}

#endif

}  // namespace bhyt::cuda
