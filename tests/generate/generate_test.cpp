#include "generate/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/check.h"

namespace bhyt {
namespace {

std::map<std::int32_t, int> histogram(const SamplerOptions& options, const std::vector<float>& logits, int draws) {
  Sampler sampler(options);
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.next(logits)];
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOfEquals) {
  Sampler s({});
  EXPECT_EQ(s.next({0.f, 3.f, -1.f, 3.f}), 1);
  EXPECT_EQ(s.next({-5.f}), 0);
  EXPECT_EQ(s.next({-std::numeric_limits<float>::infinity(), -7.f}), 1);
}

TEST(Sampler, FollowsTheSoftmax) {
  const std::vector<float> logits{0.f, std::log(2.f), std::log(5.f), -100.f};
  const int n = 40000;
  const auto counts = histogram({.temperature = 1, .seed = 3}, logits, n);
  EXPECT_NEAR(counts.at(0) / double(n), 1 / 8.0, 0.01);
  EXPECT_NEAR(counts.at(1) / double(n), 2 / 8.0, 0.01);
  EXPECT_NEAR(counts.at(2) / double(n), 5 / 8.0, 0.01);
  EXPECT_EQ(counts.count(3), 0u);
  const auto sharp = histogram({.temperature = 0.5, .seed = 3}, logits, n);  // weights squared: 1, 4, 25
  EXPECT_NEAR(sharp.at(2) / double(n), 25 / 30.0, 0.01);
}

TEST(Sampler, TopKAndTopPKeepTheLikeliest) {
  const std::vector<float> logits{std::log(4.f), std::log(3.f), std::log(2.f), std::log(1.f)};
  EXPECT_EQ(histogram({.temperature = 1, .top_k = 2}, logits, 2000).size(), 2u);
  EXPECT_EQ(histogram({.temperature = 1, .top_k = 100}, logits, 2000).size(), 4u);
  EXPECT_EQ(histogram({.temperature = 1, .top_p = 0.69}, logits, 2000).size(), 2u);  // 0.4 + 0.3 reaches it
  EXPECT_EQ(histogram({.temperature = 1, .top_p = 0.71}, logits, 2000).size(), 3u);
  EXPECT_EQ(histogram({.temperature = 1, .top_p = 1e-9}, logits, 100).size(), 1u);
}

TEST(Sampler, TheSeedDecides) {
  std::vector<float> logits(100);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  const auto draws = [&](std::uint64_t seed) {
    Sampler s({.temperature = 1, .top_k = 50, .top_p = 0.9, .seed = seed});
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(s.next(logits));
    return ids;
  };
  EXPECT_EQ(draws(1), draws(1));
  EXPECT_NE(draws(1), draws(2));
}

// The same choice by sorting the whole vocabulary.
std::int32_t draw_by_full_sort(const std::vector<float>& logits, const SamplerOptions& o, double uniform) {
  struct Weighted {
    double weight;
    std::int32_t id;
  };
  std::vector<Weighted> all;
  const double top = *std::max_element(logits.begin(), logits.end());
  for (std::size_t i = 0; i < logits.size(); ++i)
    all.push_back({std::exp((logits[i] - top) / o.temperature), static_cast<std::int32_t>(i)});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; });
  if (o.top_k > 0) all.resize(std::min(all.size(), static_cast<std::size_t>(o.top_k)));
  double total = 0, kept = 0;
  for (const auto& c : all) total += c.weight;
  std::size_t n = 0;
  while (n < all.size() && (o.top_p == 1 || kept < o.top_p * total)) kept += all[n++].weight;
  double left = uniform * kept;
  for (std::size_t i = 0; i < n; ++i)
    if ((left -= all[i].weight) < 0) return all[i].id;
  return all[0].id;
}

TEST(Sampler, DrawsWhatAFullSortWouldDraw) {
  for (const std::size_t vocab : {1u, 63u, 64u, 65u, 257u, 5000u})
    for (const double spread : {0.0, 0.01, 3.0, 30.0})  // flat: far into the order; steep: the first few
      for (const std::int64_t k : {0, 1, 40, 300})
        for (const double p : {1.0, 0.999, 0.9, 0.3}) {
          const SamplerOptions options{.temperature = 0.8, .top_k = k, .top_p = p, .seed = vocab};
          Rng logits_rng(vocab + static_cast<std::uint64_t>(k)), uniform(options.seed, 0x73616d706c65ull);
          Sampler sampler(options);
          for (int draw = 0; draw < 5; ++draw) {
            std::vector<float> logits(vocab);
            for (float& l : logits) l = static_cast<float>(spread * logits_rng.normal());
            EXPECT_EQ(sampler.next(logits), draw_by_full_sort(logits, options, uniform.uniform()))
                << vocab << " " << spread << " " << k << " " << p << " " << draw;
          }
        }
}

TEST(Sampler, RefusesNonsense) {
  EXPECT_THROW(Sampler({.temperature = -1}), UsageError);
  EXPECT_THROW(Sampler({.temperature = NAN}), UsageError);
  EXPECT_THROW(Sampler({.top_k = -1}), UsageError);
  EXPECT_THROW(Sampler({.top_p = 0}), UsageError);
  EXPECT_THROW(Sampler({.top_p = 1.5}), UsageError);
  Sampler s({});
  EXPECT_THROW(s.next({}), Error);
  EXPECT_THROW(s.next({1.f, NAN}), Error);
  EXPECT_THROW(s.next({-INFINITY}), Error);
  EXPECT_THROW(s.next({INFINITY}), Error);
}

TEST(Utf8Stream, NeverTearsASequence) {
  const std::string text = "aé€😀z";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    Utf8Stream stream;
    std::string all;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::string out = stream.push(std::string_view(text).substr(at, piece));
      // What comes out starts with a lead byte and, joined to what follows, never starts inside a sequence.
      if (!out.empty()) {
        EXPECT_NE(static_cast<unsigned char>(out[0]) & 0xC0, 0x80) << piece;
      }
      all += out;
    }
    EXPECT_EQ(all + stream.rest(), text);
  }
}

TEST(Utf8Stream, PassesBrokenBytesThrough) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xff\x80\x80"), "\xff\x80\x80");
  EXPECT_EQ(stream.push("\x80\x80\x80\x80"), "\x80\x80\x80\x80");
  EXPECT_EQ(stream.push("ok\xe2\x82"), "ok");
  EXPECT_EQ(stream.push("x"), "\xe2\x82x");
  EXPECT_EQ(stream.push("\xf0\x9f"), "");
  EXPECT_EQ(stream.rest(), "\xf0\x9f");
  EXPECT_EQ(stream.rest(), "");
}

}  // namespace
}  // namespace bhyt
