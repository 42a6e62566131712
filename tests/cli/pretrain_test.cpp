// bhyt pretrain as a user meets it, and as a machine that dies under it does.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;
using Milliseconds = std::chrono::duration<double, std::milli>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void write_text(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

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

// The program in the background, its messages in a file.
class Process {
 public:
  Process(const Words& args, const fs::path& messages, const std::function<void()>& in_child = {}) {
    Words all = Words{BHYT_PROGRAM} + args;
    std::vector<char*> argv;
    for (std::string& a : all) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const int fd = open(messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(fd, STDOUT_FILENO);
      dup2(fd, STDERR_FILENO);
      if (in_child) in_child();
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Process() {
    if (pid_ > 0) send(SIGKILL), wait();
  }
  void send(int signal) const {
    if (pid_ > 0) kill(pid_, signal);  // 0 would be everyone
  }
  bool running() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ > 0;
  }
  // Exit code as a shell shows it.
  int wait() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = 0;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
};

// Until it holds or the process ends; says whether it held.
bool wait_for(Process& process, const std::function<bool()>& holds) {
  while (!holds()) {
    if (!process.running()) return holds();
    std::this_thread::sleep_for(Milliseconds(0.2));
  }
  return true;
}

Words names_in(const fs::path& dir, const std::string& prefix = "") {
  Words names;
  std::error_code gone;
  for (fs::directory_iterator it(dir, gone), end; !gone && it != end; it.increment(gone))
    if (it->path().filename().string().starts_with(prefix)) names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Json> metrics_of(const fs::path& run) {
  std::vector<Json> out;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line) && !in.eof();) {  // the last one may be under way
    out.push_back(Json::parse(line));
    for (const char* key : {"time", "tok_s", "step_ms", "mfu"}) out.back().erase(key);
  }
  return out;
}

void expect_same_runs(const fs::path& a, const fs::path& b) {
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

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  ADD_FAILURE() << "expected \"" << part << "\" in \"" << text << "\"";
  return false;
}

TEST(Pretrain, KilledAtRandomMomentsItEndsWithTheSameBits) {
  const Place place;
  const Outcome straight = bhyt(place.run("a"));
  ASSERT_EQ(straight.code, 0) << straight.err;
  std::mt19937 random(1);
  const Words again = place.run("b", {"resume=auto"});
  int kills = 0;
  for (bool done = false; !done; ++kills) {
    Process process(again, place.path / "messages");
    const Milliseconds patience(100 + 50 * kills + std::uniform_int_distribution(0, 400)(random));
    const auto until = std::chrono::steady_clock::now() + patience;
    while (process.running() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(Milliseconds(1));
    done = !process.running() && process.wait() == 0;
    if (!done) process.send(SIGKILL), process.wait();
    ASSERT_LT(kills, 300) << read_text(place.path / "messages");
  }
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Pretrain, KilledInsideASaveItEndsWithTheSameBits) {
  const Place place(true);
  ASSERT_EQ(bhyt(place.run("a")).code, 0);
  const Words again = place.run("b", {"resume=auto"});
  std::mt19937 random(2);
  int inside = 0;
  for (int i = 0; i < 5; ++i) {
    Process process(again, place.path / "messages");
    // Not the first save of this process, or it would never get past it.
    const std::size_t before = metrics_of(place.path / "b").size();
    wait_for(process,
             [&] { return metrics_of(place.path / "b").size() > before + 2 && !names_in(place.path / "b", "tmp-checkpoint-").empty(); });
    std::this_thread::sleep_for(Milliseconds(std::uniform_real_distribution(0.0, 8.0)(random)));
    process.send(SIGKILL);
    process.wait();
    inside += !names_in(place.path / "b", "tmp-").empty();
  }
  EXPECT_GT(inside, 0);
  const Outcome last = bhyt(again);
  EXPECT_EQ(last.code, 0) << last.err;
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Pretrain, SignalsFinishTheStepSaveAndSayWhich) {
  const Place place;
  ASSERT_EQ(bhyt(place.run("a")).code, 0);
  const Words again = place.run("b", {"resume=auto"});
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    Process process(again, place.path / "messages");
    const std::size_t before = metrics_of(place.path / "b").size();
    ASSERT_TRUE(wait_for(process, [&] { return metrics_of(place.path / "b").size() > before + 1; })) << read_text(place.path / "messages");
    process.send(signal);
    EXPECT_EQ(process.wait(), code);
    says(read_text(place.path / "messages"), signal == SIGINT ? "stopped by SIGINT after step" : "stopped by SIGTERM after step");
  }
  const Outcome last = bhyt(again);
  EXPECT_EQ(last.code, 0) << last.err;
  says(last.err, "going on after step");
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Pretrain, ASecondSignalQuitsAtOnce) {
  const Place place;
  // One step of this takes far longer than the test waits.
  Process process(place.run("a", {"train.batch=6000", "train.micro_batch=6", "train.steps=2"}), place.path / "messages");
  ASSERT_TRUE(wait_for(process, [&] { return read_text(place.path / "messages").find("data    ") != std::string::npos; }));
  std::this_thread::sleep_for(Milliseconds(400));  // the handlers are there once the peak is measured
  process.send(SIGINT);
  ASSERT_TRUE(wait_for(process, [&] { return read_text(place.path / "messages").find("once more to quit") != std::string::npos; }));
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 130);
  EXPECT_EQ(names_in(place.path / "a", "checkpoint-"), Words{});
}

TEST(Pretrain, AFileThatMayNotGrowIsAnErrorAndHurtsNothing) {
  const Place place;
  ASSERT_EQ(bhyt(place.run("a", {"train.steps=6"})).code, 0);
  const auto limited = [] {
    const rlimit limit{40000, 40000};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  Process process(place.run("a", {"resume=auto"}), place.path / "messages", limited);
  EXPECT_EQ(process.wait(), 1);
  says(read_text(place.path / "messages"), "checkpoint-9: ");
  says(read_text(place.path / "messages"), "File too large");
  EXPECT_EQ(names_in(place.path / "a", "checkpoint-"), (Words{"checkpoint-3", "checkpoint-6"}));
  EXPECT_EQ(names_in(place.path / "a", "tmp-"), Words{});
  ASSERT_EQ(bhyt(place.run("a", {"resume=auto"})).code, 0);
}

TEST(Pretrain, AFullDiskIsAnErrorAndHurtsNothing) {
  const Place place;
  const fs::path disk = place.path / "disk";
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=700k") != 0) GTEST_SKIP() << "may not mount a small disk here";
  const Outcome out = bhyt(place.run("disk/a", {"train.keep=9"}));
  const Words left = names_in(disk / "a", "checkpoint-");
  const bool clean = names_in(disk / "a", "tmp-").empty();
  fs::create_directory(place.path / "copy");
  fs::copy(disk / "a", place.path / "copy" / "a", fs::copy_options::recursive);
  umount(disk.c_str());
  EXPECT_EQ(out.code, 1);
  says(out.err, "No space left on device");
  says(out.err, "earlier checkpoints are untouched");
  EXPECT_TRUE(clean);
  ASSERT_FALSE(left.empty());
  // With room again, the run goes on from what was saved.
  Words again = place.run("copy/a", {"resume=auto"});
  const Outcome last = bhyt(again);
  EXPECT_EQ(last.code, 0) << last.err;
  says(last.err, "going on after step " + left.back().substr(11));
}

TEST(Pretrain, OneProcessPerDirectory) {
  const Place place;
  Process first(place.run("a", {"train.steps=100000"}), place.path / "messages");
  ASSERT_TRUE(wait_for(first, [&] { return metrics_of(place.path / "a").size() > 2; })) << read_text(place.path / "messages");
  const Outcome second = bhyt(place.run("a", {"resume=auto"}));
  EXPECT_EQ(second.code, 1);
  says(second.err, "is being written by another process");
}

TEST(Pretrain, ALossThatExplodesStopsTheRun) {
  const Place place;
  const Outcome out = bhyt(place.run("a", {"train.lr=1e30", "train.warmup_ratio=0", "train.max_skipped=4", "train.save_every=0"}));
  EXPECT_EQ(out.code, 1);
  says(out.err, "4 steps in a row were skipped");
  const auto lines = metrics_of(place.path / "a");
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const Json& j) { return j.contains("event") && j["event"] == "skipped_step"; }),
            4);
}

TEST(Pretrain, WrongConfigsExitWithTwoAndSayWhy) {
  const Place place;
  const auto error = [&](const Words& words) {
    const Outcome out = bhyt(place.run("never", words));
    EXPECT_EQ(out.code, 2) << out.err;
    EXPECT_EQ(out.out, "");
    return out.err;
  };
  EXPECT_EQ(error({"train.lrr=1"}), "error: unknown key train.lrr (did you mean train.lr?)\n");
  EXPECT_EQ(error({"norm.lambda=[-1, 2]"}), "error: norm.lambda[0] must be greater than 0, got -1\n");
  EXPECT_EQ(error({"norm.p=0.9", "norm.kappa=2"}), "error: norm.p and norm.kappa say the same thing: give one of them\n");
  EXPECT_EQ(error({"model.vocab=100"}), "error: model.vocab must be at least 257, the tokenizer's, got 100\n");
  EXPECT_EQ(error({"--forse"}), "error: unknown flag --forse (did you mean --force?); see bhyt help pretrain\n");
  EXPECT_EQ(error({"a.yaml", "b.yaml"}), "error: expected one config, got a.yaml and b.yaml (overrides are written key=value)\n");
  EXPECT_EQ(error({"nowhere.yaml"}), "error: config nowhere.yaml is not a file\n");
  says(error({"norm.method=bhyd"}), "bhyt");
  says(error({"device=tpu"}), "run.device must be auto, cpu, cuda or cuda:N, got tpu");
  const Outcome none = bhyt({"pretrain"});
  EXPECT_EQ(none.code, 2);
}

TEST(Pretrain, UnwritableDirectories) {
  const Place place;
  const Outcome proc = bhyt(place.run("x", {"run.dir=/proc/none/run"}));
  EXPECT_EQ(proc.code, 1);
  says(proc.err, "could not make the run directory /proc/none/run: ");
  const Outcome file = bhyt(place.run("text.txt"));
  EXPECT_EQ(file.code, 1);
  says(file.err, "could not make the run directory");
}

TEST(Pretrain, ConfigFilesOutcomesAndRefusals) {
  const Place place;
  write_text(place.path / "c.yaml", fmt::format("model: {{preset: tiny, d: 32, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, mlp: 40}}\n"
                                                "norm: {{method: rmsnorm}}\n"
                                                "data: {{train: [{0}], seq_len: 16}}\n"
                                                "train: {{tokens: 1K, batch: 4, lr: 1e-3}}\n"
                                                "run: {{dir: {1}}}\n",
                                                (place.path / "text.txt").string(), (place.path / "a").string()));
  const std::string config = (place.path / "c.yaml").string();
  const Outcome first = bhyt({"pretrain", config, "threads=1", "--json"});
  ASSERT_EQ(first.code, 0) << first.err;
  const Json result = Json::parse(first.out);
  EXPECT_EQ(result["step"], 16);
  EXPECT_EQ(result["checkpoint"], (place.path / "a" / "checkpoint-16").string());
  says(first.err, " parameters | norm rmsnorm");
  says(first.err, "memory  weights ");
  says(first.err, "step    16/16  loss ");
  const Json model = Json::parse(read_text(place.path / "a" / "checkpoint-16" / "config.json"));
  EXPECT_EQ(model["model_type"], "llama");
  EXPECT_EQ(model["vocab_size"], 257);

  const Outcome second = bhyt({"pretrain", config, "threads=1"});
  EXPECT_EQ(second.code, 2);
  says(second.err, "already holds a run; resume=auto goes on with it, another run.dir starts a new one");

  const Outcome changed = bhyt({"pretrain", config, "resume=auto", "train.lr=2e-3"});
  EXPECT_EQ(changed.code, 2);
  says(changed.err, "train.lr was 0.001, now is 0.002");

  const Outcome repeated =
      bhyt({"pretrain", (place.path / "a" / "resolved.yaml").string(), "run.dir=" + (place.path / "b").string(), "--quiet"});
  EXPECT_EQ(repeated.code, 0);
  EXPECT_EQ(repeated.err, "");
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Pretrain, HelpListsEveryKey) {
  const Outcome help = bhyt({"help", "pretrain"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* key : {"model.preset", "norm.lambda", "data.attend", "train.max_skipped", "run.resume", "--force"}) says(help.out, key);
}

}  // namespace
}  // namespace bhyt::test
