#include "bench/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/rng.h"
#include "core/threads.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/tuning.h"

namespace bhyt::bench {

namespace {

constexpr double kShortest = 0.02;  // seconds; anything quicker is repeated within one measurement

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double time_of(Context& ctx, const std::function<void()>& job, int times) {
  ctx.synchronize();
  const double start = now();
  for (int i = 0; i < times; ++i) job();
  ctx.synchronize();
  return (now() - start) / times;
}

}  // namespace

std::vector<std::vector<double>> take_all_turns(Context& ctx, const std::vector<std::function<void()>>& jobs, int reps) {
  for (const auto& job : jobs) job();  // first touch of memory
  cuda::tune_products(ctx);
  std::vector<int> times;
  for (const auto& job : jobs) {
    job();
    const double once = std::max(time_of(ctx, job, 1), 1e-7);
    times.push_back(static_cast<int>(std::ceil(kShortest / once)));
  }
  std::vector<std::vector<double>> taken(jobs.size());
  for (int r = 0; r < reps; ++r)
    for (std::size_t i = 0; i < jobs.size(); ++i) taken[i].push_back(time_of(ctx, jobs[i], times[i]));
  return taken;
}

std::vector<double> take_turns(Context& ctx, const std::vector<std::function<void()>>& jobs, int reps) {
  std::vector<double> medians;
  for (const std::vector<double>& taken : take_all_turns(ctx, jobs, reps)) medians.push_back(median_of(taken));
  return medians;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Spread spread_of(const std::vector<double>& values) {
  Spread s;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) s.mean += v / n;
  for (const double v : values) s.deviation += (v - s.mean) * (v - s.mean);
  s.deviation = values.size() > 1 ? std::sqrt(s.deviation / (n - 1)) : 0;
  return s;
}

namespace {

// One block of random numbers, repeated: drawing gigabytes would take longer than measuring them.
template <class Next>
void repeat_block(Context& ctx, const Tensor& to, std::size_t block, Next&& next) {
  std::vector<char> host(block * size_of(to.dtype));
  for (std::size_t i = 0; i < block; ++i) {
    const auto value = static_cast<float>(next());
    if (to.dtype == DType::bf16)
      reinterpret_cast<bf16*>(host.data())[i] = to_bf16(value);
    else
      reinterpret_cast<float*>(host.data())[i] = value;
  }
  char* const begin = static_cast<char*>(to.data);
  for (std::size_t at = 0; at < to.bytes(); at += host.size())
    ctx.copy(ctx.device(), begin + at, Device::cpu(), host.data(), std::min(host.size(), to.bytes() - at));
}

}  // namespace

OwnedTensor filled(Context& ctx, DType type, std::initializer_list<std::int64_t> dims, float scale) {
  OwnedTensor out(ctx, type, dims);
  Rng rng(1);
  repeat_block(ctx, out, 1 << 16, [&] { return (rng.uniform() * 2 - 1) * static_cast<double>(scale); });
  return out;
}

void initialize(const Parameters& parameters) {
  constexpr std::int64_t kBlock = 131'071;  // a prime, larger than vocabularies are: no row is another one again
  for (const Parameter& p : parameters.list()) {
    if (p.init_std > 0) {
      Rng rng(static_cast<std::uint64_t>(p.layer * 16 + static_cast<std::int64_t>(p.role)));
      repeat_block(parameters.context(), p.value, static_cast<std::size_t>(std::min(kBlock, p.size)),
                   [&] { return p.init_std * rng.normal(); });
    } else {
      parameters.write_value(p, std::vector<float>(static_cast<std::size_t>(p.size), static_cast<float>(p.init_value)).data());
    }
  }
}

void copy_all(Context& ctx, const Tensor& from, const Tensor& to) {
  if (from.device.is_cuda()) return ctx.copy(to.device, to.data, from.device, from.data, to.bytes());
  constexpr std::int64_t piece = 1 << 20;
  parallel_for(ctx.threads(), static_cast<std::int64_t>(to.bytes()), piece, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(static_cast<char*>(to.data) + begin, static_cast<const char*>(from.data) + begin, static_cast<std::size_t>(end - begin));
  });
}

namespace {

using Words = std::uint64_t __attribute__((vector_size(16)));

// Four vectors.
inline __attribute__((always_inline)) void add_line(const char* from, Words& a, Words& b, Words& c, Words& d) {
  Words line[4];
  std::memcpy(line, from, sizeof line);
  a ^= line[0];
  b ^= line[1];
  c ^= line[2];
  d ^= line[3];
}
std::uint64_t in_one_place(const char* from, std::int64_t n) {
  Words a{}, b{}, c{}, d{};
  for (std::int64_t i = 0; i + 128 <= n; i += 128) {
    add_line(from + i, a, b, c, d);
    add_line(from + i + 64, a, b, c, d);
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}
std::uint64_t in_four_places(const char* from, std::int64_t n) {
  const std::int64_t part = n / 4;
  const char *const second = from + part, *const third = second + part, *const fourth = third + part;
  Words a{}, b{}, c{}, d{};
  const auto add = [](const char* at, Words& sum) __attribute__((always_inline)) {
    Words v;
    std::memcpy(&v, at, sizeof v);
    sum ^= v;
  };
  for (std::int64_t i = 0; i + 16 <= part; i += 16) {
    add(from + i, a);
    add(second + i, b);
    add(third + i, c);
    add(fourth + i, d);
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}

}  // namespace

void read_all(Context& ctx, const Tensor& from, int places) {
  constexpr std::int64_t piece = 4 << 20;
  const auto* const bytes = static_cast<const char*>(from.data);
  std::atomic<std::uint64_t> sink = 0;
  parallel_for(ctx.threads(), static_cast<std::int64_t>(from.bytes()), piece, [&](std::int64_t begin, std::int64_t end) {
    sink ^= places == 1 ? in_one_place(bytes + begin, end - begin) : in_four_places(bytes + begin, end - begin);
  });
}

std::vector<Product> products(const ModelConfig& c, std::int64_t tokens) {
  return {{"qkv", tokens, c.qkv_width(), c.d, c.layers},
          {"o", tokens, c.d, c.q_width(), c.layers},
          {"gate_up", tokens, 2 * c.mlp, c.d, c.layers},
          {"down", tokens, c.d, c.mlp, c.layers},
          {"head", tokens, c.vocab, c.d, 1}};
}

Operands::Operands(Context& context, const Product& p, DType type, bool backward)
    : ctx(context), x(filled(ctx, type, {p.m, p.k})), w(filled(ctx, type, {p.n, p.k}, 0.02f)), y(filled(ctx, type, {p.m, p.n})) {
  if (!backward) return;
  dw = OwnedTensor(ctx, DType::f32, {p.n, p.k});
  zero(ctx, dw);
}

void Operands::forward(bool by_row) const { gemm(ctx, x, w, y, {.trans_b = true, .by_row = by_row}); }
void Operands::backward_x() const { gemm(ctx, y, w, x); }
void Operands::backward_w() const { gemm(ctx, y, x, dw, {.trans_a = true, .accumulate = true}); }

SquareProduct::SquareProduct(Context& context, DType type) : ctx(context) {
  const std::int64_t n = ctx.device().is_cuda() ? 8192 : 1536;
  a = filled(ctx, type, {n, n});
  b = filled(ctx, type, {n, n});
  c = OwnedTensor(ctx, type, {n, n});
  flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
}

void SquareProduct::run() const { gemm(ctx, a, b, c, {.trans_b = true}); }

}  // namespace bhyt::bench
