// What a sweep's folder knows of its runs: index.json, replaced as a whole after every change (docs/studies.md has its schema).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/files.h"
#include "study/grid.h"

namespace bhyt::study {

// interrupted: it can go on. failed and diverged: it ended with an error, diverged where its loss was not finite any more.
enum class Status : std::uint8_t { planned, running, interrupted, done, failed, diverged };
const char* name_of(Status status);

struct Record {
  std::string id;
  Point point;
  Json settings = Json::object();  // the config's keys as they were given: {"norm.method": "bhyt", …}
  Status status = Status::planned;
  std::string dir;  // the run directory, below the sweep's folder
  std::int64_t step = 0, steps = 0;
  std::optional<double> valid_loss, best_valid_loss, loss;  // last validation, lowest validation, last training loss; nats per token
  std::optional<std::int64_t> best_step;
  double tokens = 0, tok_s = 0, seconds = 0;  // of training steps: without start, validation and saving
  int jobs = 1;           // how many shared its GPU or its host's cores when it began: speeds compare where this is 1; 0: not known
  bool diverged = false;  // its last validation is not finite
  bool skipping = false;  // nor was its last step
  std::string error;
};

struct Index {
  std::string command = "pretrain";
  std::vector<Record> runs;

  const Record* find(const std::string& id) const;
  std::size_t count(Status status) const;
};

constexpr const char* kIndexFile = "index.json";

Index read_index(const fs::path& folder);  // empty where there is none; Error where it is damaged
void write_index(const Index& index, const fs::path& folder);
Json to_json(const Index& index);

// The planned runs, with what the index already knows of them; runs of the index that are not in the plan stay behind them.
// UsageError where a run of the same name was made with other settings.
Index merge(const Index& before, const Plan& plan);

// Enters what a run directory tells: steps, losses, speed. Nothing where there are no metrics.
void read_outcome(Record& record, const fs::path& folder);
void set_ended_well(Record& record);  // done, or diverged by that outcome

constexpr const char* kConfigs = "configs";  // of a sweep's runs, as they were given

}  // namespace bhyt::study
