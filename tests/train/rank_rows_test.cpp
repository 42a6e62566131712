#include "train/rank_rows.h"

#include <gtest/gtest.h>

namespace bhyt::train {
namespace {

TEST(RankRows, ShareOutEveryRowOnce) {
  for (const std::int64_t rows : {0, 1, 2, 5, 6, 64, 65})
    for (const std::int64_t ranks : {1, 2, 3, 4, 7}) {
      std::int64_t next = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const RowRange r = rows_of(rows, rank, ranks);
        EXPECT_EQ(r.first, next);
        EXPECT_GE(r.count, rows / ranks);
        EXPECT_LE(r.count, rows_of(rows, 0, ranks).count);  // the first rank has most
        next += r.count;
      }
      EXPECT_EQ(next, rows);
    }
}

TEST(RankRows, KnowTheBatchTheyAreOf) {
  const HostBatch all{.batch = 3,
                      .seq = 2,
                      .used = 5,
                      .examples = 4,
                      .tokens = {1, 2, 3, 4, 5, 6},
                      .targets = {-1, 3, 4, -2, 6, 7},
                      .positions = {0, 1, 0, 0, 0, 1},
                      .first = {0, 0, 0, 1, 0, 0}};
  const HostBatch second = take_rows(all, 1, 2);
  EXPECT_EQ(second.batch, 1);
  EXPECT_EQ(second.seq, 2);
  EXPECT_EQ(second.all_rows, 3);
  EXPECT_EQ(second.all_scored, 4);
  EXPECT_EQ(second.first_row, 2);
  EXPECT_EQ(second.used, 5);
  EXPECT_EQ(second.examples, 4);
  EXPECT_EQ(second.tokens, (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(second.targets, (std::vector<std::int32_t>{6, 7}));
  EXPECT_EQ(second.positions, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(second.first, (std::vector<std::int32_t>{0, 0}));
  const HostBatch none = take_rows(all, 3, 4);
  EXPECT_EQ(none.batch, 0);
  EXPECT_TRUE(none.tokens.empty());
  EXPECT_EQ(none.all_scored, 4);
}

}  // namespace
}  // namespace bhyt::train
