// Collectives of a group of one rank, through the host on every device and through NCCL on a GPU: what they leave behind, and their order
// with the context's own work.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/memory.h"
#include "parallel/collectives.h"
#include "tests/devices.h"
#include "tests/parallel/groups.h"

namespace bhyt::parallel {
namespace {

using Make = std::unique_ptr<Collectives> (*)(Context&, Group&, const CollectiveOptions&);

OwnedTensor on_device(Context& ctx, const std::vector<float>& v) {
  OwnedTensor t(ctx, DType::f32, {static_cast<std::int64_t>(v.size())});
  from_host(ctx, v.data(), t);
  return t;
}
std::vector<float> read(Context& ctx, const Tensor& t) {
  std::vector<float> v(static_cast<std::size_t>(t.size()));
  to_host(ctx, t, v.data());
  return v;
}

std::vector<float> numbers(std::int64_t n) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<float>((i * 7919) % 10007) / 317.0f - 12.0f);
  return v;
}
std::vector<float> rounded(std::vector<float> v) {
  for (float& x : v) x = to_float(to_bf16(x));
  return v;
}
std::vector<float> plus(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Odd ones, larger than a piece of the smallest bucket, and growing: staging moves.
constexpr std::int64_t kCounts[] = {1, 33, 5003, 100001};

void sums(Context& ctx, Make make) {
  test::OneRank group;
  for (const Reduce reduce : {Reduce::fp32, Reduce::bf16}) {
    const auto c = make(ctx, group, {.bucket = 4096, .reduce = reduce});
    for (const std::int64_t n : kCounts) {
      const std::vector<float> v = numbers(n), sent = reduce == Reduce::bf16 ? rounded(v) : v;
      const OwnedTensor from = on_device(ctx, v), to = on_device(ctx, std::vector<float>(v.size(), 9.0f));
      c->wait(c->reduce_scatter(from, to, false, "sum"));
      EXPECT_EQ(read(ctx, to), sent);
      c->wait(c->reduce_scatter(from, to, true, "sum"));
      EXPECT_EQ(read(ctx, to), plus(sent, sent));
      EXPECT_EQ(read(ctx, from), v) << "what is sent is not written";
      c->wait(c->reduce_scatter(from, from, false, "in place"));
      EXPECT_EQ(read(ctx, from), sent);
    }
  }
}

void gathers_and_small_sums(Context& ctx, Make make) {
  test::OneRank group;
  const auto c = make(ctx, group, {});
  const std::vector<float> v = numbers(1001);
  const OwnedTensor t = on_device(ctx, v);
  c->wait(c->all_gather(t, "gather"));
  EXPECT_EQ(read(ctx, t), v);
  c->all_reduce(t, "floats");
  EXPECT_EQ(read(ctx, t), v);

  const std::vector<double> doubles{1.0 / 3, -1e300, 5e-300};
  const OwnedTensor d(ctx, DType::f64, {3});
  from_host(ctx, doubles.data(), d);
  c->all_reduce(d, "doubles");
  std::vector<double> got(3);
  to_host(ctx, d, got.data());
  EXPECT_EQ(got, doubles);
}

// Each reads what the one before it, on the other stream, has written: b → a by the collective, a → b by the context. Large, so that one
// that does not wait reads what is not there yet.
void order(Context& ctx, Make make) {
  test::OneRank group;
  const auto c = make(ctx, group, {});
  const std::int64_t n = ctx.device().is_cuda() ? std::int64_t{1} << 25 : 1 << 16;
  const std::vector<float> ones(static_cast<std::size_t>(n), 1.0f);
  const OwnedTensor a = on_device(ctx, ones), b = on_device(ctx, ones);
  float expected = 1;
  for (int k = 0; k < 12; ++k) {
    c->wait(c->reduce_scatter(b, a, true, "double"));
    copy(ctx, a, b);
    expected *= 2;
  }
  EXPECT_EQ(read(ctx, b), std::vector<float>(ones.size(), expected));

  // Waiting again for what is long done is right, too; so is a later one in the place of an earlier.
  const auto first = c->reduce_scatter(b, a, true, "double"), second = c->reduce_scatter(b, a, true, "double");
  c->wait(second);
  c->wait(first);
  c->wait(first);
  EXPECT_EQ(read(ctx, a), std::vector<float>(ones.size(), 3 * expected));
}

void traces(Context& ctx, Make make) {
  test::OneRank group;
  const auto c = make(ctx, group, {});
  const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const OwnedTensor t = on_device(ctx, numbers(1001));
  const std::int64_t size = ctx.device().is_cuda() ? 64 << 20 : 1 << 20;
  const OwnedTensor large(ctx, DType::f32, {size}), other(ctx, DType::f32, {size});
  zero(ctx, large);
  c->all_reduce(t, "before");
  const double start = now();
  c->trace();
  c->wait(c->all_gather(t, "first"));
  c->note("wait");
  for (int k = 0; k < 50; ++k) copy(ctx, large, other);  // on a GPU some 5 ms of work, handed over in much less
  c->note("copies");
  c->all_reduce(t, "second");
  c->note("sum");
  const auto [computing, traced] = c->traced();
  const double end = now();
  ASSERT_EQ(computing.size(), 3u);
  EXPECT_EQ(computing[1].name, "copies");
  EXPECT_GT(computing[1].end - computing[1].begin, 1e-3) << "the time of the work, not of handing it over";
  EXPECT_EQ(computing[1].end, computing[2].begin);
  EXPECT_LE(computing[1].end, traced[1].begin + 1e-4) << "the sum waits for the copies";
  ASSERT_EQ(traced.size(), 2u);
  EXPECT_EQ(traced[0].name, "first");
  EXPECT_EQ(traced[1].name, "second");
  constexpr double kClocks = 0.01;  // the device's clock against the host's
  EXPECT_GE(traced[0].begin, start - kClocks);
  EXPECT_LE(traced[0].begin, traced[0].end);
  EXPECT_LE(traced[0].end, traced[1].begin + 1e-5);
  EXPECT_LE(traced[1].end, end + kClocks);
  c->trace();
  const Timeline after = c->traced();
  EXPECT_TRUE(after.computing.empty() && after.collectives.empty());
}

// Without memory to be taken and without waiting: as the steps of a run use them.
void in_a_settled_context(Context& ctx, Make make) {
  test::OneRank group;
  const auto c = make(ctx, group, {.reduce = Reduce::bf16});
  const std::vector<float> v = numbers(5003);
  const OwnedTensor from = on_device(ctx, v), to = on_device(ctx, v);
  c->wait(c->reduce_scatter(from, to, false, "sum"));
  {
    const Settled settled(ctx);
    const Operation step(ctx, "step", profile::Kind::other, ctx.device());
    c->wait(c->reduce_scatter(from, to, true, "sum"));
    c->wait(c->all_gather(to, "gather"));
    c->all_reduce(to, "small");
    EXPECT_TRUE(ctx.is_settled());
  }
  EXPECT_EQ(read(ctx, to), plus(rounded(v), rounded(v)));
}

using Case = void (*)(Context&, Make);
constexpr Case kCases[] = {sums, gathers_and_small_sums, order, traces, in_a_settled_context};

TEST(CollectivesOfOneRank, ThroughTheHostOnEveryDevice) {
  for (Context& ctx : test::contexts())
    for (const Case run : kCases) run(ctx, host_collectives);
}

TEST(CollectivesOfOneRank, ByNccl) {
  BHYT_SKIP_WITHOUT_GPU();
  if (!::dlopen("libnccl.so.2", RTLD_NOW)) GTEST_SKIP() << "no NCCL: " << ::dlerror();
  for (const Case run : kCases) run(test::context_on(Device::cuda(0)), nccl_collectives);
}

TEST(NcclCollectives, ACpuIsNoPlaceForThem) {
  Context ctx(Device::cpu(), 1);
  test::OneRank group;
  try {
    nccl_collectives(ctx, group, {});
    ADD_FAILURE() << "expected an error";
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find(cuda::built() ? "expected a context on a GPU, got one on cpu" : "a build with CUDA"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace bhyt::parallel
