#include "study/index.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "core/log.h"
#include "io/checkpoint_folders.h"
#include "io/json.h"
#include "io/yaml.h"
#include "machine/machine.h"
#include "report/run.h"
#include "study/sweep.h"

namespace bhyt::study {

namespace {

constexpr std::int64_t kVersion = 1;

const schema::Names<Status> kStatus = {{"planned", Status::planned}, {"running", Status::running}, {"interrupted", Status::interrupted},
                                       {"done", Status::done},       {"failed", Status::failed},   {"diverged", Status::diverged}};

Json or_null(const auto& value) { return value ? Json(*value) : Json(); }

void flatten(const Json& tree, const std::string& path, Json& out) {
  for (const auto& [key, value] : tree.items()) {
    const std::string full = path.empty() ? key : path + "." + key;
    if (value.is_object())
      flatten(value, full, out);
    else
      out[full] = value;
  }
}

// Where and how fast a run is made, and what it tells on the way, is no part of what it is.
bool free_to_change(const std::string& key) {
  return key == "run.device" || key == "run.threads" || key == "train.log_every" || key == "train.save_every" || key == "train.keep" ||
         key == "train.save" || key == "train.micro_batch" || key == "train.recompute";
}

Json what_it_is(const Json& settings) {
  std::map<std::string, Json> sorted;
  for (const auto& [key, value] : settings.items())
    if (!free_to_change(key)) sorted[key] = value;
  Json out = Json::object();
  for (auto& [key, value] : sorted) out[key] = std::move(value);
  return out;
}

Json to_json(const Record& r) {
  Json point = Json::object();
  for (const auto& [axis, label] : r.point) point[axis] = label;
  return {{"id", r.id},
          {"label", name_of(r.point)},
          {"point", point},
          {"status", name_of(r.status)},
          {"dir", r.dir},
          {"step", r.step},
          {"steps", r.steps},
          {"valid_loss", or_null(r.valid_loss)},
          {"best_valid_loss", or_null(r.best_valid_loss)},
          {"best_step", or_null(r.best_step)},
          {"loss", or_null(r.loss)},
          {"tokens", r.tokens},
          {"tok_s", r.tok_s},
          {"seconds", r.seconds},
          {"jobs", r.jobs},
          {"error", r.error.empty() ? Json() : Json(r.error)},
          {"settings", r.settings}};
}

std::optional<double> number(const Json& j, const char* key) {
  return j.at(key).is_number() ? std::optional(j.at(key).get<double>()) : std::nullopt;
}

Record from_json(const Json& j) {
  Record r{.id = j.at("id"), .settings = j.at("settings"), .dir = j.at("dir"), .step = j.at("step"), .steps = j.at("steps")};
  for (const auto& [axis, label] : j.at("point").items()) r.point.emplace_back(axis, label.get<std::string>());
  for (const auto& [name, status] : kStatus)
    if (j.at("status") == name) r.status = status;
  r.valid_loss = number(j, "valid_loss");
  r.best_valid_loss = number(j, "best_valid_loss");
  r.loss = number(j, "loss");
  if (j.at("best_step").is_number()) r.best_step = j.at("best_step").get<std::int64_t>();
  r.tokens = j.at("tokens");
  r.tok_s = j.at("tok_s");
  r.seconds = j.at("seconds");
  r.jobs = j.at("jobs");
  if (j.at("error").is_string()) r.error = j.at("error");
  return r;
}

}  // namespace

const char* name_of(Status status) {
  for (const auto& [name, s] : kStatus)
    if (s == status) return name;
  return "";
}

const Record* Index::find(const std::string& id) const {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const Record& r) { return r.id == id; });
  return found == runs.end() ? nullptr : &*found;
}

std::size_t Index::count(Status status) const {
  return static_cast<std::size_t>(std::count_if(runs.begin(), runs.end(), [&](const Record& r) { return r.status == status; }));
}

Json to_json(const Index& index) {
  Json runs = Json::array();
  for (const Record& r : index.runs) runs.push_back(to_json(r));
  return {{"version", kVersion}, {"command", index.command}, {"updated", utc_time()}, {"runs", runs}};
}

Index read_index(const fs::path& folder) {
  const fs::path file = folder / kIndexFile;
  if (!fs::exists(file)) return {};
  try {
    const Json j = parse_json(read_text(file), file.string() + ": not an index of a sweep");
    check(j.at("version") == kVersion, "{}: expected version {}, got {}", file.string(), kVersion, j.at("version").dump());
    Index index{.command = j.at("command")};
    for (const Json& run : j.at("runs")) index.runs.push_back(from_json(run));
    return index;
  } catch (const Json::exception& e) {
    throw Error(fmt::format("{}: not an index of a sweep: {}", file.string(), plain_reason(e)));
  }
}

namespace {

const char* command_of(const Plan& plan) { return plan.work == train::Work::fine_tuning ? "sft" : "pretrain"; }

// Its metrics and its newest checkpoint come to the same end. One that failed may have done so behind its last step, and train.patience
// ends one before: that such a run was finished is known where a sweep has taken the optimizer's state out of its newest checkpoint, which
// it does with finished runs alone.
bool is_finished(const Record& r, const fs::path& folder, Keep keep) {
  const fs::path dir = folder / r.dir;
  const bool whole = r.steps > 0 && r.step >= r.steps && r.status != Status::failed;
  const std::vector<std::int64_t> saved = checkpoint_steps(dir);
  if (saved.empty()) return whole && keep == Keep::none;
  if (saved.front() < r.step) return false;
  return whole || (r.step > 0 && optimizer_files(checkpoint_folder(dir, saved.front())).empty());
}

// The run that lies in a folder, with the settings that a sweep wrote down for it; nothing where there is none.
std::optional<Record> run_that_is_there(const PlannedRun& run, const fs::path& folder) {
  const fs::path config = folder / kConfigs / (run.id + ".yaml");
  if (!fs::exists(folder / run.id / "metrics.jsonl") || !fs::exists(config)) return std::nullopt;
  Record r{.id = run.id, .point = run.point, .dir = run.id, .jobs = 0};
  flatten(read_yaml(config), "", r.settings);
  for (const char* own : {"run.dir", "run.resume"}) r.settings.erase(own);  // the sweep's words
  return r;
}

}  // namespace

Index read_index(const Plan& plan, const SweepOptions& options) {
  const fs::path& folder = options.folder;
  Index index = read_index(folder);
  if (index.runs.empty()) index.command = command_of(plan);
  for (const PlannedRun& run : plan.runs) {
    const auto known = std::find_if(index.runs.begin(), index.runs.end(), [&](const Record& r) { return r.id == run.id; });
    const bool there = known != index.runs.end();
    if (there && known->status != Status::planned && !(options.retry && known->status == Status::failed)) continue;
    std::optional<Record> found = run_that_is_there(run, folder);
    if (!found || (there && what_it_is(found->settings) != what_it_is(known->settings))) continue;
    if (there) found = *known;
    read_outcome(*found, folder);
    if (!is_finished(*found, folder, options.keep)) continue;
    set_ended_well(*found);
    log::info("{}: found finished", (folder / found->dir).string());
    if (there)
      *known = std::move(*found);
    else
      index.runs.push_back(std::move(*found));
  }
  return index;
}

void write_index(const Index& index, const fs::path& folder) {
  replace_synced(folder / kIndexFile, to_json(index).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

namespace {

Point sorted_point(Point point, bool seed) {
  if (!seed) std::erase_if(point, [](const auto& entry) { return entry.first == kSeedAxis; });
  std::sort(point.begin(), point.end());
  return point;
}

// Runs that would be taken for seeds of one thing must be that.
void check_beside(const Record& r, const Record& other) {
  check_usage(sorted_point(r.point, true) != sorted_point(other.point, true),
              "run {} is there as {}: give the axes in the order that they had", r.id, other.id);
  if (sorted_point(r.point, false) != sorted_point(other.point, false)) return;
  Json mine = what_it_is(r.settings), theirs = what_it_is(other.settings);
  for (Json* j : {&mine, &theirs}) j->erase("run.seed");
  const auto changed = train::differences(theirs, mine);
  check_usage(changed.empty(), "run {} would be another seed of {}, which has other settings: {}; another --out starts a new sweep", r.id,
              other.id, fmt::join(changed, "; "));
}

}  // namespace

Index merge(const Index& before, const Plan& plan) {
  const char* command = command_of(plan);
  check_usage(before.runs.empty() || before.command == command, "this folder holds runs of bhyt {}, not of bhyt {}: another --out",
              before.command, command);
  Index out{.command = command};
  for (const PlannedRun& run : plan.runs) {
    Record r{.id = run.id, .point = run.point, .dir = run.id};
    flatten(run.tree, "", r.settings);
    if (const Record* known = before.find(run.id)) {
      const auto changed = train::differences(what_it_is(known->settings), what_it_is(r.settings));
      check_usage(changed.empty(), "run {} is there with other settings: {}; another --out starts a new sweep, an axis tells them apart",
                  run.id, fmt::join(changed, "; "));
      Json settings = std::move(r.settings);
      r = *known;
      r.settings = std::move(settings);
    }
    out.runs.push_back(std::move(r));
  }
  const std::size_t planned = out.runs.size();
  for (const Record& r : before.runs) {
    if (out.find(r.id)) continue;
    for (std::size_t i = 0; i < planned; ++i) check_beside(out.runs[i], r);
    out.runs.push_back(r);
  }
  return out;
}

void set_ended_well(Record& record) {
  record.status = record.diverged ? Status::diverged : Status::done;
  record.error = record.diverged ? "the last validation loss is not finite" : "";
}

void read_outcome(Record& record, const fs::path& folder) {
  const fs::path dir = folder / record.dir;
  if (!fs::exists(dir / "metrics.jsonl")) return;
  const report::Run run = report::read_run(dir);
  const auto finite = [](double v) { return std::isfinite(v) ? std::optional(v) : std::nullopt; };
  record.step = static_cast<std::int64_t>(run.standing().step);
  if (const std::string* steps = run.value("train.steps")) record.steps = std::atoll(steps->c_str());
  record.valid_loss = finite(run.valid.final_value());
  record.loss = finite(run.loss.last());
  record.best_valid_loss = {};
  record.best_step = {};
  for (std::size_t i = 0; i < run.valid.size(); ++i) {
    if (!std::isfinite(run.valid.y[i]) || (record.best_valid_loss && *record.best_valid_loss <= run.valid.y[i])) continue;
    record.best_valid_loss = run.valid.y[i];
    record.best_step = static_cast<std::int64_t>(run.valid.x[i]);
  }
  record.skipping = !run.skipped.empty() && run.skipped.back() >= run.steps();
  record.diverged = !run.valid.empty() && !record.valid_loss;
  record.tokens = finite(run.tokens.last()).value_or(0);
  record.seconds = finite(run.seconds.last()).value_or(0);
  record.tok_s = record.seconds > 0 ? record.tokens / record.seconds : 0;
}

}  // namespace bhyt::study
