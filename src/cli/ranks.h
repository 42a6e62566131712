// The processes that MPI launched a command in. A process on its own is the first of one.
#pragma once

#include <functional>

#include "cli/cli.h"
#include "core/schema.h"
#include "parallel/group.h"

namespace bhyt::cli {

struct Ranks {
  // Opens the group, of which all but the first rank are silent from here on. A rank may keep the others waiting for that many seconds.
  explicit Ranks(double timeout = 6 * 3600);

  parallel::Group* group;  // null: on its own
  bool first() const { return !group || group->rank() == 0; }

  // On every rank; where it fails on one, all throw its Error. What throws is no part of a collective.
  void together(const std::function<void()>& work) const;
  // Of several ranks on a host each gets a GPU of its own, and its share of the cores.
  void share(Placement& where) const;
  // UsageError where a rank has another value than the first; version and commit are compared, too.
  void agree(schema::Json facts) const;
  // Of all ranks: the signal that one received (0: none), the sum of a count.
  int signal() const;
  std::int64_t sum(std::int64_t own) const;
  // The first rank's exit code, with which all end in good order.
  int end(int code) const;
};

}  // namespace bhyt::cli
