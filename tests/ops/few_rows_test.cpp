// Norms around the products of few rows on a GPU, against double precision: what a product leaves for the norm behind it, norms that are
// applied before and behind a product, and norms with a kernel of their own.
#include "ops/few_rows/few_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "ops/gemm/bytes.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

using Doubles = std::vector<double>;

Doubles drawn(DType type, std::int64_t rows, std::int64_t cols, std::uint64_t seed, double level = 0, double factor = 1) {
  return draw({{.name = "v", .shape = {rows, cols}, .role = Role::constant, .scale = factor, .offset = level}}, type, seed).at("v");
}

// A site with values for everything it may learn.
struct SiteValues {
  const char* name;
  Stat stat;
  Map map = Map::id;
  bool gamma = false, beta = false, shift = false, gate = false;
  float out_factor = 2.5f;
};

// Whether it is applied behind the product: a β has no factor but its own there.
bool goes_behind(const SiteValues& s) { return s.map == Map::id && !s.gamma && !s.gate && !(s.beta && s.out_factor != 1); }

struct MadeSite {
  NormSite site;
  Doubles gamma, beta, gate, direction;
  double scale = 1, shift = 0;
  std::vector<std::unique_ptr<OwnedTensor>> held;

  MadeSite(Context& ctx, const SiteValues& s, std::int64_t d) {
    const auto hold = [&](const Doubles& v) {
      return held.emplace_back(std::make_unique<OwnedTensor>(make_tensor(ctx, DType::f32, {std::ssize(v)}, v)))->t;
    };
    site.stat = s.stat, site.map = s.map;
    if (s.gamma) site.gamma = hold(gamma = drawn(DType::f32, 1, d, 21, 1, 0.3));
    if (s.beta) site.beta = hold(beta = drawn(DType::f32, 1, d, 22, 0.2, 0.3));
    if (s.gate) {
      site.gate = hold(gate = drawn(DType::f32, 1, d, 23, 0, 0.5));
      site.direction = hold(direction = drawn(DType::f32, 1, d, 24, 0, 0.02));
    }
    if (s.map != Map::id) {
      site.factor = s.stat == Stat::none ? 1.f : 0.5f;
      site.scale = hold({scale = 1.5});
    }
    if (s.shift) site.shift = hold({shift = static_cast<double>(0.3f)});
    site.out_factor = s.out_factor;
  }

  // Of one row; given: its s², where that is not made of the row.
  Doubles of(const double* x, std::int64_t d, double given = NAN) const {
    const auto n = static_cast<double>(d);
    double mean = 0, square = 0, dot = 0;
    for (std::int64_t j = 0; j < d; ++j) mean += x[j] / n;
    const bool centred = site.stat == Stat::mean_var || site.stat == Stat::mean_std;
    for (std::int64_t j = 0; j < d; ++j) square += std::pow(x[j] - (centred ? mean : 0), 2) / n;
    for (std::size_t j = 0; j < direction.size(); ++j) dot += x[j] * direction[j];
    const double eps = static_cast<double>(site.eps), factor = static_cast<double>(site.factor);
    double a = factor * scale;
    if (site.stat == Stat::rms || site.stat == Stat::mean_var) a /= std::sqrt(square + eps);
    if (site.stat == Stat::given) a /= std::sqrt(given + eps);
    if (site.stat == Stat::mean_std) a /= std::sqrt(square + eps) + factor * std::fabs(mean);
    Doubles z;
    for (std::int64_t j = 0; j < d; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double u = a * (x[j] - (site.stat == Stat::mean_var ? mean : 0)) + shift;
      const double f = site.map == Map::tanh ? std::tanh(u) : site.map == Map::erf ? std::erf(u) : u;
      const double gain = (gamma.empty() ? 1 : gamma[at]) + (gate.empty() ? 0 : std::tanh(dot) * gate[at]);
      z.push_back(static_cast<double>(site.out_factor) * (gain * f + (beta.empty() ? 0 : beta[at])));
    }
    return z;
  }
};

// Weights [O,I] as few rows read them, and what they stand for.
struct FewWeights {
  std::int64_t rows, cols;
  OwnedTensor bf16_rows;
  std::unique_ptr<Buffer> bytes, tiles;
  Tensor by_row, read;
  Doubles values;

  FewWeights(Context& ctx, DType type, std::int64_t outs, std::int64_t ins, double factor)
      : rows(outs), cols(ins), bf16_rows(make_tensor(ctx, DType::bf16, {outs, ins}, drawn(DType::bf16, outs, ins, 2, 0, factor))) {
    by_row = read = bf16_rows;
    values = to_doubles(ctx, bf16_rows);
    if (type == DType::bf16) return;
    const auto room = [&](std::unique_ptr<Buffer>& b) {
      b = std::make_unique<Buffer>(ctx, byte_matrix_size(outs, ins));
      return byte_matrix(b->data(), type, ctx.device(), outs, ins);
    };
    round_to_bytes(ctx, bf16_rows, {}, 1, by_row = room(bytes));
    few_rows_tiles(ctx, by_row, kTileRows, read = room(tiles));
    const OwnedTensor wide = make_tensor(ctx, DType::f32, {outs, ins});
    widen(ctx, by_row, wide);
    values = to_doubles(ctx, wide);
  }
  Doubles times(const Doubles& z) const {
    Doubles y;
    for (std::int64_t o = 0; o < rows; ++o) {
      double sum = 0;
      for (std::int64_t j = 0; j < cols; ++j) sum += values[static_cast<std::size_t>(o * cols + j)] * z[static_cast<std::size_t>(j)];
      y.push_back(sum);
    }
    return y;
  }
};

double root_mean_square(const Doubles& v) {
  double sum = 0;
  for (const double e : v) sum += e * e;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

// What a norm behind a product may need of its weights, whether it does or not.
struct SummedWeights {
  OwnedTensor rows, bias;
  WeightSums sums;

  SummedWeights(Context& ctx, const FewWeights& w, const MadeSite& made)
      : rows(make_tensor(ctx, DType::f32, {w.rows})), bias(make_tensor(ctx, DType::f32, {w.rows})), sums{rows, {}} {
    if (made.site.beta) sums.bias = bias;
    few_rows_sum_weights(ctx, w.by_row, made.site.beta, sums);
  }
};

OwnedTensor unknown_moments(Context& ctx, std::int64_t width) {
  return make_tensor(ctx, DType::f32, {few_rows_moments_size(width)}, Doubles(static_cast<std::size_t>(few_rows_moments_size(width)), NAN));
}

// Of rows of x, d columns each.
void expect_statistics(const Doubles& kept, const SiteValues& values, const Doubles& x, std::int64_t d) {
  const std::int64_t rows = std::ssize(x) / d;
  const bool centred = values.stat == Stat::mean_var || values.stat == Stat::mean_std;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* const row = x.data() + r * d;
    double mean = 0, square = 0;
    for (std::int64_t j = 0; j < d; ++j) mean += row[j] / static_cast<double>(d);
    for (std::int64_t j = 0; j < d; ++j) square += std::pow(row[j] - (centred ? mean : 0), 2) / static_cast<double>(d);
    ASSERT_NEAR(kept[static_cast<std::size_t>(r)], square, 1e-4 * square) << "row " << r;
    if (centred) {
      ASSERT_NEAR(kept[static_cast<std::size_t>(rows + r)], mean, 1e-5 * (1 + std::fabs(mean))) << "row " << r;
    }
  }
}

// A product, its moments, the norm made of them, and the product behind that.
void check_norm_between_products(Context& ctx, const SiteValues& values, const FewWeights& first, const FewWeights& second,
                                 std::int64_t rows, bool with_moments, double level) {
  const std::int64_t before = first.cols, d = first.rows, outs = second.rows;
  SCOPED_TRACE(fmt::format("{}, {}, {} columns, {} of {} rows{}, about {}", values.name, name_of(second.read.dtype), d, outs, rows,
                           with_moments ? ", moments" : "", level));
  const MadeSite made(ctx, values, d);
  const OwnedTensor h = make_tensor(ctx, DType::bf16, {rows, before}, drawn(DType::bf16, rows, before, 3)),
                    residual = make_tensor(ctx, DType::bf16, {rows, d}, drawn(DType::bf16, rows, d, 4, level)),
                    x = make_tensor(ctx, DType::bf16, {rows, d}), logits = make_tensor(ctx, DType::f32, {rows, outs}),
                    stats = make_tensor(ctx, DType::f32, {2, rows}), moments = unknown_moments(ctx, d);
  const SummedWeights summed(ctx, second, made);
  const bool behind = goes_behind(values);
  FewResidual to{.residual = residual, .y = x};
  if (with_moments) to.site = &made.site, to.moments = moments;
  few_rows_linear(ctx, {.x = h}, first.read, to);
  few_rows_logits(ctx, {.x = x, .site = &made.site, .stats = stats, .moments = with_moments ? moments.t : Tensor{}, .sums = &summed.sums},
                  second.read, logits);
  const Doubles xs = to_doubles(ctx, x), got = to_doubles(ctx, logits), kept = to_doubles(ctx, stats);
  // Behind the product nothing is rounded, but what is taken off is as large as the level.
  const double tolerance = behind ? 1e-5 * (1 + std::fabs(level)) : 0x1p-8;
  for (std::int64_t r = 0; r < rows; ++r) {
    const Doubles expected = second.times(made.of(xs.data() + r * d, d));
    Doubles off;
    for (std::int64_t o = 0; o < outs; ++o)
      off.push_back(got[static_cast<std::size_t>(r * outs + o)] - expected[static_cast<std::size_t>(o)]);
    ASSERT_LT(root_mean_square(off), tolerance * root_mean_square(expected)) << "row " << r;
  }
  expect_statistics(kept, values, xs, d);
}

constexpr SiteValues kBetween[] = {
    {.name = "rms", .stat = Stat::rms},
    {.name = "rms, gain", .stat = Stat::rms, .gamma = true},
    {.name = "rms, bias", .stat = Stat::rms, .beta = true, .out_factor = 1},
    {.name = "rms, bias, factor", .stat = Stat::rms, .beta = true},
    {.name = "mean and variance", .stat = Stat::mean_var},
    {.name = "mean and variance, bias", .stat = Stat::mean_var, .beta = true, .out_factor = 1},
    {.name = "mean and variance, gain and bias", .stat = Stat::mean_var, .gamma = true, .beta = true},
    {.name = "tanh", .stat = Stat::rms, .map = Map::tanh},
    {.name = "tanh, shift", .stat = Stat::rms, .map = Map::tanh, .shift = true},
    {.name = "tanh, gain and bias", .stat = Stat::rms, .map = Map::tanh, .gamma = true, .beta = true},
    {.name = "tanh, mean and variance", .stat = Stat::mean_var, .map = Map::tanh},
    {.name = "tanh, mean and deviation", .stat = Stat::mean_std, .map = Map::tanh},
    {.name = "erf", .stat = Stat::rms, .map = Map::erf},
};

// Rows that are kept, rows that come with the weights; one tile for a block and many (a GPU has some 100 to 200 blocks).
TEST(FewRowsNorms, BetweenProducts) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  for (const DType type : {DType::bf16, DType::i8, DType::f8})
    for (const auto& [d, outs] : {std::pair<std::int64_t, std::int64_t>{512, 1001}, {2048, 1000}, {2048, 5003}, {3072, 64}, {4096, 144}}) {
      if (type != DType::bf16 && d > 2048) continue;
      const FewWeights first(ctx, type, d, 512, 0.05), second(ctx, type, outs, d, 0.05);
      std::vector<std::int64_t> counts{1, 2, 3, 8};
      if (d == 512) counts = {1, 2, 3, 4, 5, 6, 7, 8};
      if (outs > 2000) counts = {1, 3};
      for (const SiteValues& values : kBetween)
        for (const bool with_moments : {true, false})
          for (const std::int64_t rows : counts) check_norm_between_products(ctx, values, first, second, rows, with_moments, 0);
    }
}

// A row that lies far from zero: squares less the square of their mean would leave nothing.
TEST(FewRowsNorms, FarFromZero) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  const FewWeights first(ctx, DType::bf16, 2048, 512, 0.05), second(ctx, DType::bf16, 1000, 2048, 0.05);
  for (const SiteValues& values : kBetween)
    if (values.stat == Stat::mean_var || values.stat == Stat::mean_std)
      for (const bool with_moments : {true, false})
        for (const std::int64_t rows : {1, 8}) check_norm_between_products(ctx, values, first, second, rows, with_moments, 40);
}

// The same bits for a row whatever comes beside it, where a row's statistic comes from moments.
TEST(FewRowsNorms, ARowIsItsOwn) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  constexpr std::int64_t kWidth = 2048, kBefore = 1024, kOuts = 3001;
  const FewWeights first(ctx, DType::bf16, kWidth, kBefore, 0.05), second(ctx, DType::bf16, kOuts, kWidth, 0.05);
  for (const SiteValues& values : kBetween) {
    const MadeSite made(ctx, values, kWidth);
    const SummedWeights summed(ctx, second, made);
    const Doubles hs = drawn(DType::bf16, 8, kBefore, 3);
    const auto first_row = [&](std::int64_t rows) {
      const OwnedTensor h = make_tensor(ctx, DType::bf16, {rows, kBefore}, Doubles(hs.begin(), hs.begin() + rows * kBefore)),
                        x = make_tensor(ctx, DType::bf16, {rows, kWidth}), logits = make_tensor(ctx, DType::f32, {rows, kOuts}),
                        moments = unknown_moments(ctx, kWidth);
      few_rows_linear(ctx, {.x = h}, first.read, {.residual = {}, .y = x, .site = &made.site, .moments = moments});
      few_rows_logits(ctx, {.x = x, .site = &made.site, .moments = moments, .sums = &summed.sums}, second.read, logits);
      Doubles all = to_doubles(ctx, logits);
      all.resize(kOuts);
      return all;
    };
    const Doubles alone = first_row(1);
    for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8}) EXPECT_EQ(first_row(rows), alone) << values.name << ", " << rows << " rows";
  }
}

TEST(FewRowsNorms, AKernelOfTheirOwn) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  constexpr SiteValues kSites[] = {
      {.name = "rms", .stat = Stat::rms},
      {.name = "rms, gain", .stat = Stat::rms, .gamma = true},
      {.name = "gated", .stat = Stat::rms, .gamma = true, .gate = true},
      {.name = "mean and variance, gain and bias", .stat = Stat::mean_var, .gamma = true, .beta = true},
      {.name = "no statistic, erf", .stat = Stat::none, .map = Map::erf, .gamma = true, .beta = true, .shift = true},
  };
  for (const SiteValues& values : kSites)
    for (const std::int64_t d : {200, 512, 2048, 4096})
      for (const std::int64_t rows : {1, 3, 8})
        for (const bool onto : {false, true}) {
          SCOPED_TRACE(fmt::format("{}, {} columns, {} rows{}", values.name, d, rows, onto ? ", onto a residual" : ""));
          const MadeSite made(ctx, values, d);
          const Doubles xs = drawn(DType::bf16, rows, d, 5), adds = drawn(DType::bf16, rows, d, 6);
          const OwnedTensor x = make_tensor(ctx, DType::bf16, {rows, d}, xs), add = make_tensor(ctx, DType::bf16, {rows, d}, adds),
                            y = make_tensor(ctx, DType::bf16, {rows, d});
          few_rows_norm(ctx, made.site, x, {.residual = onto ? add.t : Tensor{}, .y = y});
          const Doubles got = to_doubles(ctx, y);
          for (std::int64_t r = 0; r < rows; ++r) {
            const Doubles z = made.of(xs.data() + r * d, d);
            for (std::int64_t j = 0; j < d; ++j) {
              const auto at = static_cast<std::size_t>(r * d + j);
              const double zj = z[static_cast<std::size_t>(j)], expected = zj + (onto ? adds[at] : 0);
              ASSERT_NEAR(got[at], expected, 0x1p-8 * (std::fabs(zj) + (onto ? std::fabs(expected) : 0)) + 1e-5) << r << ", " << j;
            }
          }
        }
}

// It leaves moments of its sum for the norm that comes next.
TEST(FewRowsNorms, MomentsOfAKernelOfTheirOwn) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  constexpr SiteValues kOwn = {.name = "own", .stat = Stat::rms, .gamma = true};
  for (const SiteValues& next : {SiteValues{.name = "rms", .stat = Stat::rms}, {.name = "mean and variance", .stat = Stat::mean_var}})
    for (const std::int64_t d : {256, 512, 2048, 4096})
      for (const std::int64_t rows : {1, 3, 8}) {
        SCOPED_TRACE(fmt::format("{}, {} columns, {} rows", next.name, d, rows));
        const MadeSite own(ctx, kOwn, d), made(ctx, next, d);
        const FewWeights w(ctx, DType::bf16, 64, d, 0.05);
        const SummedWeights summed(ctx, w, made);
        const OwnedTensor x = make_tensor(ctx, DType::bf16, {rows, d}, drawn(DType::bf16, rows, d, 5)),
                          residual = make_tensor(ctx, DType::bf16, {rows, d}, drawn(DType::bf16, rows, d, 6, 3)),
                          y = make_tensor(ctx, DType::bf16, {rows, d}), logits = make_tensor(ctx, DType::f32, {rows, 64}),
                          stats = make_tensor(ctx, DType::f32, {2, rows}), moments = unknown_moments(ctx, d);
        few_rows_norm(ctx, own.site, x, {.residual = residual, .y = y, .site = &made.site, .moments = moments});
        few_rows_logits(ctx, {.x = y, .site = &made.site, .stats = stats, .moments = moments, .sums = &summed.sums}, w.read, logits);
        expect_statistics(to_doubles(ctx, stats), next, to_doubles(ctx, y), d);
      }
}

// A norm without a statistic leaves the product before it.
TEST(FewRowsNorms, WithoutAStatistic) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  for (const Map map : {Map::tanh, Map::erf})
    for (const DType type : {DType::bf16, DType::i8, DType::f8})
      for (const std::int64_t rows : {1, 2, 4, 5, 6, 7, 8}) {
        SCOPED_TRACE(fmt::format("{}, {} rows", name_of(type), rows));
        constexpr std::int64_t kWidth = 512, kBefore = 1024;
        const MadeSite made(ctx, {.name = "", .stat = Stat::none, .map = map, .gamma = true, .beta = true, .shift = true}, kWidth);
        const FewWeights w(ctx, type, kWidth, kBefore, 0.05);
        const OwnedTensor h = make_tensor(ctx, DType::bf16, {rows, kBefore}, drawn(DType::bf16, rows, kBefore, 3)),
                          y = make_tensor(ctx, DType::bf16, {rows, kWidth}), z = make_tensor(ctx, DType::bf16, {rows, kWidth});
        few_rows_linear(ctx, {.x = h}, w.read, {.residual = {}, .y = y, .site = &made.site, .z = z});
        const Doubles ys = to_doubles(ctx, y), got = to_doubles(ctx, z);
        for (std::int64_t r = 0; r < rows; ++r) {
          const Doubles expected = made.of(ys.data() + r * kWidth, kWidth);
          for (std::size_t j = 0; j < expected.size(); ++j)
            ASSERT_NEAR(got[static_cast<std::size_t>(r * kWidth) + j], expected[j], 0x1p-8 * std::fabs(expected[j]) + 1e-3)
                << r << ", " << j;
        }
      }
}

// A norm whose statistic is given leaves the product before it, too: s² = calibration · ((1 + η)·ms + β·C).
TEST(FewRowsNorms, AGivenStatistic) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  constexpr std::int64_t kWidth = 512, kBefore = 1024;
  const FewWeights w(ctx, DType::bf16, kWidth, kBefore, 0.05);
  const auto scalar = [&](double v) { return make_tensor(ctx, DType::f32, {1}, {v}); };
  const OwnedTensor constant = scalar(0.75), eta = scalar(0.5), beta = scalar(-0.25);
  for (const Map map : {Map::tanh, Map::id})
    for (const bool corrected : {false, true})
      for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8}) {
        SCOPED_TRACE(fmt::format("{}{}, {} rows", map == Map::tanh ? "tanh" : "identity", corrected ? ", corrected" : "", rows));
        const MadeSite made(ctx, {.name = "", .stat = Stat::given, .map = map, .gamma = true, .shift = map == Map::tanh}, kWidth);
        Doubles squares;
        for (std::int64_t r = 0; r < rows; ++r) squares.push_back(0.5 + static_cast<double>(r));
        const OwnedTensor ms = make_tensor(ctx, DType::f32, {rows}, squares),
                          h = make_tensor(ctx, DType::bf16, {rows, kBefore}, drawn(DType::bf16, rows, kBefore, 3)),
                          residual = make_tensor(ctx, DType::bf16, {rows, kWidth}, drawn(DType::bf16, rows, kWidth, 4)),
                          y = make_tensor(ctx, DType::bf16, {rows, kWidth}), z = make_tensor(ctx, DType::bf16, {rows, kWidth});
        Given given{.ms = ms, .constant = constant};
        if (corrected) given.ms_correction = eta, given.constant_correction = beta, given.calibration = 1.25f;
        few_rows_linear(ctx, {.x = h}, w.read, {.residual = residual, .y = y, .site = &made.site, .given = &given, .z = z});
        const Doubles ys = to_doubles(ctx, y), got = to_doubles(ctx, z);
        for (std::size_t r = 0; r < squares.size(); ++r) {
          const double square = corrected ? 1.25 * (1.5 * squares[r] - 0.25 * 0.75) : squares[r] + 0.75;
          const Doubles expected = made.of(ys.data() + r * kWidth, kWidth, square);
          for (std::size_t j = 0; j < expected.size(); ++j)
            ASSERT_NEAR(got[r * kWidth + j], expected[j], 0x1p-8 * std::fabs(expected[j]) + 1e-3) << r << ", " << j;
        }
      }
}

TEST(FewRowsNorms, SumsOfWeights) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  for (const DType type : {DType::bf16, DType::i8, DType::f8}) {
    constexpr std::int64_t kOuts = 37, kWidth = 1024;
    const FewWeights w(ctx, type, kOuts, kWidth, 0.05);
    const Doubles betas = drawn(DType::f32, 1, kWidth, 8);
    const OwnedTensor beta = make_tensor(ctx, DType::f32, {kWidth}, betas), sums = make_tensor(ctx, DType::f32, {kOuts}),
                      bias = make_tensor(ctx, DType::f32, {kOuts});
    few_rows_sum_weights(ctx, w.by_row, beta, {sums, bias});
    const Doubles ones(static_cast<std::size_t>(kWidth), 1), sum = w.times(ones), product = w.times(betas), got = to_doubles(ctx, sums),
                                                             biases = to_doubles(ctx, bias);
    for (std::size_t o = 0; o < sum.size(); ++o) {
      EXPECT_NEAR(got[o], sum[o], 2e-6) << name_of(type) << ", " << o;
      EXPECT_NEAR(biases[o], product[o], 2e-6) << name_of(type) << ", " << o;
    }
  }
}

}  // namespace
}  // namespace bhyt::testing
