// What the tests of training in several processes share: a line of the shell, the comparison with one process.
#pragma once

#include <cmath>
#include <set>

#include "tests/cli/mpi.h"

namespace bhyt::test {

// A line of the shell; what it says on stderr is kept in a file of the place.
inline Outcome shell(const Place& place, const std::string& line) {
  const fs::path err = place.path / "mpirun.err";
  const int status = std::system(fmt::format("{} >/dev/null 2>{}", line, quoted(err.string())).c_str());
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), .out = "", .err = read_text(err)};
}

inline void expect_near(const fs::path& one, const fs::path& several, double limit) {
  const auto a = metrics_of(one), b = metrics_of(several);
  ASSERT_EQ(a.size(), b.size());
  int compared = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (const char* key : {"loss", "valid_loss"}) {
      ASSERT_EQ(a[i].contains(key), b[i].contains(key));
      if (!a[i].contains(key)) continue;
      ++compared;
      EXPECT_LE(std::fabs(a[i][key].get<double>() / b[i][key].get<double>() - 1), limit) << a[i]["step"] << " " << key;
    }
  EXPECT_GT(compared, 5);
}

// Processes that train below a folder, as mpirun starts them.
inline std::set<pid_t> ranks_in(const fs::path& run) {
  std::set<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string words = read_text(entry.path() / "cmdline"), begin = std::string(BHYT_PROGRAM) + '\0' + "pretrain" + '\0';
    if (words.starts_with(begin) && has(words, "run.dir=" + run.string() + '\0')) found.insert(std::stoi(name));
  }
  return found;
}

}  // namespace bhyt::test
