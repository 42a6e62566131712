// bhyt reproduce: a table or figure of the paper, or a question of our own, by name and at any scale.
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <vector>

#include "cli/analyze.h"
#include "cli/commands.h"
#include "cli/sweep_options.h"
#include "cli/training.h"
#include "core/check.h"
#include "core/log.h"
#include "study/reproduce.h"

namespace bhyt::cli {

namespace {

void print_studies() {
  for (const study::StudyHead& s : study::list_studies())
    fmt::print("  {:<14} {:<22} {} ({})\n", s.name, s.paper, s.title, fmt::join(s.scales, ", "));
}

void print_reproduce_help() {
  fmt::print(
      "usage: bhyt reproduce                              lists the studies\n"
      "       bhyt reproduce NAME [scale=tiny|small|59m|paper] [seeds=N] [key=value ...] [--out DIR] [--jobs N|auto]\n"
      "                           [--keep all|weights|none] [--retry] [--dry-run] [--json] [--quiet]\n\n"
      "Runs a study (studies/NAME.yaml, or a YAML file of yours) and writes its table: study.md, study.json and report.html in DIR.\n"
      "Started again, it goes on. tiny (default) takes seconds on a CPU on generated data and shows that everything works, no more; small\n"
      "takes minutes; 59m is our recipe for one GPU, on data.train and data.valid; paper is the paper's recipe.\n"
      "Other words are keys of bhyt pretrain, for every run: device=cuda:1, train.lr=2e-3, data.train=FILE.\n\n"
      "{}"
      "  --json        print study.json on stdout instead of tables\n"
      "  --quiet       no messages but warnings and errors\n\nStudies:\n",
      kSweepFlags);
  print_studies();
}

// Takes key=value out of the words; "" where it is not there.
std::string take_word(std::vector<std::string>& words, const std::string& key) {
  std::string value;
  std::erase_if(words, [&](const std::string& w) {
    if (!w.starts_with(key + "=")) return false;
    value = w.substr(key.size() + 1);
    check_usage(!value.empty(), "{}= has no value", key);
    return true;
  });
  return value;
}

int parse_seeds(const std::string& text) {
  int n = 0;
  if (text.empty()) return 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  check_usage(error == std::errc() && end == text.data() + text.size() && n >= 1 && n <= 1000,
              "seeds must be a number from 1 to 1000, got {}", text);
  return n;
}

// The commands of the study with the words of the user, which would else be wrong in every row of the table.
void check_commands(const study::Study& s) {
  for (const auto& [label, command] : s.commands) {
    Args args(command.begin() + 1, command.end());
    args.insert(args.end(), s.request.words.begin(), s.request.words.end());
    if (command[0] == "bench") check_bench(args);
    if (command[0] == "analyze" && !args.empty() && args[0] == "toy") check_toy({args.begin() + 1, args.end()});
  }
}

int show_forecast(const study::Study& s, const study::SweepOptions& o) {
  if (s.commands.empty() && !s.counts_statistics) {
    if (s.first.is_object()) fmt::print("first   the models to start from; then as many runs as there are variants and seeds\n");
    const study::SweepOptions here = study::first_options(s, o);
    fmt::print("{}", describe_forecast(study::forecast(study::plan_of(s), here), here));
    return 0;
  }
  fmt::print("runs    none\n");
  for (const auto& [label, command] : s.commands) fmt::print("command bhyt {}\n", fmt::join(command, " "));
  return 0;
}

}  // namespace

int cmd_reproduce(const Args& args) {
  if (args.empty()) {
    print_studies();
    return 0;
  }
  SweepFlags f;
  TrainingWords w = parse_training(args, "reproduce", train::Work::pretraining, f.flags());
  if (w.help) {
    print_reproduce_help();
    return 0;
  }
  check_usage(!w.config.empty(), "expected the name of a study; bhyt reproduce lists them");
  check_usage(!w.force && w.verify, "--force and --no-verify are flags of a single run; see bhyt help reproduce");
  const std::string given = take_word(w.overrides, "scale"), scale = given.empty() ? "tiny" : given;
  const int seeds = parse_seeds(take_word(w.overrides, "seeds"));
  log::set_quiet(true);  // which word takes the place of which key would be said for every run
  study::Study s = study::open_study(w.config, scale, seeds, w.overrides);
  const study::SweepOptions o = f.options(fmt::format("runs/reproduce/{}-{}", s.name, scale));
  study::name_data(s, o.folder);
  (void)study::plan_of(s);
  check_commands(s);
  if (f.dry_run) return show_forecast(s, o);
  log::set_quiet(w.quiet);
  const study::StudyOutcome out = study::run_study(s, o);
  fmt::print("{}\n", w.json ? out.json.dump(1, ' ', false, study::Json::error_handler_t::replace) : out.text);
  log::info("{}", (o.folder / "report.html").string());
  return out.signal ? 128 + out.signal : out.failed ? 1 : 0;
}

}  // namespace bhyt::cli
