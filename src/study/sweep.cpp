#include "study/sweep.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <thread>

#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "io/checkpoint_folders.h"
#include "machine/machine.h"
#include "parallel/launch.h"
#include "report/run.h"
#include "study/console.h"
#include "study/jobs.h"
#include "study/size.h"
#include "study/workers.h"
#include "train/data.h"

namespace bhyt::study {

namespace {

constexpr int kMostOnAGpu = 16;
constexpr int kLinesToMeasure = 3;  // of metrics, since as many runs trained as do now: the first may still hold another number's time
constexpr const char* kLogs = "logs";
constexpr const char* kNotice = "\nstopping; the runs under way save what they have (once more to quit at once)\n";

// Held by the sweep and by its runs: a sweep that is killed leaves runs that still save, and the next one waits for them. The runs of all
// ranks but the first hold a shared one, of the folder of configs.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder, int how = LOCK_EX) {
    fs::create_directories(folder);
    fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
    check(fd_ >= 0, "could not open {}: {}", folder.string(), std::strerror(errno));
    constexpr int kSeconds = 60;
    for (int tenths = 0; ::flock(fd_, how | LOCK_NB) != 0; ++tenths) {
      check(errno == EWOULDBLOCK && tenths < 10 * kSeconds, "another sweep works in {}", folder.string());
      if (tenths == 5) log::info("waiting for the runs of another sweep in {}", folder.string());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  ~FolderLock() { ::close(fd_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

struct Active {
  std::size_t run = 0;  // of the index
  int rank = 0;
  int level = 1;          // how many were to run at once when it began
  std::int64_t seen = 0;  // lines of metrics that it had when that number was reached
  RunProgress progress;
};

class Sweep {
 public:
  Sweep(const Plan& plan, const SweepOptions& options, Workers& workers, bool on_gpu)
      : plan_(plan),
        options_(options),
        lock_(options.folder),
        index_(merge(read_index(plan, options), plan)),
        workers_(workers),
        on_gpu_(on_gpu),
        jobs_(make_jobs()) {
    for (const char* sub : {kConfigs, kLogs}) fs::create_directories(options_.folder / sub);
    (void)FolderLock(options_.folder / kConfigs);  // nobody has it any more
    const std::set<std::string> ids = [&] {
      std::set<std::string> out;
      for (const PlannedRun& run : plan_.runs) out.insert(run.id);
      return out;
    }();
    for (std::size_t i = 0; i < index_.runs.size(); ++i) {
      Record& r = index_.runs[i];
      if (r.status == Status::running) r.status = Status::interrupted;  // whoever ran it is gone
      if (!ids.contains(r.id)) continue;
      ++total_;
      const bool ended = r.status == Status::failed || r.status == Status::diverged;
      if (r.status == Status::done || (ended && !options_.retry))
        ++settled_;
      else
        waiting_.push_back(i);
    }
    std::reverse(waiting_.begin(), waiting_.end());  // taken from the back
    save();
  }

  SweepOutcome run() {
    const StopSignals stop(kNotice, StopSignals::Second::quits);
    started_ = seconds();
    if (settled_ > 0) log::info("{} of {} runs have ended already and are left alone", settled_, total_);
    const auto signal = [&] { return stop.received() ? stop.received() : workers_.signalled(); };
    while (!active_.empty() || (!waiting_.empty() && !signal())) {
      if (signal() && !told_) tell_to_stop(signal());
      if (!signal()) start_more();
      collect();
      measure();
      show();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    table_.clear();
    const auto bad = [&](const PlannedRun& p) {
      const Status s = index_.find(p.id)->status;
      return s == Status::failed || s == Status::interrupted;
    };
    workers_.dismiss();
    return {index_, signal(), std::any_of(plan_.runs.begin(), plan_.runs.end(), bad)};
  }

 private:
  Record& record(const Active& a) { return index_.runs[a.run]; }
  const PlannedRun& planned(const Record& r) const {
    return *std::find_if(plan_.runs.begin(), plan_.runs.end(), [&](const PlannedRun& p) { return p.id == r.id; });
  }
  void save() const { write_index(index_, options_.folder); }

  // Ranks on the same host share its cores and memory; each has a GPU of its own.
  int beside(int rank) const { return on_gpu_ ? 1 : workers_.on_host_of(rank); }

  JobCount make_jobs() {
    if (plan_.runs.empty()) return JobCount(1);
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    return JobCount(options_.jobs, on_gpu_ ? kMostOnAGpu : std::max(1, cores / beside(0)));
  }

  // On a CPU the runs of one number share the cores equally: another number begins when those of the last have ended.
  void start_more() {
    const bool changes = std::any_of(active_.begin(), active_.end(), [&](const Active& a) { return a.level != jobs_.now(); });
    if (!on_gpu_ && changes) return;
    for (int rank = idlest(); !waiting_.empty() && runs_of(rank) < jobs_.now(); rank = idlest()) {
      start(waiting_.back(), rank);
      waiting_.pop_back();
    }
  }
  std::ptrdiff_t runs_of(int rank) const {
    return std::count_if(active_.begin(), active_.end(), [&](const Active& a) { return a.rank == rank; });
  }
  int idlest() const {
    int best = 0;
    for (int rank = 1; rank < workers_.ranks(); ++rank)
      if (runs_of(rank) < runs_of(best)) best = rank;
    return best;
  }

  void start(std::size_t i, int rank) {
    Record& r = index_.runs[i];
    const fs::path dir = options_.folder / r.dir, config = options_.folder / kConfigs / (r.id + ".yaml");
    Json tree = planned(r).tree;
    for (const char* section : {"run", "train"})
      if (!tree.contains(section)) tree[section] = Json::object();
    tree["run"]["dir"] = dir.string();
    // Without a checkpoint there is nothing to go on from, and a run that diverged would do so again.
    tree["run"]["resume"] = !checkpoint_steps(dir).empty() && r.status != Status::diverged ? "auto" : "restart";
    if (!tree["train"].contains("keep") && options_.keep != Keep::all) tree["train"]["keep"] = 1;
    const bool shares = !on_gpu_ && !tree["run"].contains("threads");
    replace_synced(config, write_yaml(tree));
    r.status = Status::running;
    r.error.clear();
    r.jobs = jobs_.now() * beside(rank);
    save();
    workers_.start({.run = i,
                    .rank = rank,
                    .args = {index_.command, config.string(), "--quiet"},
                    .log = log_file(r).string(),
                    .share = shares ? jobs_.now() : 0});
    active_.push_back({.run = i, .rank = rank, .level = jobs_.now()});
    // What a run that goes on wrote before says nothing of its speed now.
    Active& last = active_.back();
    last.progress.update(dir / "metrics.jsonl");
    for (Active& a : active_) a.seen = a.progress.lines;
  }

  fs::path log_file(const Record& r) const { return options_.folder / kLogs / (r.id + ".txt"); }

  void tell_to_stop(int signal) {
    told_ = true;
    workers_.tell(signal);
  }

  void collect() {
    for (const RunEnd& end : workers_.meet()) {
      const auto ended = std::find_if(active_.begin(), active_.end(), [&](const Active& a) { return a.run == end.run; });
      finish(*ended, end.code);
      active_.erase(ended);
      for (Active& a : active_) a.seen = a.progress.lines;
    }
  }

  void finish(const Active& a, int code) {
    Record& r = record(a);
    read_outcome(r, options_.folder);
    if (code == 0) {
      set_ended_well(r);
    } else if (code == 128 + SIGINT || code == 128 + SIGTERM) {
      r.status = Status::interrupted;
    } else {
      r.status = r.diverged || r.skipping ? Status::diverged : Status::failed;
      r.error = last_error(log_file(r), code);
    }
    if (r.status != Status::interrupted) ++settled_;
    save();
    if (r.status == Status::done) tidy(options_.folder / r.dir, options_.keep);
    table_.clear();
    log::info("{}", finished_line(r, settled_, total_));
  }

  // The speed of all together, once each has been heard from often enough since their number was reached.
  void measure() {
    double total = 0;
    bool heard = std::ssize(active_) == jobs_.now() * workers_.ranks();
    for (Active& a : active_) {
      a.progress.update(options_.folder / record(a).dir / "metrics.jsonl");
      a.seen = std::min(a.seen, a.progress.lines);  // a run that was begun anew
      heard = heard && a.progress.lines - a.seen >= kLinesToMeasure;
      total += a.progress.tok_s;
    }
    if (!heard || jobs_.settled()) return;
    if (const int more = jobs_.rise(total); more > 0 && !room_for(more)) return jobs_.no_more();
    const int before = jobs_.now();
    jobs_.measured(total);
    table_.clear();
    const std::string where = workers_.ranks() > 1 ? fmt::format(" on each of {} ranks", workers_.ranks()) : "";
    log::info("{} at once{}: {} tok/s in all{}", before, where, log::human_count(total),
              jobs_.settled() ? fmt::format("; {} at once from here on", jobs_.now()) : "");
  }

  // Which runs will be beside each other is not known: every one may be the largest of those that are left.
  bool room_for(int more) {
    std::vector<const PlannedRun*> left;
    for (const Active& a : active_) left.push_back(&planned(record(a)));
    for (const std::size_t i : waiting_) left.push_back(&planned(index_.runs[i]));
    try {
      const std::optional<double> needs = largest_memory(left, plan_.work);
      const double libraries = on_gpu_ ? 1.5e9 : 0.2e9;  // a context, workspaces, code
      const Device device = parse_device(train::read_run_config(left.front()->tree, Verify::no, plan_.work).run.device);
      return needs && static_cast<double>(free_memory(device)) > more * beside(0) * (1.1 * *needs + libraries);
    } catch (const Error&) {
      return false;
    }
  }

  void show() {
    std::vector<RunLine> lines;
    double parts = 0;
    for (Active& a : active_) {
      const Record& r = record(a);
      lines.push_back({.name = name_of(r.point), .progress = a.progress});
      parts += a.progress.part();
    }
    const double here = static_cast<double>(settled_ - at_start()) + parts;
    const double left = static_cast<double>(total_ - settled_) - parts;
    const double eta = here > 0.02 ? (seconds() - started_) * left / here : NAN;
    table_.draw(index_, {.ended = settled_, .total = total_, .eta_s = eta}, lines);
  }
  std::size_t at_start() {
    if (!settled_at_start_) settled_at_start_ = settled_;
    return *settled_at_start_;
  }

  const Plan& plan_;
  const SweepOptions& options_;
  FolderLock lock_;
  Index index_;
  Workers& workers_;
  bool on_gpu_, told_ = false;
  JobCount jobs_;
  std::vector<std::size_t> waiting_;  // of the index, the next one last
  std::vector<Active> active_;
  std::size_t total_ = 0, settled_ = 0;
  std::optional<std::size_t> settled_at_start_;
  double started_ = 0;
  LiveTable table_;
};

}  // namespace

void tidy(const fs::path& dir, Keep keep) {
  std::error_code ignored;
  for (const std::int64_t step : checkpoint_steps(dir)) {
    const fs::path checkpoint = checkpoint_folder(dir, step);
    if (keep == Keep::none) fs::remove_all(checkpoint, ignored);
    if (keep == Keep::weights) remove_listed(checkpoint, optimizer_files(checkpoint));
  }
  if (keep == Keep::none && fs::is_symlink(dir / "best", ignored)) fs::remove(dir / "best", ignored);
}

namespace {

// Each rank has one device for all of its runs.
void check_one_device(const Plan& plan, const std::string& device) {
  for (const PlannedRun& run : plan.runs) {
    const std::string other = train::read_run_config(run.tree, Verify::no, plan.work).run.device;
    check_usage(other == device, "sweep over several ranks: all runs must have one run.device, got {} and {}", device, other);
  }
}

// Of the runs of this rank: "" where their configs say it. All ranks ask at once.
std::string device_of_runs(const std::string& asked, parallel::Group* group) {
  if (!group || group->size() == 1) return "";
  const Device device = parallel::own_device(*group, asked, "run.device");
  return device.is_cuda() ? name_of(device) : "";
}

}  // namespace

SweepOutcome run_sweep(const Plan& plan, const SweepOptions& options) {
  parallel::Group* const group = options.group;
  const bool first = !group || group->rank() == 0;
  std::optional<Workers> workers;
  std::optional<Sweep> sweep;
  const auto all = [&](const std::function<void()>& work) { parallel::together(group, work); };
  std::string device = "cpu";
  all([&] {
    if (!plan.runs.empty()) {
      train::RunConfig config = train::read_run_config(plan.runs.front().tree, Verify::no, plan.work);
      device = config.run.device;
      if (group && group->size() > 1) check_one_device(plan, device);
      if (plan.work == train::Work::pretraining) (void)train::choose_data(config);  // what is not there is told once, not by every run
    }
  });
  const std::string own = device_of_runs(device, group);
  all([&] {
    workers.emplace(group, own);
    if (first) sweep.emplace(plan, options, *workers, parse_device(device).is_cuda());
  });
  if (first) return sweep->run();
  const FolderLock lock(options.folder / kConfigs, LOCK_SH);
  workers->serve();
  return {};
}

}  // namespace bhyt::study
