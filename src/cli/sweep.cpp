// bhyt sweep: a grid of runs in one folder, with their means over seeds at the end.
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/ranks.h"
#include "cli/sweep_options.h"
#include "cli/training.h"
#include "core/check.h"
#include "core/log.h"
#include "io/format.h"
#include "study/results.h"
#include "study/summary.h"

namespace bhyt::cli {

namespace {

void print_sweep_help() {
  fmt::print(
      "usage: bhyt sweep [CONFIG.yaml] key=a,b,c key=0..2 key=value ... [--out DIR] [--jobs N|auto] [--keep all|weights|none]\n"
      "                  [--retry] [--dry-run] [--json] [--quiet]\n\n"
      "Trains every combination of the values, each as a run directory of its own below DIR, and ends with mean ± standard deviation\n"
      "over seeds: summary.md, summary.json, report.html and across.svg (loss by learning rate, say) beside index.json. Started again, it\n"
      "goes on: finished runs are left alone, interrupted ones are resumed, failed and diverged ones are not tried again.\n\n"
      "  key=a,b,c            an axis; commas inside brackets, braces and quotes do not split a value\n"
      "  key=0..2             whole numbers from the first to the last\n"
      "  key=value            for every run\n"
      "  variant.NAME=\"key=value key=value\"   several keys that vary together: one value of the axis `variant`, with a name\n"
      "  CONFIG.yaml          may hold a section `sweep` with axes (docs/studies.md); a word takes the place of an axis of its name\n\n"
      "{}"
      "  --json        print summary.json on stdout instead of tables\n"
      "  --quiet       no messages but warnings and errors\n\n"
      "Several processes take the runs of one sweep: mpirun -n 8 bhyt sweep ..., one for each GPU of a machine (docs/scaling.md).\n\n"
      "Keys are those of bhyt pretrain (bhyt help pretrain), or of bhyt sft where the section says command: sft.\n",
      kSweepFlags);
}

// The exit code.
int show_outcome(const study::SweepOutcome& outcome, const study::SweepOptions& o, bool json) {
  const std::string text = study::write_results(outcome.index, o.folder, "Sweep " + o.folder.filename().string());
  fmt::print("{}\n", json ? study::summary_json(outcome.index).dump(1) : text);
  log::info("{}", (o.folder / "report.html").string());
  return finish_sweep(outcome);
}

}  // namespace

std::vector<OwnFlag> SweepFlags::flags() {
  return {{"--out", nullptr, &out}, {"--jobs", nullptr, &jobs}, {"--keep", nullptr, &keep}, {"--retry", &retry}, {"--dry-run", &dry_run}};
}

study::SweepOptions SweepFlags::options(const std::string& default_folder) const {
  study::SweepOptions o{.folder = fs::path(out.empty() ? default_folder : out).lexically_normal(), .retry = retry};
  if (!o.folder.has_filename()) o.folder = o.folder.parent_path();  // DIR/
  const char* end = jobs.data() + jobs.size();
  const auto [stop, error] = std::from_chars(jobs.data(), end, o.jobs);
  check_usage(jobs == "auto" || (error == std::errc() && stop == end && o.jobs >= 1 && o.jobs <= 1024),
              "--jobs must be auto or a number from 1 to 1024, got {}", jobs);
  check_usage(keep == "all" || keep == "weights" || keep == "none", "--keep must be all, weights or none, got {}", keep);
  o.keep = keep == "all" ? study::Keep::all : keep == "weights" ? study::Keep::weights : study::Keep::none;
  return o;
}

std::string describe_forecast(const study::Forecast& f, const study::SweepOptions& o) {
  std::string out = fmt::format("runs    {}", f.runs);
  if (f.done + f.ended > 0) out += fmt::format(", of which {} are done and {} ended with an error", f.done, f.ended);
  out += fmt::format("\ntokens  {} to train on\n", log::human_count(f.tokens));
  out += f.seconds ? fmt::format("time    {} one after the other, at the speed of the runs that are done\n", log::human_time(*f.seconds))
                   : fmt::format("time    not known before the first run in {} is done\n", o.folder.string());
  if (f.bytes)
    out +=
        fmt::format("disk    {} stay, and up to {} for each run that is under way\n", human_bytes(*f.bytes), human_bytes(f.working_bytes));
  else
    out += "disk    not known: the vocabulary comes from data that cannot be read\n";
  return out;
}

int finish_sweep(const study::SweepOutcome& outcome) {
  if (outcome.signal) {
    log::info("interrupted: {} runs are done, the same command goes on", outcome.index.count(study::Status::done));
    return 128 + outcome.signal;
  }
  return outcome.failed ? 1 : 0;
}

int cmd_sweep(const Args& args) {
  SweepFlags f;
  const TrainingWords w = parse_training(args, "sweep", train::Work::pretraining, f.flags());
  if (w.help) {
    print_sweep_help();
    return 0;
  }
  check_usage(!w.force && w.verify, "--force and --no-verify are flags of a single run; see bhyt help sweep");
  study::SweepOptions o = f.options("runs/sweep");
  constexpr double kTimeout = 600;  // ranks meet ten times a second
  const Ranks ranks(kTimeout);
  o.group = ranks.group;
  study::Plan plan;
  log::set_quiet(true);  // which word takes the place of which key is said once for every run
  ranks.together([&] { plan = study::make_plan({.base = train::config_tree(w.config, {}), .called = w.config, .words = w.overrides}); });
  log::set_quiet(w.quiet);
  if (f.dry_run) {
    if (ranks.first()) fmt::print("{}", describe_forecast(study::forecast(plan, o), o));
    return 0;
  }
  const study::SweepOutcome outcome = study::run_sweep(plan, o);
  return ranks.end(ranks.first() ? show_outcome(outcome, o, w.json) : 0);
}

}  // namespace bhyt::cli
