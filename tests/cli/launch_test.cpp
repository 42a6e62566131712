// bhyt launch: what it asks of mpirun, when it starts again and when it gives up; bhyt plan as a user sees it.
#include "tests/cli/ranks.h"

namespace bhyt::test {
namespace {

// An mpirun that writes its words down, a line each time, and then plays what a shell script says. $n counts from 1, $run is the run.
struct FakeMpirun {
  const Place place;
  fs::path run = place.path / "run", script = place.path / "mpirun", said = place.path / "said";

  explicit FakeMpirun(const std::string& plays) {
    write_text(script, fmt::format("#!/bin/sh\nrun={}\nprintf '%s\\n' \"$*\" >> {}\nn=$(wc -l < {})\n{}\n", run.string(), said.string(),
                                   said.string(), plays));
    fs::permissions(script, fs::perms::owner_all);
  }
  Words words(const Words& flags, const Words& more = {}) const {
    return Words{"launch", "-n", "3", "--mpirun", script.string()} + flags + Words{"--"} + place.run("run", more);
  }
  Outcome launch(const Words& flags, const Words& more = {}) const { return bhyt(words(flags, more)); }
  Words attempts() const {
    Words lines;
    std::istringstream in(read_text(said));
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
};

TEST(Launch, StartsAgainFromTheNewestCheckpoint) {
  const FakeMpirun fake("mkdir -p $run/checkpoint-$((n * 3)); case $n in 1) exit 137;; 2) exit 1;; esac");
  const Outcome out = fake.launch({"--restarts", "5"}, {"resume=never"});
  EXPECT_EQ(out.code, 0) << out.err;
  const Words attempts = fake.attempts();
  ASSERT_EQ(attempts.size(), 3u);
  for (const std::string& words : attempts) {
    EXPECT_TRUE(words.starts_with("-n 3 ")) << words;
    EXPECT_EQ(has(words, "--allow-run-as-root"), geteuid() == 0);
    says(words, " pretrain model.d=32 ");
  }
  EXPECT_TRUE(attempts[0].ends_with(" resume=never")) << attempts[0];
  for (std::size_t i : {1, 2}) {
    EXPECT_TRUE(attempts[i].ends_with(" resume=auto")) << attempts[i];
    EXPECT_FALSE(has(attempts[i], "resume=never"));
  }
  says(out.err, "launch  attempt 1 of 6: 3 ranks");
  says(out.err, "launch  attempt 1 ended with exit code 137\n");
  says(out.err, "launch  attempt 2 of 6: 3 ranks");
  says(out.err, ", from step 3\n");
  says(out.err, ", from step 6\n");
}

TEST(Launch, GivesUpWithoutProgress) {
  const FakeMpirun fake("mkdir -p $run/checkpoint-3; exit 137");
  const Outcome out = fake.launch({"--restarts", "5"});
  EXPECT_EQ(out.code, 137);
  EXPECT_EQ(fake.attempts().size(), 2u);
  says(out.err, "attempt 2 ended with exit code 137; the restart made no progress, the newest checkpoint still is that of step 3");
}

TEST(Launch, ARunThatWasBegunMayCrashOnce) {
  const FakeMpirun fake("if [ $n = 1 ]; then exit 1; fi");
  fs::create_directories(fake.run / "checkpoint-7");
  EXPECT_EQ(fake.launch({"--restarts", "1"}, {"resume=auto"}).code, 0);
  EXPECT_EQ(fake.attempts().size(), 2u);
}

// The run before is none to go on from when resume=restart crashes before it has put it aside; its own checkpoint is, be its number
// smaller.
TEST(Launch, ARunThatBeginsAnewDoesNotGoOnWithTheOneBefore) {
  const FakeMpirun early("exit 1");
  fs::create_directories(early.run / "checkpoint-7");
  const Outcome none = early.launch({"--restarts", "5"}, {"resume=restart"});
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(early.attempts().size(), 1u);
  says(none.err, "there is no checkpoint to go on from");

  const FakeMpirun late("case $n in 1) mkdir $run/earlier-1; mv $run/checkpoint-* $run/earlier-1; mkdir $run/checkpoint-3; exit 1;; esac");
  fs::create_directories(late.run / "checkpoint-7");
  const Outcome own = late.launch({"--restarts", "5"}, {"resume=restart"});
  EXPECT_EQ(own.code, 0) << own.err;
  ASSERT_EQ(late.attempts().size(), 2u);
  EXPECT_TRUE(late.attempts()[0].ends_with(" resume=restart"));
  EXPECT_TRUE(late.attempts()[1].ends_with(" resume=auto"));
  says(own.err, ", from step 3\n");
}

TEST(Launch, DoesNotStartAgainWhereThatIsOfNoUse) {
  const FakeMpirun nothing_saved("exit 1");
  const Outcome none = nothing_saved.launch({"--restarts", "5"});
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(nothing_saved.attempts().size(), 1u);
  says(none.err, "there is no checkpoint to go on from");

  const FakeMpirun wrong("mkdir -p $run/checkpoint-3; exit 2");
  const Outcome usage = wrong.launch({"--restarts", "5"});
  EXPECT_EQ(usage.code, 2);
  EXPECT_EQ(wrong.attempts().size(), 1u);
  says(usage.err, "what was asked for is wrong");

  const FakeMpirun preempted("mkdir -p $run/checkpoint-3; exit 143");
  EXPECT_EQ(preempted.launch({"--restarts", "5"}).code, 143);
  EXPECT_EQ(preempted.attempts().size(), 1u);

  const FakeMpirun always("mkdir -p $run/checkpoint-$n; exit 134");
  const Outcome spent = always.launch({"--restarts", "2"});
  EXPECT_EQ(spent.code, 134);
  EXPECT_EQ(always.attempts().size(), 3u);
  says(spent.err, "no restarts are left");
}

TEST(Launch, ASignalIsPassedOnAndWaitedFor) {
  const FakeMpirun fake(
      "mkdir -p $run/checkpoint-3; trap 'mkdir $run/checkpoint-4; exit 143' USR1; trap 'exit 9' TERM INT; echo ready >&2\n"
      "while :; do sleep 0.05; done");
  for (const int signal : {SIGTERM, SIGINT}) {
    fs::remove_all(fake.run);
    fs::remove(fake.said);
    Process process(fake.words({"--restarts", "5"}));
    ASSERT_TRUE(process.read_until("ready")) << process.messages();
    process.send(signal);
    EXPECT_EQ(process.wait(), 128 + signal) << process.messages();
    EXPECT_EQ(newest_checkpoint(fake.run), 4);
    EXPECT_EQ(fake.attempts().size(), 1u);
    says(process.messages(), "it was asked to stop");
  }
}

// As mpirun and Slurm pass it on.
TEST(Launch, ARankTakesSigusr1ForSigterm) {
  const Place place;
  Process process(place.run("run", {"train.log_every=1", "train.save_every=0", "train.steps=99999"}));
  ASSERT_TRUE(process.read_until_step(8, 99999)) << process.messages();
  process.send(SIGUSR1);
  EXPECT_EQ(process.wait(), 128 + SIGTERM) << process.messages();
  EXPECT_GE(newest_checkpoint(place.path / "run"), 8);
  EXPECT_EQ(names_in(place.path / "run", "checkpoint-").size(), 1u);
}

TEST(Launch, SaysWhatIsMissing) {
  const TempFolder empty;
  const std::string path = std::getenv("PATH");
  setenv("PATH", empty.path.c_str(), 1);
  const Outcome none = bhyt({"launch", "-n", "2", "--", "pretrain", "model.preset=tiny"});
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(none.code, 1);
  says(none.err, "there is no mpirun in PATH: install Open MPI (Debian: openmpi-bin)");
  for (const Words& wrong :
       {Words{"-n", "2"}, Words{"-n", "2", "--"}, Words{"-n", "0", "--", "pretrain"}, Words{"--", "pretrain"},
        Words{"-n", "2", "--mpirun", "/no/such", "--", "pretrain"}, Words{"-n", "2", "--restarts", "1", "--", "eval", "--model", "x"}}) {
    const Outcome out = bhyt(Words{"launch"} + wrong);
    EXPECT_EQ(out.code, 2) << out.err;
  }
}

TEST(Launch, ARankThatIsKilledCostsNothingButTime) {
  NEEDS_MPI;
  const Place place;
  const auto words = [&](const std::string& dir) {
    return Words{"launch", "-n", "2", "--restarts", "2", "--"} +
           place.run(dir, {"train.log_every=1", "train.save_every=10", "train.steps=200"});
  };
  const Outcome straight = bhyt(words("a"));
  ASSERT_EQ(straight.code, 0) << straight.err;
  Process process(words("b"));
  ASSERT_TRUE(process.read_until_step(24, 200)) << process.messages();
  const std::set<pid_t> ranks = ranks_in(place.path / "b");
  ASSERT_EQ(ranks.size(), 2u);
  kill(*ranks.rbegin(), SIGKILL);
  EXPECT_EQ(process.wait(), 0) << process.messages();
  says(process.messages(), "launch  attempt 2 of 3: 2 ranks");
  says(process.messages(), "going on after step ");
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Launch, RanksSaveWhenItIsAskedToStop) {
  NEEDS_MPI;
  const Place place;
  Process process(Words{"launch", "-n", "2", "--restarts", "2", "--"} +
                  place.run("run", {"train.log_every=1", "train.save_every=0", "train.steps=99999"}));
  ASSERT_TRUE(process.read_until_step(8, 99999)) << process.messages();
  process.send(SIGTERM);
  EXPECT_EQ(process.wait(), 128 + SIGTERM) << process.messages();
  EXPECT_GE(newest_checkpoint(place.path / "run"), 8);
  EXPECT_EQ(names_in(place.path / "run", "checkpoint-").size(), 1u);
  EXPECT_FALSE(has(process.messages(), "attempt 2"));
}

TEST(PlanCommand, SaysWhatLlama3BNeedsOnEightGpus) {
  const Words words = {"plan", "model.preset=llama-3b", "data.seq_len=2048", "train.batch=128", "--gpus", "8", "--gpu", "h100-80g"};
  const Outcome text = bhyt(words);
  ASSERT_EQ(text.code, 0) << text.err;
  says(text.out, "8 × H100 SXM 80 GB: llama-3b, ");
  says(text.out, "zero 2: the 16 rows of a GPU at once fit with train.recompute=");
  says(text.out, "not measured on this GPU");
  const Outcome out = bhyt(words + Words{"--json"});
  ASSERT_EQ(out.code, 0) << out.err;
  const Json plan = Json::parse(out.out);
  ASSERT_EQ(plan["rows"].size(), 12u);
  for (const Json& row : plan["rows"]) {
    double sum = 0;
    for (const auto& [kind, bytes] : row["memory"].items()) sum += kind == "sum" ? 0 : bytes.get<double>();
    EXPECT_DOUBLE_EQ(sum, row["memory"]["sum"].get<double>());
    if (!row["fits"]) continue;
    EXPECT_LE(sum, plan["room"].get<double>());
    EXPECT_NEAR(row["compute_ms"].get<double>() + row["exposed_ms"].get<double>(), row["step_ms"].get<double>(), 1e-6);
    EXPECT_LE(row["micro_batch"], row["largest_micro_batch"]);
  }
  EXPECT_TRUE(plan["rows"][plan["best"].get<std::size_t>()]["fits"]);
}

TEST(PlanCommand, RefusesWhatCannotBe) {
  const auto refused = [](const Words& words) {
    const Outcome out = bhyt(Words{"plan"} + words);
    EXPECT_EQ(out.code, 2) << out.err;
    EXPECT_EQ(out.out, "");
    return out.err;
  };
  const std::string model = "model.preset=llama-1b";
  says(refused({model, "--gpus", "8", "--gpu", "h300"}), "unknown GPU h300; expected one of h200, h100-80g");
  says(refused({model, "--gpus", "0", "--gpu", "h200"}), "--gpus: expected a whole number from 1 to 65536, got 0");
  says(refused({model, "--gpu", "h200"}), "expected --gpus N and --gpu NAME");
  says(refused({model, "--gpus", "8", "--gpu", "h200", "--nodes", "2"}), "--nodes 2 needs --network");
  says(refused({model, "--gpus", "8", "--gpu", "h200", "--nodes", "2", "--network", "fast"}), "--network: expected the bits a second");
  says(refused({"model.d=64", "--gpus", "1", "--gpu", "h200"}), "give data.train, or model.vocab");
  says(refused({"model.preset=llama-3b", "--gpus", "1", "--gpu", "a100-40g"}), "this run does not fit on 1 × a100-40g");
}

}  // namespace
}  // namespace bhyt::test
