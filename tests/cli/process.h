// The built program in the background, for tests that send it signals.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cli/program.h"

namespace bhyt::test {

using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The program in the background, its messages read line by line. The socket between holds a few lines only: a program whose messages are
// not read soon waits in its next one, so that it is never far beyond what was seen of it.
class Process {
 public:
  explicit Process(const Words& args, const std::function<void()>& in_child = {}) {
    Words all = Words{BHYT_PROGRAM} + args;
    std::vector<char*> argv;
    for (std::string& a : all) argv.push_back(a.data());
    argv.push_back(nullptr);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("no socket pair");
    const int least = 1;  // the system raises it to its minimum
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      if (in_child) in_child();
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Process() {
    send(SIGKILL);
    wait();
    close(socket_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const {
    if (pid_ > 0) kill(pid_, signal);  // 0 would be everyone
  }
  // Exit code as a shell shows it.
  int wait() {
    while (read_some()) {
    }
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = 0;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  const std::string& messages() const { return messages_; }
  int socket() const { return socket_; }

  // Reads on; false at the end of the program.
  bool read_some() {
    char piece[64];
    const ssize_t n = read(socket_, piece, sizeof piece);
    if (n > 0) messages_.append(piece, static_cast<std::size_t>(n));
    return n > 0;
  }
  // Until the messages hold a text; false when the program ends without.
  bool read_until(const std::string& text) {
    while (messages_.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }
  // Until the program has a handler of its own for a signal; false when it ends without.
  bool wait_until_caught(int signal) const {
    for (std::uint64_t caught = 0; !(caught >> (signal - 1) & 1);) {
      const std::string status = read_text(fmt::format("/proc/{}/status", pid_)), key = "SigCgt:";
      const auto at = status.find(key);
      if (at == std::string::npos || status.find("zombie") != std::string::npos) return false;
      caught = std::stoull(status.substr(at + key.size()), nullptr, 16);
    }
    return true;
  }
  bool read_until_step(std::int64_t step, std::int64_t steps) { return read_until(fmt::format("step {:>5}/{} ", step, steps)); }

 private:
  pid_t pid_ = 0;
  int socket_ = -1, status_ = 0;
  std::string messages_;
};

}  // namespace bhyt::test
