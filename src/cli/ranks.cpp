#include "cli/ranks.h"

#include <algorithm>
#include <numeric>

#include "core/log.h"
#include "core/signals.h"
#include "machine/machine.h"
#include "parallel/launch.h"
#include "train/agreement.h"

namespace bhyt::cli {

Ranks::Ranks(double timeout) : group(parallel::group()) {
  if (!group) return;
  group->set_timeout(timeout);
  log::set_silent(group->rank() > 0);
}

void Ranks::together(const std::function<void()>& work) const { parallel::together(group, work); }

void Ranks::share(Placement& where) const {
  if (!group || group->size() == 1) return;
  where.device = parallel::own_device(*group, where.asked, "device");
  where.threads = parallel::own_threads(*group, where.threads);
}

void Ranks::agree(schema::Json facts) const {
  if (!group || group->size() == 1) return;
  facts["program version"] = program_version();
  facts["program commit"] = program_commit();
  train::check_agreement(*group, facts);
}

int Ranks::signal() const {
  const int own = StopSignals::received();
  return group ? static_cast<int>(std::ranges::max(parallel::gather_numbers(*group, own))) : own;
}

std::int64_t Ranks::sum(std::int64_t own) const {
  if (!group) return own;
  const std::vector<std::int64_t> all = parallel::gather_numbers(*group, own);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

int Ranks::end(int code) const {
  if (!group) return code;
  code = static_cast<int>(parallel::gather_numbers(*group, code).front());
  parallel::on_all_ranks();
  return code;
}

}  // namespace bhyt::cli
