// Another program, or this one again, as a child: a run that crashes costs itself alone.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace bhyt::study {

class Child {
 public:
  // stdout and stderr go to files ("" = stdout goes to stderr's). The child stops when this process ends, and a ^C on the terminal does not
  // reach it: send() does. It is a process of its own where this one is a rank of MPI's.
  Child(const std::vector<std::string>& args, const std::string& out, const std::string& err);
  // Another program: what it prints goes where this one's goes.
  static Child of(const std::string& program, const std::vector<std::string>& args);
  ~Child();  // asks it to stop and waits, if it still runs
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;

  void send(int signal) const;
  bool ended();      // asks, without waiting
  int wait();        // exit code as a shell shows it
  int code() const;  // the same, once it has ended

 private:
  Child() = default;
  void start(const char* program, std::vector<std::string> words, char** environment, int out, int err);
  pid_t pid_ = 0;
  int status_ = 0;
};

}  // namespace bhyt::study
