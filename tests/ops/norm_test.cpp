// The norm family: every kind of site that a row of the method table can ask for, at odd sizes and on awkward data.
#include "ops/norm/norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/devices.h"
#include "tests/ops/norm_case.h"

namespace bhyt::testing {
namespace {

std::vector<Case> tests() {
  std::vector<Case> cases;
  for (const auto& [name, site] : distinct_sites()) {
    for (const std::int64_t cols : {31, 32, 33, 257}) cases.push_back(site_case(name, site, 5, cols));
    cases.push_back(site_case(name, site, 5, 1, {.scale = 1e-3}));  // small against eps: otherwise x/s is ±1 and nothing depends on x
    cases.push_back(site_case(name + " outlier", site, 7, 67, {.fill = Fill::outlier, .scale = 0.01}));
    cases.push_back(site_case(name + " zero rows", site, 7, 33, {.fill = Fill::zero_rows}));
    cases.push_back(site_case(name + " many rows", site, 131, 5));
    if (site.stat != Stat::given) cases.push_back(site_case(name, site, 9, 300, {.add = true}));
    if (site.stat == Stat::mean_std || site.stat == Stat::mean_var)
      cases.push_back(site_case(name + " offset", site, 5, 40, {.offset = -3}));
    if (site.scale == ScaleKind::lambda) {
      cases.push_back(site_case(name + " small lambda", site, 5, 40, {.lambda = 1e-3}));
      cases.push_back(site_case(name + " large lambda", site, 5, 40, {.lambda = 60}));
    }
  }
  // The widths of real models: every kind of column sums and maps once, and the given statistic.
  const std::vector<std::pair<std::string, SitePlan>> wide{{"layernorm", plan_of("layernorm").blocks[2].site1},
                                                           {"seednorm", plan_of("seednorm").blocks[2].site1},
                                                           {"bhyt_star", plan_of("bhyt_star").blocks[2].site1},
                                                           {"bhyt given", plan_of("bhyt").blocks[2].site2}};
  for (const auto& [name, site] : wide)
    for (const std::int64_t cols : {512, 1000, 2048, 8192}) cases.push_back(site_case(name + " wide", site, 1, cols));
  // Many rows where the reference's differences still take seconds.
  const SitePlan bhyt_given = plan_of("bhyt").blocks[2].site2;
  cases.push_back(site_case("bhyt given wide", bhyt_given, 700, 512));
  for (const std::int64_t cols : {1000, 2048, 8192}) cases.push_back(site_case("bhyt given wide", bhyt_given, 9, cols));
  for (const char* name : {"layernorm", "seednorm", "derf", "bhyt"})
    for (SitePlan site : {plan_of(name).blocks[2].site1, plan_of(name).blocks[2].site2}) {
      site.out_factor = 2.5f;
      for (const std::int64_t cols : {40, 33}) cases.push_back(site_case(fmt::format("{} times 2.5", name), site, 6, cols));
    }
  const SitePlan given = plan_of("bhyt").blocks[2].site2;
  for (const Correction c : {Correction::beta, Correction::eta, Correction::residual_aware})
    cases.push_back(site_case("bhyt", given, 7, 33, {.correction = c, .calibration = 1.3}));
  cases.push_back(site_case("bhyt", given, 7, 33, {.correction = Correction::residual_aware, .aux = 1}));
  cases.push_back(site_case("bhyt, filled up", given, 7, 33, {.correction = Correction::residual_aware, .aux = 1, .filling = true}));
  cases.push_back(site_case("bhyt", given, 7, 33, {.correction = Correction::beta, .stop = true}));
  return cases;
}

std::vector<Case> benchmarks() {
  std::vector<Case> cases;
  for (const char* name : {"rmsnorm", "layernorm", "bhyt", "dyt", "derf", "seednorm", "bhyt_star"})
    cases.push_back(site_case(name, plan_of(name).blocks[2].site1, 16384, 2048));
  return cases;
}

OP_CASES(Norm, tests, benchmarks)

// ---- parameters that are not trained

// Every output and gradient of a case, to the bit.
std::map<std::string, std::vector<char>> bits_of(const Case& c, Context& ctx, DType type) {
  Arrays cotangents;
  for (const Output& out : c.outputs) cotangents[out.name] = draw({{out.name, out.shape}}, type, 7).at(out.name);
  CaseTensors tensors(c, ctx, type);
  tensors.load(draw(c.inputs, type), cotangents);
  c.forward(tensors);
  c.backward(tensors);
  return tensors.bytes();
}

void check_frozen(Context& ctx, const std::string& name, const SitePlan& site, DType type, std::int64_t rows, std::int64_t cols) {
  const auto whole = bits_of(site_case(name, site, rows, cols), ctx, type);
  for (const std::set<std::string>& frozen :
       std::vector<std::set<std::string>>{{"gamma"}, {"beta"}, {"gamma", "gate"}, {"gamma", "beta", "gate", "direction"}})
    for (const auto& [what, bits] : bits_of(site_case(name, site, rows, cols, {.frozen = frozen}), ctx, type)) {
      SCOPED_TRACE(fmt::format("{} {}x{} {} on {}: {} without {}", name, rows, cols, name_of(type), name_of(ctx.device()), what,
                               fmt::join(frozen, ", ")));
      EXPECT_TRUE(frozen.count(what.substr(1)) > 0 ? bits == std::vector<char>(bits.size()) : bits == whole.at(what));
    }
}

// The sums of frozen parameters are not made, and nothing else changes for it. 20000 rows: more than a GPU works on at a time.
TEST(Norm, FrozenParametersLeaveTheOtherGradientsTheirBits) {
  for (Context& ctx : test::contexts())
    for (const auto& [name, site] : distinct_sites())
      for (const DType type : {DType::f32, DType::bf16}) {
        for (const std::int64_t cols : {33, 64, 300}) check_frozen(ctx, name, site, type, 150, cols);
        if (ctx.device().is_cuda()) check_frozen(ctx, name, site, type, 20000, 64);
      }
}

// Large outputs are written past the cache (x86-64): the same bits, to the last element of an odd row, and nothing beyond it.
TEST(Norm, OutputsWrittenPastTheCacheHaveTheSameBits) {
  const SitePlan plan = plan_of("bhyt").blocks[2].site1;
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t cols : {1, 7, 255, 256, 261, 1001}) {
      const std::int64_t rows = 3, wide = (cols + 15) / 16 * 16 + 16;
      Rng rng(3);
      std::vector<double> values(static_cast<std::size_t>(rows * wide));
      for (double& v : values) v = rng.normal();
      const OwnedTensor x = make_tensor(on_cpu(), type, {rows, wide}, values), h = make_tensor(on_cpu(), type, {rows, wide}, values),
                        gamma = make_tensor(on_cpu(), DType::f32, {cols}, std::vector<double>(static_cast<std::size_t>(cols), 1.5)),
                        lambda = make_tensor(on_cpu(), DType::f32, {1}, {2.0});
      const NormSite site{.stat = plan.stat, .map = plan.map, .factor = plan.factor, .eps = plan.eps, .gamma = gamma, .scale = lambda};
      const auto run = [&](std::size_t past_cache_bytes) {
        const OwnedTensor z = make_tensor(on_cpu(), type, {rows, wide}, std::vector<double>(values.size(), 9.0)),
                          sum = make_tensor(on_cpu(), type, {rows, wide}, std::vector<double>(values.size(), 9.0));
        norm(on_cpu(), site,
             {.x = x.t.col_slice(0, cols),
              .add = h.t.col_slice(0, cols),
              .sum = sum.t.col_slice(0, cols),
              .z = z.t.col_slice(0, cols),
              .past_cache_bytes = past_cache_bytes});
        return std::pair(to_doubles(on_cpu(), z), to_doubles(on_cpu(), sum));
      };
      EXPECT_EQ(run(0), run(std::size_t{1} << 40)) << name_of(type) << " " << cols;
    }
}

}  // namespace
}  // namespace bhyt::testing
