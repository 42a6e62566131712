#include "train/example_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/check.h"
#include "core/rng.h"
#include "data/order.h"

namespace bhyt::train {
namespace {

// Example i: all its tokens are i + 1, so that it is known again in a row; the prompt is a third of it.
Example numbered(std::int64_t i, std::int64_t length) {
  Example e{.index = i,
            .ids = std::vector<std::int32_t>(static_cast<std::size_t>(length), static_cast<std::int32_t>(i + 1)),
            .labels = std::vector<std::int32_t>(static_cast<std::size_t>(length), static_cast<std::int32_t>(i + 1))};
  for (std::int64_t t = 0; t < std::max<std::int64_t>(length / 3, 1); ++t) e.labels[static_cast<std::size_t>(t)] = kNotScored;
  return e;
}

std::vector<Example> some(std::int64_t n, std::uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<Example> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(numbered(i, 2 + static_cast<std::int64_t>(rng.below(31))));
  return out;
}

std::unique_ptr<BatchSource> batches_of(std::vector<Example> examples, ExampleRows options) {
  return example_batches({{std::make_shared<const std::vector<Example>>(std::move(examples)), 0}}, options);
}

// The examples of a batch by number, each checked to lie whole and alone.
std::multiset<std::int64_t> check_batch(const HostBatch& b, const std::vector<Example>& all) {
  std::multiset<std::int64_t> found;
  std::int64_t used = 0;
  for (std::int64_t r = 0; r < b.batch; ++r)
    for (std::int64_t t = 0; t < b.seq;) {
      const auto at = static_cast<std::size_t>(r * b.seq + t);
      if (b.tokens[at] == 0) {  // what fills the row up sees itself alone and is not scored
        EXPECT_EQ(b.targets[at], kFilling);
        EXPECT_EQ(b.first[at], t);
        ++t;
        continue;
      }
      const Example& e = all[static_cast<std::size_t>(b.tokens[at] - 1)];
      const std::int64_t n = computed_tokens(e);
      for (std::int64_t k = 0; k < n; ++k) {
        const auto place = at + static_cast<std::size_t>(k);
        const std::int32_t label = e.labels[static_cast<std::size_t>(k + 1)];
        EXPECT_EQ(b.tokens[place], e.ids[static_cast<std::size_t>(k)]);
        EXPECT_EQ(b.targets[place], label == kNotScored ? -1 : label);
        EXPECT_EQ(b.positions[place], k);
        EXPECT_EQ(b.first[place], t);
      }
      found.insert(e.index);
      used += n;
      t += n;
    }
  EXPECT_EQ(b.used, used);
  EXPECT_EQ(b.examples, std::ssize(found));
  return found;
}

TEST(FillRows, EveryExampleHasOnePlaceAndRowsAreNotTooLong) {
  Rng rng(3);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 500; ++i) lengths.push_back(static_cast<std::int64_t>(rng.below(65)));
  const auto rows = fill_rows(lengths, 64);
  std::vector<int> seen(lengths.size());
  for (const auto& row : rows) {
    std::int64_t sum = 0;
    for (const std::int64_t i : row) {
      sum += lengths[static_cast<std::size_t>(i)];
      ++seen[static_cast<std::size_t>(i)];
    }
    EXPECT_LE(sum, 64);
  }
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], lengths[i] > 0) << i;
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  EXPECT_LE(std::ssize(rows), tokens * 21 / 20 / 64 + 1);  // nearly no room is left
  EXPECT_THROW(fill_rows(std::vector<std::int64_t>{65}, 64), Error);
}

TEST(ExampleBatches, AnEpochHasEveryExampleOnceAndItsLastBatchIsShort) {
  const auto all = some(37);
  const auto source = batches_of(all, {.batch = 5, .seq_len = 40, .multiple = 8, .seed = 4});
  EXPECT_EQ(source->rows(), 37);
  EXPECT_EQ(source->batches(), 8);
  std::vector<std::int64_t> first_epoch, second_epoch;
  for (int n = 0; n < 16; ++n) {
    const HostBatch b = source->next();
    EXPECT_EQ(b.examples, n % 8 == 7 ? 2 : 5);
    EXPECT_LE(b.batch, 5);
    for (const std::int64_t i : check_batch(b, all)) (n < 8 ? first_epoch : second_epoch).push_back(i);
  }
  EXPECT_NE(first_epoch, second_epoch);
  for (auto* epoch : {&first_epoch, &second_epoch}) {
    std::ranges::sort(*epoch);
    for (std::int64_t i = 0; i < 37; ++i) EXPECT_EQ((*epoch)[static_cast<std::size_t>(i)], i);
  }
}

TEST(ExampleBatches, AnyBatchCanBeTheFirst) {
  const auto all = some(23);
  for (const Packing packing : {Packing::none, Packing::documents}) {
    const ExampleRows options{.batch = 4, .seq_len = 40, .multiple = 8, .seed = 9, .packing = packing};
    const auto whole = batches_of(all, options), resumed = batches_of(all, options);
    std::vector<HostBatch> in_order;
    for (int n = 0; n < 20; ++n) in_order.push_back(whole->next());
    for (const int n : {13, 2, 19, 7}) {
      resumed->start(n);
      EXPECT_EQ(resumed->next().tokens, in_order[static_cast<std::size_t>(n)].tokens) << n;
    }
  }
}

TEST(ExampleBatches, TakesTorchsOrderOrThatOfTheFile) {
  const auto all = some(20);
  const auto torch = batches_of(all, {.batch = 1, .seq_len = 40, .seed = 42, .shuffle = Shuffle::torch});
  const auto file = batches_of(all, {.batch = 1, .seq_len = 40, .seed = 42, .shuffle = Shuffle::none});
  for (const std::uint64_t epoch : {0, 1}) {
    const auto order = torch_randperm(20, 42 + epoch);
    for (std::int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(*check_batch(torch->next(), all).begin(), order[static_cast<std::size_t>(i)]);
      EXPECT_EQ(*check_batch(file->next(), all).begin(), i);
    }
  }
}

TEST(ExampleBatches, PreparedRowsGoOnAcrossTheEnd) {
  const auto all = some(5);
  const auto source = batches_of(all, {.batch = 4, .seq_len = 40, .shuffle = Shuffle::none, .rounds = true});
  EXPECT_EQ(check_batch(source->next(), all), (std::multiset<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(check_batch(source->next(), all), (std::multiset<std::int64_t>{4, 0, 1, 2}));
  EXPECT_EQ(check_batch(source->next(), all), (std::multiset<std::int64_t>{3, 4, 0, 1}));
}

TEST(ExampleBatches, PackedRowsAreFullAndHaveEveryExample) {
  const auto all = some(400);
  const auto source = batches_of(all, {.batch = 6, .seq_len = 128, .multiple = 8, .seed = 2, .packing = Packing::documents});
  std::multiset<std::int64_t> seen;
  double used = 0, computed = 0;
  for (std::int64_t n = 0; n < source->batches(); ++n) {
    const HostBatch b = source->next();
    EXPECT_LE(b.batch, 6);
    EXPECT_LE(b.seq, 128);
    seen.merge(check_batch(b, all));
    used += static_cast<double>(b.used);
    computed += static_cast<double>(b.batch * b.seq);
  }
  EXPECT_EQ(seen.size(), 400u);
  EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 400u);
  EXPECT_GT(used / computed, 0.95);
}

TEST(ExampleBatches, SharesHoldInEveryEpoch) {
  // Examples 0…29 and 30…39; the second set has three times the share of the first.
  std::vector<Example> all;
  for (std::int64_t i = 0; i < 40; ++i) all.push_back(numbered(i, 6));
  const auto part = [&](std::int64_t from, std::int64_t to) {
    return std::make_shared<const std::vector<Example>>(all.begin() + from, all.begin() + to);
  };
  const std::vector<WeightedExamples> sets = {{part(0, 30), 0.5}, {part(30, 40), 1.5}};
  const auto source = example_batches(sets, {.batch = 8, .seq_len = 16, .seed = 1});
  EXPECT_EQ(sets[0].examples.use_count(), 2);  // held once, not copied
  EXPECT_EQ(source->rows(), 40);
  std::map<std::int64_t, int> count;
  for (int epoch = 0; epoch < 3; ++epoch) {
    int small = 0;
    for (std::int64_t n = 0; n < source->batches(); ++n)
      for (const std::int64_t i : check_batch(source->next(), all)) {
        small += i >= 30;
        ++count[i];
      }
    EXPECT_EQ(small, 30);
  }
  for (std::int64_t i = 0; i < 40; ++i) EXPECT_EQ(count[i], i < 30 ? 1 : 9) << i;  // 10 an epoch of 30; 30 an epoch of 10
}

TEST(ExampleBatches, AnExampleWithoutAnythingToLearnTakesNoRoom) {
  auto all = some(3);
  std::ranges::fill(all[1].labels, kNotScored);
  const auto source = batches_of(all, {.batch = 3, .seq_len = 40, .shuffle = Shuffle::none});
  const HostBatch b = source->next();
  EXPECT_EQ(b.examples, 3);
  EXPECT_EQ(std::ranges::count(b.tokens, 2), 0);
}

}  // namespace
}  // namespace bhyt::train
