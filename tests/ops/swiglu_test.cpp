#include "ops/swiglu/swiglu.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

Case swiglu_case(std::int64_t n, std::int64_t f, double scale = 1, bool in_place = false) {
  return {.name = fmt::format("{}x{} scale {}{}", n, f, scale, in_place ? " in place" : ""),
          .inputs = {{"gate_up", {n, 2 * f}, Role::activation, Fill::normal, scale}},
          .outputs = {{"h", {n, f}}},
          .reference =
              [=](Arrays& a, Round) {
                const auto& x = a["gate_up"];
                auto& h = a["h"];
                for (std::int64_t i = 0; i < n * f; ++i) {
                  const auto at = static_cast<std::size_t>(i / f * 2 * f + i % f);
                  h[static_cast<std::size_t>(i)] = x[at] / (1 + std::exp(-x[at])) * x[at + static_cast<std::size_t>(f)];
                }
              },
          .forward = [](CaseTensors& c) { swiglu(c.ctx(), c["gate_up"], c["h"]); },
          .backward =
              [=](CaseTensors& c) {
                if (in_place) copy(c.ctx(), c["gate_up"], c.grad("gate_up"));
                swiglu_backward(c.ctx(), in_place ? c.grad("gate_up") : c["gate_up"], c.grad("h"), c.grad("gate_up"));
              }};
}

std::vector<Case> tests() {
  std::vector<Case> cases{swiglu_case(5, 33, 30), swiglu_case(3, 257, 1, true), swiglu_case(2, 8192 + 5)};
  for (const std::int64_t f : {1, 31, 32, 33, 127}) cases.push_back(swiglu_case(7, f));
  return cases;
}
std::vector<Case> benchmarks() { return {swiglu_case(2048, 1408), swiglu_case(1024, 8192)}; }

OP_CASES(Swiglu, tests, benchmarks)

// The same bits in place of dh, and the gradients that a call without it gives.
TEST(Swiglu, BackwardWritesTheResultAgain) {
  const std::int64_t n = 5, f = 40;
  for (Context& ctx : test::contexts())
    for (const DType type : {DType::f32, DType::bf16}) {
      const Arrays a = draw({{"gate_up", {n, 2 * f}}, {"dh", {n, f}}}, type);
      const OwnedTensor gate_up = make_tensor(ctx, type, {n, 2 * f}, a.at("gate_up")), dh = make_tensor(ctx, type, {n, f}, a.at("dh"));
      const OwnedTensor h = make_tensor(ctx, type, {n, f}), expected = make_tensor(ctx, type, {n, 2 * f});
      swiglu(ctx, gate_up, h);
      swiglu_backward(ctx, gate_up, dh, expected);
      swiglu_backward(ctx, gate_up, dh, gate_up, dh);
      EXPECT_EQ(to_doubles(ctx, dh), to_doubles(ctx, h));
      EXPECT_EQ(to_doubles(ctx, gate_up), to_doubles(ctx, expected));
    }
}

TEST(Swiglu, RefusesWrongShapes) {
  const OwnedTensor gate_up = make_tensor(on_cpu(), DType::f32, {2, 6}), h = make_tensor(on_cpu(), DType::f32, {2, 4});
  EXPECT_THROW(swiglu(on_cpu(), gate_up, h), Error);
  const OwnedTensor half = make_tensor(on_cpu(), DType::bf16, {2, 3});
  EXPECT_THROW(swiglu(on_cpu(), gate_up, half), Error);
}

}  // namespace
}  // namespace bhyt::testing
