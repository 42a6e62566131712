// What the tests of bhyt pretrain share: a text to train on, a tiny run, the program in the background, and the comparison of two runs.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/cli/program.h"

namespace bhyt::test {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline void write_text(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

// Texts to train on, a cache of their own, and the words of a tiny run. In memory where there is such a place: saving syncs a lot.
struct Place {
  fs::path path;
  explicit Place(bool on_disk = false) {
    const bool memory = !on_disk && access("/dev/shm", W_OK) == 0;
    std::string name = ((memory ? fs::path("/dev/shm") : fs::temp_directory_path()) / "bhyt-cli-XXXXXX").string();
    path = mkdtemp(name.data());
    std::string text;
    for (int i = 0; i < 900; ++i) text += fmt::format("{} sheep jump over {} fences, one after the other\n", i * 7 % 100, i % 13);
    write_text(path / "text.txt", text);
    setenv("BHYT_CACHE", (path / "cache").c_str(), 1);
  }
  ~Place() {
    unsetenv("BHYT_CACHE");
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Words run(const std::string& dir, const Words& more = {}) const {
    const std::string text = (path / "text.txt").string();
    return Words{"pretrain",
                 "model.d=32",
                 "model.layers=2",
                 "model.heads=4",
                 "model.kv_heads=2",
                 "model.mlp=48",
                 "data.seq_len=32",
                 "train.batch=6",
                 "train.steps=40",
                 "train.lr=3e-3",
                 "train.log_every=3",
                 "train.eval_every=7",
                 "train.save_every=3",
                 "train.eval_batches=2",
                 "norm.refresh=4",
                 "threads=1",
                 "data.train=" + text,
                 "data.valid=" + text,
                 "run.dir=" + (path / dir).string()} +
           more;
  }
};

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

inline Words names_in(const fs::path& dir, const std::string& prefix = "") {
  Words names;
  std::error_code gone;
  for (fs::directory_iterator it(dir, gone), end; !gone && it != end; it.increment(gone))
    if (it->path().filename().string().starts_with(prefix)) names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::vector<Json> metrics_of(const fs::path& run) {
  std::vector<Json> out;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line) && !in.eof();) {  // the last one may be under way
    out.push_back(Json::parse(line));
    for (const char* key : {"time", "tok_s", "step_ms", "mfu"}) out.back().erase(key);
  }
  return out;
}

inline void expect_same_runs(const fs::path& a, const fs::path& b) {
  ASSERT_EQ(names_in(a, "checkpoint-"), names_in(b, "checkpoint-"));
  ASSERT_FALSE(names_in(a, "checkpoint-").empty());
  EXPECT_EQ(names_in(b, "tmp-"), Words{});
  for (const std::string& name : names_in(a, "checkpoint-")) {
    ASSERT_EQ(names_in(a / name), names_in(b / name));
    for (const std::string& file : names_in(a / name))
      EXPECT_TRUE(read_text(a / name / file) == read_text(b / name / file)) << name << "/" << file;
  }
  const auto ma = metrics_of(a), mb = metrics_of(b);
  ASSERT_EQ(ma.size(), mb.size());
  for (std::size_t i = 0; i < ma.size(); ++i) EXPECT_EQ(ma[i].dump(), mb[i].dump());
  // TensorBoard: as many bytes of records, whatever the clock wrote into them.
  const auto events = [](const fs::path& run) { return fs::file_size(run / names_in(run, "events.out.tfevents.").at(0)); };
  EXPECT_EQ(names_in(b, "events.out.tfevents.").size(), 1u);
  EXPECT_EQ(events(a), events(b));
}

inline bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  ADD_FAILURE() << "expected \"" << part << "\" in \"" << text << "\"";
  return false;
}

}  // namespace bhyt::test
