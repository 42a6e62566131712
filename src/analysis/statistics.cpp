#include "analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/norm/maps.h"

namespace bhyt::analysis {

namespace {

struct RowMoments {
  double mean = 0, square = 0, abs = 0;
};
RowMoments moments_of(std::span<const float> x) {
  RowMoments m;
  for (const float v : x) {
    const auto d = static_cast<double>(v);
    m.mean += d;
    m.square += d * d;
    m.abs += std::fabs(d);
  }
  const auto n = static_cast<double>(x.size());
  return {m.mean / n, m.square / n, m.abs / n};
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

void StreamStats::add(const HostRows& x) {
  beyond_.resize(static_cast<std::size_t>(x.cols));
  for (std::int64_t r = 0; r < x.rows; ++r, ++tokens_) {
    const std::span<const float> row = x.row(r);
    const RowMoments m = moments_of(row);
    const double outlier = kOutlier * std::sqrt(m.square);
    double second = 0, fourth = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto v = static_cast<double>(row[i]);
      const double square = (v - m.mean) * (v - m.mean);
      second += square;
      fourth += square * square;
      beyond_[i] += std::fabs(v) > outlier;
      if (std::fabs(v) > std::fabs(largest_.value)) largest_ = {v, static_cast<std::int64_t>(i), tokens_};
    }
    const auto n = static_cast<double>(row.size());
    norm_ += std::sqrt(m.square * n);
    abs_ += m.abs;
    variance_ += second / n;
    if (second == 0) continue;
    kurtosis_ += n * fourth / (second * second);
    ++varied_;
  }
}

std::vector<std::int64_t> StreamStats::outliers() const {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < beyond_.size() && tokens_ > 0; ++i)
    if (static_cast<double>(beyond_[i]) >= kPersists * static_cast<double>(tokens_)) out.push_back(static_cast<std::int64_t>(i));
  return out;
}

bool StreamStats::finite() const { return std::isfinite(norm_); }

void CosineStats::add(const HostRows& a, const HostRows& b) {
  for (std::int64_t r = 0; r < a.rows; ++r, ++tokens_) {
    const double lengths = std::sqrt(dot(a.row(r), a.row(r)) * dot(b.row(r), b.row(r)));
    if (lengths > 0) sum_ += dot(a.row(r), b.row(r)) / lengths;
  }
}

SiteStats::SiteStats(SiteFacts facts) : facts_(std::move(facts)) {
  dispatch_map(facts_.map, [this](auto map) {
    using M = decltype(map);
    slope_ = M::slope(0.0, M::value(0.0));
    if (std::is_same_v<M, IdMap>) return;
    double low = 0, high = 1;  // a map is odd and never falls
    while (high < 1e300 && M::value(high) <= kSaturated) high *= 2;
    for (double middle = high / 2; low < middle && middle < high; middle = low + (high - low) / 2)
      (M::value(middle) <= kSaturated ? low : high) = middle;
    bend_ = low;
  });
}

void SiteStats::add(const HostRows& x, std::span<const float> a, const HostRows& z) {
  const double limit = facts_.lambda ? std::fabs(*facts_.lambda) : INFINITY;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const std::span<const float> row = x.row(r);
    const double mean = facts_.centred ? moments_of(row).mean : 0, scale = static_cast<double>(a[static_cast<std::size_t>(r)]);
    double sum = 0;
    for (const float v : row) {
      const double u = scale * (static_cast<double>(v) - mean);
      saturated_ += std::fabs(u + facts_.shift) > bend_;
      beyond_ += std::fabs(u) > limit;
      sum += u;
    }
    finite_ = finite_ && std::isfinite(sum);
    elements_ += std::ssize(row);
    if (z.rows == 0) continue;
    double square = 0, linear = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto v = static_cast<double>(row[i]);
      const double u = scale * (v - mean), gamma = facts_.gamma.empty() ? 1 : static_cast<double>(facts_.gamma[i]);
      square += v * v;
      linear += gamma * u * gamma * u;
    }
    gained_ += std::ssize(row);
    x_ += square;
    linear_ += linear;
    z_ += dot(z.row(r), z.row(r));
  }
}

double SiteStats::gain() const { return x_ > 0 ? std::sqrt(z_ / x_) : 0; }
double SiteStats::linear_gain() const { return x_ > 0 ? std::fabs(facts_.factor) * slope_ * std::sqrt(linear_ / x_) : 0; }
double SiteStats::output() const { return gained_ > 0 ? std::sqrt(z_ / static_cast<double>(gained_)) : 0; }
std::optional<double> SiteStats::saturated() const { return facts_.map == Map::id ? std::nullopt : std::optional(share(saturated_)); }
std::optional<double> SiteStats::beyond_lambda() const { return facts_.lambda ? std::optional(share(beyond_)) : std::nullopt; }

void ApproximationStats::add(std::span<const float> approximated, const HostRows& x) {
  for (std::int64_t r = 0; r < x.rows; ++r) {
    approximated_.push_back(static_cast<double>(approximated[static_cast<std::size_t>(r)]));
    actual_.push_back(dot(x.row(r), x.row(r)) / static_cast<double>(x.cols));
  }
}

double ApproximationStats::ratio() const {
  double sum = 0;
  for (std::size_t i = 0; i < actual_.size(); ++i) sum += approximated_[i] / actual_[i];
  return actual_.empty() ? 0 : sum / static_cast<double>(actual_.size());
}

std::optional<double> ApproximationStats::correlation() const {
  const auto n = static_cast<double>(actual_.size());
  double a = 0, b = 0, aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < actual_.size(); ++i) {
    a += approximated_[i] / n;
    b += actual_[i] / n;
  }
  for (std::size_t i = 0; i < actual_.size(); ++i) {
    const double da = approximated_[i] - a, db = actual_[i] - b;
    aa += da * da;
    bb += db * db;
    ab += da * db;
  }
  return aa > 0 && bb > 0 ? std::optional(ab / std::sqrt(aa * bb)) : std::nullopt;
}

ApproximationStats::Point ApproximationStats::worst() const {
  Point out;
  double furthest = -1;
  for (std::size_t i = 0; i < actual_.size(); ++i) {
    const double off = std::fabs(std::log(approximated_[i] / actual_[i]));
    if (!(off > furthest)) continue;
    furthest = off;
    out = {static_cast<std::int64_t>(i), approximated_[i], actual_[i]};
  }
  return out;
}

std::vector<ApproximationStats::Point> ApproximationStats::points(std::int64_t n) const {
  const std::int64_t count = std::min(n, tokens());
  std::vector<Point> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i * tokens() / count);
    out.push_back({static_cast<std::int64_t>(at), approximated_[at], actual_[at]});
  }
  return out;
}

namespace {

// Of softmax(scores).
double entropy_of(std::vector<double>& scores) {
  const double top = *std::ranges::max_element(scores);
  double sum = 0, weighted = 0;
  for (const double s : scores) {
    const double e = std::exp(s - top);
    sum += e;
    weighted += e * (s - top);
  }
  return std::log(sum) - weighted / sum;
}

}  // namespace

void EntropyStats::add(const HostRows& q, const HostRows& k, const Shape& s) {
  const auto part = [&](std::span<const float> row, std::int64_t head) {
    return row.subspan(static_cast<std::size_t>(head * s.head_dim), static_cast<std::size_t>(s.head_dim));
  };
  const double unit = 1 / std::sqrt(static_cast<double>(s.head_dim));
  const std::int64_t positions = std::min(s.positions, s.seq - 1), group = s.heads / s.kv_heads;
  std::vector<double> scores;
  for (std::int64_t row = 0; row < q.rows; row += s.seq)
    for (std::int64_t i = 1; i <= positions; ++i) {
      const std::int64_t at = i * (s.seq - 1) / positions;
      for (std::int64_t head = 0; head < s.heads; ++head, ++count_) {
        scores.clear();
        for (std::int64_t t = 0; t <= at; ++t)
          scores.push_back(unit * dot(part(q.row(row + at), head), part(k.row(row + t), head / group)));
        const double nats = entropy_of(scores);
        nats_ += nats;
        relative_ += nats / std::log(static_cast<double>(at + 1));
      }
    }
}

}  // namespace bhyt::analysis
