// What ranks score together: cut evenly, heard of in order by all, the same as one process, and ended together.
#include "eval/share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "tests/parallel/groups.h"

namespace bhyt::testing {
namespace {

TEST(Share, PiecesAreInOrderAndOfLikeCost) {
  std::vector<double> costs;
  for (int i = 0; i < 500; ++i) costs.push_back(1 + i * 37 % 50);
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  for (const std::size_t pieces : {1u, 2u, 3u, 7u, 24u}) {
    const std::vector<std::size_t> places = cut(costs, pieces);
    ASSERT_EQ(places.size(), pieces + 1);
    EXPECT_EQ(places.front(), 0u);
    EXPECT_EQ(places.back(), costs.size());
    for (std::size_t p = 0; p < pieces; ++p) {
      ASSERT_LE(places[p], places[p + 1]);
      const double sum = std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(places[p]),
                                         costs.begin() + static_cast<std::ptrdiff_t>(places[p + 1]), 0.0);
      EXPECT_NEAR(sum, all / static_cast<double>(pieces), 50) << p << " of " << pieces;  // the costliest one
    }
  }
}

TEST(Share, ThereMayBeMorePiecesThanThings) {
  const std::vector<double> costs = {1, 1000, 1};
  const std::vector<std::size_t> places = cut(costs, 8);
  EXPECT_EQ(places.front(), 0u);
  EXPECT_EQ(places.back(), 3u);
  EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
  EXPECT_EQ(cut({}, 3), (std::vector<std::size_t>{0, 0, 0, 0}));
}

std::string result_of(std::size_t i) { return std::string(i % 4, static_cast<char>('a' + i % 26)); }  // some are empty

TEST(Share, AllRanksHearOfAllInOrder) {
  for (const int ranks : {2, 3, 5})
    for (const std::size_t things : {std::size_t{1}, std::size_t{2}, std::size_t{100}})
      for (const double tokens : {1e9, 40.0}) {
        std::vector<double> costs;
        for (std::size_t i = 0; i < things; ++i) costs.push_back(static_cast<double>(1 + i % 9));
        std::atomic<std::size_t> scored = 0;
        test::on_ranks(ranks, [&](Context&, test::ThreadGroup& group) {
          std::size_t next = 0, calls = 0;
          const auto score = [&](std::size_t first, std::size_t last, const auto& give) {
            ++calls;
            for (std::size_t i = first; i < last; ++i, ++scored) give(result_of(i));
          };
          EXPECT_TRUE(share_out({&group, tokens}, costs, score, [&](std::size_t i, const std::string& result) {
            EXPECT_EQ(i, next++);
            EXPECT_EQ(result, result_of(i));
          }));
          EXPECT_EQ(next, things);
          if (things == 100) {
            EXPECT_EQ(calls > 1, tokens < 100);  // results come at intervals
          }
        });
        EXPECT_EQ(scored, things);  // each once
      }
}

// Where one rank is interrupted, all have the same results: those before the first that is missing.
TEST(Share, AnInterruptionEndsAllAtTheSamePlace) {
  const std::vector<double> costs(90, 1.0);
  test::on_ranks(3, [&](Context&, test::ThreadGroup& group) {
    std::size_t heard = 0;
    const auto score = [&](std::size_t first, std::size_t last, const auto& give) {
      for (std::size_t i = first; i < last; ++i) {
        if (i == 44) return;
        give(result_of(i));
      }
    };
    EXPECT_FALSE(share_out({&group, 10}, costs, score, [&](std::size_t i, const std::string&) { EXPECT_EQ(i, heard++); }));
    EXPECT_EQ(heard, 44u);
  });
}

TEST(Share, AnErrorOfOneRankIsThatOfAll) {
  const std::vector<double> costs(9, 1.0);
  test::on_ranks(3, [&](Context&, test::ThreadGroup& group) {
    const auto score = [&](std::size_t first, std::size_t, const auto&) {
      if (first == 3) throw Error("no numbers");
    };
    std::string message;
    try {
      share_out({&group, 1e9}, costs, score, [](std::size_t, const std::string&) {});
    } catch (const Error& e) {
      message = e.what();
    }
    EXPECT_EQ(message, "rank 1 on here: no numbers");
  });
}

TEST(Share, RanksWithOtherThingsAreNamed) {
  test::on_ranks(2, [&](Context&, test::ThreadGroup& group) {
    const std::vector<double> costs(group.rank() == 0 ? 4 : 5, 1.0);
    EXPECT_THROW(share_out(
                     {&group, 1e9}, costs, [](auto, auto, const auto&) {}, [](auto, const auto&) {}),
                 Error);
  });
}

TEST(Share, RanksWithAsManyOtherThingsAreNamed) {
  test::on_ranks(2, [&](Context&, test::ThreadGroup& group) {
    const std::vector<double> costs(4, 1.0);
    const std::uint64_t checksum = group.rank() == 0 ? 10u : 11u;
    std::string message;
    try {
      share_out(
          {&group, 1e9}, costs, [](auto, auto, const auto&) {}, [](auto, const auto&) {}, checksum);
    } catch (const Error& e) {
      message = e.what();
    }
    EXPECT_EQ(message,
              "all ranks must have the same to score: rank 1 on here has 4 pieces of text with the checksum 000000000000000b, "
              "rank 0 on here has 4 pieces of text with the checksum 000000000000000a");
  });
}

TEST(Share, TheFirstRankCounts) {
  test::on_ranks(2, [&](Context&, test::ThreadGroup& group) {
    const Sharing ranks{&group, 1};
    EXPECT_EQ(ranks.first_counts([&] { return group.rank() == 0 ? std::size_t{7} : std::size_t{0}; }), 7u);
  });
  EXPECT_EQ(Sharing{}.first_counts([] { return std::size_t{5}; }), 5u);
}

}  // namespace
}  // namespace bhyt::testing
