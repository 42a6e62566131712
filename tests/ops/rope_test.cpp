#include "ops/rope/rope.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

struct RopeSize {
  std::int64_t n, heads, d, seq = 1, start = 0, extra = 0;  // extra columns that must not turn
  bool positions = false;
};

// x [N, heads·D + extra]; the table reaches as far as the positions need.
Case rope_case(const RopeSize& s) {
  const std::int64_t cols = s.heads * s.d + s.extra, reach = s.positions ? 1000 : s.start + s.seq;
  const auto options = [=](const CaseTensors& c, bool inverse) {
    return RopeOptions{.heads = s.heads,
                       .head_dim = s.d,
                       .seq = s.seq,
                       .start = s.start,
                       .positions = s.positions ? c["positions"] : Tensor{},
                       .inverse = inverse};
  };
  const auto angle = [=](double position, std::int64_t j) {
    return position * std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(s.d));
  };
  const auto table = [=](Rng&, std::int64_t i) {
    const double a = angle(static_cast<double>(i / s.d), i % s.d % (s.d / 2));
    return i % s.d < s.d / 2 ? std::cos(a) : std::sin(a);
  };
  const auto turn = [=](CaseTensors& c, const Tensor& from, const Tensor& to, bool inverse) {
    copy(c.ctx(), from, to);
    rope(c.ctx(), to, c["table"], options(c, inverse));
  };
  return {
      .name = fmt::format("{} rows, {} heads of {}, seq {} from {}{}", s.n, s.heads, s.d, s.seq, s.start, s.positions ? ", positions" : ""),
      .inputs = {{"x", {s.n, cols}},
                 {"positions", {s.n}, Role::integer, Fill::integers, 1000},
                 {.name = "table", .shape = {reach, s.d}, .role = Role::constant32, .make = table}},
      .outputs = {{"y", {s.n, cols}}},
      .reference =
          [=](Arrays& a, Round) {
            const auto& x = a["x"];
            auto& y = a["y"];
            y = x;
            for (std::int64_t i = 0; i < s.n; ++i)
              for (std::int64_t j = 0; j < s.heads * s.d / 2; ++j) {
                const std::int64_t half = s.d / 2, k = j % half;
                const double at = s.positions ? a["positions"][static_cast<std::size_t>(i)] : static_cast<double>(s.start + i % s.seq);
                const double by = angle(at, k);
                const auto lower = static_cast<std::size_t>(i * cols + j / half * s.d + k), upper = lower + static_cast<std::size_t>(half);
                y[lower] = x[lower] * std::cos(by) - x[upper] * std::sin(by);
                y[upper] = x[upper] * std::cos(by) + x[lower] * std::sin(by);
              }
          },
      .forward = [=](CaseTensors& c) { turn(c, c["x"], c["y"], false); },
      .backward = [=](CaseTensors& c) { turn(c, c.grad("y"), c.grad("x"), true); }};
}

std::vector<Case> tests() {
  return {rope_case({.n = 1, .heads = 1, .d = 2, .start = 5}), rope_case({.n = 33, .heads = 3, .d = 62, .seq = 11, .extra = 7}),
          rope_case({.n = 31, .heads = 2, .d = 66, .seq = 31, .start = 200}),
          rope_case({.n = 64, .heads = 5, .d = 64, .seq = 32, .extra = 128}),
          rope_case({.n = 37, .heads = 4, .d = 8, .extra = 1, .positions = true})};
}
std::vector<Case> benchmarks() {
  return {rope_case({.n = 2048, .heads = 12, .d = 64, .seq = 256, .extra = 256}),
          rope_case({.n = 1024, .heads = 40, .d = 64, .seq = 1024})};
}

OP_CASES(Rope, tests, benchmarks)

TEST(Rope, TableHoldsCosinesAndSines) {
  const OwnedTensor table = rope_table(on_cpu(), 3000, 6, 10000, {});
  for (const std::int64_t p : {0, 1, 63, 64, 2999})
    for (std::int64_t j = 0; j < 3; ++j) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(j) / 6.0);
      EXPECT_EQ(table.t.as<float>()[p * 6 + j], static_cast<float>(std::cos(angle)));
      EXPECT_EQ(table.t.as<float>()[p * 6 + 3 + j], static_cast<float>(std::sin(angle)));
    }
}

TEST(Rope, Llama3ScalingStretchesTheLongWavelengths) {
  // The inverse frequencies that transformers computes for Llama-3.2 (θ 500,000, D 64).
  const OwnedTensor table = rope_table(on_cpu(), 2, 64, 500000, {.kind = RopeScaling::Kind::llama3});
  const float* sine = table.t.as<float>() + 64 + 32;  // position 1: the angle is the frequency itself
  const std::pair<int, double> expected[] = {{1, 0.663601279258728},       {10, 0.016560440883040428}, {14, 0.0032114461064338684},
                                             {15, 0.0012905480107292533},  {16, 0.000429556705057621}, {17, 9.708286233944818e-05},
                                             {18, 1.9461638657958247e-05}, {31, 9.418306490260875e-08}};
  for (const auto& [j, f] : expected) EXPECT_NEAR(std::asin(sine[j]) / f, 1, 1e-5) << j;
}

TEST(Rope, RefusesWhatDoesNotFit) {
  const OwnedTensor x = make_tensor(on_cpu(), DType::f32, {4, 8}), table = rope_table(on_cpu(), 3, 8, 10000, {});
  EXPECT_THROW(rope(on_cpu(), x, table, {.heads = 1, .head_dim = 8, .seq = 4}), Error);  // position 3 is beyond the table
  EXPECT_THROW(rope(on_cpu(), x, table, {.heads = 2, .head_dim = 8, .seq = 1}), Error);  // too few columns
  EXPECT_THROW(rope(on_cpu(), x, table, {.heads = 1, .head_dim = 4, .seq = 1}), Error);  // another head width
  EXPECT_THROW(rope(on_cpu(), x, table, {.heads = 1, .head_dim = 8, .seq = 1, .start = -1}), Error);
  const OwnedTensor positions = make_tensor(on_cpu(), DType::i32, {4}, {0, 1, 2, 3});
  EXPECT_THROW(rope(on_cpu(), x, table, {.heads = 1, .head_dim = 8, .positions = positions}), Error);
  EXPECT_THROW(rope_table(on_cpu(), 3, 7, 10000, {}), Error);
}

}  // namespace
}  // namespace bhyt::testing
