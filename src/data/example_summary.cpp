#include "data/example_summary.h"

#include <algorithm>

namespace bhyt {

std::vector<LengthBin> length_bins(std::span<const std::int32_t> lengths) {
  const std::int64_t longest = *std::ranges::max_element(lengths);
  std::int64_t width = 1;
  while (width * 12 < longest) width *= 2;
  std::vector<LengthBin> bins(static_cast<std::size_t>((longest + width - 1) / width));
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    bins[i] = {.from = at * width + 1, .to = (at + 1) * width};
  }
  for (const std::int32_t n : lengths) ++bins[static_cast<std::size_t>((std::max(n, 1) - 1) / width)].count;
  return bins;
}

std::int64_t median_length(std::vector<std::int32_t> lengths) {
  const auto middle = lengths.begin() + std::ssize(lengths) / 2;
  std::nth_element(lengths.begin(), middle, lengths.end());
  return *middle;
}

ExampleSummary summarize(const std::string& file, std::span<const Example> examples) {
  ExampleSummary s{.file = file, .records = std::ssize(examples), .kept = std::ssize(examples)};
  for (const Example& e : examples) {
    std::int64_t length = std::ssize(e.labels);
    while (length > 1 && e.labels[static_cast<std::size_t>(length - 1)] == kNotScored) --length;
    s.lengths.push_back(static_cast<std::int32_t>(length));
    s.tokens += length;
    s.scored += scored_tokens(e);
    s.unscored += scored_tokens(e) == 0;
  }
  return s;
}

nlohmann::ordered_json summary_json(const ExampleSummary& s) {
  nlohmann::ordered_json dropped = nlohmann::ordered_json::array(), bins = nlohmann::ordered_json::array();
  for (const auto& d : s.dropped) {
    if (d.count == 0) continue;
    nlohmann::ordered_json first = nlohmann::ordered_json::array();
    for (const DroppedRecord& r : d.first) first.push_back({{"index", r.index}, {"line", r.line}, {"detail", r.detail}});
    dropped.push_back({{"reason", drop_name(d.first[0].drop)}, {"count", d.count}, {"first", std::move(first)}});
  }
  for (const LengthBin& b : length_bins(s.lengths)) bins.push_back({{"from", b.from}, {"to", b.to}, {"count", b.count}});
  return {{"file", s.file},
          {"records", s.records},
          {"examples", s.kept},
          {"tokens", s.tokens},
          {"scored", s.scored},
          {"cut", s.cut},
          {"unscored", s.unscored},
          {"longest", *std::ranges::max_element(s.lengths)},
          {"median", median_length(s.lengths)},
          {"lengths", std::move(bins)},
          {"dropped", std::move(dropped)}};
}

}  // namespace bhyt
