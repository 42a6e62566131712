// Single operations against the machine: matrix products, attention, norms.
#include <fmt/format.h>

#include "bench/measure.h"
#include "model/block.h"
#include "model/parameters.h"
#include "ops/attention/attention.h"
#include "ops/gemm/gemm.h"

namespace bhyt::bench {

namespace {

Result compute_result(std::string test, double flops, double seconds, double limit) {
  return {.test = std::move(test),
          .tflops = flops / seconds * 1e-12,
          .ms = seconds * 1e3,
          .limit = limit,
          .limit_name = "square product",
          .parts = {{"flops", flops}}};
}

}  // namespace

std::vector<Result> bench_gemm(const Settings& s) {
  std::vector<Result> results;
  const SquareProduct square(s.ctx, s.dtype);
  for (const Product& p : products(s.model, s.batch * s.seq)) {
    const Operands o(s.ctx, p, s.dtype, true);
    const std::vector<double> t =
        take_turns(s.ctx, {[&] { square.run(); }, [&] { o.forward(); }, [&] { o.backward_x(); }, [&] { o.backward_w(); }}, s.reps);
    const double limit = square.flops / t[0] * 1e-12;
    if (results.empty()) {
      const auto n = square.a.t.rows();
      results.push_back(compute_result(fmt::format("gemm square {0}×{0}×{0}", n), square.flops, t[0], limit));
    }
    const char* const kinds[] = {"forward", "dx", "dw"};
    for (std::size_t i = 0; i < 3; ++i)
      results.push_back(compute_result(fmt::format("gemm {} {} {}×{}×{}", p.name, kinds[i], p.m, p.n, p.k), p.flops(), t[i + 1], limit));
  }
  return results;
}

std::vector<Result> bench_attention(const Settings& s) {
  const ModelConfig& c = s.model;
  const std::int64_t n = s.batch * s.seq;
  const AttentionShape shape{.batch = s.batch, .seq = s.seq, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
  const OwnedTensor qkv = filled(s.ctx, s.dtype, {n, c.qkv_width()}), dout = filled(s.ctx, s.dtype, {n, c.q_width()});
  const OwnedTensor out(s.ctx, s.dtype, {n, c.q_width()}), dqkv(s.ctx, s.dtype, {n, c.qkv_width()});
  const OwnedTensor lse(s.ctx, DType::f32, {s.batch, c.heads, s.seq});
  const SquareProduct square(s.ctx, s.dtype);
  const std::vector<double> t = take_turns(s.ctx,
                                           {[&] { square.run(); }, [&] { attention(s.ctx, qkv, out, lse, {}, shape); },
                                            [&] { attention_backward(s.ctx, qkv, out, lse, {}, dout, dqkv, shape); }},
                                           s.reps);
  // Causal: half of two products forward, of five backward.
  const double pair = static_cast<double>(s.batch * c.heads * c.head_dim) * static_cast<double>(s.seq) * static_cast<double>(s.seq + 1);
  const double limit = square.flops / t[0] * 1e-12;
  const std::string name = fmt::format("{}×{} heads {}/{} of {}", s.batch, s.seq, c.heads, c.kv_heads, c.head_dim);
  return {compute_result("attention forward " + name, 2 * pair, t[1], limit),
          compute_result("attention backward " + name, 5 * pair, t[2], limit)};
}

namespace {

// One norm of one method with everything its two directions touch.
struct NormJob {
  ModelConfig config;
  NormPlan plan;
  Parameters parameters;
  NormSite site;
  NormGrads grads;
  Given given;
  OwnedTensor gradients, constant, ms, dms;
  bool second;

  // The parameters come from a model of one block, so that every learned part of the method is there.
  NormJob(const Settings& s, const std::string& method, bool second_site, std::int64_t rows) : config(s.model), second(second_site) {
    config.layers = 1;
    config.vocab = 16;
    config.norm = {.method = method, .seq_len = s.seq};
    plan = plan_norms(config.norm, 1, config.d, config.eps);
    parameters = Parameters(s.ctx, config, s.dtype);
    parameters.initialize(0);
    gradients = OwnedTensor(s.ctx, DType::f32, {parameters.arena_size()});
    zero(s.ctx, gradients);
    const LayerWeights values = parameters.values().layers[0], own = parameters.bind(gradients).layers[0];
    site = make_site(second ? plan.blocks[0].site2 : plan.blocks[0].site1, second ? values.site2 : values.site1);
    grads = site_grads(second ? own.site2 : own.site1);
    constant = filled(s.ctx, DType::f32, {1}, 0.1f);
    ms = filled(s.ctx, DType::f32, {rows});
    dms = OwnedTensor(s.ctx, DType::f32, {rows});
    given = {.ms = ms, .constant = constant, .dms = dms};
  }
  const Given* statistic() const { return site.stat == Stat::given ? &given : nullptr; }
};

}  // namespace

std::vector<Result> bench_norm(const Settings& s) {
  const std::int64_t cols = s.model.d;
  const auto elements = static_cast<std::int64_t>(kBeyondCache / size_of(s.dtype));
  const std::int64_t rows = s.ctx.device().is_cuda() ? s.batch * s.seq : (elements + cols - 1) / cols;
  const OwnedTensor x = filled(s.ctx, s.dtype, {rows, cols}), add = filled(s.ctx, s.dtype, {rows, cols});
  const OwnedTensor z(s.ctx, s.dtype, {rows, cols}), sum(s.ctx, s.dtype, {rows, cols}), stats(s.ctx, DType::f32, {2, rows});
  const auto bytes = static_cast<double>(x.t.bytes());

  std::vector<Result> results;
  const auto measure = [&](const std::string& method, bool second) {
    const NormJob job(s, method, second, rows);
    const NormForward forward{
        .x = x, .add = second ? add.t : Tensor{}, .sum = second ? sum.t : Tensor{}, .z = z, .stats = stats, .given = job.statistic()};
    const NormBackward backward{.x = x, .stats = stats, .dz = add, .dx = z, .given = job.statistic()};
    const std::vector<double> t = take_turns(s.ctx,
                                             {[&] { copy_all(s.ctx, x, sum); }, [&] { norm(s.ctx, job.site, forward); },
                                              [&] { norm_backward(s.ctx, job.site, job.grads, backward); }},
                                             s.reps);
    const double limit = 2 * bytes / t[0] * 1e-9;
    const auto push = [&](const char* what, double moved, double seconds) {
      results.push_back({.test = fmt::format("norm {} site {} {} {}×{}", method, second ? 2 : 1, what, rows, cols),
                         .gb_s = moved * 1e-9 / seconds,
                         .ms = seconds * 1e3,
                         .limit = limit,
                         .limit_name = "copy",
                         .parts = {{"bytes", moved}}});
    };
    push(second ? "add+forward" : "forward", (second ? 4 : 2) * bytes, t[1]);  // x and what is added in; the sum and z out
    push("backward", 4 * bytes, t[2]);                                         // x, dz and dx in; dx out
  };
  const auto both_sites = [&](const Method& m) {
    measure(std::string(m.name), false);
    if (m.site2 != m.site1) measure(std::string(m.name), true);
  };
  if (s.all_methods)
    for (const Method& m : methods()) both_sites(m);
  else
    both_sites(method(s.model.norm.method));
  return results;
}

}  // namespace bhyt::bench
