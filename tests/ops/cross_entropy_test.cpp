#include "ops/cross_entropy/cross_entropy.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

struct Size {
  std::int64_t n, c, v;
  double scale = 1;   // of x: the logits' size
  bool skip = false;  // a third of the targets is negative
  bool weighted = false;
};

CrossEntropy job_of(CaseTensors& k, const Size& s) {
  const auto bytes = static_cast<std::int64_t>(cross_entropy_workspace(s.n, s.c, s.v, k.dtype(), k.device()));
  return {.x = k["x"],
          .w = k["w"],
          .targets = k["targets"],
          .weights = s.weighted ? k["weights"] : Tensor{},
          .workspace = k.scratch("workspace", DType::u8, {bytes})};
}

void naive(Arrays& a, const Size& s) {
  const auto &x = a["x"], &w = a["w"];
  a["loss"][0] = 0;
  for (std::int64_t i = 0; i < s.n; ++i) {
    std::vector<double> logits(static_cast<std::size_t>(s.v));
    double sum = 0;
    std::size_t top = 0;
    for (std::size_t j = 0; j < logits.size(); ++j) {
      for (std::int64_t k = 0; k < s.c; ++k)
        logits[j] += x[static_cast<std::size_t>(i * s.c + k)] * w[j * static_cast<std::size_t>(s.c) + static_cast<std::size_t>(k)];
      if (logits[j] > logits[top]) top = j;
    }
    for (const double l : logits) sum += std::exp(l - logits[top]);
    const auto at = static_cast<std::size_t>(i);
    const double target = a["targets"][at];
    a["losses"][at] = target < 0 ? 0 : std::log(sum) + logits[top] - logits[static_cast<std::size_t>(target)];
    a["greedy"][at] = static_cast<double>(top);
    a["loss"][0] += a["losses"][at] * (s.weighted ? a["weights"][at] : 1);
  }
}

Case cross_entropy_case(const Size& s) {
  const double products = 2.0 * static_cast<double>(s.n * s.c * s.v);
  const auto target = [s](Rng& rng, std::int64_t i) {
    const auto t = static_cast<double>(rng.below(static_cast<std::uint64_t>(s.v)));
    return s.skip && i % 3 == 1 ? -1 - t : t;
  };
  return {
      .name = fmt::format("{}x{} into {}, scale {}{}{}", s.n, s.c, s.v, s.scale, s.skip ? ", skipped" : "", s.weighted ? ", weighted" : ""),
      .inputs = {{"x", {s.n, s.c}, Role::activation, Fill::normal, s.scale},
                 {"w", {s.v, s.c}, Role::weight, Fill::normal, 0.5},
                 {.name = "targets", .shape = {s.n}, .role = Role::integer, .make = target},
                 {"weights", {s.n}, Role::constant32, Fill::uniform, 1, 1}},
      .outputs = {{"loss", {1}, Output::Type::fp32},
                  {"losses", {s.n}, Output::Type::fp32, false},
                  {"greedy", {s.n}, Output::Type::integer, false}},
      .reference = [=](Arrays& a, Round) { naive(a, s); },
      .forward =
          [=](CaseTensors& k) {
            zero(k.ctx(), k["loss"]);
            CrossEntropy job = job_of(k, s);
            job.loss = k["loss"];
            job.losses = k["losses"];
            job.greedy = k["greedy"];
            cross_entropy(k.ctx(), job);
          },
      .backward =
          [=](CaseTensors& k) {
            CrossEntropy job = job_of(k, s);
            job.scale = static_cast<float>(to_doubles(k.ctx(), k.grad("loss"))[0]);
            job.dx = k.grad("x");
            job.dw = k.grad("w");
            cross_entropy(k.ctx(), job);
          },
      // A GPU keeps bf16 logits for the backward: large ones are off by as much as a quarter.
      .bf16_grad_ulps = s.scale > 1 ? 150.0 : 12.0,
      .flops = products,
      .backward_flops = 3 * products};
}

std::vector<Case> tests() {
  return {cross_entropy_case({1, 1, 1}), cross_entropy_case({.n = 1, .c = 5, .v = 31, .skip = true}),
          cross_entropy_case({.n = 31, .c = 33, .v = 97, .skip = true, .weighted = true}),
          cross_entropy_case({.n = 65, .c = 16, .v = 33, .weighted = true}), cross_entropy_case({.n = 7, .c = 8, .v = 4099, .skip = true}),
          cross_entropy_case({.n = 13, .c = 4, .v = 61, .scale = 60}),
          // Vocabularies of real tokenizers: a power of two, and two that are not.
          cross_entropy_case({.n = 7, .c = 8, .v = 1024, .skip = true}), cross_entropy_case({.n = 3, .c = 4, .v = 32000}),
          cross_entropy_case({.n = 2, .c = 2, .v = 128256})};
}
std::vector<Case> benchmarks() { return {cross_entropy_case({2048, 512, 32000}), cross_entropy_case({256, 256, 128256})}; }

OP_CASES(CrossEntropy, tests, benchmarks)

// Several chunks of a large vocabulary: the whole call gives each row what it gets alone. The whole call writes dw, the parts add to it.
void check_chunks(Context& ctx) {
  const std::int64_t n = 150, c = 2, v = 262147;
  const std::vector<Input> inputs{{"x", {n, c}}, {"w", {v, c}}, {"targets", {n}, Role::integer, Fill::integers, static_cast<double>(v)}};
  const Arrays a = draw(inputs, DType::f32);
  const OwnedTensor x = make_tensor(ctx, DType::f32, {n, c}, a.at("x")), w = make_tensor(ctx, DType::f32, {v, c}, a.at("w"));
  const OwnedTensor targets = make_tensor(ctx, DType::i32, {n}, a.at("targets"));
  const auto bytes = static_cast<std::int64_t>(cross_entropy_workspace(n, c, v, DType::f32, ctx.device()));
  ASSERT_LT(bytes, n * v * 4);
  const OwnedTensor workspace = make_tensor(ctx, DType::u8, {bytes});
  struct Results {
    OwnedTensor losses, dx, dw;
  };
  const auto results = [&](double dw) {
    return Results{make_tensor(ctx, DType::f32, {n}), make_tensor(ctx, DType::f32, {n, c}),
                   make_tensor(ctx, DType::f32, {v, c}, std::vector<double>(static_cast<std::size_t>(v * c), dw))};
  };
  const auto run = [&](std::int64_t first, std::int64_t count, const Results& r, bool accumulate) {
    cross_entropy(ctx, {.x = x.t.row_slice(first, count),
                        .w = w,
                        .targets = Tensor(targets.t.as<std::int32_t>() + first, DType::i32, ctx.device(), {count}),
                        .losses = Tensor(r.losses.t.as<float>() + first, DType::f32, ctx.device(), {count}),
                        .dx = r.dx.t.row_slice(first, count),
                        .dw = r.dw,
                        .accumulate = accumulate,
                        .workspace = workspace});
  };
  const Results whole = results(7), parts = results(0);
  run(0, n, whole, false);
  for (std::int64_t i = 0; i < n; i += 50) run(i, 50, parts, true);
  // dx sums over the vocabulary in fp32; on a GPU the order depends on the number of rows.
  const double bar = ctx.device().is_cuda() ? 3e-4 : 3e-6;
  for (const auto& [one, other] : {std::pair{&whole.losses, &parts.losses}, {&whole.dx, &parts.dx}, {&whole.dw, &parts.dw}}) {
    const auto a1 = to_doubles(ctx, *one), a2 = to_doubles(ctx, *other);
    double worst = 0;
    for (std::size_t i = 0; i < a1.size(); ++i) worst = std::max(worst, std::fabs(a1[i] - a2[i]));
    EXPECT_LE(worst, bar) << a1.size();
  }
}

TEST(CrossEntropy, ChunksDoNotShow) {
  for (Context& ctx : test::contexts()) check_chunks(ctx);
}

// One logit that is no number makes the loss none, wherever it stands; an infinite loss of weight 0 costs nothing.
TEST(CrossEntropy, BadLogitsShowUnlessTheyWeighNothing) {
  for (Context& ctx : test::contexts())
    for (const std::int64_t v : {96, 97})
      for (const std::size_t bad : {std::size_t{0}, std::size_t{33}, static_cast<std::size_t>(v - 1)})
        for (const bool nan : {true, false}) {
          std::vector<double> rows(static_cast<std::size_t>(v), 1);
          rows[bad] = nan ? NAN : -INFINITY;
          const OwnedTensor x = make_tensor(ctx, DType::f32, {2, 1}, {1, 1}), w = make_tensor(ctx, DType::f32, {v, 1}, rows);
          const auto target = static_cast<double>(nan ? 5 : bad);
          const OwnedTensor targets = make_tensor(ctx, DType::i32, {2}, {target, 5});
          const OwnedTensor weights = make_tensor(ctx, DType::f32, {2}, {nan ? 1.0 : 0.0, 1});
          const OwnedTensor losses = make_tensor(ctx, DType::f32, {2}), loss = make_tensor(ctx, DType::f32, {1}, {0});
          const auto bytes = static_cast<std::int64_t>(cross_entropy_workspace(2, 1, v, DType::f32, ctx.device()));
          cross_entropy(ctx, {.x = x,
                              .w = w,
                              .targets = targets,
                              .weights = weights,
                              .loss = loss,
                              .losses = losses,
                              .workspace = make_tensor(ctx, DType::u8, {bytes})});
          EXPECT_EQ(std::isnan(to_doubles(ctx, losses)[0]), nan) << bad;
          EXPECT_EQ(std::isinf(to_doubles(ctx, losses)[0]), !nan) << bad;
          if (nan)
            EXPECT_TRUE(std::isnan(to_doubles(ctx, loss)[0])) << bad;
          else
            EXPECT_NEAR(to_doubles(ctx, loss)[0], std::log(static_cast<double>(v - 1)), 1e-5) << bad;
        }
}

// What lies around the workspace stays as it was, whatever the distance between its rows.
void check_workspace(std::int64_t n, std::int64_t v, DType type, Context& ctx) {
  SCOPED_TRACE(fmt::format("{} tokens, vocabulary {}, {} on {}", n, v, name_of(type), name_of(ctx.device())));
  const std::int64_t c = 8, fence = 1 << 16, bytes = static_cast<std::int64_t>(cross_entropy_workspace(n, c, v, type, ctx.device()));
  const std::vector<char> before(static_cast<std::size_t>(bytes + 2 * fence), 0x5a);
  const OwnedTensor memory = make_tensor(ctx, DType::u8, {bytes + 2 * fence});
  ctx.copy(ctx.device(), memory.t.data, Device::cpu(), before.data(), before.size());
  const Tensor workspace(memory.t.as<char>() + fence, DType::u8, ctx.device(), {bytes});
  const Arrays a = draw({{"x", {n, c}}, {"w", {v, c}}, {"targets", {n}, Role::integer, Fill::integers, static_cast<double>(v)}}, type);
  const OwnedTensor x = make_tensor(ctx, type, {n, c}, a.at("x")), w = make_tensor(ctx, type, {v, c}, a.at("w")),
                    targets = make_tensor(ctx, DType::i32, {n}, a.at("targets")), losses = make_tensor(ctx, DType::f32, {n}),
                    dx = make_tensor(ctx, type, {n, c}),
                    dw = make_tensor(ctx, DType::f32, {v, c}, std::vector<double>(static_cast<std::size_t>(v * c)));
  cross_entropy(ctx, {.x = x, .w = w, .targets = targets, .losses = losses, .workspace = workspace});
  cross_entropy(ctx, {.x = x, .w = w, .targets = targets, .losses = losses, .dx = dx, .dw = dw, .workspace = workspace});
  std::vector<char> after(before.size());
  ctx.copy(Device::cpu(), after.data(), ctx.device(), memory.t.data, after.size());
  const auto changed = [&](std::int64_t from) {
    std::int64_t count = 0;
    for (std::int64_t i = from; i < from + fence; ++i) count += after[static_cast<std::size_t>(i)] != 0x5a;
    return count;
  };
  EXPECT_EQ(changed(0), 0) << "before the workspace";
  EXPECT_EQ(changed(fence + bytes), 0) << "behind the workspace";
}

TEST(CrossEntropy, StaysInsideItsWorkspace) {
  for (Context& ctx : test::contexts())
    for (const DType type : {DType::f32, DType::bf16})
      for (const auto& [n, v] : {std::pair<std::int64_t, std::int64_t>{9, 1024}, {9, 1001}, {5, 32768}, {3, 32000}, {2, 128256}})
        check_workspace(n, v, type, ctx);
}

TEST(CrossEntropy, MemoryDoesNotGrowWithTheTokens) {
  for (const DType type : {DType::f32, DType::bf16}) {
    EXPECT_LE(cross_entropy_workspace(1 << 20, 2048, 128256, type, Device::cpu()), std::size_t{80} << 20);
    EXPECT_EQ(cross_entropy_workspace(1 << 20, 2048, 128256, type, Device::cpu()),
              cross_entropy_workspace(1 << 12, 2048, 128256, type, Device::cpu()));
    EXPECT_LE(cross_entropy_workspace(1 << 20, 64, 256, type, Device::cpu()), std::size_t{80} << 20);
    EXPECT_EQ(cross_entropy_workspace(3, 64, 256, type, Device::cpu()), std::size_t{3} * 256 * 4);
  }
}

TEST(CrossEntropy, RefusesTargetsBeyondTheVocabularyAndSmallWorkspaces) {
  const OwnedTensor x = make_tensor(on_cpu(), DType::f32, {2, 3}, std::vector<double>(6, 1)),
                    w = make_tensor(on_cpu(), DType::f32, {5, 3}, std::vector<double>(15, 1));
  const OwnedTensor workspace = make_tensor(on_cpu(), DType::f32, {10}), small = make_tensor(on_cpu(), DType::f32, {9});
  EXPECT_THROW(cross_entropy(on_cpu(), {.x = x, .w = w, .targets = make_tensor(on_cpu(), DType::i32, {2}, {0, 5}), .workspace = workspace}),
               Error);
  EXPECT_THROW(cross_entropy(on_cpu(), {.x = x, .w = w, .targets = make_tensor(on_cpu(), DType::i32, {2}, {0, 4}), .workspace = small}),
               Error);
  EXPECT_NO_THROW(
      cross_entropy(on_cpu(), {.x = x, .w = w, .targets = make_tensor(on_cpu(), DType::i32, {2}, {0, 4}), .workspace = workspace}));
}

TEST(CrossEntropy, EqualLogitsCostTheLogarithmOfTheVocabulary) {
  const OwnedTensor x = make_tensor(on_cpu(), DType::f32, {3, 2}, std::vector<double>(6, 0)),
                    w = make_tensor(on_cpu(), DType::f32, {1000, 2}, std::vector<double>(2000, 1));
  const OwnedTensor loss = make_tensor(on_cpu(), DType::f32, {1}, {5}), workspace = make_tensor(on_cpu(), DType::f32, {3000});
  cross_entropy(on_cpu(),
                {.x = x, .w = w, .targets = make_tensor(on_cpu(), DType::i32, {3}, {7, -1, 999}), .loss = loss, .workspace = workspace});
  EXPECT_NEAR(to_doubles(on_cpu(), loss)[0], 5 + 2 * std::log(1000.0), 1e-5);
}

}  // namespace
}  // namespace bhyt::testing
