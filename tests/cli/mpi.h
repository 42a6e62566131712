// The program as the ranks of mpirun.
#pragma once

#include <sys/wait.h>

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

// What mpirun is given: "-n 2 bhyt … : -n 1 bhyt …".
inline Outcome mpirun(const TemporaryFolder& place, const std::string& what) {
  const fs::path out = place.path / "mpirun.out", err = place.path / "mpirun.err";
  const int status = std::system(fmt::format("{}{} >{} 2>{}", kMpirun, what, quoted(out.string()), quoted(err.string())).c_str());
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), .out = read_text(out), .err = read_text(err)};
}
inline Outcome ranks(const TemporaryFolder& place, int n, const Words& words) {
  return mpirun(place, fmt::format("-n {} {}", n, line_of(words)));
}

// Whether mpirun started it as that rank.
inline bool is_rank(pid_t pid, int rank) {
  return has(read_text(fmt::format("/proc/{}/environ", pid)), fmt::format("OMPI_COMM_WORLD_RANK={}", rank) + '\0');
}

inline int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace bhyt::test
