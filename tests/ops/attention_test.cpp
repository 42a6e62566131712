#include "ops/attention/paged.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "ops/attention/tile.h"
#include "ops/gemm/instructions.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The whole softmax of every row, in double.
void reference_attention(const AttentionShape& s, const std::vector<double>& qkv, const double* first, std::vector<double>& out,
                         std::vector<double>& lse) {
  const std::int64_t d = s.head_dim, group = s.heads / s.kv_heads, ld = (s.heads + 2 * s.kv_heads) * d;
  std::vector<double> p(index(s.seq));
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t t = 0; t < s.seq; ++t) {
        const std::int64_t row = b * s.seq + t, from = first ? static_cast<std::int64_t>(first[row]) : 0;
        const double* q = &qkv[index(row * ld + h * d)];
        const double* k = &qkv[index(b * s.seq * ld + (s.heads + h / group) * d)];
        const double* v = k + s.kv_heads * d;
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::int64_t j = from; j <= t; ++j) {
          double dot = 0;
          for (std::int64_t i = 0; i < d; ++i) dot += q[i] * k[j * ld + i];
          p[index(j)] = dot / std::sqrt(static_cast<double>(d));
          top = std::max(top, p[index(j)]);
        }
        for (std::int64_t j = from; j <= t; ++j) sum += p[index(j)] = std::exp(p[index(j)] - top);
        double* o = &out[index((row * s.heads + h) * d)];
        std::fill(o, o + d, 0.0);
        for (std::int64_t j = from; j <= t; ++j)
          for (std::int64_t i = 0; i < d; ++i) o[i] += p[index(j)] / sum * v[j * ld + i];
        lse[index((b * s.heads + h) * s.seq + t)] = top + std::log(sum);
      }
}

// documents_at_tiles: they begin right before, at and right behind the tiles of a GPU, so that one sees a single key of a tile.
enum class Mask { causal, documents, documents_at_tiles };

Case attention_case(const AttentionShape& s, Mask mask = Mask::causal, double scale = 1) {
  const std::int64_t n = s.batch * s.seq;
  const bool documents = mask != Mask::causal;
  // Documents of 1 to 40 tokens, and one of 90 that spans tiles; another cut in every sequence.
  const auto first = [s, mask](Rng&, std::int64_t i) {
    std::int64_t t = i % s.seq, begin = 0, next = 0, k = i / s.seq;
    if (mask == Mask::documents_at_tiles) {
      for (const std::int64_t start : {63, 128, 193, 255})
        if (start <= t) begin = start;
      return static_cast<double>(begin);
    }
    for (; next <= t; ++k) begin = next, next += k % 5 == 3 ? 90 : 1 + k * 17 % 40;
    return static_cast<double>(begin);
  };
  return {
      .name = fmt::format("B{} T{} H{} K{} D{}{} scale {}", s.batch, s.seq, s.heads, s.kv_heads, s.head_dim,
                          mask == Mask::documents ? " documents"
                          : documents             ? " documents at tiles"
                                                  : "",
                          scale),
      .inputs = {{"qkv", {n, (s.heads + 2 * s.kv_heads) * s.head_dim}, Role::activation, Fill::normal, scale},
                 {"first", {s.batch, s.seq}, Role::integer, Fill::integers, 1, 0, first}},
      .outputs = {{"out", {n, s.heads * s.head_dim}}, {"lse", {s.batch, s.heads, s.seq}, Output::Type::fp32, false}},
      .reference = [=](Arrays& a, Round) { reference_attention(s, a["qkv"], documents ? a["first"].data() : nullptr, a["out"], a["lse"]); },
      .forward = [=](CaseTensors& c) { attention(c.ctx(), c["qkv"], c["out"], c["lse"], documents ? c["first"] : Tensor{}, s); },
      .backward =
          [=](CaseTensors& c) {
            attention_backward(c.ctx(), c["qkv"], c["out"], c["lse"], documents ? c["first"] : Tensor{}, c.grad("out"), c.grad("qkv"), s);
          },
      .flops = 2.0 * static_cast<double>(n * (s.seq + 1) * s.heads * s.head_dim),
      .backward_flops = 5.0 * static_cast<double>(n * (s.seq + 1) * s.heads * s.head_dim)};
}

// Scores near ±1000: the softmax must neither overflow nor lose the row. Differences of so steep a function need small steps.
Case steep_case(std::int64_t d) {
  Case steep = attention_case({.batch = 1, .seq = 97, .heads = 2, .kv_heads = 1, .head_dim = d}, Mask::causal, 16);
  steep.ulps = 4096;
  steep.grad_ulps = 16384;
  steep.bf16_grad_ulps = 8;
  steep.step = 1e-7;
  return steep;
}

std::vector<Case> tests() {
  std::vector<Case> cases;
  for (const std::int64_t t : {1, 2, 31, 32, 33, 63, 64, 65, 130, 257})
    cases.push_back(attention_case({.batch = 1, .seq = t, .heads = 2, .kv_heads = 1, .head_dim = 8}));
  for (const std::int64_t d : {1, 3, 16, 17, 32, 64, 96, 128})
    cases.push_back(attention_case({.batch = 1, .seq = 67, .heads = 1, .kv_heads = 1, .head_dim = d}));
  cases.push_back(attention_case({.batch = 2, .seq = 37, .heads = 6, .kv_heads = 1, .head_dim = 5}));
  cases.push_back(attention_case({.batch = 2, .seq = 70, .heads = 3, .kv_heads = 3, .head_dim = 12}));
  cases.push_back(attention_case({.batch = 2, .seq = 131, .heads = 4, .kv_heads = 2, .head_dim = 6}));
  cases.push_back(attention_case({.batch = 2, .seq = 257, .heads = 2, .kv_heads = 1, .head_dim = 4}, Mask::documents));
  cases.push_back(attention_case({.batch = 3, .seq = 41, .heads = 2, .kv_heads = 2, .head_dim = 9}, Mask::documents));
  // The widths that have their own kernels on the GPU, and one between them: one row, a row beyond a tile, documents that end within tiles.
  for (const std::int64_t d : {64, 96, 128}) {
    cases.push_back(attention_case({.batch = 2, .seq = 1, .heads = 4, .kv_heads = 2, .head_dim = d}));
    cases.push_back(attention_case({.batch = 1, .seq = 65, .heads = 4, .kv_heads = 2, .head_dim = d}));
    cases.push_back(attention_case({.batch = 1, .seq = 130, .heads = 2, .kv_heads = 1, .head_dim = d}));
    cases.push_back(attention_case({.batch = 2, .seq = 130, .heads = 2, .kv_heads = 1, .head_dim = d}, Mask::documents));
  }
  // Blocks of several tiles that end within one; more steps than tiles in flight.
  cases.push_back(attention_case({.batch = 1, .seq = 300, .heads = 1, .kv_heads = 1, .head_dim = 64}, Mask::documents));
  cases.push_back(attention_case({.batch = 1, .seq = 385, .heads = 2, .kv_heads = 1, .head_dim = 64}));
  for (const std::int64_t d : {64, 128})
    cases.push_back(attention_case({.batch = 1, .seq = 260, .heads = 1, .kv_heads = 1, .head_dim = d}, Mask::documents_at_tiles));
  // Wider than the tiles of a GPU.
  cases.push_back(attention_case({.batch = 1, .seq = 67, .heads = 2, .kv_heads = 1, .head_dim = 130}));
  cases.push_back(attention_case({.batch = 1, .seq = 70, .heads = 2, .kv_heads = 1, .head_dim = 132}, Mask::documents));
  for (const std::int64_t d : {16, 64}) cases.push_back(steep_case(d));
  return cases;
}

std::vector<Case> benchmarks() {
  return {attention_case({.batch = 8, .seq = 256, .heads = 8, .kv_heads = 4, .head_dim = 64}),
          attention_case({.batch = 1, .seq = 1024, .heads = 8, .kv_heads = 4, .head_dim = 64}),
          attention_case({.batch = 1, .seq = 2048, .heads = 4, .kv_heads = 4, .head_dim = 128}),
          attention_case({.batch = 8, .seq = 256, .heads = 8, .kv_heads = 8, .head_dim = 32}, Mask::documents)};
}

OP_CASES(Attention, tests, benchmarks)

// By products of bf16 tiles, for which plain loops stand in where the processor has no matrix unit.
std::vector<Case> tests_by_tiles() {
  std::vector<Case> cases = {attention_case({.batch = 1, .seq = 1, .heads = 2, .kv_heads = 1, .head_dim = 8}),
                             attention_case({.batch = 2, .seq = 37, .heads = 6, .kv_heads = 1, .head_dim = 5}),
                             attention_case({.batch = 1, .seq = 131, .heads = 4, .kv_heads = 2, .head_dim = 6}),
                             attention_case({.batch = 1, .seq = 150, .heads = 2, .kv_heads = 1, .head_dim = 4}, Mask::documents),
                             attention_case({.batch = 1, .seq = 65, .heads = 4, .kv_heads = 2, .head_dim = 64}),
                             attention_case({.batch = 2, .seq = 70, .heads = 2, .kv_heads = 1, .head_dim = 40}, Mask::documents),
                             attention_case({.batch = 1, .seq = 33, .heads = 1, .kv_heads = 1, .head_dim = 130}),
                             steep_case(16)};
  for (Case& c : cases)
    for (auto* f : {&c.forward, &c.backward})
      *f = [f = *f](CaseTensors& tensors) {
        struct On {
          bool& unit;
          bool before;
          ~On() { unit = before; }
        };
        bool& unit = tensors.ctx().keep<cpu::Instructions>().matrix_unit;
        const On on{unit, std::exchange(unit, true)};
        f(tensors);
      };
  return cases;
}
std::vector<Case> none() { return {}; }
OP_CASES(AttentionByTiles, tests_by_tiles, none)

TEST(Attention, ExponentialOfScores) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  double worst = 0;
  for (float x = 1.0f; x >= -87.0f; x -= 0.00037f)
    worst = std::max(worst, std::fabs(cpu::exp_score(x) / std::exp(static_cast<double>(x)) - 1));
  EXPECT_LE(worst, 3e-7);
  EXPECT_EQ(cpu::exp_score(0.0f), 1.0f);
  for (const float x : {-87.1f, -104.0f, -1e10f, -3e38f, -kInf}) EXPECT_EQ(cpu::exp_score(x), 0.0f) << x;
  for (const float sign : {1.0f, -1.0f})
    EXPECT_TRUE(std::isnan(cpu::exp_score(std::copysign(std::numeric_limits<float>::quiet_NaN(), sign))));
}

OwnedTensor random_tensor(Context& ctx, DType type, const Shape& shape, std::uint64_t seed) {
  std::int64_t n = 1;
  for (const auto d : shape) n *= d;
  Rng rng(seed);
  std::vector<double> v(index(n));
  for (double& x : v) x = rng.normal();
  return make_tensor(ctx, type, shape, v);
}

// The last n rows of a sequence whose keys and values lie in the second row of the table, each a piece of its own; laid out as if
// sequences were long, so that on a GPU few of them are split over blocks.
OwnedTensor single_rows(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& table, std::int64_t n, const AttentionShape& s) {
  const OwnedTensor positions(ctx, DType::i32, {n}), sequences(ctx, DType::i32, {n});
  std::vector<std::int32_t> counted(index(n)), ones(index(n), 1);
  std::iota(counted.begin(), counted.end(), static_cast<std::int32_t>(s.seq - n));
  from_host(ctx, counted.data(), positions);
  from_host(ctx, ones.data(), sequences);
  std::vector<PagedPiece> pieces;
  for (std::int64_t i = 0; i < n; ++i) pieces.push_back({.row = i, .rows = 1, .past = s.seq - n + i, .sequence = 1});
  OwnedTensor out = random_tensor(ctx, q.dtype, {n, q.cols()}, 7);
  attention_paged(ctx, q.row_slice(s.seq - n, n), pages, out,
                  {.positions = positions, .sequences = sequences, .table = table, .pieces = pieces, .longest = 8192}, s);
  return out;
}

// Decoding token by token, or in chunks, gives the rows of the prefill.
void expect_paged_equals_whole(Context& ctx, std::int64_t head_dim) {
  // Tiles round the probabilities, single tokens do not.
  const bool gpu = ctx.device().is_cuda(), rounds = gpu || ctx.keep<cpu::Instructions>().matrix_unit;
  const double bf16_error = rounds || head_dim > 1024 ? 0x1p-7 : 0x1p-8, fp32_error = gpu || head_dim > 1024 ? 1e-5 : 2e-6;
  const AttentionShape s{.batch = 1, .seq = head_dim > 1024 ? 40 : 150, .heads = 6, .kv_heads = 2, .head_dim = head_dim};
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  for (const DType type : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(fmt::format("{}, {}, heads of {}", name_of(ctx.device()), name_of(type), head_dim));
    const OwnedTensor qkv = random_tensor(ctx, type, {s.seq, q + 2 * kv}, 5), whole = random_tensor(ctx, type, {s.seq, q}, 6);
    attention(ctx, qkv, whole, {}, {}, s);
    const auto expected = to_doubles(ctx, whole);
    // What nobody has written is not read, or not taken for anything.
    const OwnedTensor pages = make_tensor(ctx, type, {9 * kPageTokens, 2 * kv},
                                          std::vector<double>(index(9 * kPageTokens * 2 * kv), std::nan(""))),
                      table(ctx, DType::i32, {2, 5});
    from_host(ctx, std::vector<std::int32_t>{0, 0, 0, 0, 0, 7, 2, 8, 1, 5}.data(), table);
    for (const std::int64_t n : {1, 2, 7, 8, 50, 75, 150}) {
      const OwnedTensor out = random_tensor(ctx, type, {s.seq, q}, 7);
      for (std::int64_t past = 0; past < s.seq; past += n) {
        const std::int64_t now = std::min(n, s.seq - past);
        const PagedPiece piece{.row = 0, .rows = now, .past = past, .sequence = 1};
        const OwnedTensor positions(ctx, DType::i32, {now}), sequences(ctx, DType::i32, {now});
        std::vector<std::int32_t> counted(index(now)), ones(index(now), 1);
        std::iota(counted.begin(), counted.end(), static_cast<std::int32_t>(past));
        from_host(ctx, counted.data(), positions);
        from_host(ctx, ones.data(), sequences);
        const PagedRows at{.positions = positions, .sequences = sequences, .table = table, .pieces = {&piece, 1}};
        write_pages(ctx, qkv.t.col_slice(q, 2 * kv).row_slice(past, now), pages, at);
        attention_paged(ctx, qkv.t.col_slice(0, q).row_slice(past, now), pages, out.t.row_slice(past, now), at, s);
      }
      const auto got = to_doubles(ctx, out);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], type == DType::f32 ? fp32_error : bf16_error * std::max(1.0, std::fabs(expected[i])))
            << n << " at a time, element " << i;
    }
    for (const std::int64_t n : {std::int64_t{3}, std::int64_t{20}, s.seq}) {
      const auto got = to_doubles(ctx, single_rows(ctx, qkv.t.col_slice(0, q), pages, table, n, s));
      const double* const right = expected.data() + expected.size() - got.size();
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], right[i], type == DType::f32 ? fp32_error : bf16_error * std::max(1.0, std::fabs(right[i])))
            << n << " single rows, element " << i;
    }
  }
}
TEST(Attention, PagedEqualsWhole) {
  for (Context& ctx : test::contexts())
    for (const std::int64_t head_dim : {20, 64, 96, 128}) expect_paged_equals_whole(ctx, head_dim);
}
TEST(Attention, PagedEqualsWholeWithoutMmla) {
  Context plain;
  plain.keep<cpu::Instructions>().mmla = false;
  for (const std::int64_t head_dim : {20, 64}) expect_paged_equals_whole(plain, head_dim);
}
TEST(Attention, PagedHasRoomForWideHeads) { expect_paged_equals_whole(on_cpu(), 4096); }
TEST(AttentionByTiles, PagedEqualsWhole) {
  Context tiles;
  tiles.keep<cpu::Instructions>().matrix_unit = true;
  for (const std::int64_t head_dim : {20, 96}) expect_paged_equals_whole(tiles, head_dim);
}

// A document mask is the same as separate sequences, bit for bit when the cut falls between tiles.
TEST(Attention, DocumentsAreSeparateSequences) {
  const AttentionShape s{.batch = 1, .seq = 128, .heads = 2, .kv_heads = 1, .head_dim = 16};
  const OwnedTensor qkv = random_tensor(on_cpu(), DType::f32, {128, 64}, 8), out = random_tensor(on_cpu(), DType::f32, {128, 32}, 9),
                    apart = random_tensor(on_cpu(), DType::f32, {128, 32}, 10);
  std::vector<double> starts(128, 0.0);
  std::fill(starts.begin() + 64, starts.end(), 64.0);
  attention(on_cpu(), qkv, out, {}, make_tensor(on_cpu(), DType::i32, {1, 128}, starts), s);
  attention(on_cpu(), qkv, apart, {}, {}, {.batch = 2, .seq = 64, .heads = 2, .kv_heads = 1, .head_dim = 16});
  EXPECT_EQ(to_doubles(on_cpu(), out), to_doubles(on_cpu(), apart));
}

// Every element of the gradient on the GPU, where rows span many tiles, against fp32 on the CPU; and the same bits twice.
void expect_gradients_of_many_tiles(DType type_there, std::int64_t d, double error) {
  Context& gpu = test::context_on(Device::cuda(0));
  SCOPED_TRACE(fmt::format("{}, heads of {}", name_of(type_there), d));
  for (const bool documents : {false, true})
    for (const std::int64_t seq : {449, 640}) {
      const AttentionShape s{.batch = 2, .seq = seq, .heads = 6, .kv_heads = 2, .head_dim = d};
      const std::int64_t n = s.batch * seq, width = d * s.heads, all = d * (s.heads + 2 * s.kv_heads);
      const auto qkv = to_doubles(on_cpu(), random_tensor(on_cpu(), DType::bf16, {n, all}, 21)),
                 dout = to_doubles(on_cpu(), random_tensor(on_cpu(), DType::bf16, {n, width}, 22));
      std::vector<double> starts;
      for (std::int64_t i = 0; i < n; ++i) starts.push_back(i % seq < 200 ? 0.0 : i % seq < 290 ? 200.0 : 290.0);
      const OwnedTensor x = make_tensor(on_cpu(), DType::bf16, {n, all}, qkv), out = make_tensor(on_cpu(), DType::bf16, {n, width}),
                        lse = make_tensor(on_cpu(), DType::f32, {s.batch, s.heads, seq}),
                        first = make_tensor(on_cpu(), DType::i32, {s.batch, seq}, starts);
      attention(on_cpu(), x, out, lse, documents ? first.t : Tensor{}, s);
      const auto gradient = [&](Context& ctx, DType type) {
        const auto on = [&](const Tensor& t, DType as) {
          return make_tensor(ctx, as, Shape(t.shape.begin(), t.shape.begin() + t.rank), to_doubles(ctx, t));
        };
        const OwnedTensor g = make_tensor(ctx, type, {n, width}, dout), dx = make_tensor(ctx, type, {n, all});
        const OwnedTensor starts_there = on(first, DType::i32);
        attention_backward(ctx, on(x, type), on(out, type), on(lse, DType::f32), documents ? starts_there.t : Tensor{}, g, dx, s);
        return to_doubles(ctx, dx);
      };
      const auto expected = gradient(on_cpu(), DType::f32), got = gradient(gpu, type_there);
      EXPECT_EQ(got, gradient(gpu, type_there));
      // Roundings are small against what neighbouring elements have: an element of another tile would not be.
      for (std::size_t i = 0; i < got.size(); i += 64) {
        double square = 0;
        for (std::size_t j = i; j < i + 64; ++j) square += expected[j] * expected[j] / 64;
        for (std::size_t j = i; j < i + 64; ++j)
          ASSERT_NEAR(got[j], expected[j], error * (std::sqrt(square) + 0.01)) << "row " << j / index(all) << ", column " << j % index(all);
      }
    }
}
TEST(Attention, GradientsOfManyTilesOnTheGpu) {
  BHYT_SKIP_WITHOUT_GPU();
  expect_gradients_of_many_tiles(DType::bf16, 64, 0.1);
  for (const std::int64_t d : {64, 128}) expect_gradients_of_many_tiles(DType::f32, d, 1e-4);
}

// What comes later must not reach back; a NaN must reach everything that sees it.
TEST(Attention, SeesThePastAlone) {
  const AttentionShape s{.batch = 1, .seq = 100, .heads = 2, .kv_heads = 1, .head_dim = 16};
  const OwnedTensor qkv = random_tensor(on_cpu(), DType::f32, {100, 64}, 12), out = random_tensor(on_cpu(), DType::f32, {100, 32}, 13);
  const auto with = [&](float value) {
    std::fill_n(qkv.t.as<float>() + 70 * 64, 64, value);
    attention(on_cpu(), qkv, out, {}, {}, s);
    return to_doubles(on_cpu(), out);
  };
  const auto small = with(0.5f), large = with(1e15f), nan = with(std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < small.size(); ++i) {
    if (i < 70 * 32)
      ASSERT_EQ(small[i], large[i]) << i;
    else
      ASSERT_TRUE(std::isnan(nan[i])) << i;
  }
}

TEST(Attention, TakesNothing) {
  const OwnedTensor qkv = make_tensor(on_cpu(), DType::f32, {0, 64}), out = make_tensor(on_cpu(), DType::f32, {0, 32});
  const OwnedTensor lse = make_tensor(on_cpu(), DType::f32, {0, 2, 5});
  const AttentionShape s{.batch = 0, .seq = 5, .heads = 2, .kv_heads = 1, .head_dim = 16};
  attention(on_cpu(), qkv, out, {}, {}, s);
  attention_backward(on_cpu(), qkv, out, lse, {}, out, qkv, s);
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const AttentionShape s{.batch = 1, .seq = 4, .heads = 2, .kv_heads = 1, .head_dim = 8};
  const OwnedTensor qkv = random_tensor(on_cpu(), DType::f32, {4, 32}, 1), out = random_tensor(on_cpu(), DType::f32, {4, 16}, 2);
  EXPECT_THROW(attention(on_cpu(), qkv, qkv, {}, {}, s), Error);
  EXPECT_THROW(attention(on_cpu(), qkv, random_tensor(on_cpu(), DType::bf16, {4, 16}, 3), {}, {}, s), Error);
  EXPECT_THROW(attention(on_cpu(), qkv, out, {}, {}, {.batch = 1, .seq = 4, .heads = 3, .kv_heads = 2, .head_dim = 8}), Error);
  EXPECT_THROW(attention(on_cpu(), qkv, out, {}, make_tensor(on_cpu(), DType::i32, {1, 4}, {0, 2, 0, 0}), s), Error);
  EXPECT_THROW(attention(on_cpu(), qkv, out, {}, make_tensor(on_cpu(), DType::i32, {1, 4}, {0, 0, -1, 0}), s), Error);
  EXPECT_THROW(attention_backward(on_cpu(), qkv, out, {}, {}, out, qkv, s), Error);
}

// The kernels of a GPU skip tiles by `first`: both devices ask for the same, and say where it does not hold.
TEST(Attention, FirstStaysInItsRowAndNeverDecreases) {
  const AttentionShape s{.batch = 2, .seq = 4, .heads = 2, .kv_heads = 1, .head_dim = 8};
  const OwnedTensor qkv = random_tensor(on_cpu(), DType::f32, {8, 32}, 1), out = random_tensor(on_cpu(), DType::f32, {8, 16}, 2),
                    lse = random_tensor(on_cpu(), DType::f32, {2, 2, 4}, 3);
  const auto messages = [&](const std::vector<double>& starts) {
    const OwnedTensor first = make_tensor(on_cpu(), DType::i32, {2, 4}, starts);
    std::vector<std::string> out_of;
    const auto note = [&](const auto& call) {
      try {
        call();
        out_of.emplace_back("fine");
      } catch (const Error& e) {
        out_of.emplace_back(e.what());
      }
    };
    note([&] { attention(on_cpu(), qkv, out, lse, first, s); });
    note([&] { attention_backward(on_cpu(), qkv, out, lse, first, out, qkv, s); });
    return out_of;
  };
  const auto refused = [](const std::string& what) {
    return std::vector<std::string>{"[attention] expected first " + what, "[attention_backward] expected first " + what};
  };
  EXPECT_EQ(messages({0, 0, 2, 2, 0, 1, 2, 3}), (std::vector<std::string>{"fine", "fine"}));  // each row begins anew
  EXPECT_EQ(messages({0, 0, 0, 0, 0, 1, 2, 1}),
            refused("between 2 (that of the position before, or 0) and 3 at position 3 of row 1, got 1"));
  EXPECT_EQ(messages({0, 0, 3, 3, 0, 0, 0, 0}),
            refused("between 0 (that of the position before, or 0) and 2 at position 2 of row 0, got 3"));
  EXPECT_EQ(messages({0, 0, 0, 0, -1, 0, 0, 0}),
            refused("between 0 (that of the position before, or 0) and 0 at position 0 of row 1, got -1"));
}

}  // namespace
}  // namespace bhyt::testing
