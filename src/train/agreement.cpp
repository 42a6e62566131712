#include "train/agreement.h"

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "machine/machine.h"
#include "parallel/launch.h"

namespace bhyt::train {

namespace {

std::string shown(const Json& facts, const std::string& key) { return facts.contains(key) ? schema::show(facts[key]) : "missing"; }

std::vector<std::int64_t> of_all_ranks(parallel::Group& group, std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  all[static_cast<std::size_t>(group.rank())] = own;
  group.gather(all.data(), sizeof own, sizeof own);
  return all;
}

}  // namespace

std::int64_t least_of_ranks(parallel::Group& group, std::int64_t own) { return std::ranges::min(of_all_ranks(group, own)); }
std::int64_t largest_of_ranks(parallel::Group& group, std::int64_t own) { return std::ranges::max(of_all_ranks(group, own)); }

void check_agreement(parallel::Group& group, const Json& facts) {
  const std::vector<std::string> all = parallel::gather_texts(group, facts.dump(-1, ' ', false, Json::error_handler_t::replace));
  const Json first = Json::parse(all.front());
  for (int rank = 1; rank < group.size(); ++rank) {
    const Json other = Json::parse(all[static_cast<std::size_t>(rank)]);
    Json names = first;
    names.update(other);
    for (const auto& [key, value] : names.items()) {
      if (first.contains(key) && other.contains(key) && first[key] == other[key]) continue;
      parallel::on_all_ranks();
      throw UsageError(fmt::format("all ranks must have the same {}: rank {} on {} has {}, rank 0 on {} has {}", key, rank,
                                   group.host(rank), shown(other, key), group.host(0), shown(first, key)));
    }
  }
}

Json facts_of(const RunConfig& config) {
  Json out = {{"program version", program_version()}, {"program commit", program_commit()}};
  const Json tree = resolved_tree(config);
  for (const auto& [section, keys] : tree.items()) {
    if (!keys.is_object()) continue;
    for (const auto& [key, value] : keys.items())
      if (section != "run" || (key != "device" && key != "threads")) out[section + "." + key] = value;
  }
  return out;
}

}  // namespace bhyt::train
