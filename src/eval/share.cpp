#include "eval/share.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "parallel/launch.h"

namespace bhyt {

namespace {

// Results as one text, and back: the length of each, then its bytes.
std::string joined(const std::vector<std::string>& results) {
  std::string out;
  for (const std::string& r : results) {
    const std::uint64_t size = r.size();
    out.append(reinterpret_cast<const char*>(&size), sizeof size).append(r);
  }
  return out;
}

std::vector<std::string> apart(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, text.data() + at, sizeof size);
    out.push_back(text.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return out;
}

// Data that changed between two ranks' looks at it would give results to the wrong ones. A rank that has less of it may be in a `together`
// already, which gathers texts, too, and takes the first character for a kind of error.
void check_alike(parallel::Group& group, std::size_t things, std::uint64_t checksum) {
  std::string own = fmt::format(" {} pieces of text", things);
  if (checksum != 0) own += fmt::format(" with the checksum {:016x}", checksum);
  const std::vector<std::string> all = parallel::gather_texts(group, own);
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::string &first = all.front(), &other = all[static_cast<std::size_t>(rank)];
    if (other == first) continue;
    parallel::on_all_ranks();
    throw Error(fmt::format("all ranks must have the same to score: rank {} on {} has{}, rank 0 on {} has{}", rank, group.host(rank),
                            other.empty() ? " none" : other, group.host(0), first.empty() ? " none" : first));
  }
}

}  // namespace

void Sharing::together(const std::function<void()>& work) const { parallel::together(several() ? group : nullptr, work); }

std::size_t Sharing::first_counts(const std::function<std::size_t()>& count) const {
  std::size_t own = 0;
  together([&] { own = count(); });
  return several() ? static_cast<std::size_t>(parallel::gather_numbers(*group, static_cast<std::int64_t>(own)).front()) : own;
}

std::vector<std::size_t> cut(std::span<const double> costs, std::size_t pieces) {
  std::vector<double> before(costs.size() + 1);  // of all things before each
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  std::vector<std::size_t> places;
  for (std::size_t p = 0; p <= pieces; ++p) {
    const double target = before.back() * static_cast<double>(p) / static_cast<double>(pieces);
    auto at = std::lower_bound(before.begin(), before.end(), target);
    if (at != before.begin() && target - at[-1] < *at - target) --at;  // the nearer side
    places.push_back(static_cast<std::size_t>(at - before.begin()));
  }
  places.front() = 0;
  places.back() = costs.size();
  return places;
}

bool share_out(const Sharing& ranks, std::span<const double> costs, const ScorePiece& score,
               const std::function<void(std::size_t, const std::string&)>& take, std::uint64_t checksum) {
  parallel::Group& group = *ranks.group;
  check_alike(group, costs.size(), checksum);
  const auto size = static_cast<std::size_t>(group.size()), own = static_cast<std::size_t>(group.rank());
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  const auto rounds = static_cast<std::size_t>(std::max(1.0, std::ceil(all / (ranks.tokens * static_cast<double>(size)))));
  const std::vector<std::size_t> places = cut(costs, rounds * size);
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<std::string> results;
    const std::size_t first = places[round * size + own], last = places[round * size + own + 1];
    ranks.together([&] {
      if (first < last) score(first, last, [&](std::string result) { results.push_back(std::move(result)); });
    });
    std::size_t next = places[round * size];
    const std::vector<std::string> gathered = parallel::gather_texts(group, joined(results));
    for (std::size_t rank = 0; rank < size; ++rank) {
      for (const std::string& result : apart(gathered[rank])) take(next++, result);
      if (next < places[round * size + rank + 1]) return false;
    }
  }
  return true;
}

}  // namespace bhyt
