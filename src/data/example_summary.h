// What files of conversations came to, as numbers for people and for files: lengths in bins, counts as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "data/examples.h"

namespace bhyt {

struct LengthBin {
  std::int64_t from = 0, to = 0, count = 0;  // lengths from … to, both included
};
// About a dozen bins of a round width from 1 to the longest.
std::vector<LengthBin> length_bins(std::span<const std::int32_t> lengths);
std::int64_t median_length(std::vector<std::int32_t> lengths);

// Of examples that somebody prepared; what follows the last scored token of a row may be padding and does not count.
ExampleSummary summarize(const std::string& file, std::span<const Example> examples);

// {file, records, examples, tokens, scored, cut, unscored, longest, median, lengths: [{from, to, count}], dropped: [{reason, count,
// first}]}
nlohmann::ordered_json summary_json(const ExampleSummary& summary);

}  // namespace bhyt
