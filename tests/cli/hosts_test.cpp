// Ranks that do not see the same machine: a disk that only one may not write, hosts with a network between them.
#include "tests/cli/ranks.h"

namespace bhyt::test {
namespace {

// How a process gets mounts of its own here: as root, or as one who is root in a namespace alone; "" where neither is allowed.
std::string own_mounts() {
  for (const char* how : {"unshare -m", "unshare -Urm"})
    if (std::system(fmt::format("{} sh -c 'mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp' 2>/dev/null", how).c_str()) == 0)
      return how;
  return "";
}
#define NEEDS_OWN_MOUNTS \
  if (own_mounts().empty()) GTEST_SKIP() << "a process may not have mounts of its own here"

// A rank as mpirun is given it, after a line of the shell in mounts of its own.
std::string rank_behind(const std::string& line, const Words& words) {
  return fmt::format("-n 1 {} sh -c {}", own_mounts(), quoted(line + " && exec " + line_of(words)));
}

// Root, too, may not write there.
std::string read_only(const fs::path& folder) {
  const std::string at = quoted(folder.string());
  return fmt::format("mount --bind {} {} && mount -o remount,bind,ro {}", at, at, at);
}

TEST(Hosts, AReadOnlyDiskOnOneRankLosesNothing) {
  NEEDS_MPI;
  NEEDS_OWN_MOUNTS;
  const Place place;
  const fs::path run = place.path / "run";
  ASSERT_EQ(ranks(place, 2, place.run("run", {"train.steps=3"})).code, 0);
  const Words more = place.run("run", {"train.steps=6", "resume=must", "--force"});
  const std::string fine = fmt::format("-n 1 {}", line_of(more)), stuck = rank_behind(read_only(run), more);

  // A rank that only writes its shard meets it when that is saved.
  const Outcome shard = mpirun(place, "--timeout 30 " + fine + " : " + stuck);
  EXPECT_EQ(shard.code, 1) << shard.err;
  says(shard.err, "could not save " + (run / "checkpoint-6").string() + ": rank 1 on ");
  says(shard.err, "optimizer-2-of-2.safetensors");
  EXPECT_EQ(times(shard.err, "Read-only file system"), 1) << shard.err;
  EXPECT_EQ(newest_checkpoint(run), 3);
  EXPECT_EQ(names_in(run, "tmp-"), Words{});

  // The first one, which writes all the rest, before anything is computed.
  const Outcome first = mpirun(place, "--timeout 30 " + stuck + " : " + fine);
  EXPECT_EQ(first.code, 1) << first.err;
  says(first.err, "rank 0 on ");
  says(first.err, "could not write to the run directory " + run.string() + ": Read-only file system");
  EXPECT_EQ(times(first.err, "Read-only file system"), 1) << first.err;

  EXPECT_EQ(bhyt({"info", run.string()}).code, 0);
  const Outcome again = ranks(place, 2, more);
  EXPECT_EQ(again.code, 0) << again.err;
  says(again.err, "going on after step 3");
}

// Two hosts, node-a and node-b: namespaces of the network with a cable between them, each with a name of its own. `mpirun` is a script that
// makes them and then is mpirun on the first; all of it goes away with its last process. Files and process ids are those of this machine.
struct TwoHosts {
  const Place place;
  fs::path script = place.path / "mpirun", agent = place.path / "agent";

  TwoHosts() {
    write(agent, "shift\nexec ip netns exec b unshare -u sh -c 'echo node-b > /proc/sys/kernel/hostname; eval \"exec $*\"' sh \"$@\"");
    write(script,
          fmt::format("if [ \"$1\" != inside ]; then exec {} sh \"$0\" inside \"$@\"; fi\n"
                      "shift\nset -e\n"
                      "mount -t tmpfs none /run\n"
                      "ip netns add a\nip netns add b\n"
                      "ip link add left netns a type veth peer name right netns b\n"
                      "ip -n a addr add 10.77.0.1/24 dev left\nip -n b addr add 10.77.0.2/24 dev right\n"
                      "ip -n a link set lo up\nip -n b link set lo up\nip -n a link set left up\nip -n b link set right up\n"
                      "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
                      // seconds until the other host counts as lost
                      "export OMPI_MCA_oob_tcp_keepalive_time=2 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=2\n"
                      "exec ip netns exec a unshare -u sh -c 'echo node-a > /proc/sys/kernel/hostname; exec mpirun \"$@\"' sh "
                      "--mca plm_rsh_agent {} \"$@\"",
                      own_mounts(), agent.string()));
  }
  // Whether such hosts can be made here, by having each say its name; else what was wrong.
  std::string missing() const {
    const Outcome out = shell(place, fmt::format("{} --host node-a:1,node-b:1 --bind-to none -n 2 sh -c 'uname -n >&2'", script.string()));
    return out.code == 0 && has(out.err, "node-a") && has(out.err, "node-b") ? "" : out.err;
  }
  Words launch(const std::string& hosts, int n, const Words& flags, const Words& words) const {
    return Words{"launch", "-n", std::to_string(n), "--hosts", hosts, "--mpirun", script.string()} + flags + Words{"--"} + words;
  }

 private:
  static void write(const fs::path& file, const std::string& lines) {
    write_text(file, "#!/bin/sh\n" + lines + "\n");
    fs::permissions(file, fs::perms::owner_all);
  }
};
class OnTwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_MPI;
    NEEDS_OWN_MOUNTS;
    if (const std::string missing = hosts.missing(); !missing.empty())
      GTEST_SKIP() << "namespaces of the network cannot be made here (ip, unshare): " << missing;
  }
  const TwoHosts hosts;
  const Place& place = hosts.place;
};

// Of the processes of a run, that of a rank.
pid_t rank_in(const fs::path& run, int rank) {
  for (const pid_t pid : ranks_in(run))
    if (is_rank(pid, rank)) return pid;
  return 0;
}

TEST_F(OnTwoHosts, RanksHaveTheLossesOfOneProcess) {
  const Words words = {"train.steps=16", "train.save_every=0", "dtype=fp32"};
  ASSERT_EQ(bhyt(place.run("one", words)).code, 0);
  const Outcome out = bhyt(hosts.launch("node-a:2,node-b:1", 3, {}, place.run("three", words)));
  ASSERT_EQ(out.code, 0) << out.err;
  expect_near(place.path / "one", place.path / "three", 1e-6);

  // A rank that fails is named with its host.
  const fs::path run = place.path / "three";
  const std::string only_there = fmt::format("sh -c {}", quoted("[ $(uname -n) = node-a ] || ulimit -f 16; exec " +
                                                                line_of(place.run("three", {"train.steps=20", "resume=must", "--force"}))));
  const Outcome full = shell(place, fmt::format("{} --host node-a:1,node-b:1 --bind-to none -n 2 {}", hosts.script.string(), only_there));
  EXPECT_EQ(full.code, 1) << full.err;
  says(full.err, "rank 1 on node-b: ");
  EXPECT_EQ(newest_checkpoint(run), 16);
}

// A rank that is killed on the other host, and a cable that is pulled: mpirun notices, `bhyt launch` starts again (with another cable), and
// the run ends with the bits of one that nothing happened to.
TEST_F(OnTwoHosts, OneThatFailsCostsNothingButTime) {
  const auto words = [&](const std::string& dir) {
    return hosts.launch("node-a:1,node-b:1", 2, {"--restarts", "2"},
                        place.run(dir, {"train.log_every=1", "train.save_every=10", "train.steps=100"}));
  };
  const Outcome straight = bhyt(words("straight"));
  ASSERT_EQ(straight.code, 0) << straight.err;
  for (const std::string fault : {"killed", "pulled"}) {
    SCOPED_TRACE(fault);
    if (fault == "pulled" && geteuid() != 0) continue;  // another's network is not ours
    Process process(words(fault));
    ASSERT_TRUE(process.read_until_step(24, 100)) << process.messages();
    const pid_t there = rank_in(place.path / fault, 1);
    ASSERT_GT(there, 0);
    const std::string pull = fmt::format("nsenter -t {} -n ip link set right down", there);
    ASSERT_EQ(fault == "killed" ? kill(there, SIGKILL) : std::system(pull.c_str()), 0);
    EXPECT_EQ(process.wait(), 0) << process.messages();
    says(process.messages(), "node-b");
    says(process.messages(), "launch  attempt 2 of 3: 2 ranks");
    says(process.messages(), "going on after step ");
    expect_same_runs(place.path / "straight", place.path / fault);
    EXPECT_EQ(ranks_in(place.path / fault), std::set<pid_t>{});
  }
}

// A rank whose memory is limited needs smaller micro-batches than the others: all take those.
TEST(Hosts, TheLeastOfWhatAutoComesToIsTakenByAll) {
  NEEDS_MPI;
  NEEDS_OWN_MOUNTS;
  const Place place;
  const auto words = [&](const std::string& dir) { return place.run(dir, {"train.batch=600", "train.steps=2", "train.eval_batches=1"}); };
  const auto taken = [&](const std::string& dir) {
    const std::string text = read_text(place.path / dir / "resolved.yaml"), key = "micro_batch: ";
    return std::stoi(text.substr(text.find(key) + key.size()));
  };
  ASSERT_EQ(ranks(place, 2, words("roomy")).code, 0);
  EXPECT_EQ(taken("roomy"), 300);
  const std::string limited = "mount -t tmpfs none /sys/fs/cgroup && echo 64000000 > /sys/fs/cgroup/memory.max";
  const Outcome out = mpirun(place, fmt::format("-n 1 {} : {}", line_of(words("tight")), rank_behind(limited, words("tight"))));
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_LT(taken("tight"), 300);
  EXPECT_GT(taken("tight"), 1);
}

}  // namespace
}  // namespace bhyt::test
