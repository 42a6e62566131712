// What the commands that train share: their words and flags, the list of keys, the outcome.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "train/trainer.h"

namespace bhyt::cli {

struct TrainingWords {
  std::string command;  // pretrain, sft
  train::Work work = train::Work::pretraining;
  std::string config;
  std::vector<std::string> overrides;
  bool force = false, verify = true, json = false, quiet = false, help = false;
};

// A flag of one command alone: set where it takes no value, value where it does.
struct OwnFlag {
  std::string name;
  bool* set = nullptr;
  std::string* value = nullptr;
};

// CONFIG.yaml, key=value words and flags. UsageError for what is none of them, with the key that was meant.
TrainingWords parse_training(const Args& args, const std::string& command, train::Work work, const std::vector<OwnFlag>& own = {});

// What all ranks of a run do alike before it begins: a mistake in the words or in the config is told once.
void on_ranks(const std::function<void()>& work);

train::RunConfig read_config(const TrainingWords& words);
void print_keys(train::Work work);
constexpr const char* kSharedFlags =
    "  --force       resume although a changed key changes the mathematics of the run\n"
    "  --no-verify   take the weights of model.init without comparing them with their checksums\n"
    "  --json        print the outcome as one JSON object on stdout\n"
    "  --quiet       no messages but warnings and errors\n";
constexpr const char* kKeyNotes =
    "Bare device=, dtype=, seed=, threads= and resume= are short for run.*. key=null goes back to the default.\n"
    "Counts may be written 20K, 1.5M, 20B. A word takes the place of a key in CONFIG.yaml that says the same (train.steps, "
    "train.tokens).\n";

train::Json outcome_json(const train::RunConfig& config, const train::Outcome& out);

}  // namespace bhyt::cli
