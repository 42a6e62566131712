// What a forward spends on norms: all calls of one forward, and nothing else.
#include <fmt/format.h>

#include <memory>

#include "bench/measure.h"
#include "model/block.h"

namespace bhyt::bench {

namespace {

// What the calls read and write, shared by all methods: a pass without a backward keeps one layer's activations for all of them.
struct CallBuffers {
  OwnedTensor x, branch, z, output, stats1, stats2;
  CallBuffers(const Settings& s, std::int64_t rows)
      : x(filled(s.ctx, s.dtype, {rows, s.model.d})),
        branch(filled(s.ctx, s.dtype, {rows, s.model.d}, 0.1f)),
        z(s.ctx, s.dtype, {rows, s.model.d}),
        output(filled(s.ctx, s.dtype, {rows, s.model.d})),
        stats1(s.ctx, DType::f32, {2, rows}),
        stats2(s.ctx, DType::f32, {2, rows}) {}
};

// A method's norms as a model has them. The matrices between them are as narrow as they can be: nobody multiplies.
class NormCalls {
 public:
  NormCalls(const Settings& s, const NormConfig& norm)
      : ctx_(s.ctx), model_(s.ctx, shrunk(s.model, norm), s.dtype), constant_(s.ctx, DType::f32, {1}) {
    model_.parameters().initialize(0);
    model_.refresh_constants();
  }

  void run(const CallBuffers& b) const {
    each_call(b, [&](const NormSite& site, const NormForward& call) { norm(ctx_, site, call); });
  }

  struct Counts {
    int calls = 0, statistics = 0;  // statistics: sums over a row before it is mapped; an approximated site has none
    double tensors = 0;             // activations read and written
  };
  Counts counts(const CallBuffers& b) const {
    Counts n;
    each_call(b, [&](const NormSite& site, const NormForward& call) {
      ++n.calls;
      n.statistics += site.stat != Stat::none && site.stat != Stat::given;
      n.tensors += call.add ? 4 : 2;  // x and what is added in; the sum and z out
    });
    return n;
  }

 private:
  // As Block::forward and the pass around it make them (model/block.cpp, model/activations.cpp), each layer's C too.
  template <class F>
  void each_call(const CallBuffers& b, F&& call) const {
    const Tensor ms(b.stats1.t.data, DType::f32, ctx_.device(), {b.x.t.rows()});
    Tensor pending;
    for (const Block& block : model_.blocks()) {
      call(block.site1(), NormForward{.x = b.x, .add = pending, .sum = b.x, .z = b.z, .stats = b.stats1});
      if (block.out1()) call(*block.out1(), NormForward{.x = b.output, .z = b.branch, .stats = b.stats2});
      block.compute_constant(ctx_, constant_);
      const Given given = block.given(ms, constant_);
      call(block.site2(), NormForward{.x = b.x,
                                      .add = b.branch,
                                      .sum = b.x,
                                      .z = b.z,
                                      .stats = b.stats2,
                                      .given = block.site2().stat == Stat::given ? &given : nullptr});
      if (block.out2()) call(*block.out2(), NormForward{.x = b.output, .z = b.branch, .stats = b.stats2});
      pending = b.branch;
    }
    call(model_.last(), NormForward{.x = b.x, .add = pending, .sum = b.x, .z = b.z, .stats = b.stats1});
  }

  static ModelConfig shrunk(ModelConfig c, const NormConfig& norm) {
    c.heads = c.kv_heads = 1;
    c.head_dim = 2;
    c.mlp = 1;
    c.vocab = 1;
    c.norm = norm;
    return c;
  }

  Context& ctx_;
  Model model_;
  OwnedTensor constant_;
};

std::vector<NormConfig> configs_of(const Settings& s) {
  if (!s.all_methods) return {s.model.norm};
  std::vector<NormConfig> all;
  for (const Method& m : methods()) all.push_back({.method = std::string(m.name)});
  return all;
}

}  // namespace

std::vector<Result> bench_norm_calls(const Settings& s) {
  const auto elements = static_cast<std::int64_t>(kBeyondCache / size_of(s.dtype));
  const OwnedTensor from = filled(s.ctx, s.dtype, {elements}), to(s.ctx, s.dtype, {elements});
  std::vector<std::unique_ptr<NormCalls>> all;
  std::vector<std::string> names;
  for (NormConfig norm : configs_of(s)) {
    norm.seq_len = s.sequences.back();
    all.push_back(std::make_unique<NormCalls>(s, norm));
    names.push_back(norm.method);
  }
  std::vector<Result> results;
  for (const std::int64_t seq : s.sequences) {
    const CallBuffers buffers(s, s.batch * seq);
    std::vector<std::function<void()>> jobs{[&] { copy_all(s.ctx, from, to); }};
    for (const auto& calls : all) jobs.emplace_back([&buffers, one = calls.get()] { one->run(buffers); });
    const std::vector<double> t = take_turns(s.ctx, jobs, s.reps);
    const double limit = 2 * static_cast<double>(to.t.bytes()) / t[0] * 1e-9;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const NormCalls::Counts n = all[i]->counts(buffers);
      const double moved = n.tensors * static_cast<double>(buffers.x.t.bytes()), seconds = t[i + 1];
      results.push_back({.test = fmt::format("norm-calls {} {}×{}", names[i], s.batch, seq),
                         .gb_s = moved * 1e-9 / seconds,
                         .ms = seconds * 1e3,
                         .limit = limit,
                         .limit_name = "copy",
                         .parts = {{"bytes", moved},
                                   {"sequence", static_cast<double>(seq)},
                                   {"calls", static_cast<double>(n.calls)},
                                   {"statistics", static_cast<double>(n.statistics)}},
                         .method = names[i]});
    }
  }
  return results;
}

}  // namespace bhyt::bench
