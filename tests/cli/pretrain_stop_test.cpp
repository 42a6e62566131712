// bhyt pretrain on a machine that dies under it: killed, asked to stop, out of disk.
#include <poll.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <array>
#include <tuple>

#include "tests/cli/training.h"

namespace bhyt::test {
namespace {

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
  const Words whole = {"train.steps=42"};  // every checkpoint has as many steps behind it, the last one too
  ASSERT_EQ(bhyt(place.run("a", whole)).code, 0);
  const Words again = place.run("b", whole + Words{"resume=auto"});
  int inside = 0;
  // A save may be quicker than the signal: then nothing is left half made, or only what was being let go of behind it. And where this test
  // has to wait for its turn, a run may come to its end. So in rounds.
  for (int round = 0; inside == 0 && round < 50; ++round) {
    fs::remove_all(place.path / "b");
    fs::create_directory(place.path / "b");
    for (const char* file : {"", "model.safetensors", "optimizer.safetensors", "trainer_state.json", "manifest.json"}) {
      Process process(again);
      if (!wait_inside_save(process, place.path / "b", file)) {
        ASSERT_EQ(process.wait(), 0) << process.messages();
        break;
      }
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
    says(process.messages(), "warning: one micro-batch of 4,000 × 32 tokens takes this machine at least ");
    process.send(SIGINT);
    ASSERT_TRUE(process.read_until("once more to quit")) << process.messages();
    process.send(SIGINT);
    EXPECT_EQ(process.wait(), 130);
    quit = names_in(place.path / "a", "checkpoint-").empty();
  }
  EXPECT_TRUE(quit);
}

// A step of ten thousand micro-batches is not waited for. It is the first: nothing is there to be saved, and the run begins again.
TEST(Pretrain, ASignalStopsALongStep) {
  const Place place;
  Process process(place.run("a", {"train.batch=20K", "train.micro_batch=2", "train.steps=2"}));
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

}  // namespace
}  // namespace bhyt::test
