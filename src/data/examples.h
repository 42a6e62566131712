// Examples of fine-tuning: a record's conversation as tokens, what is scored, cut to a length exactly as LLaMA-Factory cuts.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/threads.h"
#include "data/records.h"
#include "text/chat_template.h"

namespace bhyt {

constexpr std::int32_t kNotScored = -100;

struct Example {
  std::int64_t index = 0;                 // of its record in the file, from 0
  std::vector<std::int32_t> ids, labels;  // of one length; labels[i] is ids[i] or kNotScored
};

struct ExampleOptions {
  std::int64_t seq_len = 2048;  // tokens at most
  bool mask_prompt = true;      // answers alone are scored; false: everything is
};

// Turn by turn: source and target share what room is left, both keep their beginning. `cut` tells whether a token was left out.
Example make_example(std::int64_t index, std::span<const ChatFormat::Turn> turns, const ExampleOptions& options, bool* cut = nullptr);

// Tokens that a loss is taken over: the first one has nothing before it and never counts.
std::int64_t scored_tokens(const Example& example);

// What a file came to.
struct ExampleSummary {
  std::string file;
  std::int64_t records = 0, kept = 0, cut = 0, tokens = 0, scored = 0, unscored = 0;  // unscored: examples without a scored token
  struct Dropped {
    std::int64_t count = 0;
    std::vector<DroppedRecord> first;  // a few
  };
  std::array<Dropped, kDrops> dropped;      // by Drop
  std::vector<std::int32_t> lengths;        // of the examples, in order
  std::vector<std::uint64_t> fingerprints;  // of the examples' ids, in order
  std::int64_t dropped_count() const { return records - kept; }
};

// Calls `take` for each example in file order; records are read, parsed and tokenized a stretch at a time, spread over the threads. Warns
// of records that were dropped. UsageError, with counts, where no example is left or none has a scored token.
ExampleSummary for_each_example(Threads& threads, const std::string& file, const ChatFormat& format, const ExampleOptions& options,
                                const std::function<void(Example&&)>& take);

struct ExampleSet {
  std::vector<Example> examples;
  ExampleSummary summary;
};
ExampleSet read_examples(Threads& threads, const std::string& file, const ChatFormat& format, const ExampleOptions& options);

// How many examples of `some` are in `all` too, by fingerprint: a validation set should have none of its training set.
std::int64_t count_shared(std::span<const std::uint64_t> some, std::span<const std::uint64_t> all);

}  // namespace bhyt
