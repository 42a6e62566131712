// Looking inside: which points a pass shows, how often, in which shape and with which values; who gets to see them; and that looking
// changes nothing.
#include "model/observer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "model/score_pass.h"
#include "model/train_pass.h"
#include "tests/devices.h"
#include "tests/model/decoding.h"
#include "tests/model/reference_model.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

// Statistics and scales are not there in every method: they have a test of their own below.
const std::vector<Point> kOnce{Point::embedding, Point::last, Point::logits};
const std::vector<Point> kPerLayer{
    Point::block_input,     Point::z1, Point::q,    Point::k,  Point::v,      Point::attention,  Point::attention_output,
    Point::after_attention, Point::z2, Point::gate, Point::up, Point::hidden, Point::mlp_output, Point::block_output};
std::vector<Point> all_points() {
  std::vector<Point> all = kOnce;
  all.insert(all.end(), kPerLayer.begin(), kPerLayer.end());
  return all;
}

struct Look {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values;
};
// By point and layer, every time it was shown.
using Looks = std::map<std::pair<Point, std::int64_t>, std::vector<Look>>;

Observers::Callback note_in(Looks& looks) {
  return [&looks](Context& ctx, const Seen& seen) {
    const Tensor& t = seen.value;
    const OwnedTensor dense(ctx, t.dtype, {t.rows(), t.cols()});
    copy_rows(ctx, t, dense);
    Look look{t.rows(), t.cols(), {}};
    if (t.dtype == DType::f32) look.values = on_host(ctx, dense);
    looks[{seen.point, seen.layer}].push_back(look);
  };
}

std::int64_t width_of(Point p, const ModelConfig& c) {
  switch (p) {
    case Point::q:
    case Point::attention: return c.q_width();
    case Point::k:
    case Point::v: return c.kv_width();
    case Point::gate:
    case Point::up:
    case Point::hidden: return c.mlp;
    case Point::logits: return c.vocab;
    default: return c.d;
  }
}

// Each point once, in its shape, and nothing else; logits of `asked` rows.
void expect_every_point_once(const Looks& looks, const ModelConfig& c, std::int64_t tokens, std::int64_t asked) {
  Looks rest = looks;
  const auto expect = [&](Point p, std::int64_t layer, std::int64_t rows) {
    const std::string what = fmt::format("{} of layer {}", name_of(p), layer);
    const auto it = rest.find({p, layer});
    ASSERT_NE(it, rest.end()) << what;
    EXPECT_EQ(it->second.size(), 1u) << what;
    EXPECT_EQ(it->second[0].rows, rows) << what;
    EXPECT_EQ(it->second[0].cols, width_of(p, c)) << what;
    rest.erase(it);
  };
  expect(Point::embedding, 0, tokens);
  for (std::int64_t l = 1; l <= c.layers; ++l)
    for (const Point p : kPerLayer) expect(p, l, tokens);
  expect(Point::last, c.layers + 1, tokens);
  expect(Point::logits, c.layers + 1, asked);
  for (const auto& [where, seen] : rest) ADD_FAILURE() << name_of(where.first) << " of layer " << where.second << " was not expected";
}

struct Looked {
  Looks train, score, decode;
  Result plain, observed;
};

Looked look_at(Context& ctx, const Model& m, const Rows& rows, Recompute recompute = Recompute::none) {
  Looked all;
  const Tokens tokens(ctx, rows);
  all.plain = gradients_of(ctx, m, rows, {.recompute = recompute});
  {
    TrainingStep step(ctx, m, rows, {.recompute = recompute});
    const auto subscription = step.pass.observers.subscribe(all_points(), note_in(all.train));
    all.observed = step.run();
  }
  {
    ScorePass pass(ctx, m, tokens.batch.batch, kSeq);
    const auto subscription = pass.observers.subscribe(all_points(), note_in(all.score));
    pass.forward(tokens.batch);
  }
  test::Sequences sequences(ctx, m, 2, kSeq, 2 * kSeq);
  const auto subscription = sequences.pass.observers.subscribe(all_points(), note_in(all.decode));
  const std::vector<std::int32_t> first(rows[0].begin(), rows[0].end() - 1), second(rows[1].begin(), rows[1].end() - 1);
  sequences.run({{0, first}, {1, second}});
  return all;
}

TEST(Observers, EveryPassShowsEveryPointOnce) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods())
      for (const DType type : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(fmt::format("{} {} {}", method.name, name_of(ctx.device()), name_of(type)));
        const auto m = make_model(ctx, small_config(std::string(method.name), 2), type);
        const Looked seen = look_at(ctx, *m, draw_rows(23, 2));
        expect_every_point_once(seen.train, m->config(), 2 * kSeq, 2 * kSeq);
        expect_every_point_once(seen.score, m->config(), 2 * kSeq, 2 * kSeq);
        expect_every_point_once(seen.decode, m->config(), 2 * kSeq, 2);
        EXPECT_TRUE(same_bits(seen.observed.gradients, seen.plain.gradients) && seen.observed.loss == seen.plain.loss)
            << "looking changed something";
      }
}

TEST(Observers, WhatIsMadeAgainIsNotShownAgain) {
  for (Context& ctx : test::contexts())
    for (const Recompute recompute : {Recompute::norm, Recompute::swiglu, Recompute::block}) {
      const auto m = make_model(ctx, small_config("peri", 2));
      const Looked seen = look_at(ctx, *m, draw_rows(23, 2), recompute);
      expect_every_point_once(seen.train, m->config(), 2 * kSeq, 2 * kSeq);
      for (const auto& [where, looks] : seen.train)
        EXPECT_TRUE(same_bits(looks.at(0).values, seen.score.at(where).at(0).values))
            << name_of(where.first) << " of layer " << where.second;
      EXPECT_TRUE(same_bits(seen.observed, seen.plain));
    }
}

// The statistic that a site sees, from the rows that were shown beside it.
double statistic_of(Stat stat, const Look& x, std::int64_t row) {
  double mean = 0, square = 0;
  for (std::int64_t j = 0; j < x.cols; ++j) mean += static_cast<double>(x.values[static_cast<std::size_t>(row * x.cols + j)]);
  mean = stat == Stat::rms ? 0 : mean / static_cast<double>(x.cols);
  for (std::int64_t j = 0; j < x.cols; ++j)
    square += std::pow(static_cast<double>(x.values[static_cast<std::size_t>(row * x.cols + j)]) - mean, 2);
  return square / static_cast<double>(x.cols);
}

// One site of one layer: what was shown of its statistic and scale against the rows and the site's own numbers.
void check_site(const Looks& looks, const NormSite& site, std::int64_t layer, bool second, double constant, const Model& m) {
  const Point statistic = second ? Point::statistic2 : Point::statistic1, scale = second ? Point::scale2 : Point::scale1;
  const Look& a = looks.at({scale, layer}).at(0);
  const double k = static_cast<double>(site.factor) * (site.scale ? static_cast<double>(on_host(m.context(), site.scale)[0]) : 1.0);
  ASSERT_EQ(a.rows * a.cols, 2 * kSeq);
  ASSERT_EQ(looks.count({statistic, layer}), site.stat == Stat::none ? 0u : 1u);
  for (std::int64_t row = 0; row < 2 * kSeq; ++row) {
    const double shown = static_cast<double>(a.values[static_cast<std::size_t>(row)]);
    if (site.stat == Stat::none) {
      EXPECT_NEAR(shown, k, 1e-6 * k);
      continue;
    }
    const Stat kind = site.stat == Stat::given ? Stat::rms : site.stat;
    const Look& x = looks.at({second && site.stat != Stat::given ? Point::after_attention : Point::block_input, layer}).at(0);
    const double s = statistic_of(kind, x, row) + (site.stat == Stat::given ? constant : 0);
    EXPECT_NEAR(static_cast<double>(looks.at({statistic, layer}).at(0).values[static_cast<std::size_t>(row)]), s, 1e-5 * s) << row;
    if (site.stat == Stat::mean_std) continue;  // its scale needs the mean, too
    EXPECT_NEAR(shown, k / std::sqrt(s + static_cast<double>(site.eps)), 1e-5 * shown) << row;
  }
}

TEST(Observers, StatisticsAndScalesAreThoseOfTheRows) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) {
      SCOPED_TRACE(fmt::format("{} {}", method.name, name_of(ctx.device())));
      const auto m = make_model(ctx, small_config(std::string(method.name), 2));
      const Tokens tokens(ctx, draw_rows(23, 2));
      Looks looks;
      ScorePass pass(ctx, *m, 2, kSeq);
      const auto subscription = pass.observers.subscribe(
          {Point::statistic1, Point::scale1, Point::statistic2, Point::scale2, Point::block_input, Point::after_attention}, note_in(looks));
      pass.forward(tokens.batch);
      for (std::size_t l = 0; l < 2; ++l) {
        const Block& b = m->blocks()[l];
        double constant = 0;  // C = c_attn·(λ/κ)², with mean(γ²) where the method has it
        if (b.plan().uses_constant) {
          const NormSite& site1 = b.site1();
          const double k = static_cast<double>(site1.factor) * (site1.scale ? static_cast<double>(on_host(ctx, site1.scale)[0]) : 1.0);
          constant = static_cast<double>(on_host(ctx, m->constants())[l]) * k * k;
          double squares = 0;
          for (const float g : on_host(ctx, site1.gamma)) squares += static_cast<double>(g) * static_cast<double>(g);
          if (b.plan().gamma_in_constant) constant *= squares / static_cast<double>(m->config().d);
        }
        check_site(looks, b.site1(), static_cast<std::int64_t>(l) + 1, false, 0, *m);
        check_site(looks, b.site2(), static_cast<std::int64_t>(l) + 1, true, constant, *m);
      }
    }
}

void expect_near(const std::vector<float>& got, const ReferenceModel::Rows& expected, const std::string& what) {
  std::vector<double> flat;
  for (const auto& row : expected) flat.insert(flat.end(), row.begin(), row.end());
  ASSERT_EQ(got.size(), flat.size()) << what;
  double top = 0, worst = 0;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    top = std::max(top, std::fabs(flat[i]));
    worst = std::max(worst, std::fabs(got[i] - flat[i]));
  }
  EXPECT_LE(worst, 2e-5 * top) << what;
}

// All three passes show the values of the naive model; training and scoring the same bits.
TEST(Observers, ValuesAreThoseOfTheReference) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) {
      SCOPED_TRACE(fmt::format("{} {}", method.name, name_of(ctx.device())));
      const auto m = make_model(ctx, small_config(std::string(method.name), 2));
      const auto rows = draw_rows(23, 2);
      NamedValues weights;
      for (const Parameter& p : m->parameters().list()) {
        const auto v = m->parameters().read_value(p);
        weights[p.name].assign(v.begin(), v.end());
      }
      const std::vector<float> c_attn = on_host(ctx, m->constants());
      ReferenceModel reference(m->config(), {c_attn.begin(), c_attn.end()});
      reference.freeze(weights);
      ReferenceModel::Trace trace;
      reference.record(&trace);
      reference.loss(weights, rows);
      const Looked seen = look_at(ctx, *m, rows);
      for (const auto& [name, looks] : {std::pair{"train", &seen.train}, {"score", &seen.score}, {"decode", &seen.decode}})
        for (std::int64_t l = 1; l <= 2; ++l) {
          const std::string where = fmt::format("{} layer {} ", name, l);
          expect_near(looks->at({Point::z1, l}).at(0).values, trace.z1.at(l - 1), where + "z1");
          expect_near(looks->at({Point::after_attention, l}).at(0).values, trace.after_attention.at(l - 1), where + "x'");
          expect_near(looks->at({Point::block_output, l}).at(0).values, trace.block_output.at(l - 1), where + "output");
        }
      for (const auto& [where, looks] : seen.train)
        EXPECT_TRUE(same_bits(looks.at(0).values, seen.score.at(where).at(0).values))
            << name_of(where.first) << " of layer " << where.second;
    }
}

// The parts of a block as they follow from each other.
TEST(Observers, PointsFitTogether) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("bhyt", 2));
  const Looks seen = look_at(ctx, *m, draw_rows(23, 2)).score;
  const auto at = [&](Point p, std::int64_t layer) { return seen.at({p, layer}).at(0).values; };
  EXPECT_TRUE(same_bits(at(Point::block_input, 1), at(Point::embedding, 0)));
  EXPECT_TRUE(same_bits(at(Point::block_input, 2), at(Point::block_output, 1)));
  for (std::int64_t l = 1; l <= 2; ++l) {
    const auto x = at(Point::block_input, l), o = at(Point::attention_output, l), x2 = at(Point::after_attention, l),
               down = at(Point::mlp_output, l), out = at(Point::block_output, l);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(x2[i], x[i] + o[i]);
      ASSERT_EQ(out[i], x2[i] + down[i]);
    }
    const auto gate = at(Point::gate, l), up = at(Point::up, l), hidden = at(Point::hidden, l);
    for (std::size_t i = 0; i < gate.size(); ++i) ASSERT_NEAR(hidden[i], gate[i] / (1 + std::exp(-gate[i])) * up[i], 1e-5);
  }
}

TEST(Observers, SubscribersSeeWhatTheyAskedForUntilTheyEnd) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  const Tokens tokens(ctx, draw_rows(23, 1));
  ScorePass pass(ctx, *m, 1, kSeq);
  std::vector<std::string> seen;
  const auto note = [&](std::string who) {
    return [&seen, who](Context&, const Seen& s) { seen.push_back(fmt::format("{} {} {}", who, name_of(s.point), s.layer)); };
  };
  const auto run = [&] {
    seen.clear();
    pass.forward(tokens.batch);
    return seen;
  };
  using Names = std::vector<std::string>;
  EXPECT_FALSE(pass.observers.any());
  EXPECT_EQ(run(), Names{});
  {
    const auto all = pass.observers.subscribe({Point::block_output, Point::embedding}, note("a"));
    EXPECT_TRUE(pass.observers.any());
    EXPECT_EQ(run(), (Names{"a embedding 0", "a block_output 1", "a block_output 2"}));
    {
      Observers::Subscription second = pass.observers.subscribe({Point::block_output, Point::z2}, note("b"), {2});
      EXPECT_EQ(run(), (Names{"a embedding 0", "a block_output 1", "b z2 2", "a block_output 2", "b block_output 2"}));
      EXPECT_TRUE(pass.observers.want(Point::z2, 2));
      EXPECT_FALSE(pass.observers.want(Point::z2, 1));
      const Observers::Subscription moved = std::move(second);
      EXPECT_EQ(run().size(), 5u) << "a subscription that moved goes on";
    }
    EXPECT_FALSE(pass.observers.want(Point::z2, 2));
    EXPECT_EQ(run(), (Names{"a embedding 0", "a block_output 1", "a block_output 2"}));
  }
  EXPECT_FALSE(pass.observers.any());
  EXPECT_EQ(run(), Names{});
}

TEST(Observers, PointsHaveNames) {
  std::map<std::string_view, int> names;
  for (std::size_t i = 0; i < kPoints; ++i) ++names[name_of(static_cast<Point>(i))];
  EXPECT_EQ(names.size(), kPoints);
  EXPECT_EQ(names.count(""), 0u);
  EXPECT_EQ(name_of(Point::after_attention), "after_attention");
  EXPECT_EQ(name_of(Point::logits), "logits");
}

}  // namespace
}  // namespace bhyt::testing
