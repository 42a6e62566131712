// bhyt pretrain as a user meets it, and as a machine that dies under it does.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>

#include "tests/cli/process.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

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

std::int64_t newest_checkpoint(const fs::path& run) {
  std::int64_t newest = 0;
  for (const std::string& name : names_in(run, "checkpoint-")) newest = std::max<std::int64_t>(newest, std::stoll(name.substr(11)));
  return newest;
}

// Steps that a killed run had done and not saved.
std::int64_t lost_steps(const fs::path& run) {
  const auto lines = metrics_of(run);
  return lines.empty() ? 0 : lines.back()["step"].get<std::int64_t>() - newest_checkpoint(run);
}

TEST(Pretrain, KilledAtObservedStepsItEndsWithTheSameBits) {
  const Place place;
  const Words often = {"train.steps=120", "train.save_every=30", "train.log_every=1", "train.eval_every=25"};
  const Outcome straight = bhyt(place.run("a", often));
  ASSERT_EQ(straight.code, 0) << straight.err;
  Words again = place.run("b", often + Words{"resume=auto"});
  for (const std::int64_t step : {4, 33, 65, 96}) {
    Process process(again);
    again.back() = "resume=auto";
    ASSERT_TRUE(process.read_until_step(step, 120)) << process.messages();
    process.send(SIGKILL);
    EXPECT_EQ(process.wait(), 128 + SIGKILL);
    EXPECT_EQ(newest_checkpoint(place.path / "b"), step / 30 * 30);
    EXPECT_GE(lost_steps(place.path / "b"), 3);
    if (step > 30) continue;
    // Nothing to go on from: what was trained is not written over, a word puts it aside.
    const Outcome refused = bhyt(again);
    EXPECT_EQ(refused.code, 1);
    says(refused.err, "there are metrics of earlier steps, but no checkpoint");
    says(read_text(place.path / "b" / "log.txt"), "there are metrics of earlier steps, but no checkpoint");
    again.back() = "resume=restart";
  }
  EXPECT_GE(metrics_of(place.path / "b" / "earlier-1").size(), 3u);
  fs::remove_all(place.path / "b" / "earlier-1");
  const Outcome last = bhyt(again);
  EXPECT_EQ(last.code, 0) << last.err;
  says(last.err, "going on after step 90");
  expect_same_runs(place.path / "a", place.path / "b");
}

// Reads the program's messages until a checkpoint is being made, not the first of this process (or the run would never get past it), and
// in it the file that is named. False when the program ended before.
bool wait_inside_save(Process& process, const fs::path& run, const std::string& file) {
  struct Watch {
    int fd = inotify_init1(IN_CLOEXEC);
    ~Watch() { close(fd); }
  } watch;
  inotify_add_watch(watch.fd, run.c_str(), IN_CREATE);
  int saves = 0;
  for (;;) {
    std::array<pollfd, 2> waited{{{process.socket(), POLLIN, 0}, {watch.fd, POLLIN, 0}}};
    if (poll(waited.data(), waited.size(), -1) < 0) return false;
    if (waited[0].revents && !process.read_some()) return false;
    if (!(waited[1].revents & POLLIN)) continue;
    alignas(inotify_event) char events[4096];
    const ssize_t bytes = read(watch.fd, events, sizeof events);
    for (ssize_t at = 0; at < bytes;) {
      const auto* e = reinterpret_cast<const inotify_event*>(events + at);
      at += static_cast<ssize_t>(sizeof *e) + e->len;
      const std::string name = e->len ? e->name : "";
      if (name == file) return true;
      if (!name.starts_with("tmp-checkpoint-") || name.ends_with("-removed") || ++saves < 2) continue;
      inotify_add_watch(watch.fd, (run / name).c_str(), IN_CREATE);
      if (file.empty() || fs::exists(run / name / file)) return true;
    }
  }
}

TEST(Pretrain, KilledInsideASaveItEndsWithTheSameBits) {
  const Place place(true);
  ASSERT_EQ(bhyt(place.run("a")).code, 0);
  const Words again = place.run("b", {"resume=auto"});
  int inside = 0;
  // A save may be quicker than the signal: then nothing is left half made, or only what was being let go of behind it. So in rounds.
  for (int round = 0; inside == 0 && round < 50; ++round) {
    fs::remove_all(place.path / "b");
    fs::create_directory(place.path / "b");
    for (const char* file : {"", "model.safetensors", "optimizer.safetensors", "trainer_state.json", "manifest.json"}) {
      Process process(again);
      ASSERT_TRUE(wait_inside_save(process, place.path / "b", file)) << process.messages();
      process.send(SIGKILL);
      process.wait();
      const auto left = names_in(place.path / "b", "tmp-checkpoint-");
      if (std::all_of(left.begin(), left.end(), [](const std::string& name) { return name.ends_with("-removed"); })) continue;
      ++inside;
      EXPECT_GE(lost_steps(place.path / "b"), 3) << file;
    }
  }
  EXPECT_GT(inside, 0);
  const Outcome last = bhyt(again);
  EXPECT_EQ(last.code, 0) << last.err;
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Pretrain, SignalsFinishTheStepSaveAndSayWhich) {
  const Place place;
  const Words often = {"train.log_every=1", "train.save_every=10"};
  ASSERT_EQ(bhyt(place.run("a", often)).code, 0);
  const Words again = place.run("b", often + Words{"resume=auto"});
  for (const auto& [signal, code, step] : {std::tuple{SIGINT, 130, 3}, std::tuple{SIGTERM, 143, 23}}) {
    Process process(again);
    ASSERT_TRUE(process.read_until_step(step, 40)) << process.messages();
    process.send(signal);
    EXPECT_EQ(process.wait(), code);
    says(process.messages(), signal == SIGINT ? "stopped by SIGINT after step" : "stopped by SIGTERM after step");
    EXPECT_EQ(lost_steps(place.path / "b"), 0);
  }
  const Outcome last = bhyt(again);
  EXPECT_EQ(last.code, 0) << last.err;
  says(last.err, "going on after step");
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Pretrain, ASecondSignalQuitsAtOnce) {
  const Place place;
  // Every step of this takes far longer than a signal, and is one micro-batch, which nothing but a second signal stops.
  // A first signal that comes between two steps saves at once: then again.
  bool quit = false;
  for (int round = 0; !quit && round < 20; ++round) {
    fs::remove_all(place.path / "a");
    Process process(place.run("a", {"train.batch=4K", "train.micro_batch=4K", "train.steps=900", "train.log_every=1", "train.save_every=0",
                                    "train.eval_every=0"}));
    ASSERT_TRUE(process.read_until_step(1, 900)) << process.messages();
    process.send(SIGINT);
    ASSERT_TRUE(process.read_until("once more to quit")) << process.messages();
    process.send(SIGINT);
    EXPECT_EQ(process.wait(), 130);
    quit = names_in(place.path / "a", "checkpoint-").empty();
  }
  EXPECT_TRUE(quit);
}

// A step of a thousand micro-batches is not waited for. It is the first: nothing is there to be saved, and the run begins again.
TEST(Pretrain, ASignalStopsALongStep) {
  const Place place;
  Process process(place.run("a", {"train.batch=2K", "train.micro_batch=2", "train.steps=2"}));
  ASSERT_TRUE(process.read_until("data    ")) << process.messages();
  ASSERT_TRUE(process.wait_until_caught(SIGTERM));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait(), 143);
  says(process.messages(), "stopped by SIGTERM in the first step");
  EXPECT_EQ(names_in(place.path / "a", "checkpoint-"), Words{});
  EXPECT_TRUE(metrics_of(place.path / "a").empty());
  const Outcome again = bhyt(place.run("a", {"train.batch=2", "train.steps=2", "resume=auto"}));
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST(Pretrain, WhatAPersonShouldKnowIsSaidBeforeTheFirstStep) {
  const Place place;
  const Outcome out =
      bhyt(place.run("a", {"train.steps=2", "train.batch=2K", "norm.method=dyt", "norm.lambda=[3, 1]", "train.micro_batch=100"}));
  ASSERT_EQ(out.code, 0) << out.err;
  says(out.err, "warning: a batch of 2,000 rows is larger than the data, ");
  says(out.err, "warning: norm.lambda, norm.refresh: of no use to the method dyt\n");
  const Outcome large = bhyt(place.run("b", {"train.batch=1T"}));
  EXPECT_EQ(large.code, 2);
  says(large.err, "error: this run needs ");
  says(large.err, " free; lower train.batch or train.micro_batch (now 1000000000000 and auto)");
  const Outcome wide = bhyt(place.run("b", {"train.batch=1M", "train.micro_batch=1M", "data.seq_len=1K"}));
  EXPECT_EQ(wide.code, 2);
  says(wide.err, "lower train.batch or train.micro_batch (now 1000000 and 1000000)");
  EXPECT_FALSE(fs::exists(place.path / "b" / "log.txt"));
}

TEST(Pretrain, AFileThatMayNotGrowIsAnErrorAndHurtsNothing) {
  const Place place;
  ASSERT_EQ(bhyt(place.run("a", {"train.steps=6"})).code, 0);
  const auto limited = [] {
    const rlimit limit{40000, 40000};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  Process process(place.run("a", {"resume=auto"}), limited);
  EXPECT_EQ(process.wait(), 1);
  says(process.messages(), "checkpoint-9: ");
  says(process.messages(), "File too large");
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
  Process first(place.run("a", {"train.steps=90000"}));
  ASSERT_TRUE(first.read_until_step(3, 90000)) << first.messages();
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
  EXPECT_EQ(error({"train.lr="}), "error: train.lr= has no value: write train.lr=VALUE, or train.lr=null for the default\n");
  EXPECT_EQ(error({"train.lr", "5e-4"}), "error: train.lr has no value: write train.lr=VALUE\n");
  EXPECT_EQ(error({"seed"}), "error: seed has no value: write seed=VALUE\n");
  EXPECT_EQ(error({"--train.lr=1"}), "error: unknown flag --train.lr=1 (keys have no dashes: train.lr=1); see bhyt help pretrain\n");
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
  says(second.err, "already holds a run; resume=auto goes on with it, resume=restart puts it aside, another run.dir starts a new one");

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
