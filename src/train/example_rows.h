// Fine-tuning's batches: conversations laid into rows side by side, so that no padding is computed, each seeing itself alone. What a step
// computes is what it would with one conversation a row.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/examples.h"
#include "train/batch_source.h"
#include "train/config.h"

namespace bhyt::train {

// Conversations with the share of a mixture that they have; 0 = by their number. They are held once, whoever goes through them.
struct WeightedExamples {
  std::shared_ptr<const std::vector<Example>> examples;
  double weight = 0;
};

struct ExampleRows {
  std::int64_t batch = 1;     // conversations per step; with Packing::documents: rows
  std::int64_t seq_len = 1;   // the longest row
  std::int64_t multiple = 8;  // rows are a multiple of it long, or seq_len
  std::uint64_t seed = 0;
  Packing packing = Packing::none;
  Shuffle shuffle = Shuffle::own;
  bool rounds = false;  // batches go on across the end of the data, as prepared rows do; else an epoch's last one may be short
};
// Sets with shares: an epoch has as many examples as all of them together; those of a set are gone through again and again.
std::unique_ptr<BatchSource> example_batches(const std::vector<WeightedExamples>& sets, const ExampleRows& options);

// Which examples share a row, for rows of `length` tokens: the longest first, each where it leaves the least room. Lengths are at most
// `length`; an empty example has no place.
std::vector<std::vector<std::int64_t>> fill_rows(std::span<const std::int64_t> lengths, std::int64_t length);

// Tokens of an example that are computed: all but the last, without those behind the last scored one.
std::int64_t computed_tokens(const Example& example);

}  // namespace bhyt::train
