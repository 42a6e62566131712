// bhyt launch: the ranks of a run through mpirun, started again from the newest checkpoint when they crash.
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>
#include <sstream>
#include <thread>

#include "cli/cli.h"
#include "cli/commands.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "io/checkpoint_folders.h"
#include "study/process.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

constexpr const char* kLaunchNotice = "\nstopping; all ranks are asked to save the steps that are done (once more to quit at once)\n";

struct LaunchFlags {
  int ranks = 0, restarts = 0;
  std::string hosts, mpirun;
  Args command;  // behind the --: pretrain, its config, words and flags
};

LaunchFlags parse_launch(const Args& args) {
  const auto dashes = std::find(args.begin(), args.end(), "--");
  LaunchFlags f;
  CLI::App app(
      "Works with several processes: runs `mpirun -n N bhyt pretrain ...` (or sft, eval, perplexity, sweep), passes a signal to stop on "
      "to\n"
      "all ranks and waits while they save, and starts training again from its newest checkpoint when it crashes. Needs Open MPI;\n"
      "docs/scaling.md says more.",
      "bhyt launch");
  app.get_formatter()->label("OPTIONS", "OPTIONS] -- COMMAND [ARGUMENTS");  // the line of usage puts it in brackets
  app.footer("Behind -- comes what is to be launched: bhyt launch -n 8 --restarts 3 -- pretrain CONFIG.yaml");
  app.add_option("-n,--ranks", f.ranks, "processes, on all hosts together")->required()->check(between(1, 65536));
  app.add_option("--restarts", f.restarts, "times that it starts again after a crash; none while that makes no progress")
      ->check(between(0, 1000000))
      ->capture_default_str();
  app.add_option("--hosts", f.hosts, "hosts and how many processes each takes, as mpirun's --host: A:8,B:8");
  app.add_option("--mpirun", f.mpirun, "the mpirun to use; default: the one that PATH has");
  parse(app, Args(args.begin(), dashes));
  check_usage(dashes != args.end() && dashes + 1 != args.end(),
              "expected what to launch behind --, as in bhyt launch -n 2 -- pretrain CONFIG.yaml");
  f.command.assign(dashes + 1, args.end());
  check_usage(f.command[0] == "pretrain" || f.command[0] == "sft" || f.restarts == 0,
              "--restarts is for what saves checkpoints, pretrain and sft, got {}", f.command[0]);
  return f;
}

fs::path find_mpirun(const std::string& named) {
  if (!named.empty()) {
    check_usage(::access(named.c_str(), X_OK) == 0, "--mpirun: {} is no program that can be run", named);
    return named;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const fs::path file = fs::path(folder) / "mpirun"; ::access(file.c_str(), X_OK) == 0) return file;
  throw Error("there is no mpirun in PATH: install Open MPI (Debian: openmpi-bin), or name it with --mpirun PATH");
}

// What Open MPI counts as places for processes: cores, not their threads.
int cores() {
  std::set<std::string> found;
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < threads; ++i) try {
      found.insert(read_text(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", i)));
    } catch (const Error&) {
      return static_cast<int>(threads);  // the system does not say
    }
  return static_cast<int>(found.size());
}

struct MpirunWords {
  Args words;
  std::string notes;  // why some of them are there
};

MpirunWords mpirun_words(const LaunchFlags& f) {
  MpirunWords m{.words = {"-n", std::to_string(f.ranks), "--bind-to", "none"}};  // each rank has several threads
  if (!f.hosts.empty()) {
    m.words.insert(m.words.end(), {"--host", f.hosts});
    m.notes += fmt::format(", on {}", f.hosts);
  }
  if (::geteuid() == 0) {
    m.words.emplace_back("--allow-run-as-root");
    m.notes += ", as root (--allow-run-as-root)";
  }
  const bool allocated = !f.hosts.empty() || std::getenv("SLURM_JOB_ID");  // then others say how many places there are
  if (const int places = cores(); !allocated && f.ranks > places) {
    m.words.emplace_back("--oversubscribe");
    m.notes += fmt::format(", on {} core{} (--oversubscribe)", places, places == 1 ? "" : "s");
  }
  m.words.push_back(fs::read_symlink("/proc/self/exe").string());
  return m;
}

// mpirun looks after a host that says nothing for a minute, instead of five, and counts it as lost within another: else a rank that
// parallel.timeout ends before that leaves mpirun waiting for the lost host's answer. What the user has set stays.
void notice_lost_hosts() {
  ::setenv("OMPI_MCA_oob_tcp_keepalive_time", "60", 0);
  ::setenv("OMPI_MCA_oob_tcp_keepalive_intvl", "10", 0);
  ::setenv("OMPI_MCA_oob_tcp_keepalive_probes", "6", 0);
}

// Where the run that the words are of is, and what it does with what is there.
train::RunSection run_of(const Args& command) {
  std::string config;
  Args overrides;
  for (auto word = command.begin() + 1; word != command.end(); ++word) {
    if (word->starts_with('-')) continue;
    if (word->find('=') != std::string::npos)
      overrides.push_back(*word);
    else if (config.empty())
      config = *word;
  }
  const train::Work work = command[0] == "sft" ? train::Work::fine_tuning : train::Work::pretraining;
  return train::read_run_config(train::training_tree(config, overrides, work), Verify::no, work).run;
}

Args resumed(Args command) {
  std::erase_if(command, [](const std::string& w) { return w.starts_with("resume=") || w.starts_with("run.resume="); });
  command.emplace_back("resume=auto");
  return command;
}

// The checkpoints of a run, those left out that were there before resume=restart began it anew: until it has put them aside they are in the
// place of its own, perhaps with their numbers.
class Checkpoints {
 public:
  Checkpoints() = default;
  explicit Checkpoints(const train::RunSection& run) : run_(run.dir) {
    for (const std::int64_t step : checkpoint_steps(run_))
      if (run.resume == train::Resume::restart) earlier_.insert(identity(step));
  }
  std::int64_t newest() const {  // 0: none
    for (const std::int64_t step : checkpoint_steps(run_))
      if (!earlier_.contains(identity(step))) return step;
    return 0;
  }

 private:
  // Of the folder, whatever its name.
  ino_t identity(std::int64_t step) const {
    struct stat s {};
    return ::stat(checkpoint_folder(run_, step).c_str(), &s) == 0 ? s.st_ino : 0;
  }
  fs::path run_;
  std::set<ino_t> earlier_;
};

// mpirun lets a SIGTERM wait and kills soon after passing it on; SIGUSR1 it passes on at once, and then waits for the ranks' own end.
int run_once(const fs::path& mpirun, const Args& words) {
  study::Child child = study::Child::of(mpirun.string(), words);
  for (bool passed = false; !child.ended(); std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
    if (passed || !StopSignals::received()) continue;
    child.send(SIGUSR1);
    passed = true;
  }
  const int code = child.code();
  return StopSignals::received() && code != 0 ? 128 + StopSignals::received() : code;
}

// Why a run that ended with a code is not started again; "": it is.
std::string reason_to_give_up(int code, int restarts_left, bool restarted, std::int64_t before, std::int64_t now) {
  if (code == 2) return "what was asked for is wrong, which no restart mends";
  if (StopSignals::received() || code == 128 + SIGINT || code == 128 + SIGTERM) return "it was asked to stop";
  if (restarts_left == 0) return "no restarts are left";
  if (now == 0) return "there is no checkpoint to go on from";
  if (restarted && now == before) return fmt::format("the restart made no progress, the newest checkpoint still is that of step {}", now);
  return "";
}

}  // namespace

int cmd_launch(const Args& args) {
  const LaunchFlags f = parse_launch(args);
  const fs::path mpirun = find_mpirun(f.mpirun);
  const MpirunWords how = mpirun_words(f);
  const Checkpoints checkpoints = f.restarts > 0 ? Checkpoints(run_of(f.command)) : Checkpoints();
  notice_lost_hosts();
  const StopSignals stop(kLaunchNotice, StopSignals::Second::quits);
  for (int attempt = 1;; ++attempt) {
    const Args command = attempt == 1 ? f.command : resumed(f.command);
    const std::int64_t before = checkpoints.newest();
    log::info("launch  attempt {} of {}: {} ranks{}{}", attempt, f.restarts + 1, f.ranks, how.notes,
              attempt > 1 ? fmt::format(", from step {}", before) : "");
    Args words = how.words;
    words.insert(words.end(), command.begin(), command.end());
    const int code = run_once(mpirun, words);
    if (code == 0) return 0;
    const std::string reason = reason_to_give_up(code, f.restarts + 1 - attempt, attempt > 1, before, checkpoints.newest());
    log::info("launch  attempt {} ended with exit code {}{}", attempt, code, reason.empty() ? "" : "; " + reason);
    if (!reason.empty()) return code;
  }
}

}  // namespace bhyt::cli
