#include "core/context.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "core/parts.h"
#include "tests/devices.h"
#include "tests/message_of.h"

namespace bhyt {
namespace {

using test::message_of;

// Runs f inside an operation named "sample".
template <class F>
void as_operation(Context& ctx, F&& f) {
  const Operation sample(ctx, "sample", profile::Kind::other, ctx.device());
  f();
}

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

TEST(Settled, AnOperationThatTakesMemoryThrowsAndIsNamed) {
  for (const Device device : test::devices()) {
    Context ctx(device, 2);
    as_operation(ctx, [&] { ctx.scratch(kMegabyte); });
    ctx.settled();
    EXPECT_TRUE(ctx.is_settled());
    as_operation(ctx, [&] { ctx.scratch(kMegabyte); });  // there already
    const std::string expected = "[sample] expected everything to be ready in a settled context, but the operation takes memory";
    EXPECT_EQ(message_of([&] { as_operation(ctx, [&] { ctx.scratch(2 * kMegabyte); }); }), expected);
    EXPECT_EQ(message_of([&] { as_operation(ctx, [&] { ctx.scratch(1, Context::Use::workspace); }); }), expected);
    EXPECT_EQ(message_of([&] { as_operation(ctx, [&] { const OwnedTensor t(ctx, DType::f32, {4}); }); }), expected);
    as_operation(ctx, [&] { ctx.scratch(kMegabyte); });  // what was refused left the rest as it was
    ctx.settled(false);
    as_operation(ctx, [&] { ctx.scratch(2 * kMegabyte); });
  }
}

TEST(Settled, NamesTheInnermostOperation) {
  Context ctx;
  ctx.settled();
  const Operation outer(ctx, "outer", profile::Kind::other, ctx.device());
  EXPECT_EQ(message_of([&] { as_operation(ctx, [&] { ctx.scratch(1); }); }).rfind("[sample]", 0), 0u);
  EXPECT_EQ(message_of([&] { ctx.scratch(1); }).rfind("[outer]", 0), 0u);  // its name again once the inner one is over
}

TEST(Settled, OutsideAnOperationMemoryMayBeTaken) {
  for (const Device device : test::devices()) {
    Context ctx(device, 2);
    ctx.settled();
    { const OwnedTensor t(ctx, DType::f32, {4}); }
    ctx.scratch(kMegabyte);
    ctx.synchronize();
    as_operation(ctx, [] {});  // nothing was given back by an operation
  }
}

// A destructor cannot throw: the next operation does, once.
TEST(Settled, MemoryGivenBackInAnOperationShowsInTheNextOne) {
  for (const Device device : test::devices()) {
    Context ctx(device, 2);
    Buffer memory(ctx, kMegabyte);
    ctx.settled();
    as_operation(ctx, [&] { const Buffer gone = std::move(memory); });
    EXPECT_EQ(message_of([&] { const Operation next(ctx, "next", profile::Kind::other, ctx.device()); }),
              "[sample] expected no memory to be given back in a settled context, but the operation did");
    as_operation(ctx, [] {});
  }
}

TEST(Settled, WaitingForAGpuThrows) {
  BHYT_SKIP_WITHOUT_GPU();
  Context ctx(Device::cuda(0));
  const OwnedTensor a(ctx, DType::f32, {4}), b(ctx, DType::f32, {4});
  float host[4] = {1, 2, 3, 4};
  ctx.settled();
  const auto copies = "[sample] expected everything to be ready in a settled context, but the operation copies between host and device";
  EXPECT_EQ(message_of([&] { as_operation(ctx, [&] { to_host(ctx, a, host); }); }).rfind(copies, 0), 0u);
  EXPECT_EQ(message_of([&] { as_operation(ctx, [&] { from_host(ctx, host, a); }); }).rfind(copies, 0), 0u);
  EXPECT_EQ(message_of([&] { as_operation(ctx, [&] { ctx.synchronize(); }); }),
            "[sample] expected everything to be ready in a settled context, but the operation waits for the device");
  as_operation(ctx, [&] { copy(ctx, a, b), zero(ctx, a); });  // on the device: nobody waits
  from_host(ctx, host, b);
  ctx.settled(false);
  as_operation(ctx, [&] { to_host(ctx, b, host); });
  EXPECT_EQ(host[3], 4);
}

TEST(Context, RefusesTensorsOfAnotherDevice) {
  Context ctx;
  EXPECT_EQ(message_of([&] { const Operation o(ctx, "sample", profile::Kind::other, Device::cuda(1)); }),
            "[sample] expected tensors on cpu, the context's device, got cuda:1");
  BHYT_SKIP_WITHOUT_GPU();
  Context gpu(Device::cuda(0));
  EXPECT_EQ(message_of([&] { const Operation o(gpu, "sample", profile::Kind::other, Device::cpu()); }),
            "[sample] expected tensors on cuda:0, the context's device, got cpu");
}

struct KeptOne {
  explicit KeptOne(Context& ctx) : of(&ctx) { ++made; }
  ~KeptOne() { ++gone; }
  Context* of;
  static inline int made = 0, gone = 0;
};
struct KeptOther {
  explicit KeptOther(Context&) {}
};

TEST(Context, KeepsOneObjectOfAType) {
  {
    Context a, b;
    KeptOne& first = a.keep<KeptOne>();
    EXPECT_EQ(&a.keep<KeptOne>(), &first);
    EXPECT_EQ(first.of, &a);
    a.keep<KeptOther>();
    EXPECT_EQ(&a.keep<KeptOne>(), &first);
    EXPECT_NE(&b.keep<KeptOne>(), &first);
    EXPECT_EQ(b.keep<KeptOne>().of, &b);
    EXPECT_EQ(KeptOne::made, 2);
    EXPECT_EQ(KeptOne::gone, 0);
  }
  EXPECT_EQ(KeptOne::gone, 2);
}

TEST(Context, ScratchGrowsAndUsesDoNotOverlap) {
  Context ctx(Device::cpu(), 3);
  auto* sums = static_cast<char*>(ctx.scratch(1000));
  auto* work = static_cast<char*>(ctx.scratch(3 * kMegabyte, Context::Use::workspace));
  EXPECT_EQ(ctx.scratch(500), sums);
  EXPECT_TRUE(sums + 1000 <= work || work + 3 * kMegabyte <= sums);
  ctx.scratch(5 * kMegabyte);
  EXPECT_EQ(ctx.scratch(kMegabyte, Context::Use::workspace), work);
  const WorkerScratch own = ctx.worker_scratch(100);
  EXPECT_GE(own.stride, 100u);
  for (int w = 0; w < ctx.threads().workers(); ++w) std::fill_n(own.of(w), 100, static_cast<float>(w));
  for (int w = 0; w < ctx.threads().workers(); ++w) EXPECT_EQ(own.of(w)[99], static_cast<float>(w));
}

void spin(std::chrono::microseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
  }
}

TEST(Profile, TimesAreExclusiveAndSumToTheWhole) {
  Context ctx, other;
  const auto operation = [&](profile::Kind kind) { return Operation(ctx, "sample", kind, ctx.device()); };
  { const Operation idle = operation(profile::Kind::norm); }  // without a recording: nothing
  ctx.profile().start();
  {
    const Operation outer = operation(profile::Kind::cross_entropy);
    spin(std::chrono::microseconds(200));
    const Operation inner = operation(profile::Kind::matrix);
    spin(std::chrono::microseconds(200));
  }
  const profile::Seconds s = ctx.profile().stop();
  EXPECT_GT(s[static_cast<std::size_t>(profile::Kind::cross_entropy)], 0);
  EXPECT_GT(s[static_cast<std::size_t>(profile::Kind::matrix)], 0);
  EXPECT_EQ(s[static_cast<std::size_t>(profile::Kind::norm)], 0);
  EXPECT_FALSE(other.profile().recording());
}

TEST(Profile, PartsByTheNamesThatAPassGives) {
  Context ctx;
  std::vector<float> w(15);
  const Tensor weights(w.data(), DType::f32, ctx.device(), {3, 5});
  profile::from_here(ctx, {"nobody asks"});
  const auto parts = profile::parts_of(ctx, [&] {
    for (int layer = 0; layer < 2; ++layer) {
      profile::from_here(ctx, {"norm"});
      profile::from_here(ctx, {layer ? "norm+" : "", "qkv"}, weights);
    }
    profile::from_here(ctx, {"qkv"}, weights);
  });
  std::vector<std::string> names;
  for (const profile::Part& p : parts) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"norm", "qkv", "norm+qkv", "other"}));
  EXPECT_EQ(parts[1].bytes, 2 * 60);
  EXPECT_EQ(parts[2].bytes, 60);
  EXPECT_FALSE(ctx.profile().recording());
  EXPECT_EQ(profile::parts_of(ctx, [] {}).size(), 1u);
}

}  // namespace
}  // namespace bhyt
