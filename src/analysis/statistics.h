// What is said of activations, token by token, in double. Nothing here knows of a model.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "analysis/host_rows.h"
#include "ops/norm/norm.h"

namespace bhyt::analysis {

// The residual stream at one place. All but the largest value and the outliers are means over tokens.
class StreamStats {
 public:
  // A feature is an outlier of a token where |x_i| > 6·rms(x), and persists where it is one in at least half of the tokens.
  static constexpr double kOutlier = 6, kPersists = 0.5;

  void add(const HostRows& x);

  std::int64_t tokens() const { return tokens_; }
  double norm() const { return mean(norm_); }          // ‖x‖₂
  double abs() const { return mean(abs_); }            // |x|
  double variance() const { return mean(variance_); }  // over features, around the token's mean
  // Fourth central moment over the variance squared: 3 for a Gaussian. Tokens without any variance take no part.
  double kurtosis() const { return varied_ > 0 ? kurtosis_ / static_cast<double>(varied_) : 0; }
  struct Largest {
    double value = 0;  // with its sign
    std::int64_t feature = 0, token = 0;
  };
  const Largest& largest() const { return largest_; }
  std::vector<std::int64_t> outliers() const;  // the features that persist, from 0
  bool finite() const;

 private:
  double mean(double sum) const { return tokens_ > 0 ? sum / static_cast<double>(tokens_) : 0; }

  std::int64_t tokens_ = 0, varied_ = 0;
  double norm_ = 0, abs_ = 0, variance_ = 0, kurtosis_ = 0;
  Largest largest_;
  std::vector<std::int64_t> beyond_;  // per feature, the tokens in which it is an outlier
};

// Token mean of the cosine between two streams.
class CosineStats {
 public:
  void add(const HostRows& a, const HostRows& b);
  double mean() const { return tokens_ > 0 ? sum_ / static_cast<double>(tokens_) : 0; }

 private:
  std::int64_t tokens_ = 0;
  double sum_ = 0;
};

// One norm as far as its statistics need it: z = factor · γ ⊙ f(a·(x − mean) + shift) + …
struct SiteFacts {
  Map map = Map::id;
  bool centred = false;  // the mean is taken off first
  double factor = 1, shift = 0;
  std::vector<float> gamma;             // empty: 1
  std::optional<double> lambda, alpha;  // the learned scalar
  std::optional<double> chebyshev;      // 1 − p, with λ
};

// What a norm does to its tokens.
class SiteStats {
 public:
  static constexpr double kSaturated = 0.95;

  SiteStats() = default;
  explicit SiteStats(SiteFacts facts);

  // x [N,C], the scale a of each token, z [N,C] (without rows: gains are not asked for).
  void add(const HostRows& x, std::span<const float> a, const HostRows& z);

  const SiteFacts& facts() const { return facts_; }
  // rms(z)/rms(x), both over tokens and features; and what it would be were the map its own slope at 0 (and without β and SeeDNorm's gate).
  double gain() const;
  double linear_gain() const;
  double output() const;                        // rms(z)
  std::optional<double> saturated() const;      // share of |f| > 0.95; none where f is the identity
  std::optional<double> beyond_lambda() const;  // share of |a·x| > λ

 private:
  double share(std::int64_t of) const {
    if (!finite_) return std::numeric_limits<double>::quiet_NaN();  // comparisons with such numbers say nothing
    return elements_ > 0 ? static_cast<double>(of) / static_cast<double>(elements_) : 0;
  }

  SiteFacts facts_;
  double bend_ = std::numeric_limits<double>::infinity(), slope_ = 1;  // where |f| passes 0.95 (nowhere: the identity), and f's slope at 0
  bool finite_ = true;
  std::int64_t elements_ = 0, gained_ = 0, saturated_ = 0, beyond_ = 0;
  double x_ = 0, z_ = 0, linear_ = 0;  // squares
};

// The second site's statistic as the block's input gives it, beside what it stands for.
class ApproximationStats {
 public:
  void add(std::span<const float> approximated, const HostRows& x);  // s̃² of each token, and x' itself

  std::int64_t tokens() const { return static_cast<std::int64_t>(approximated_.size()); }
  double ratio() const;                       // token mean of s̃²/s²
  std::optional<double> correlation() const;  // Pearson's r; none where one of them does not vary
  struct Point {
    std::int64_t token = 0;
    double approximated = 0, actual = 0;
    double ratio() const { return approximated / actual; }
  };
  Point worst() const;                              // the token whose ratio is furthest from 1, by its logarithm
  std::vector<Point> points(std::int64_t n) const;  // evenly spaced, at most n

 private:
  std::vector<double> approximated_, actual_;
};

// How widely heads look around: the entropy of attention's weights, and relative to log(position + 1), which looking everywhere alike has.
class EntropyStats {
 public:
  struct Shape {
    std::int64_t seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
    std::int64_t positions = 16;  // of each row that are looked at, evenly spaced; the first, which sees itself alone, never is
  };
  // q [N,H·D] and k [N,K·D], rotated.
  void add(const HostRows& q, const HostRows& k, const Shape& shape);

  std::int64_t count() const { return count_; }
  double nats() const { return count_ > 0 ? nats_ / static_cast<double>(count_) : 0; }
  double relative() const { return count_ > 0 ? relative_ / static_cast<double>(count_) : 0; }

 private:
  std::int64_t count_ = 0;
  double nats_ = 0, relative_ = 0;
};

}  // namespace bhyt::analysis
