#include "cli/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "cli/cli.h"
#include "core/check.h"
#include "core/log.h"
#include "parallel/launch.h"

namespace bhyt::cli {

namespace {

bool is_key(const std::string& word, train::Work work) {
  const auto keys = train::config_keys(work);
  return is_short_for_run(word) || std::any_of(keys.begin(), keys.end(), [&](const auto& e) { return e.key == word; });
}

// The key that --lr, --train.lr or --seq-len means; "" where there is none.
std::string meant_key(std::string bare, train::Work work) {
  std::replace(bare.begin(), bare.end(), '-', '_');
  if (is_key(bare, work)) return bare;
  for (const char* section : {"train.", "data.", "model.", "norm.", "run.", "lora."})  // seq_len is a key of data and of norm
    if (is_key(section + bare, work)) return section + bare;
  return "";
}

// `next` is the word behind it, or "".
[[noreturn]] void refuse_flag(const TrainingWords& w, const std::vector<OwnFlag>& own, const std::string& word, const std::string& next) {
  const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const std::size_t equals = bare.find('=');
  const std::string key = meant_key(bare.substr(0, equals), w.work);
  const bool value_follows = !next.empty() && !next.starts_with("--") && next.find('=') == std::string::npos;
  const std::string value = equals != std::string::npos ? bare.substr(equals + 1) : value_follows ? next : "VALUE";
  std::vector<std::string> known = {"--force", "--no-verify", "--json", "--quiet"};
  for (const OwnFlag& f : own) known.push_back(f.name);
  const std::string hint = key.empty() ? suggestion(word, known) : fmt::format(" (keys have no dashes: {}={})", key, value);
  throw UsageError(fmt::format("unknown flag {}{}; see bhyt help {}", word, hint, w.command));
}

bool take_shared(const std::string& word, TrainingWords& w) {
  if (word == "--help" || word == "-h") return w.help = true;
  if (word == "--force") return w.force = true;
  if (word == "--json") return w.json = true;
  if (word == "--quiet" || word == "-q") return w.quiet = true;
  if (word != "--no-verify") return false;
  w.verify = false;
  return true;
}

// One of a command's own flags, with the value behind it or behind its =.
bool take_own(const Args& args, std::size_t& i, const TrainingWords& w, const std::vector<OwnFlag>& own) {
  const std::string& word = args[i];
  for (const OwnFlag& f : own) {
    if (f.value && word.starts_with(f.name + "=")) {
      *f.value = word.substr(f.name.size() + 1);
      return true;
    }
    if (word != f.name) continue;
    if (!f.value) return *f.set = true;
    check_usage(i + 1 < args.size(), "{} expects a value; see bhyt help {}", f.name, w.command);
    *f.value = args[++i];
    return true;
  }
  return false;
}

}  // namespace

void on_ranks(const std::function<void()>& work) {
  parallel::Group* const group = parallel::group();
  if (!group) return work();
  group->set_timeout(parallel::kSetupTimeout);
  log::set_silent(group->rank() > 0);
  parallel::together(*group, work);
}

TrainingWords parse_training(const Args& args, const std::string& command, train::Work work, const std::vector<OwnFlag>& own) {
  TrainingWords w{.command = command, .work = work};
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    if (take_shared(word, w) || take_own(args, i, w, own)) continue;
    if (word.starts_with("-")) refuse_flag(w, own, word, i + 1 < args.size() ? args[i + 1] : "");
    if (word.find('=') != std::string::npos) {
      w.overrides.push_back(word);
      continue;
    }
    check_usage(!is_key(word, work), "{} has no value: write {}=VALUE", word, word);
    check_usage(w.config.empty(), "expected one config, got {} and {} (overrides are written key=value)", w.config, word);
    w.config = word;
  }
  check_usage(w.help || !w.config.empty() || !w.overrides.empty(), "expected a config, or key=value words; see bhyt help {}", command);
  return w;
}

train::RunConfig read_config(const TrainingWords& w) {
  train::RunConfig config;
  on_ranks([&] {
    config = train::read_run_config(train::training_tree(w.config, w.overrides, w.work), w.verify ? Verify::yes : Verify::no, w.work);
  });
  return config;
}

void print_keys(train::Work work) {
  fmt::print("Keys, with their defaults:\n");
  std::string section;
  for (const auto& e : train::config_keys(work)) {
    const std::string top = e.key.substr(0, e.key.find('.'));
    if (top != section) fmt::print("\n");
    section = top;
    fmt::print("  {:<26} {:<14} {}\n", e.key, e.value.empty() ? "-" : e.value, e.help);
  }
}

train::Json outcome_json(const train::RunConfig& config, const train::Outcome& out) {
  const auto or_null = [](const auto& value) { return value ? train::Json(*value) : train::Json(); };
  train::Json result = {{"run_dir", config.run.dir},
                        {"step", out.step},
                        {"steps", config.train.steps},
                        {"loss", or_null(out.loss)},
                        {"valid_loss", or_null(out.valid_loss)},
                        {"tok_s", or_null(out.tok_s)},
                        {"checkpoint", out.checkpoint},
                        {"interrupted", out.signal != 0}};
  if (out.best) result["best"] = {{"step", out.best->step}, {"valid_loss", out.best->valid_loss}};
  return result;
}

}  // namespace bhyt::cli
