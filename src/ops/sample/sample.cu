// One block a row. Greedy is one pass over the row; a filter takes a few more, each of which finds the next digit of the key that it
// leaves the tokens from, by counting what falls into bins. Counts and masses are integers: the order of adding does not matter.
#include "core/cuda.cuh"
#include "ops/sample/choice.h"

namespace bhyt::cuda {

namespace {

using namespace choice;
using Mass = unsigned long long;  // what atomicAdd takes

constexpr int kThreads = 1024, kWarps = kThreads / 32, kBinsPerThread = kBins / kThreads;
constexpr unsigned kAll = 0xffffffffu;

struct Shared {
  Mass bins[kBins];
  Mass warps[33];
  float floats[33];
  double sums[33];
  int bin;
  Mass left;  // what the bin has to reach
};

__device__ Mass block_max(Mass v, Mass* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    const Mass other = __shfl_xor_sync(kAll, v, o);
    v = v > other ? v : other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) v = v > shared[w] ? v : shared[w];
  return v;
}

__device__ float block_max(float v, float* shared) {
  v = warp_max(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) v = fmaxf(v, shared[w]);
  return v;
}

__device__ Mass block_total(Mass v, Mass* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(kAll, v, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  Mass sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w];
  return sum;
}

// A row's logits behind penalty and temperature.
struct Row {
  const float* logits;
  const std::uint32_t* seen;  // may be null
  int n;
  float penalty, top, temperature;
  __device__ float logit(int i) const { return seen && holds(seen, i) ? penalized(logits[i], penalty) : logits[i]; }
  __device__ float z(int i) const { return tempered(logit(i), top, temperature); }
};

// Finds the bin in which the masses, from the last bin down, reach the target; every thread gets it.
__device__ void find_bin(Shared& s, Mass target) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsPerThread;
  Mass own = 0;
  for (int b = 0; b < kBinsPerThread; ++b) own += s.bins[first - b];
  Mass sum = own;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const Mass before = __shfl_up_sync(kAll, sum, o);
    if (lane >= o) sum += before;
  }
  __syncthreads();
  if (lane == 31) s.warps[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += s.warps[w];
  Mass before = sum - own;
  for (int b = 0; b < kBinsPerThread; ++b) {
    const Mass with = before + s.bins[first - b];
    if (before < target && target <= with) {
      s.bin = first - b;
      s.left = target - before;
    }
    before = with;
  }
  __syncthreads();
}

// Bins for `digit` of the keys that pass `take`.
template <class Take, class Digit, class Weigh>
__device__ void fill_bins(Shared& s, const Row& row, const Take& take, const Digit& digit, const Weigh& weigh) {
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kThreads) s.bins[b] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const float z = row.z(i);
    const Key key = key_of(z, i);
    const Mass m = take(z, key) ? weigh(z) : 0;
    if (m > 0) atomicAdd(&s.bins[digit(z, key)], m);
  }
  __syncthreads();
}

// Steps of 1/64 below the likeliest: they spread a row's values over many bins, where the first bits of a float would not.
__device__ int coarse(float z) { return kBins - 1 - static_cast<int>(fminf(-z * 64.0f, kBins - 1.0f)); }

// The largest key from which on, among keys from `from` on, the masses reach what target_of asks for of their total.
template <class Weigh, class Target>
__device__ Key select(Shared& s, const Row& row, Key from, const Weigh& weigh, const Target& target_of) {
  fill_bins(
      s, row, [&](float, Key key) { return key >= from; }, [](float z, Key) { return coarse(z); }, weigh);
  Mass total = 0;
  for (int b = threadIdx.x; b < kBins; b += kThreads) total += s.bins[b];
  find_bin(s, target_of(block_total(total, s.warps)));
  const int bucket = s.bin;
  Mass target = s.left;
  Key prefix = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    fill_bins(
        s, row, [&](float z, Key key) { return key >= from && coarse(z) == bucket && begins_with(key, prefix, digit); },
        [&](float, Key key) { return digit_of(key, digit); }, weigh);
    find_bin(s, target);
    prefix = prefix << digit_bits(digit) | static_cast<Key>(s.bin);
    target = s.left;
    if (digit == 2) {  // the value is known, its tokens weigh the same: whole tokens are taken
      const Mass one = weigh(from_sortable(static_cast<std::uint32_t>(prefix)));
      target = (target + one - 1) / one * one;
    }
    if (digit >= 2 && s.bins[s.bin] == target) {  // before, smaller values may begin alike
      const Key found = prefix << digit_shift(digit);
      return found > from ? found : from;
    }
  }
  return prefix;
}

__device__ Key threshold(Shared& s, const Row& row, const SampleRow& how) {
  Key from = 0;
  if (how.top_k > 0 && how.top_k < row.n)
    from = select(
        s, row, from, [](float) { return Mass{1}; }, [&](Mass) { return static_cast<Mass>(how.top_k); });
  if (how.top_p < 1)
    from = select(
        s, row, from, [](float z) { return static_cast<Mass>(weight(z)); },
        [&](Mass total) { return static_cast<Mass>(share_of(total, how.top_p)); });
  if (how.min_p > 0) {
    const Key least = static_cast<Key>(sortable(logf(how.min_p))) << 32;
    from = from > least ? from : least;
  }
  return from;
}

__device__ int draw(Shared& s, const Row& row, const SampleRow& how) {
  const Key from = threshold(s, row, how);
  Key best = 0;
  float best_score = -INFINITY;
  for (int four = threadIdx.x * 4; four < row.n; four += kThreads * 4) {
    const Philox bits = noise_bits(how, four);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int i = four + k;
      if (i >= row.n) break;
      const float z = row.z(i), uniform = noise_uniform(bits.v[k]);
      if (key_of(z, i) < from || z + noise_bound(uniform) < best_score) continue;
      const Key key = key_of(z + noise(uniform), i);
      if (key > best) {
        best = key;
        best_score = value_of(key);
      }
    }
  }
  return id_of(block_max(static_cast<Mass>(best), s.warps));
}

// What one pass finds: the best key behind the penalty, whether a logit is NaN, and the softmax of the logits as they came.
struct Survey {
  Key best;
  bool nan;
  float top;
  double sum;
};

__device__ Survey survey(Shared& s, const Row& row, bool softmax) {
  Survey out{0, false, -INFINITY, 0};
  float sum = 0;
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const float raw = row.logits[i];
    out.nan |= raw != raw;
    const Key key = key_of(row.logit(i) + 0.0f, i);
    out.best = key > out.best ? key : out.best;
    if (!softmax) continue;
    if (raw > out.top) {
      sum *= expf(out.top - raw);
      out.top = raw;
    }
    if (raw > -INFINITY) sum += expf(raw - out.top);
  }
  out.nan = __syncthreads_or(out.nan);
  out.best = block_max(static_cast<Mass>(out.best), s.warps);
  if (softmax) {
    const float top = block_max(out.top, s.floats);
    out.sum = block_sum(sum > 0 ? static_cast<double>(sum) * exp(static_cast<double>(out.top) - top) : 0.0, s.sums);
    out.top = top;
  }
  return out;
}

__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(const float* logits, std::int64_t ld, int n, const SampleRow* rows, std::uint32_t* all_seen, const std::uint32_t* fresh,
                  int words, std::int32_t* tokens, float* logprobs) {
  __shared__ Shared s;
  const SampleRow how = rows[blockIdx.x];
  std::uint32_t* const seen = how.seen < 0 ? nullptr : all_seen + static_cast<std::int64_t>(how.seen) * words;
  if (seen && how.fresh >= 0)
    for (int w = threadIdx.x; w < words; w += kThreads) seen[w] = fresh[static_cast<std::int64_t>(how.fresh) * words + w];
  __syncthreads();
  Row row{logits + blockIdx.x * ld, how.penalty != 1 ? seen : nullptr, n, how.penalty, 0, how.temperature};
  const Survey found = survey(s, row, logprobs != nullptr);
  row.top = value_of(found.best);
  const bool good = !found.nan && isfinite(row.top);
  int token = good ? id_of(found.best) : -1;
  if (good && how.temperature != 0) token = draw(s, row, how);
  if (threadIdx.x != 0) return;
  tokens[blockIdx.x] = token;
  if (seen && token >= 0) seen[token / 32] |= 1u << (token % 32);
  if (logprobs)
    logprobs[blockIdx.x] = token < 0 ? NAN : static_cast<float>(row.logits[token] - static_cast<double>(found.top) - log(found.sum));
}

}  // namespace

void sample(Context& ctx, const Sample& job) {
  if (job.logits.rows() == 0) return;
  const std::int64_t n = job.logits.cols();
  sample_kernel<<<static_cast<unsigned>(job.logits.rows()), kThreads, 0, stream(ctx)>>>(
      job.logits.as<float>(), job.logits.ld, static_cast<int>(n), job.rows.as<SampleRow>(), job.seen.as<std::uint32_t>(),
      job.fresh.as<std::uint32_t>(), static_cast<int>(seen_words(n)), job.tokens.as<std::int32_t>(),
      job.logprobs ? job.logprobs.as<float>() : nullptr);
  check_launch("sample");
}

}  // namespace bhyt::cuda
