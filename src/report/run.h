// Run directories as a report reads them: streamed, tolerant of what is missing, broken or still being written.
#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/examples.h"
#include "report/series.h"

namespace bhyt::report {

// One {"step", "layers"} line: index 0 of norm, abs, variance is the embedding's output, then one per block; λ and α have one per block.
struct LayerRecord {
  double step = 0;
  std::vector<double> norm, abs, variance, lambda_attn, lambda_mlp, alpha_attn, alpha_mlp;
  std::vector<double> saturated_attn, saturated_mlp, approximation_ratio, approximation_r;  // per block, of a sample of the tokens
};

// How far a run is, and its training loss and tokens there; NaN where unknown.
struct Standing {
  double step = 0, loss_step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN(), tokens = loss;
};

// The checkpoint with the lowest validation loss, where a run keeps it (train.select=best).
struct Chosen {
  double step = 0, loss = 0;
};

using Entries = std::vector<std::pair<std::string, std::string>>;  // key and value, in the file's order

struct Run {
  std::string dir, name;
  // By step.
  Series loss, valid, lr, grad_norm, tok_s, tokens;
  double valid_tokens = std::numeric_limits<double>::quiet_NaN();  // that the last validation scored
  Series seconds;                                                  // spent in training steps so far: without evaluation, saving and pauses
  // Benchmark tasks, by "arc_easy acc_norm": accuracy per character where a task has it, else accuracy, of texts their bits per byte.
  std::map<std::string, Series> tasks;
  std::vector<LayerRecord> layers;  // some of them when there are many, always the first and the last
  std::vector<double> skipped;      // steps that were skipped
  Entries config;                   // resolved.yaml, flattened to dotted keys
  std::string config_text;
  Entries about;                     // version, commit, machine, device …
  std::optional<Standing> saved;     // of the newest checkpoint; its loss is the mean since the last line of metrics
  std::optional<Examples> examples;  // fine-tuning's
  std::optional<Chosen> chosen;
  std::optional<double> floor;      // entropy rate of the training data, nats per token
  nlohmann::ordered_json analysis;  // what bhyt analyze --save left: its models; null without
  std::vector<std::string> notes;   // what could not be read

  const std::string* value(const std::string& key) const;  // of the config
  const std::string* fact(const std::string& key) const;   // of run.json
  double steps() const;                                    // the last step with a record, 0 without
  Standing standing() const;                               // by the metrics, or by the newest checkpoint where that is further
  double epoch_at(double step) const;                      // NaN where it is not known how many steps an epoch has
  double above_floor() const;                              // final validation (else training) loss − floor; NaN where unknown
};

// Takes a run directory; what is missing there, metrics too, is named in its notes.
Run read_run(const std::filesystem::path& dir);

// The run that a folder such as checkpoint-100 lies in, and says so in the log; any other path as it is.
std::string run_around(const std::string& path);

// Each path is a run directory or a folder of them. Names are made distinct.
std::vector<Run> read_runs(const std::vector<std::string>& paths);

// The parts, for read_run and the tests.
void read_metrics(std::istream& in, Run& run);
void read_config(const std::string& yaml, Run& run);          // config, config_text
void find_floor(const std::filesystem::path& dir, Run& run);  // of data made by bhyt data synth
void read_about(const std::filesystem::path& dir, Run& run);  // run.json; newest checkpoint
void read_analysis(const std::filesystem::path& dir, Run& run);
void read_saved(const std::filesystem::path& dir, Run& run);   // what the newest checkpoint says of itself
void read_chosen(const std::filesystem::path& dir, Run& run);  // which checkpoint `best` stands for; its loss is metrics'

}  // namespace bhyt::report
