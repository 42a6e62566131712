// Scales, thinning, smoothing, and the SVG that comes of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "report/figure.h"
#include "tests/report/helpers.h"

namespace bhyt::report {
namespace {

TEST(Ticks, AreRoundNumbersInsideTheRange) {
  std::mt19937 gen(7);
  std::uniform_real_distribution<double> exponent(-9, 9), part(-1, 1);
  for (int i = 0; i < 2000; ++i) {
    const double scale = std::pow(10, exponent(gen)), lo = scale * part(gen), hi = lo + scale * std::fabs(part(gen)) + scale * 1e-3;
    const std::vector<double> t = linear_ticks(lo, hi, 6);
    ASSERT_GE(t.size(), 2u) << lo << " " << hi;
    ASSERT_LE(t.size(), 13u);
    const double step = t[1] - t[0];
    const double mantissa = step / std::pow(10, std::floor(std::log10(step) + 1e-9));
    EXPECT_TRUE(std::fabs(mantissa - 1) < 1e-6 || std::fabs(mantissa - 2) < 1e-6 || std::fabs(mantissa - 5) < 1e-6) << mantissa;
    for (const double v : t) {
      EXPECT_GE(v, lo - 1e-6 * step);
      EXPECT_LE(v, hi + 1e-6 * step);
      EXPECT_NEAR(v / step, std::round(v / step), 1e-6);
    }
  }
}

TEST(Ticks, WholeNumbersForStepsAndLayers) {
  EXPECT_EQ(linear_ticks(0, 2, 6, true), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(linear_ticks(0, 1, 6, true), (std::vector<double>{0, 1}));
}

TEST(Ticks, LogAxes) {
  EXPECT_EQ(log_ticks(0.9, 1100, 5), (std::vector<double>{1, 10, 100, 1000}));
  const std::vector<double> few = log_ticks(1, 20, 5);
  EXPECT_EQ(few, (std::vector<double>{1, 2, 5, 10, 20}));
  EXPECT_LE(log_ticks(1e-20, 1e20, 5).size(), 9u);
  EXPECT_GE(log_ticks(2.0, 2.5, 5).size(), 3u);  // less than a decade: linear ticks
}

TEST(Ticks, NothingSensibleGivesNone) {
  EXPECT_TRUE(linear_ticks(1, 1, 5).empty());
  EXPECT_TRUE(linear_ticks(kNaN, 1, 5).empty());
  EXPECT_TRUE(linear_ticks(-1e308, 1e308, 1).empty());
  EXPECT_TRUE(log_ticks(0, 1, 5).empty());
}

TEST(Ticks, Labels) {
  EXPECT_EQ(tick_label(0), "0");
  EXPECT_EQ(tick_label(3 * 0.1), "0.3");
  EXPECT_EQ(tick_label(2.25), "2.25");
  EXPECT_EQ(tick_label(5e-4), "0.0005");
  EXPECT_EQ(tick_label(1e-4, 5e-5), "1e-4");  // as 5e-5 beside it is written
  EXPECT_EQ(tick_label(0.0015, 5e-4), "0.0015");
  EXPECT_EQ(tick_label(2.30001, 1e-5), "2.30001");
  EXPECT_EQ(tick_label(1.5e-5), "1.5e-5");
  EXPECT_EQ(tick_label(1500), "1500");
  EXPECT_EQ(tick_label(20000), "20k");
  EXPECT_EQ(tick_label(1.5e6), "1.5M");
  EXPECT_EQ(tick_label(2e9), "2B");
  EXPECT_EQ(tick_label(-0.5), "-0.5");
  EXPECT_EQ(tick_label(1e20), "1e20");
}

TEST(Axis, FitsAnything) {
  for (const bool log : {false, true})
    for (const auto& [lo, hi] : {std::pair{kNaN, kNaN}, {1.0, 1.0}, {1e-30, 1e30}, {2.0, 3.0}}) {
      const Axis a = fit_axis(lo, hi, {.log = log});
      EXPECT_LT(a.lo, a.hi);
      EXPECT_TRUE(std::isfinite(a.at(a.lo)) && std::isfinite(a.at(a.hi)));
    }
  EXPECT_EQ(fit_axis(2, 3, {.from_zero = true}).lo, 0);
  EXPECT_LT(fit_axis(0, 0).lo, 0);
  EXPECT_TRUE(std::isnan(fit_axis(1, 2, {.log = true}).at(-1)));
}

TEST(Thin, ShortSeriesStayAsTheyAre) {
  Series s;
  for (int i = 1; i <= 50; ++i) s.add(i, i * i);
  const Thinned t = thin(s, 0, 50, 50);
  EXPECT_TRUE(t.exact());
  EXPECT_EQ(t.y, s.y);
}

TEST(Thin, KeepsExtremesMeansAndGaps) {
  Series s;
  std::mt19937 gen(3);
  std::normal_distribution<double> normal;
  for (int i = 1; i <= 100000; ++i) s.add(i, i > 40000 && i <= 60000 ? kNaN : normal(gen));
  s.y[12344] = 1e6;  // one spike up and one down
  s.y[77776] = -1e6;
  const Thinned t = thin(s, 0, 100000, 640);
  EXPECT_LE(t.x.size(), 641u);
  EXPECT_GE(t.x.size(), 600u);
  double lo = 0, hi = 0;
  std::size_t gaps = 0;
  for (std::size_t i = 0; i < t.x.size(); ++i) {
    EXPECT_TRUE(i == 0 || t.x[i - 1] < t.x[i]);
    if (std::isnan(t.y[i])) {
      ++gaps;
      continue;
    }
    lo = std::min(lo, t.lo[i]), hi = std::max(hi, t.hi[i]);
    EXPECT_LE(t.lo[i], t.y[i]);
    EXPECT_GE(t.hi[i], t.y[i]);
  }
  EXPECT_EQ(hi, 1e6);
  EXPECT_EQ(lo, -1e6);
  EXPECT_NEAR(static_cast<double>(gaps), 128, 2);
}

TEST(Smooth, IsTheMeanOfTheWindow) {
  const std::vector<double> x = {1, 2, 3, 4, 10}, y = {1, 3, kNaN, 5, 100};
  const std::vector<double> s = smooth(x, y, 2);
  EXPECT_DOUBLE_EQ(s[0], 2);
  EXPECT_DOUBLE_EQ(s[1], 2);
  EXPECT_TRUE(std::isnan(s[2]));
  EXPECT_DOUBLE_EQ(s[3], 5);
  EXPECT_DOUBLE_EQ(s[4], 100);
  EXPECT_EQ(smooth(x, {1, 2, 3, 4, 5}, 0), (std::vector<double>{1, 2, 3, 4, 5}));
}

TEST(Smooth, ASpikeLeavesNoTrace) {
  std::vector<double> x, y;
  for (int i = 0; i < 100; ++i) x.push_back(i), y.push_back(i == 10 ? 1e30 : 2.5);
  EXPECT_DOUBLE_EQ(smooth(x, y, 6).back(), 2.5);
}

TEST(Escape, LeavesNoMarkupAndNoBrokenBytes) {
  EXPECT_EQ(escape("<b>\"a\" & 'b'</b>"), "&lt;b&gt;&quot;a&quot; &amp; &#39;b&#39;&lt;/b&gt;");
  EXPECT_EQ(escape("κ=10"), "κ=10");
  EXPECT_EQ(escape("a\xff"
                   "b"),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(escape("line\nnext"), "line\nnext");
}

Figure figure_of(std::vector<double> y) {
  Figure f{.id = "t", .width = 152, .height = 146};
  Line line{.run = 0};
  for (std::size_t i = 0; i < y.size(); ++i) line.data.x.push_back(static_cast<double>(i));
  line.data.y = std::move(y);
  f.lines = {line};
  f.x = {.lo = 0, .hi = 4, .whole = true};
  f.y = {.lo = 0, .hi = 1};
  return f;
}

TEST(Svg, GapsBreakTheLineAndLonePointsAreDots) {
  // The frame is 86 wide and 100 high: x = 52 + 21.5 i, y = 112 − 100 v.
  const std::string svg = draw_svg(figure_of({0, 0.5, kNaN, 1}), 0);
  EXPECT_NE(svg.find("d=\"M52 112h0l21.5 -50M116.5 12h0\""), std::string::npos) << svg;
}

TEST(Svg, WhatLiesFarOutsideIsBroughtNear) {
  const std::string svg = draw_svg(figure_of({0, 1e25, 0.5}), 0);
  EXPECT_NE(svg.find("l21.5 -900"), std::string::npos) << svg;
}

report::Run run_of(const std::string& name, int steps, double loss) {
  report::Run r;
  r.name = name;
  for (int s = 1; s <= steps; ++s) {
    r.loss.add(s, loss);
    r.lr.add(s, 0.001973314);
  }
  return r;
}

TEST(Figures, SecondHalfIsEachRunsOwn) {
  const std::vector<Figure> figures = make_figures({run_of("long", 1000, 2), run_of("short", 100, 2.1)});
  const Figure& close = figure_named(figures, "close");
  ASSERT_EQ(close.lines.size(), 4u);
  EXPECT_EQ(close.lines[0].run, 0);
  EXPECT_GE(close.lines[0].data.x.front(), 500);
  EXPECT_EQ(close.lines[2].run, 1);
  ASSERT_EQ(close.lines[2].data.x.size(), 51u);  // and none of a run that ended before the other's half would be left
  EXPECT_EQ(close.lines[2].data.x.front(), 50);
  EXPECT_EQ(close.x.lo, 50);
  EXPECT_EQ(close.x.hi, 1000);
  EXPECT_EQ(close.caption, "Each run from its own middle on. ");
  // A run that has recorded nothing has no half.
  EXPECT_EQ(figure_named(make_figures({run_of("long", 1000, 2), run_of("empty", 0, 0)}), "close").x.lo, 500);
}

// A run that has learned its data by heart: validation, far above training, is in the frame, too.
TEST(Figures, SecondHalfShowsValidation) {
  report::Run run = run_of("a", 100, 0.2);
  for (int s = 60; s <= 100; s += 10) run.valid.add(s, 0.6);
  const std::vector<Figure> figures = make_figures({run});
  const Figure& close = figure_named(figures, "close");
  EXPECT_GT(close.y.hi, 0.6);
  EXPECT_LT(close.y.lo, 0.2);
}

TEST(Figures, PeakRateIsTheSchedules) {
  std::vector<report::Run> runs = {run_of("a", 10, 2), run_of("b", 10, 2)};
  const auto caption = [&] { return figure_named(make_figures(runs), "lr").caption; };
  EXPECT_EQ(caption(), "");  // not known without the config
  runs[0].config = {{"train.lr", "0.002"}};
  EXPECT_EQ(caption(), "Peak of the schedule: a 0.002.");
  runs[1].config = {{"train.lr", "2e-3"}};
  EXPECT_EQ(caption(), "Peak of the schedule: 0.002 in every run.");
  runs[1].config = {{"train.lr", "5e-05"}};
  EXPECT_EQ(caption(), "Peak of the schedule: a 0.002, b 5e-5.");
}

TEST(Figures, RunsLookDifferent) {
  std::set<std::string> looks;
  for (int run = 0; run < 36; ++run) looks.insert(look_of(run));
  EXPECT_EQ(looks.size(), 36u);
  EXPECT_EQ(look_of(0).find("dash"), std::string::npos);
  for (int run = 1; run < 36; ++run) EXPECT_NE(look_of(run).find("dash"), std::string::npos);  // what lies below is seen through it
}

TEST(Svg, OnePointIsACircle) {
  EXPECT_NE(draw_svg(figure_of({0.5}), 0).find("<circle cx=\"52\" cy=\"62\""), std::string::npos);
  EXPECT_EQ(draw_svg(figure_of({kNaN}), 0).find("<circle"), std::string::npos);
}

}  // namespace
}  // namespace bhyt::report
