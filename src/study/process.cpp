#include "study/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "parallel/launch.h"

namespace bhyt::study {

namespace {

constexpr const char* kSelf = "/proc/self/exe";

int open_for_child(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  check(fd >= 0, "could not write {}: {}", path, std::strerror(errno));
  return fd;
}

// Between fork and exec: nothing here may allocate.
[[noreturn]] void become(const char* program, char** argv, char** environment, int out, int err, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it ended before the line above
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (const int none = ::open("/dev/null", O_RDONLY); none >= 0) dup2(none, STDIN_FILENO);
  execve(program, argv, environment);
  _exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& t : texts) out.push_back(t.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Child::Child(const std::vector<std::string>& args, const std::string& out, const std::string& err) {
  std::vector<std::string> words = {"bhyt"};
  words.insert(words.end(), args.begin(), args.end());
  const int err_fd = open_for_child(err), out_fd = out.empty() ? err_fd : open_for_child(out);
  std::vector<std::string> environment = parallel::environment_of_one();  // it is no rank, even if this process is
  start(kSelf, std::move(words), pointers(environment).data(), out_fd, err_fd);
  if (out_fd != err_fd) ::close(out_fd);
  ::close(err_fd);
  check(pid_ > 0, "could not start a process: {}", std::strerror(errno));
}

Child Child::of(const std::string& program, const std::vector<std::string>& args) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), args.begin(), args.end());
  Child child;
  child.start(program.c_str(), std::move(words), environ, STDOUT_FILENO, STDERR_FILENO);
  check(child.pid_ > 0, "could not start {}: {}", program, std::strerror(errno));
  return child;
}

// Leaves errno as it is where there was no process to be had.
void Child::start(const char* program, std::vector<std::string> words, char** environment, int out, int err) {
  std::vector<char*> argv = pointers(words);
  const pid_t parent = getpid();
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, as it may be from our own parent, there is no exit code
  pid_ = fork();
  if (pid_ == 0) become(program, argv.data(), environment, out, err, parent);
}

Child::~Child() {
  if (pid_ <= 0) return;
  send(SIGTERM);
  (void)wait();
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)), status_(other.status_) {}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(status_, other.status_);
  return *this;
}

void Child::send(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

bool Child::ended() {
  if (pid_ <= 0) return true;
  const pid_t found = waitpid(pid_, &status_, WNOHANG);
  if (found < 0 && errno == ECHILD) status_ = 1 << 8;  // somebody else took its exit code: as if it had failed
  if (found == pid_ || (found < 0 && errno == ECHILD)) pid_ = 0;
  return pid_ == 0;
}

int Child::wait() {
  while (pid_ > 0 && waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return code();
}

int Child::code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }

}  // namespace bhyt::study
