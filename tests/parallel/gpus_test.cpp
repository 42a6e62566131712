// Which GPU each rank takes, by what each of them sees.
#include "parallel/gpus.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/message_of.h"

namespace bhyt::parallel {
namespace {

using bhyt::test::message_of;
using Ids = std::vector<std::string>;

const Ids kFour = {"GPU-a", "GPU-b", "GPU-c", "GPU-d"};

TEST(Gpus, RanksThatSeeAllTakeThemInTurn) {
  EXPECT_EQ(share_out_gpus({{kFour}, {kFour}, {kFour}, {kFour}}, false), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(share_out_gpus({{kFour}, {kFour}}, false), (std::vector<int>{0, 1}));
  // Two hosts, whose ranks are not one behind the other.
  const Ids other = {"GPU-e", "GPU-f"}, here = {"GPU-a", "GPU-b"};
  EXPECT_EQ(share_out_gpus({{here}, {other}, {here}, {other}}, false), (std::vector<int>{0, 0, 1, 1}));
}

TEST(Gpus, ARankThatSeesItsOwnAloneTakesIt) {
  EXPECT_EQ(share_out_gpus({{{"GPU-c"}}, {{"GPU-a"}}, {{"GPU-b"}}}, false), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(share_out_gpus({{{"GPU-c", "GPU-d"}}, {{"GPU-a", "GPU-b"}}}, false), (std::vector<int>{0, 0}));
  // As hosts number them: what another rank calls by the same number is another one.
  EXPECT_EQ(share_out_gpus({{{"GPU-a", "GPU-b"}}, {{"GPU-b", "GPU-a"}}}, false), (std::vector<int>{0, 0}));
  EXPECT_EQ(share_out_gpus({{{"GPU-a", "GPU-b"}, 0}, {{"GPU-b", "GPU-a"}, 0}}, false), (std::vector<int>{0, 0}));
  EXPECT_EQ(share_out_gpus({{kFour, 2}, {kFour}, {kFour}, {kFour}}, false), (std::vector<int>{2, 0, 1, 3}));
}

TEST(Gpus, TheSameOneTwiceIsRefused) {
  const auto refused = [](const std::vector<VisibleGpus>& ranks) { return message_of([&] { share_out_gpus(ranks, false, ", or not"); }); };
  EXPECT_EQ(refused({{{"GPU-a"}}, {{"GPU-b"}}, {{"GPU-a"}}}).find("ranks 0 and 2 would share a GPU (GPU-a; rank 2 sees 1)"), 0u);
  EXPECT_EQ(refused({{kFour}, {kFour}, {{"GPU-a", "GPU-b"}}}).find("ranks 0 and 2 would share a GPU (GPU-a; rank 2 sees 2)"), 0u);
  EXPECT_EQ(refused({{kFour, 1}, {kFour, 1}}).find("ranks 0 and 1 would share a GPU (GPU-b; rank 1 sees 4)"), 0u);
  EXPECT_NE(refused({{kFour, 1}, {kFour, 1}}).find("start one rank for each, or not"), std::string::npos);
  EXPECT_EQ(refused({{kFour}, {}}), "rank 1 sees no GPU or asks for none, other ranks have one");
  EXPECT_THROW(share_out_gpus({{{"GPU-a"}}, {{"GPU-a"}}}, false), UsageError);
}

TEST(Gpus, TheyAreSharedOnlyWhereThatIsAskedFor) {
  EXPECT_EQ(share_out_gpus({{{"GPU-a"}}, {{"GPU-a"}}, {{"GPU-b"}}}, true), (std::vector<int>{0, 0, 0}));
  const Ids two = {"GPU-a", "GPU-b"};
  EXPECT_EQ(share_out_gpus({{two}, {two}, {two}, {two}, {two}}, true), (std::vector<int>{0, 1, 0, 1, 0}));
  EXPECT_EQ(share_out_gpus({{two, 1}, {two, 1}}, true), (std::vector<int>{1, 1}));
}

TEST(Gpus, TravelAsText) {
  for (const VisibleGpus& gpus : {VisibleGpus{}, VisibleGpus{{"GPU-a"}}, VisibleGpus{kFour, 3}, VisibleGpus{kFour, 0}}) {
    const VisibleGpus again = visible_gpus_from(to_text(gpus));
    EXPECT_EQ(again.ids, gpus.ids);
    EXPECT_EQ(again.named, gpus.named);
  }
}

}  // namespace
}  // namespace bhyt::parallel
