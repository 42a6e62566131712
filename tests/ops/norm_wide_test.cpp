// The norms at the widths of real models, many rows at a time.
#include <fmt/format.h>

#include <cmath>

#include "ops/norm/norm.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

// Production shapes: 700 rows at a time give what each row gives alone, bit for bit, and the parameters' gradients are the sum over pieces.
struct WideCase {
  const char* name;
  NormSite site;
  bool given = false;
};

struct WideRun {
  OwnedTensor z, dx, stats, dms, dgamma, dscale;
  WideRun(Context& ctx, DType type, std::int64_t rows, std::int64_t cols)
      : z(ctx, type, {rows, cols}),
        dx(ctx, type, {rows, cols}),
        stats(ctx, DType::f32, {2, rows}),
        dms(ctx, DType::f32, {rows}),
        dgamma(ctx, DType::f32, {cols}),
        dscale(ctx, DType::f32, {1}) {
    zero(ctx, dgamma);
    zero(ctx, dscale);
  }
};

void run_wide(Context& ctx, const WideCase& c, const Tensor& x, const Tensor& dz, const Tensor& ms, const Tensor& constant,
              const WideRun& to) {
  const Given g{.ms = ms, .constant = constant, .dms = to.dms};
  const Given* given = c.given ? &g : nullptr;
  norm(ctx, c.site, {.x = x, .z = to.z, .stats = to.stats, .given = given});
  norm_backward(ctx, c.site, {.gamma = to.dgamma, .scale = to.dscale},
                {.x = x, .stats = to.stats, .dz = dz, .dx = to.dx, .accumulate = false, .given = given});
}

void check_wide(Context& ctx, const WideCase& c, DType type, std::int64_t cols) {
  SCOPED_TRACE(fmt::format("{} {} {} columns {}", c.name, name_of(ctx.device()), name_of(type), cols));
  constexpr std::int64_t kRows = 700, kPiece = 100;
  const Arrays a = draw({{"x", {kRows, cols}}, {"dz", {kRows, cols}}, {"ms", {kRows}, Role::constant32, Fill::uniform, 0.5, 1}}, type);
  const OwnedTensor x = make_tensor(ctx, type, {kRows, cols}, a.at("x")), dz = make_tensor(ctx, type, {kRows, cols}, a.at("dz")),
                    ms = make_tensor(ctx, DType::f32, {kRows}, a.at("ms")), constant = make_tensor(ctx, DType::f32, {1}, {0.25});
  const auto ms_of = [&](std::int64_t first, std::int64_t n) { return Tensor(ms.t.as<float>() + first, DType::f32, ctx.device(), {n}); };
  const WideRun whole(ctx, type, kRows, cols);
  run_wide(ctx, c, x, dz, ms, constant, whole);
  const auto z = to_doubles(ctx, whole.z), dx = to_doubles(ctx, whole.dx);
  for (const std::int64_t row : {0, 1, 127, 128, 350, 699}) {
    const WideRun one(ctx, type, 1, cols);
    run_wide(ctx, c, x.t.row_slice(row, 1), dz.t.row_slice(row, 1), ms_of(row, 1), constant, one);
    const auto begin = static_cast<std::ptrdiff_t>(row * cols), end = begin + static_cast<std::ptrdiff_t>(cols);
    EXPECT_EQ(to_doubles(ctx, one.z), std::vector<double>(z.begin() + begin, z.begin() + end)) << row;
    EXPECT_EQ(to_doubles(ctx, one.dx), std::vector<double>(dx.begin() + begin, dx.begin() + end)) << row;
  }
  std::vector<double> sum(static_cast<std::size_t>(cols) + 1);
  for (std::int64_t first = 0; first < kRows; first += kPiece) {
    const WideRun piece(ctx, type, kPiece, cols);
    run_wide(ctx, c, x.t.row_slice(first, kPiece), dz.t.row_slice(first, kPiece), ms_of(first, kPiece), constant, piece);
    const auto part = to_doubles(ctx, piece.dgamma);
    for (std::size_t j = 0; j < part.size(); ++j) sum[j] += part[j];
    sum.back() += to_doubles(ctx, piece.dscale)[0];
  }
  const auto dgamma = to_doubles(ctx, whole.dgamma);
  for (std::size_t j = 0; j < dgamma.size(); ++j) ASSERT_NEAR(dgamma[j], sum[j], 2e-5 * std::sqrt(static_cast<double>(kRows))) << j;
  EXPECT_NEAR(to_doubles(ctx, whole.dscale)[0], sum.back(), 1e-4 * (1 + std::fabs(sum.back())));
}

TEST(Norm, ManyWideRowsAreEachARow) {
  for (Context& ctx : test::contexts())
    for (const std::int64_t cols : {512, 1000, 2048, 8192}) {
      Rng rng(4);
      std::vector<double> weights(static_cast<std::size_t>(cols));
      for (double& w : weights) w = 1 + 0.1 * rng.normal();
      const OwnedTensor gamma = make_tensor(ctx, DType::f32, {cols}, weights), scale = make_tensor(ctx, DType::f32, {1}, {2.0});
      NormSite site{.stat = Stat::rms, .map = Map::tanh, .factor = 0.1f, .eps = 1e-6f};
      site.gamma = gamma;
      site.scale = scale;
      NormSite given = site, centred = site;
      given.stat = Stat::given;
      centred.stat = Stat::mean_std;
      for (const DType type : {DType::f32, DType::bf16})
        for (const WideCase& c : {WideCase{"rms", site}, WideCase{"given", given, true}, WideCase{"mean_std", centred}})
          check_wide(ctx, c, type, cols);
    }
}

}  // namespace
}  // namespace bhyt::testing
