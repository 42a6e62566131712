// Shards of parameters: what several processes keep is everything, once.
#include "model/shard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/devices.h"
#include "tests/model/helpers.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

TEST(Shard, PartsOfAllRanksAreEveryElementOnce) {
  Context& ctx = test::context_on(Device::cpu());
  for (const char* method : {"rmsnorm", "bhyt", "seednorm"})
    for (const bool tied : {true, false})
      for (const std::int64_t ranks : {1, 2, 3, 7}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks", method, ranks));
        ModelConfig c = small_config(method, 3);
        c.tied = tied;
        const Parameters parameters(ctx, c, DType::bf16, {}, {}, {}, ranks);
        std::map<const Parameter*, std::vector<int>> seen;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const Shard shard(parameters, rank, ranks);
          std::int64_t end = 0;
          ASSERT_EQ(shard.pieces().size(), parameters.sections().size());
          for (const Shard::Piece& piece : shard.pieces()) {
            EXPECT_EQ(piece.size * ranks, parameters.sections()[static_cast<std::size_t>(piece.section)].size);
            EXPECT_EQ(piece.first, rank * piece.size);
            EXPECT_GE(piece.at, parameters.vectors_size());
            end = std::max(end, piece.at + piece.size);
          }
          EXPECT_GE(shard.size(), end);
          EXPECT_LT(shard.size() - end, 1024);
          for (const Shard::Part& part : shard.parts()) {
            auto& counts = seen[part.parameter];
            counts.resize(static_cast<std::size_t>(part.parameter->size));
            EXPECT_EQ(part.shared, part.parameter->shape.size() < 2);
            EXPECT_LE(part.at + part.size, end);
            EXPECT_EQ(shard.find(*part.parameter), &part);
            if (!part.shared || rank == 0)
              for (std::int64_t i = 0; i < part.size; ++i) ++counts[static_cast<std::size_t>(part.first + i)];
          }
        }
        for (const Parameter& p : parameters.list()) {
          if (p.frozen) continue;
          for (const int n : seen[&p]) ASSERT_EQ(n, 1) << p.name;
          EXPECT_EQ(static_cast<std::int64_t>(seen[&p].size()), p.size) << p.name;
        }
      }
}

TEST(Shard, OfOneRankHasTheOrderOfAnArena) {
  Context& ctx = test::context_on(Device::cpu());
  const Parameters parameters(ctx, small_config("bhyt", 2), DType::f32);
  const Shard shard(parameters);
  EXPECT_EQ(shard.size(), parameters.arena_size());
  for (const Shard::Part& part : shard.parts()) {
    EXPECT_TRUE(part.whole());
    EXPECT_EQ(part.at, part.parameter->offset);
  }
  EXPECT_THROW(Shard(parameters, 1, 2), Error);
  EXPECT_THROW(Shard(parameters, 1, 1), Error);
}

}  // namespace
}  // namespace bhyt::testing
