#include "parallel/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "core/check.h"

namespace bhyt::parallel {

namespace {

using ById = std::map<std::string, int>;

int first_free(const VisibleGpus& gpus, const ById& taken) {
  const auto free = std::find_if(gpus.ids.begin(), gpus.ids.end(), [&](const std::string& id) { return !taken.contains(id); });
  return free == gpus.ids.end() ? -1 : static_cast<int>(free - gpus.ids.begin());
}

// Where nothing is free: the one that the fewest have.
int least_taken(const VisibleGpus& gpus, const ById& times) {
  const auto of = [&](const std::string& id) { return times.contains(id) ? times.at(id) : 0; };
  const auto least = std::min_element(gpus.ids.begin(), gpus.ids.end(), [&](const auto& a, const auto& b) { return of(a) < of(b); });
  return static_cast<int>(least - gpus.ids.begin());
}

}  // namespace

std::string to_text(const VisibleGpus& gpus) {
  std::string text = gpus.named ? std::to_string(*gpus.named) : "";
  for (const std::string& id : gpus.ids) text += "\n" + id;
  return text;
}

VisibleGpus visible_gpus_from(const std::string& text) {
  VisibleGpus gpus;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  int number = 0;
  if (std::from_chars(line.data(), line.data() + line.size(), number).ec == std::errc()) gpus.named = number;
  while (std::getline(lines, line)) gpus.ids.push_back(line);
  return gpus;
}

std::vector<int> share_out_gpus(const std::vector<VisibleGpus>& ranks, bool share, const std::string& otherwise) {
  ById taken, times;  // the first rank that takes it, and how many do
  std::vector<int> numbers;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const VisibleGpus& gpus = ranks[rank];
    check_usage(!gpus.ids.empty(), "rank {} sees no GPU or asks for none, other ranks have one", rank);
    int number = gpus.named.value_or(first_free(gpus, taken));
    if (number < 0 && share) number = least_taken(gpus, times);
    const std::string& id = gpus.ids[static_cast<std::size_t>(std::max(number, 0))];
    check_usage(share || (number >= 0 && !taken.contains(id)),
                "ranks {} and {} would share a GPU ({}; rank {} sees {}): start one rank for each{}", taken.contains(id) ? taken.at(id) : 0,
                rank, id, rank, gpus.ids.size(), otherwise);
    taken.emplace(id, static_cast<int>(rank));
    ++times[id];
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace bhyt::parallel
