// Messages for people: to stderr, and to the run's log.txt once a run has opened it. Data never goes here.
#pragma once

#include <fmt/format.h>

#include <string>

namespace bhyt::log {

enum class Level { info, warning, error };

void write(Level level, const std::string& text);
void open_file(const std::string& path);  // appends, with time stamps
void close_file();
void set_quiet(bool quiet);    // keeps info off stderr
void set_silent(bool silent);  // keeps everything but errors off stderr: of all ranks but the first

template <class... Args>
void info(fmt::format_string<Args...> f, Args&&... args) {
  write(Level::info, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> f, Args&&... args) {
  write(Level::warning, fmt::format(f, std::forward<Args>(args)...));
}

void print(const std::string& text);  // to stderr, as it is: a prompt, a table that is drawn again

// While one lives, and if it is on, messages wait: something else is being written to the terminal.
struct Later {
  explicit Later(bool on);
  ~Later();
  Later(const Later&) = delete;
  Later& operator=(const Later&) = delete;
};

// A line about the state of things: redrawn on a terminal, a plain line elsewhere; never in the log file.
void status(const std::string& text);

// A line that is redrawn on a terminal and thinned to one every ten seconds elsewhere. finish() leaves the last one standing.
class Progress {
 public:
  explicit Progress(std::string what, double total = 0, std::string unit = "");  // total 0: unknown; unit "B" prints as KB/MB/GB
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double done, const std::string& note = "");
  void finish(const std::string& note = "");

 private:
  void draw(const std::string& note, bool last);
  std::string what_, unit_;
  double total_, done_ = 0, started_, drawn_ = 0;
  bool finished_ = false;
};

bool stderr_is_terminal();
bool use_color();                                                 // a terminal, and NO_COLOR unset
std::string human_count(double n, const std::string& unit = "");  // 71.8K, 1.24B; with unit "B": 94.1 MB
std::string human_time(double seconds);                           // 1:15:42

}  // namespace bhyt::log
