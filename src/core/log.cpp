#include "core/log.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace bhyt::log {

namespace {
std::mutex mutex;
std::FILE* file = nullptr;
bool quiet = false, silent = false;
bool later = false;  // lines wait here:
std::string waiting;
bool line_open = false;  // a progress line stands on the terminal without its newline

// Where nobody reads any more (a terminal that was closed, a full disk), work goes on without.
void put(std::FILE* to, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

bool use_color() {
  const char* no = std::getenv("NO_COLOR");
  return stderr_is_terminal() && !(no && *no);
}

void write(Level level, const std::string& text) {
  std::lock_guard lock(mutex);
  const char* tag = level == Level::error ? "error: " : level == Level::warning ? "warning: " : "";
  if (level == Level::error || (!silent && (!quiet || level != Level::info))) {
    const char* clear = line_open ? "\r\033[K" : "";
    line_open = false;
    const std::string line = *tag && use_color()
                                 ? fmt::format("{}\033[1;{}m{}\033[0m{}\n", clear, level == Level::error ? 31 : 33, tag, text)
                                 : fmt::format("{}{}{}\n", clear, tag, text);
    if (later)
      waiting += line;
    else
      put(stderr, line);
  }
  if (file) put(file, fmt::format("{:%Y-%m-%d %H:%M:%S} {}{}\n", fmt::localtime(std::time(nullptr)), tag, text));
}

void print(const std::string& text) {
  std::lock_guard lock(mutex);
  put(stderr, text);
}

Later::Later(bool on) {
  std::lock_guard lock(mutex);
  later = on;
}
Later::~Later() {
  std::lock_guard lock(mutex);
  later = false;
  if (!waiting.empty()) put(stderr, waiting);
  waiting.clear();
}

void status(const std::string& text) {
  if (quiet || silent) return;
  std::lock_guard lock(mutex);
  line_open = stderr_is_terminal();
  put(stderr, line_open ? "\r\033[K" + text : text + "\n");
}

void open_file(const std::string& path) {
  close_file();
  std::lock_guard lock(mutex);
  file = std::fopen(path.c_str(), "a");
}

void close_file() {
  std::lock_guard lock(mutex);
  if (file) std::fclose(file);
  file = nullptr;
}

void set_quiet(bool q) { quiet = q; }
void set_silent(bool s) { silent = s; }

std::string human_count(double n, const std::string& unit) {
  static const char* const big[] = {"", "K", "M", "B", "T"};
  static const char* const bytes[] = {"B", "KB", "MB", "GB", "TB"};
  int i = 0;
  while (std::fabs(n) >= 999.5 && i < 4) {
    n /= 1000;
    ++i;
  }
  const int digits = i == 0 ? 0 : std::fabs(n) < 10 ? 2 : std::fabs(n) < 100 ? 1 : 0;
  if (unit == "B") return fmt::format("{:.{}f} {}", n, digits, bytes[i]);
  return fmt::format("{:.{}f}{}{}", n, digits, big[i], unit.empty() ? "" : " " + unit);
}

std::string human_time(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<long long>(std::llround(seconds));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

Progress::Progress(std::string what, double total, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), total_(total), started_(now()), drawn_(started_) {}

Progress::~Progress() {
  if (!finished_ && done_ > 0) finish();
}

void Progress::update(double done, const std::string& note) {
  done_ = done;
  const double t = now();
  if (t - drawn_ < (stderr_is_terminal() ? 0.1 : 10.0)) return;
  drawn_ = t;
  draw(note, false);
}

void Progress::finish(const std::string& note) {
  finished_ = true;
  draw(note, true);
}

void Progress::draw(const std::string& note, bool last) {
  if (quiet || silent) return;
  const double t = now() - started_, rate = t > 0 ? done_ / t : 0;
  std::string line = what_ + "  ";
  if (total_ > 0) {
    const double part = std::min(1.0, done_ / total_);
    if (stderr_is_terminal()) {
      const int full = static_cast<int>(part * 24);
      line += "[";
      for (int i = 0; i < 24; ++i) line += i < full ? "█" : "·";
      line += "] ";
    }
    line += fmt::format("{:3.0f}%  ", part * 100);
  }
  line += human_count(done_, unit_) + "  " + human_count(rate, unit_) + "/s";
  if (total_ > 0 && !last && rate > 0) line += "  eta " + human_time((total_ - done_) / rate);
  if (last) line += "  in " + human_time(t);
  if (!note.empty()) line += "  " + note;
  std::lock_guard lock(mutex);
  if (stderr_is_terminal()) {
    put(stderr, "\r\033[K" + line + (last ? "\n" : ""));
    line_open = !last;
  } else {
    put(stderr, line + "\n");
  }
}

}  // namespace bhyt::log
