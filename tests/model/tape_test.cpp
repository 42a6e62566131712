// What the reference of bf16 gradients stands on: derivatives by the tape, and where it rounds.
#include "tests/model/tape.h"

#include <gtest/gtest.h>

#include "ops/norm/methods.h"
#include "tests/devices.h"
#include "tests/model/reference_gradients.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

// Each parameter along its gradient.
void expect_differences(const ModelConfig& c) {
  const auto m = make_model(test::context_on(Device::cpu()), c);
  NamedValues weights;
  for (const Parameter& p : m->parameters().list()) {
    const auto v = m->parameters().read_value(p);
    weights[p.name].assign(v.begin(), v.end());
  }
  const std::vector<double> c_attn(static_cast<std::size_t>(c.layers), 0.3);
  const auto rows = draw_rows(c.vocab, 2);
  ReferenceModel reference(c, c_attn);
  reference.freeze(weights);
  reference.loss(weights, rows);  // records what is held constant
  reference.freeze_exact(true);
  Tape tape;
  for (const auto& [name, g] : reference_gradients(tape, Arithmetic::exact, c, c_attn, weights, rows)) {
    double length = 0;
    for (const double e : g) length += e * e;
    length = std::sqrt(length);
    const auto at = [&, &name = name, &g = g](double step) {
      NamedValues moved = weights;
      for (std::size_t i = 0; i < g.size(); ++i) moved[name][i] += step * g[i] / length;
      return reference.loss(moved, rows);
    };
    const double h = 2e-5;  // small, for |mean| has a kink; so differences of losses near 3 leave some 1e-11
    const double expected = (45 * (at(h) - at(-h)) - 9 * (at(2 * h) - at(-2 * h)) + at(3 * h) - at(-3 * h)) / (60 * h);
    EXPECT_NEAR(length, expected, 1e-9 * length + 1e-10) << name;
  }
}

TEST(Tape, GradientsAreDifferencesOfTheReference) {
  for (const Method& method : methods()) {
    SCOPED_TRACE(std::string(method.name));
    expect_differences(small_config(std::string(method.name), 2));
  }
  ModelConfig c = small_config("bhyt", 2);
  c.norm.aux_loss = 0.3, c.norm.stop_gradient = true, c.norm.correction = Correction::residual_aware;
  expect_differences(c);
}

TEST(Tape, RoundsValuesAndWhatComesBackButNotSums) {
  const double third = to_nearest_bf16(1.0 / 3), fine = 1 + 0x1p-9;
  ASSERT_NE(third, 1.0 / 3);
  for (const Arithmetic a : {Arithmetic::exact, Arithmetic::bf16}) {
    const bool rounds = a == Arithmetic::bf16;
    Tape tape;
    tape.begin(a);
    const Var x(tape, 1), y = rounded(x / 3), sum = y * fine + x * fine;
    EXPECT_EQ(y.value, rounds ? third : 1.0 / 3);
    EXPECT_EQ(tape.gradients(sum.node)[y.node], rounds ? 1.0 : fine);
    EXPECT_EQ(tape.gradients(sum.node)[x.node], (rounds ? 1.0 : fine) / 3 + fine);
  }
}

}  // namespace
}  // namespace bhyt::testing
