// bhyt pretrain: trains from scratch, goes on with a run, or starts from a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "core/check.h"
#include "core/log.h"
#include "train/trainer.h"

namespace bhyt::cli {

namespace {

void print_help() {
  fmt::print(
      "usage: bhyt pretrain [CONFIG.yaml] [key=value ...] [--force] [--no-verify] [--json] [--quiet]\n"
      "       bhyt pretrain run.dir=RUN resume=auto      goes on with a run, by the config that it has\n\n"
      "Trains a model and writes a run directory (run.dir).\n\n"
      "  --force       resume although a changed key changes the mathematics of the run\n"
      "  --no-verify   take the weights of model.init without comparing them with their checksums\n"
      "  --json        print the outcome as one JSON object on stdout\n"
      "  --quiet       no messages but warnings and errors\n\n"
      "Bare device=, dtype=, seed=, threads= and resume= are short for run.*. key=null goes back to the default.\n"
      "Counts may be written 20K, 1.5M, 20B. A word takes the place of a key in CONFIG.yaml that says the same (train.steps, "
      "train.tokens).\n\n"
      "Keys, with their defaults:\n");
  std::string section;
  for (const auto& e : train::config_keys()) {
    const std::string top = e.key.substr(0, e.key.find('.'));
    if (top != section) fmt::print("\n");
    section = top;
    fmt::print("  {:<26} {:<14} {}\n", e.key, e.value.empty() ? "-" : e.value, e.help);
  }
}

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  bool force = false, verify = true, json = false, quiet = false, help = false;
};

bool is_key(const std::string& word) {
  const auto keys = train::config_keys();
  return is_short_for_run(word) || std::any_of(keys.begin(), keys.end(), [&](const auto& e) { return e.key == word; });
}

// The key that --lr, --train.lr or --seq-len means; "" where there is none.
std::string meant_key(std::string bare) {
  std::replace(bare.begin(), bare.end(), '-', '_');
  if (is_key(bare)) return bare;
  for (const char* section : {"train.", "data.", "model.", "norm.", "run."})  // seq_len is a key of data and of norm
    if (is_key(section + bare)) return section + bare;
  return "";
}

// `next` is the word behind it, or "".
[[noreturn]] void refuse_flag(const std::string& word, const std::string& next) {
  const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const std::size_t equals = bare.find('=');
  const std::string key = meant_key(bare.substr(0, equals));
  const bool value_follows = !next.empty() && !next.starts_with("--") && next.find('=') == std::string::npos;
  const std::string value = equals != std::string::npos ? bare.substr(equals + 1) : value_follows ? next : "VALUE";
  const std::string hint = key.empty() ? suggestion(word, {"--force", "--no-verify", "--json", "--quiet"})
                                       : fmt::format(" (keys have no dashes: {}={})", key, value);
  throw UsageError(fmt::format("unknown flag {}{}; see bhyt help pretrain", word, hint));
}

Arguments parse_arguments(const Args& args) {
  Arguments a;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    if (word == "--help" || word == "-h") {
      a.help = true;
    } else if (word == "--force") {
      a.force = true;
    } else if (word == "--no-verify") {
      a.verify = false;
    } else if (word == "--json") {
      a.json = true;
    } else if (word == "--quiet" || word == "-q") {
      a.quiet = true;
    } else if (word.starts_with("-")) {
      refuse_flag(word, i + 1 < args.size() ? args[i + 1] : "");
    } else if (word.find('=') != std::string::npos) {
      a.overrides.push_back(word);
    } else {
      check_usage(!is_key(word), "{} has no value: write {}=VALUE", word, word);
      check_usage(a.config.empty(), "expected one config, got {} and {} (overrides are written key=value)", a.config, word);
      a.config = word;
    }
  }
  return a;
}

}  // namespace

int cmd_pretrain(const Args& args) {
  const Arguments a = parse_arguments(args);
  if (a.help) {
    print_help();
    return 0;
  }
  check_usage(!a.config.empty() || !a.overrides.empty(), "expected a config, or key=value words; see bhyt help pretrain");
  log::set_quiet(a.quiet);
  const train::RunConfig config = train::read_run_config(train::training_tree(a.config, a.overrides), a.verify ? Verify::yes : Verify::no);
  train::Trainer trainer(config, {.force = a.force});
  const train::Outcome out = trainer.run();
  if (a.json) {
    const train::Json result = {{"run_dir", trainer.config().run.dir},
                                {"step", out.step},
                                {"steps", trainer.config().train.steps},
                                {"loss", out.loss},
                                {"valid_loss", out.valid_loss ? train::Json(*out.valid_loss) : train::Json()},
                                {"tok_s", out.tok_s},
                                {"checkpoint", out.checkpoint},
                                {"interrupted", out.signal != 0}};
    fmt::print("{}\n", result.dump());
  }
  return out.signal ? 128 + out.signal : 0;
}

}  // namespace bhyt::cli
