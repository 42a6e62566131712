// Collectives through the host, with threads as ranks: every rank can compute what it must get, since all know what the others send.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/memory.h"
#include "parallel/collectives.h"
#include "parallel/launch.h"
#include "tests/message_of.h"
#include "tests/parallel/groups.h"

namespace bhyt::parallel {
namespace {

using bhyt::test::message_of;
using test::on_ranks;
using test::ThreadGroup;

constexpr int kSizes[] = {1, 2, 3, 4};                             // of groups
constexpr std::int64_t kParts[] = {1, 5, 1023, 1024, 1025, 5003};  // elements of a rank's part; a piece of a bucket has 1024 or more

template <class T>
Tensor view(std::vector<T>& v, DType type) {
  return Tensor(v.data(), type, Device::cpu(), {static_cast<std::int64_t>(v.size())});
}
Tensor view(std::vector<float>& v) { return view(v, DType::f32); }

// What a rank sends at an index: of so different sizes that another order of the sum gives other bits.
float value(int rank, std::int64_t i) {
  const auto x = static_cast<double>((i * 2654435761 + rank * 40503 + 7) % 100003) / 100003 - 0.5;
  return static_cast<float>(std::ldexp(x, static_cast<int>((i + 5 * rank) % 13)));
}
std::vector<float> values(int rank, std::int64_t n, std::int64_t first = 0) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(value(rank, first + i));
  return v;
}

float as_sent(float x, Reduce reduce) { return reduce == Reduce::bf16 ? to_float(to_bf16(x)) : x; }

// A rank's part of the sum, added in the order of the ranks to what is there.
std::vector<float> expected_part(int rank, int ranks, std::int64_t part, Reduce reduce, std::vector<float> sum) {
  for (std::int64_t i = 0; i < part; ++i)
    for (int r = 0; r < ranks; ++r) sum[static_cast<std::size_t>(i)] += as_sent(value(r, rank * part + i), reduce);
  return sum;
}

void expect_sum(Context& ctx, ThreadGroup& group, std::int64_t part, const CollectiveOptions& options) {
  const auto c = host_collectives(ctx, group, options);
  const int me = group.rank(), ranks = group.size();
  std::vector<float> from = values(me, ranks * part), to(static_cast<std::size_t>(part), 9.0f);
  const std::vector<float> zeros(to.size(), 0.0f);
  c->wait(c->reduce_scatter(view(from), view(to), false, "sum"));
  const std::vector<float> once = expected_part(me, ranks, part, options.reduce, zeros);
  EXPECT_EQ(to, once) << "rank " << me << " of " << ranks << ", parts of " << part;
  EXPECT_EQ(from, values(me, ranks * part)) << "what is sent is not written";
  c->wait(c->reduce_scatter(view(from), view(to), true, "sum"));
  EXPECT_EQ(to, expected_part(me, ranks, part, options.reduce, once)) << "added; rank " << me << " of " << ranks << ", parts of " << part;
}

TEST(HostCollectives, ReduceScatterAddsInTheOrderOfTheRanks) {
  for (const int size : kSizes)
    on_ranks(size, [](Context& ctx, ThreadGroup& group) {
      for (const std::int64_t part : kParts) expect_sum(ctx, group, part, {});
    });
}

TEST(HostCollectives, Bf16TravelsRoundedAndIsAddedInFp32) {
  for (const int size : kSizes)
    on_ranks(size, [](Context& ctx, ThreadGroup& group) {
      for (const std::int64_t part : kParts) expect_sum(ctx, group, part, {.reduce = Reduce::bf16});
    });
}

TEST(HostCollectives, ABucketCutsASumAndKeepsItsBits) {
  on_ranks(4, [](Context& ctx, ThreadGroup& group) {
    for (const Reduce reduce : {Reduce::fp32, Reduce::bf16}) {
      const std::size_t element = reduce == Reduce::fp32 ? sizeof(float) : sizeof(bf16);
      const int before = group.exchanges;
      expect_sum(ctx, group, 5003, {.bucket = 4 * 2000 * element, .reduce = reduce});
      EXPECT_EQ(group.exchanges - before, 2 * 3) << "two sums, each of 2000, 2000 and 1003 elements of a part";
    }
  });
}

// What parallel.zero=0 does with a section.
TEST(HostCollectives, ASumInPlaceAndHandedRoundIsTheSameOnAllRanks) {
  for (const int size : kSizes)
    on_ranks(size, [](Context& ctx, ThreadGroup& group) {
      const auto c = host_collectives(ctx, group, {.bucket = 1});
      const int ranks = group.size();
      const std::int64_t part = 3001;
      std::vector<float> all = values(group.rank(), ranks * part);
      const Tensor own(all.data() + group.rank() * part, DType::f32, Device::cpu(), {part});
      c->reduce_scatter(view(all), own, false, "sum");
      c->wait(c->all_gather(view(all), "gather"));
      std::vector<float> expected;
      for (int r = 0; r < ranks; ++r)
        for (const float x : expected_part(r, ranks, part, Reduce::fp32, std::vector<float>(static_cast<std::size_t>(part), 0.0f)))
          expected.push_back(x);
      EXPECT_EQ(all, expected);
    });
}

TEST(HostCollectives, AllGatherTakesAnyType) {
  for (const int size : kSizes)
    on_ranks(size, [](Context& ctx, ThreadGroup& group) {
      const auto c = host_collectives(ctx, group, {});
      constexpr std::size_t kPart = 13;
      std::vector<std::uint16_t> all(kPart * static_cast<std::size_t>(group.size())), expected(all.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        expected[i] = static_cast<std::uint16_t>(1000 + 7 * i);
        if (i / kPart == static_cast<std::size_t>(group.rank())) all[i] = expected[i];
      }
      c->wait(c->all_gather(view(all, DType::bf16), "gather"));
      EXPECT_EQ(all, expected);
    });
}

TEST(HostCollectives, AllReduceAddsInTheOrderOfTheRanks) {
  for (const int size : kSizes)
    on_ranks(size, [](Context& ctx, ThreadGroup& group) {
      const auto c = host_collectives(ctx, group, {});
      const std::int64_t n = 37;
      std::vector<float> floats = values(group.rank(), n), float_sum(static_cast<std::size_t>(n), 0.0f);
      std::vector<double> doubles, double_sum(static_cast<std::size_t>(n), 0.0);
      for (const float x : floats) doubles.push_back(x / 3.0);
      for (int r = 0; r < group.size(); ++r)
        for (std::int64_t i = 0; i < n; ++i) {
          float_sum[static_cast<std::size_t>(i)] += value(r, i);
          double_sum[static_cast<std::size_t>(i)] += value(r, i) / 3.0;
        }
      c->all_reduce(view(floats), "floats");
      c->all_reduce(view(doubles, DType::f64), "doubles");
      EXPECT_EQ(floats, float_sum);
      EXPECT_EQ(doubles, double_sum);
    });
}

// As a backward pass gives them: many under way, waited for later and in another order.
TEST(HostCollectives, SeveralAreUnderWayAtATime) {
  on_ranks(3, [](Context& ctx, ThreadGroup& group) {
    const auto c = host_collectives(ctx, group, {});
    constexpr std::size_t kCount = 8;
    const std::int64_t part = 700;
    std::vector<std::vector<float>> from, to(kCount, std::vector<float>(static_cast<std::size_t>(part)));
    std::vector<Collectives::Ticket> tickets;
    for (std::size_t k = 0; k < kCount; ++k) from.push_back(values(group.rank(), 3 * part, static_cast<std::int64_t>(k)));
    for (std::size_t k = 0; k < kCount; ++k) tickets.push_back(c->reduce_scatter(view(from[k]), view(to[k]), false, "layer"));
    for (std::size_t k = kCount; k-- > 0;) {
      c->wait(tickets[k]);
      for (std::int64_t i = 0; i < part; ++i) {
        float sum = 0;
        for (int r = 0; r < 3; ++r) sum += value(r, static_cast<std::int64_t>(k) + group.rank() * part + i);
        ASSERT_EQ(to[k][static_cast<std::size_t>(i)], sum) << "number " << k << " at " << i;
      }
    }
  });
}

TEST(HostCollectives, TraceHoldsThoseThatRanInOrder) {
  on_ranks(2, [](Context& ctx, ThreadGroup& group) {
    const auto c = host_collectives(ctx, group, {});
    std::vector<float> all(10, 1.0f);
    c->all_reduce(view(all), "before");
    c->note("before");
    c->trace();
    c->all_gather(view(all), "first");
    c->note("one");
    c->all_reduce(view(all), "second");
    c->note("two");
    const auto [computing, traced] = c->traced();
    c->all_reduce(view(all), "behind");
    c->note("behind");
    ASSERT_EQ(traced.size(), 2u);
    EXPECT_EQ(traced[0].name, "first");
    EXPECT_EQ(traced[1].name, "second");
    EXPECT_LE(traced[0].begin, traced[0].end);
    EXPECT_LE(traced[0].end, traced[1].begin);
    ASSERT_EQ(computing.size(), 2u);
    EXPECT_EQ(computing[0].name, "one");
    EXPECT_EQ(computing[1].name, "two");
    EXPECT_LE(computing[0].begin, computing[0].end);
    EXPECT_EQ(computing[0].end, computing[1].begin) << "a stretch begins where the one before ended";
    EXPECT_LE(traced[1].end, computing[1].end) << "an all-reduce is waited for";
    c->trace();
    const Timeline after = c->traced();
    EXPECT_TRUE(after.computing.empty() && after.collectives.empty()) << "what ran while nothing was traced is left out";
  });
}

TEST(HostCollectives, WrongSizesAreErrorsThatSayBoth) {
  Context ctx(Device::cpu(), 1);
  test::Meeting meeting(3);
  ThreadGroup group(meeting, 0, 3);
  const auto c = host_collectives(ctx, group, {});
  std::vector<float> from(12), to(5);
  std::vector<double> doubles(15);
  EXPECT_EQ(message_of([&] { c->reduce_scatter(view(from), view(to), false, "sum"); }),
            "[reduce_scatter] expected fp32 and 3 × 5 elements, got 12");
  EXPECT_NE(message_of([&] { c->reduce_scatter(view(doubles, DType::f64), view(to), false, "sum"); }), "no error");
  EXPECT_EQ(message_of([&] { c->all_gather(view(to), "gather"); }), "[all_gather] expected a multiple of 3 elements, got 5");
}

// One rank fails before its collective; the others meet the time limit where they wait, and at every wait from then on.
TEST(HostCollectives, ARankThatStaysAwayIsAnErrorWhereTheOthersWait) {
  on_ranks(3, [](Context& ctx, ThreadGroup& group) {
    if (group.rank() == 1) return;
    group.set_timeout(0.05);
    const auto c = host_collectives(ctx, group, {});
    std::vector<float> from(12, 1.0f), to(4, 5.0f);
    const auto first = c->reduce_scatter(view(from), view(to), false, "first");
    const auto second = c->all_gather(view(from), "second");
    EXPECT_EQ(message_of([&] { c->wait(second); }), "a rank did not answer");
    EXPECT_EQ(message_of([&] { c->wait(first); }), "a rank did not answer");
    EXPECT_EQ(message_of([&] { c->all_reduce(view(to), "third"); }), "a rank did not answer");
    EXPECT_EQ(to, std::vector<float>(4, 5.0f)) << "what nobody summed is not written";
  });
}

TEST(Together, AnErrorOfOneRankIsThrownOnAll) {
  on_ranks(3, [](Context&, ThreadGroup& group) {
    EXPECT_EQ(message_of([&] {
                together(group, [&] {
                  if (group.rank() > 0) throw UsageError("rank " + std::to_string(group.rank()) + " has no data");
                });
              }),
              "rank 1 on here: rank 1 has no data");
    EXPECT_THROW(together(group,
                          [&] {
                            if (group.rank() == 2) throw UsageError("wrong");
                          }),
                 UsageError);
    EXPECT_NO_THROW(together(group, [] {}));
  });
}

TEST(GatherTexts, TextsOfAnyLengthComeByRank) {
  on_ranks(4, [](Context&, ThreadGroup& group) {
    const std::vector<std::string> expected{"", "b", std::string(300, 'c'), std::string("d\0d", 3)};
    EXPECT_EQ(gather_texts(group, expected[static_cast<std::size_t>(group.rank())]), expected);
    EXPECT_EQ(gather_texts(group, ""), std::vector<std::string>(4));
  });
}

}  // namespace
}  // namespace bhyt::parallel
