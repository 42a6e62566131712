#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/threads.h"
#include "ops/sample/choice.h"

namespace bhyt::cpu {

namespace {

using namespace choice;

BHYT_CLONES bool any_nan(const float* x, std::int64_t n) {
  std::uint32_t found = 0;
  for (std::int64_t i = 0; i < n; ++i) found |= (detail::float_bits(x[i]) & 0x7FFFFFFFu) > 0x7F800000u ? 1u : 0u;
  return found != 0;
}
BHYT_CLONES float largest(const float* x, std::int64_t n) { return max_of(x, n); }

BHYT_CLONES double sum_exp(const float* x, float top, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(fast_exp(x[i] - top));
  return sum;
}

BHYT_CLONES void temper(float* z, float top, float temperature, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) z[i] = tempered(z[i], top, temperature);
}

// The largest key from which on, among keys from `from` on, the masses reach what target_of asks for of their total.
template <class Mass, class Target>
Key select(const float* z, std::int64_t n, Key from, const Mass& mass, const Target& target_of) {
  Key prefix = 0;
  std::uint64_t target = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    std::uint64_t bins[kBins] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      const Key key = key_of(z[i], i);
      if (key >= from && begins_with(key, prefix, digit)) bins[digit_of(key, digit)] += mass(z[i]);
    }
    if (digit == 0) target = target_of(std::accumulate(bins, bins + kBins, std::uint64_t{0}));
    int bin = (1 << digit_bits(digit)) - 1;
    for (; bins[bin] < target; --bin) target -= bins[bin];
    prefix = prefix << digit_bits(digit) | static_cast<Key>(bin);
    if (digit == 2) {  // the value is known, its tokens weigh the same: whole tokens are taken
      const std::uint64_t one = mass(from_sortable(static_cast<std::uint32_t>(prefix)));
      target = (target + one - 1) / one * one;
    }
    if (bins[bin] == target) return std::max(from, prefix << digit_shift(digit));
  }
  return prefix;
}

// The key that the filters leave the tokens from.
Key threshold(const float* z, std::int64_t n, const SampleRow& how) {
  Key from = 0;
  if (how.top_k > 0 && how.top_k < n)
    from = select(
        z, n, from, [](float) { return std::uint64_t{1}; }, [&](std::uint64_t) { return static_cast<std::uint64_t>(how.top_k); });
  if (how.top_p < 1) from = select(z, n, from, weight, [&](std::uint64_t total) { return share_of(total, how.top_p); });
  if (how.min_p > 0) from = std::max(from, static_cast<Key>(sortable(std::log(how.min_p))) << 32);
  return from;
}

std::int32_t draw(const float* z, std::int64_t n, const SampleRow& how) {
  const Key from = threshold(z, n, how);
  Key best = 0;
  float best_score = -INFINITY;
  Philox bits{};
  std::int64_t drawn = -1;  // the four ids that the bits are of
  for (std::int64_t i = 0; i < n; ++i) {
    if (key_of(z[i], i) < from) continue;
    if (i / 4 != drawn) {
      bits = noise_bits(how, i);
      drawn = i / 4;
    }
    const float uniform = noise_uniform(bits.v[i % 4]);
    if (z[i] + noise_bound(uniform) < best_score) continue;
    const Key key = key_of(z[i] + noise(uniform), i);
    if (key > best) {
      best = key;
      best_score = value_of(key);
    }
  }
  return id_of(best);
}

std::int32_t choose(const float* logits, std::int64_t n, const SampleRow& how, const std::uint32_t* seen, float* z) {
  if (any_nan(logits, n)) return -1;
  const float* x = logits;
  if (seen && how.penalty != 1) {
    for (std::int64_t i = 0; i < n; ++i) z[i] = holds(seen, i) ? penalized(logits[i], how.penalty) : logits[i];
    x = z;
  }
  const float top = largest(x, n);
  if (!std::isfinite(top)) return -1;
  if (how.temperature == 0) return static_cast<std::int32_t>(std::find(x, x + n, top) - x);
  if (x != z) std::copy_n(x, n, z);
  temper(z, top, how.temperature, n);
  return draw(z, n, how);
}

}  // namespace

void sample(Context& ctx, const Sample& job) {
  const std::int64_t n = job.logits.cols(), words = seen_words(n);
  const WorkerScratch scratch = ctx.worker_scratch(n);
  parallel_tasks(ctx.threads(), job.logits.rows(), [&](std::int64_t r, int worker) {
    const SampleRow& how = job.rows.as<SampleRow>()[r];
    const float* const logits = job.logits.as<float>() + r * job.logits.ld;
    std::uint32_t* const seen = how.seen < 0 ? nullptr : job.seen.as<std::uint32_t>() + how.seen * words;
    if (seen && how.fresh >= 0) std::copy_n(job.fresh.as<std::uint32_t>() + how.fresh * words, words, seen);
    const std::int32_t token = choose(logits, n, how, seen, scratch.of(worker));
    job.tokens.as<std::int32_t>()[r] = token;
    if (seen && token >= 0) seen[token / 32] |= 1u << (token % 32);
    if (!job.logprobs) return;
    const float top = largest(logits, n);
    job.logprobs.as<float>()[r] =
        token < 0 ? NAN : static_cast<float>(static_cast<double>(logits[token]) - top - std::log(sum_exp(logits, top, n)));
  });
}

}  // namespace bhyt::cpu
