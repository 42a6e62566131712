// Every number of an analysis against a naive model in double precision.
#include "analysis/analyze.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/devices.h"
#include "tests/model/helpers.h"
#include "tests/model/reference_model.h"
#include "tests/model/small_model.h"

namespace bhyt::analysis {
namespace {

using testing::NamedValues;
using testing::ReferenceModel;
using DoubleRows = ReferenceModel::Rows;

constexpr int kRows = 3;

// Scales at which maps bend, so that there is something to count.
ModelConfig config_of(const std::string& method) {
  ModelConfig c = testing::small_config(method, 2);
  c.norm.kappa = 1.5;
  c.norm.lambda = {3, 2.5};
  c.norm.alpha = std::array{4.0, 3.0, 1.0};
  return c;
}

// Rows that continue each other, as analyze reads them: the last token of one is the first of the next.
std::vector<std::int32_t> draw_tokens() {
  std::vector<std::int32_t> out;
  for (const auto& row : testing::draw_rows(23, kRows)) out.insert(out.end(), row.begin(), row.end() - 1);
  out.push_back(7);
  return out;
}
testing::Rows as_rows(const std::vector<std::int32_t>& tokens, std::size_t count = kRows) {
  testing::Rows out;
  for (std::size_t r = 0; r < count; ++r) {
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(r * testing::kSeq);
    out.emplace_back(from, from + testing::kSeq + 1);
  }
  return out;
}

struct Naive {
  ReferenceModel model;
  NamedValues weights;
  ReferenceModel::Trace trace;
  double loss = 0;
};
Naive naive_of(Context& ctx, const Model& m, const testing::Rows& rows, std::int64_t left_out = -1) {
  const std::vector<float> c_attn = testing::on_host(ctx, m.constants());
  Naive n{ReferenceModel(m.config(), {c_attn.begin(), c_attn.end()}), {}, {}};
  for (const Parameter& p : m.parameters().list()) {
    const auto v = m.parameters().read_value(p);
    n.weights[p.name].assign(v.begin(), v.end());
  }
  n.model.freeze(n.weights);
  n.model.record(&n.trace);
  n.model.leave_out(left_out);
  n.loss = n.model.loss(n.weights, rows);
  return n;
}

double mean_square(const DoubleRows& x) {
  double sum = 0, n = 0;
  for (const auto& row : x)
    for (const double v : row) sum += v * v, ++n;
  return sum / n;
}

void expect_stream(const StreamStats& got, const DoubleRows& x) {
  double norm = 0, abs = 0, variance = 0, kurtosis = 0, largest = 0;
  for (const auto& row : x) {
    const auto n = static_cast<double>(row.size());
    double mean = 0, square = 0, second = 0, fourth = 0;
    for (const double v : row) mean += v / n, square += v * v, abs += std::fabs(v) / n, largest = std::fmax(largest, std::fabs(v));
    for (const double v : row) second += std::pow(v - mean, 2) / n, fourth += std::pow(v - mean, 4) / n;
    norm += std::sqrt(square), variance += second, kurtosis += fourth / (second * second);
  }
  const auto tokens = static_cast<double>(x.size());
  EXPECT_EQ(got.tokens(), std::ssize(x));
  EXPECT_NEAR(got.norm() / (norm / tokens), 1, 1e-5);
  EXPECT_NEAR(got.abs() / (abs / tokens), 1, 1e-5);
  EXPECT_NEAR(got.variance() / (variance / tokens), 1, 1e-5);
  EXPECT_NEAR(got.kurtosis() / (kurtosis / tokens), 1, 1e-4);
  EXPECT_NEAR(std::fabs(got.largest().value) / largest, 1, 1e-5);
}

// From the site's output: f = (z/factor − β)/γ, and what went into f by the map's inverse.
void expect_site(const SiteStats& got, const Naive& n, const std::string& name, const DoubleRows& x, const DoubleRows& z, double factor) {
  EXPECT_NEAR(got.gain() / std::sqrt(mean_square(z) / mean_square(x)), 1, 1e-5) << name;
  EXPECT_NEAR(got.output() / std::sqrt(mean_square(z)), 1, 1e-5) << name;
  const auto scalar = [&](const char* what) { return n.weights.contains(name + what) ? n.weights.at(name + what)[0] : 0; };
  EXPECT_NEAR(got.facts().lambda.value_or(0), scalar(".lam"), 1e-7) << name;
  EXPECT_NEAR(got.facts().alpha.value_or(0), scalar(".alpha"), 1e-7) << name;
  if (got.facts().map == Map::id) return;
  ASSERT_EQ(got.facts().map, Map::tanh);
  const std::vector<double>& gamma = n.weights.at(name + ".weight");
  double saturated = 0, beyond = 0, elements = 0, linear = 0;
  for (const auto& row : z)
    for (std::size_t j = 0; j < row.size(); ++j, ++elements) {
      const double f = row[j] / factor / gamma[j], u = std::atanh(f);
      saturated += std::fabs(f) > 0.95;
      beyond += std::fabs(u) > scalar(".lam");
      linear += std::pow(factor * gamma[j] * u, 2);
    }
  EXPECT_NEAR(got.saturated().value(), saturated / elements, 1e-9) << name;
  EXPECT_GT(saturated, 0) << "nothing is tested";
  EXPECT_LT(saturated, elements);
  if (scalar(".lam") != 0) {
    EXPECT_NEAR(got.beyond_lambda().value(), beyond / elements, 1e-9) << name;
    EXPECT_NEAR(got.facts().chebyshev.value(), 1 / (1.5 * 1.5), 1e-6) << name;
  }
  EXPECT_NEAR(got.linear_gain() / std::sqrt(linear / elements / mean_square(x)), 1, 1e-3) << name;
}

void expect_approximation(const ApproximationStats& got, const DoubleRows& given, const DoubleRows& x) {
  std::vector<double> a, b;
  double ratio = 0, ma = 0, mb = 0, aa = 0, bb = 0, ab = 0, worst = 0;
  const auto n = static_cast<double>(x.size());
  for (std::size_t t = 0; t < x.size(); ++t) {
    a.push_back(given[t][0]);
    b.push_back(mean_square({x[t]}));
    ratio += a[t] / b[t] / n, ma += a[t] / n, mb += b[t] / n;
    worst = std::fmax(worst, std::fabs(std::log(a[t] / b[t])));
  }
  for (std::size_t t = 0; t < x.size(); ++t)
    aa += (a[t] - ma) * (a[t] - ma), bb += (b[t] - mb) * (b[t] - mb), ab += (a[t] - ma) * (b[t] - mb);
  EXPECT_NEAR(got.ratio() / ratio, 1, 1e-5);
  EXPECT_NEAR(got.correlation().value(), ab / std::sqrt(aa * bb), 1e-5);
  EXPECT_NEAR(std::fabs(std::log(got.worst().ratio())), worst, 1e-5);
  ASSERT_EQ(got.points(1000).size(), x.size());
  EXPECT_NEAR(got.points(1000)[4].approximated / a[4], 1, 1e-5);
  EXPECT_NEAR(got.points(1000)[4].actual / b[4], 1, 1e-5);
}

void expect_entropy(const EntropyStats& got, const ModelConfig& c, const DoubleRows& q, const DoubleRows& k) {
  double nats = 0, relative = 0, count = 0;
  const auto d = static_cast<std::size_t>(c.head_dim), group = static_cast<std::size_t>(c.heads / c.kv_heads);
  for (std::size_t row = 0; row < q.size(); row += testing::kSeq)
    for (std::size_t t = 1; t < testing::kSeq; ++t)
      for (std::size_t h = 0; h < static_cast<std::size_t>(c.heads); ++h, ++count) {
        std::vector<double> p;
        double sum = 0, entropy = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (std::size_t j = 0; j < d; ++j) score += q[row + t][h * d + j] * k[row + s][h / group * d + j];
          sum += p.emplace_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        }
        for (const double e : p) entropy -= e / sum * std::log(e / sum);
        nats += entropy, relative += entropy / std::log(static_cast<double>(t + 1));
      }
  EXPECT_EQ(static_cast<double>(got.count()), count);
  EXPECT_NEAR(got.nats(), nats / count, 1e-5);
  EXPECT_NEAR(got.relative(), relative / count, 1e-5);
}

double cosine(const DoubleRows& a, const DoubleRows& b) {
  double sum = 0;
  for (std::size_t t = 0; t < a.size(); ++t)
    sum += testing::dot(a[t].data(), b[t].data(), a[t].size()) /
           std::sqrt(testing::dot(a[t].data(), a[t].data(), a[t].size()) * testing::dot(b[t].data(), b[t].data(), b[t].size()));
  return sum / static_cast<double>(a.size());
}

void expect_layer(const LayerAnalysis& got, const Model& m, const Naive& n) {
  const std::int64_t l = got.layer - 1;
  const std::string name = fmt::format("model.layers.{}.", l);
  const DoubleRows& input = l == 0 ? n.trace.embedding : n.trace.block_output.at(l - 1);
  const BlockPlan& plan = m.norms().blocks[static_cast<std::size_t>(l)];
  expect_stream(got.seen.output, n.trace.block_output.at(l));
  EXPECT_NEAR(got.seen.cosine.mean(), cosine(input, n.trace.block_output.at(l)), 1e-5);
  expect_site(got.seen.attention, n, name + "input_layernorm", input, n.trace.z1.at(l), static_cast<double>(plan.site1.out_factor));
  expect_site(got.seen.mlp, n, name + "post_attention_layernorm", n.trace.after_attention.at(l), n.trace.z2.at(l),
              static_cast<double>(plan.site2.out_factor));
  EXPECT_EQ(got.seen.approximation.has_value(), plan.site2.stat == Stat::given);
  if (got.seen.approximation) expect_approximation(*got.seen.approximation, n.trace.given.at(l), n.trace.after_attention.at(l));
  expect_entropy(got.seen.entropy, m.config(), n.trace.q.at(l), n.trace.k.at(l));
}

void expect_gradients(Context& ctx, const Analysis& a, const Model& m, const testing::Rows& rows) {
  const testing::Result result = testing::gradients_of(ctx, m, rows);
  std::map<std::string, double> squares;
  const std::vector<std::string> parts{"model.embed", "model.layers.0.", "model.layers.1.", "model.norm"};
  double all = 0;
  for (const Parameter& p : m.parameters().list())
    for (const std::string& part : parts)
      if (p.name.starts_with(part))
        for (const float g : result.of(p)) {
          squares[part] += std::pow(static_cast<double>(g), 2);
          all += std::pow(static_cast<double>(g), 2);
        }
  for (const LayerAnalysis& l : a.layers)
    EXPECT_NEAR(l.gradient / std::sqrt(squares.at(fmt::format("model.layers.{}.", l.layer - 1))), 1, 1e-5);
  EXPECT_NEAR(a.gradients.all / std::sqrt(all), 1, 1e-5);
  EXPECT_NEAR(a.gradients.embedding / std::sqrt(squares.at("model.embed")), 1, 1e-5);
  EXPECT_NEAR(a.gradients.end / std::sqrt(squares.at("model.norm")), 1, 1e-5);
}

class Analyze : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, Analyze,
                         ::testing::Values("rmsnorm", "layernorm", "lns", "peri", "dyt", "seednorm", "rmsnorm_approx", "bhyt_star", "bhyt"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Analyze, EveryValueIsTheNaiveModels) {
  for (Context& ctx : test::contexts()) {
    const auto m = testing::make_model(ctx, config_of(GetParam()));
    const auto tokens = draw_tokens();
    // The gradient and the losses without a block: of the first two rows.
    const Analysis a = analyze(ctx, *m, tokens, {.seq = testing::kSeq, .batch_tokens = 2 * testing::kSeq});
    const Naive n = naive_of(ctx, *m, as_rows(tokens));
    EXPECT_EQ(a.rows, kRows);
    EXPECT_NEAR(a.loss, n.loss, 1e-5);
    expect_stream(a.embedding, n.trace.embedding);
    ASSERT_EQ(a.layers.size(), 2u);
    const testing::Rows first = as_rows(tokens, 2);
    EXPECT_NEAR(a.batch_loss, naive_of(ctx, *m, first).loss, 1e-5);
    for (const LayerAnalysis& l : a.layers) {
      SCOPED_TRACE(fmt::format("layer {}", l.layer));
      expect_layer(l, *m, n);
      EXPECT_NEAR(l.left_out, naive_of(ctx, *m, first, l.layer - 1).loss, 1e-5);
      EXPECT_GT(std::fabs(l.left_out - a.batch_loss), 1e-4) << "nothing is tested";
    }
    expect_gradients(ctx, a, *m, first);
  }
}

// Constant factors outside the map, and an auxiliary loss, which is no part of the gradient here.
TEST(Analysis, OptionsOfTheNorm) {
  Context& ctx = test::context_on(Device::cpu());
  ModelConfig c = config_of("bhyt");
  c.norm.gain = Gain::fixed_unit;
  c.norm.depth_factor = Depth::inv_sqrt;
  c.norm.exact_list = {2};
  const auto m = testing::make_model(ctx, c);
  c.norm.aux_loss = 5;
  const auto with_aux = testing::make_model(ctx, c);
  const auto tokens = draw_tokens();
  const Analysis a = analyze(ctx, *with_aux, tokens, {.seq = testing::kSeq});
  const Naive n = naive_of(ctx, *m, as_rows(tokens));
  for (const LayerAnalysis& l : a.layers) expect_layer(l, *m, n);
  EXPECT_TRUE(a.layers[0].seen.approximation);
  EXPECT_FALSE(a.layers[1].seen.approximation);
  expect_gradients(ctx, a, *m, as_rows(tokens));
}

TEST(Analysis, OfSomeLayersIsTheSame) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = testing::make_model(ctx, config_of("bhyt"));
  const auto tokens = draw_tokens();
  const auto all = to_json(analyze(ctx, *m, tokens, {.seq = testing::kSeq}), 5);
  const auto some = to_json(analyze(ctx, *m, tokens, {.layers = {2}, .seq = testing::kSeq}), 5);
  ASSERT_EQ(some["layers"].size(), 1u);
  EXPECT_EQ(some["layers"][0].dump(), all["layers"][1].dump());
  EXPECT_EQ(some["layers"][0]["approximation"]["points"].size(), 5u);
}

// The passes of a bf16 model are looked at in the same way.
TEST(Analysis, OfABf16ModelIsNearThatOfFp32) {
  Context& ctx = test::context_on(Device::cpu());
  const auto tokens = draw_tokens();
  const auto of = [&](DType type) {
    const auto m = testing::make_model(ctx, config_of("bhyt"), type);
    return analyze(ctx, *m, tokens, {.seq = testing::kSeq});
  };
  const Analysis exact = of(DType::f32), rounded = of(DType::bf16);
  EXPECT_NEAR(rounded.layers[1].seen.output.norm() / exact.layers[1].seen.output.norm(), 1, 0.02);
  EXPECT_NEAR(rounded.layers[1].seen.entropy.nats() / exact.layers[1].seen.entropy.nats(), 1, 0.02);
}

TEST(Analysis, RefusesWhatItCannotRead) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = testing::make_model(ctx, config_of("bhyt"));
  const auto tokens = draw_tokens();
  const auto message = [&](const AnalyzeOptions& o, std::size_t n) {
    return test::message_of([&] { analyze(ctx, *m, std::span(tokens).first(n), o); });
  };
  EXPECT_TRUE(test::has(message({.layers = {3}, .seq = 9}, 28), "no layer 3: the model has layers 1 to 2"));
  EXPECT_TRUE(test::has(message({.seq = 9}, 9), "expected text for at least one row of 9 tokens and the one behind it, got 9 tokens"));
  EXPECT_TRUE(test::has(message({.seq = 1}, 9), "a row must hold at least 2 tokens, got 1"));
}

TEST(Analysis, AModelWithoutNumbersIsRefusedWithItsLayer) {
  Context& ctx = test::context_on(Device::cpu());
  const auto tokens = draw_tokens();
  for (const auto& [name, said] : {std::pair{"model.layers.1.mlp.down_proj.weight", "the output of block 2 is not finite"},
                                   {"model.layers.0.input_layernorm.weight", "the output of block 1 is not finite"},
                                   {"model.norm.weight", "the blocks' outputs are finite (last norm or head), the loss is not"}}) {
    const auto m = testing::make_model(ctx, config_of("bhyt"));
    const Parameter& p = m->parameters().at(name);
    std::vector<float> v = m->parameters().read_value(p);
    v[0] = std::nanf("");
    m->parameters().write_value(p, v.data());
    EXPECT_TRUE(test::has(test::message_of([&] { analyze(ctx, *m, tokens, {.seq = 9}); }), said)) << name;
  }
}

TEST(Analysis, TablesFitAWidePage) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = testing::make_model(ctx, config_of("bhyt"));
  const std::vector<std::string> lines = tables(analyze(ctx, *m, draw_tokens(), {.seq = testing::kSeq}));
  ASSERT_EQ(lines.size(), 1u + 3 + 1 + 1 + 4 + 1 + 1 + 2);  // each with a head line, an empty line between them
  for (const std::string& line : lines) {
    const auto letters = std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; });
    EXPECT_LE(letters, 140) << line;
  }
}

}  // namespace
}  // namespace bhyt::analysis
