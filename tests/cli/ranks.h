// What the tests of several processes share: mpirun as a user calls it, and the comparison with one process.
#pragma once

#include <sys/wait.h>

#include <cmath>
#include <set>

#include "tests/cli/training.h"

namespace bhyt::test {

inline bool has_mpi() {
  return fs::exists(fs::path(BHYT_PROGRAM).parent_path() / "libbhyt_mpi.so") && std::system("mpirun --version >/dev/null 2>&1") == 0;
}
#define NEEDS_MPI \
  if (!has_mpi()) GTEST_SKIP() << "no MPI: mpirun and libbhyt_mpi.so"

inline std::string line_of(const Words& words) {
  std::string line = quoted(BHYT_PROGRAM);
  for (const std::string& word : words) line += " " + quoted(word);
  return line;
}

constexpr const char* kMpirun = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 exec mpirun --oversubscribe --bind-to none ";

// A line of the shell; what it says on stderr is kept in a file of the place.
inline Outcome shell(const Place& place, const std::string& line) {
  const fs::path err = place.path / "mpirun.err";
  const int status = std::system(fmt::format("{} >/dev/null 2>{}", line, quoted(err.string())).c_str());
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), .out = "", .err = read_text(err)};
}
// What mpirun is given: "-n 2 bhyt … : -n 1 bhyt …".
inline Outcome mpirun(const Place& place, const std::string& what) { return shell(place, kMpirun + what); }
inline Outcome ranks(const Place& place, int n, const Words& words) { return mpirun(place, fmt::format("-n {} {}", n, line_of(words))); }

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

inline int times(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

}  // namespace bhyt::test
