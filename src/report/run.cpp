#include "report/run.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "core/log.h"
#include "data/synth.h"
#include "io/checkpoint_folders.h"
#include "io/json.h"
#include "report/analysis.h"

namespace bhyt::report {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t kMaxConfigBytes = 1 << 20, kMaxKeys = 4096;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargestStep = 9e15;  // whole numbers beyond have gaps in a double

std::string read_text(const fs::path& path, std::size_t at_most) {
  std::ifstream in(path, std::ios::binary);
  std::string text(at_most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(at_most));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, in.gcount())));
  return text;
}

Json read_json(const fs::path& path) { return json_or_discarded(read_text(path, kMaxConfigBytes)); }

std::string one_line(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  YAML::Emitter out;
  out << YAML::Flow << node;
  std::string text = out.good() ? out.c_str() : "?";
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void flatten(const YAML::Node& node, const std::string& key, int depth, Entries& out) {
  if (node.IsMap() && depth < 8) {
    for (const auto& entry : node)
      if (entry.first.IsScalar() && out.size() < kMaxKeys)
        flatten(entry.second, key.empty() ? entry.first.Scalar() : key + "." + entry.first.Scalar(), depth + 1, out);
  } else if (node.IsDefined() && !node.IsNull()) {
    out.emplace_back(key, one_line(node));
  }
}

const std::string* find(const Entries& entries, const std::string& key) {
  for (const auto& [k, v] : entries)
    if (k == key) return &v;
  return nullptr;
}

// data.train and data.valid: a path, a list of them, or a list of {path, weight}.
std::vector<std::string> data_paths(const YAML::Node& node) {
  std::vector<std::string> out;
  if (node.IsScalar()) out.push_back(node.Scalar());
  if (node.IsMap() && node["path"] && node["path"].IsScalar()) out.push_back(node["path"].Scalar());
  if (node.IsSequence())
    for (const auto& item : node)
      for (std::string& path : data_paths(item)) out.push_back(std::move(path));
  return out;
}

// Paths in a config are relative to where the run was started: here, or somewhere above the run directory.
fs::path find_data(const fs::path& data, const fs::path& run_dir) {
  std::error_code ec;
  if (fs::exists(data, ec)) return data;
  for (fs::path base = fs::absolute(run_dir, ec); base.has_relative_path(); base = base.parent_path())
    if (fs::exists(base / data, ec)) return base / data;
  return {};
}

// The rate of all of them when it is known and the same: of a mixture of languages it is not known.
std::optional<double> common_rate(const std::vector<std::string>& paths, const std::string& tokenizer, const fs::path& run_dir) {
  std::optional<double> rate;
  for (const std::string& path : paths) {
    const fs::path file = find_data(path, run_dir);
    const std::optional<double> r = file.empty() ? std::nullopt : entropy_floor(file.string(), tokenizer);
    if (!r || (rate && std::fabs(*rate - *r) > 1e-9)) return std::nullopt;
    rate = r;
  }
  return rate;
}

bool holds_metrics(const fs::path& dir) {
  std::error_code ec;
  return fs::is_regular_file(dir / "metrics.jsonl", ec);
}

std::vector<fs::path> runs_below(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    if (holds_metrics(it->path())) out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

// As short as possible, as long as needed to tell the runs apart.
void make_names_distinct(std::vector<Run>& runs) {
  std::map<std::string, int> count;
  for (Run& r : runs) {
    fs::path path = fs::path(r.dir).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    r.name = path.filename().string();
    if (r.name.empty() || r.name == "." || r.name == "..") {
      std::error_code ec;
      r.name = fs::weakly_canonical(path, ec).filename().string();
    }
    ++count[r.name];
  }
  for (Run& r : runs)
    if (count[r.name] > 1) r.name = fs::path(r.dir).lexically_normal().string();
}

}  // namespace

const std::string* Run::value(const std::string& key) const { return find(config, key); }

const std::string* Run::fact(const std::string& key) const { return find(about, key); }

double Run::steps() const {
  double last = 0;
  for (const Series* s : {&loss, &valid})
    if (!s->empty()) last = std::max(last, s->x.back());
  if (!layers.empty()) last = std::max(last, layers.back().step);
  return last;
}

Standing Run::standing() const {
  Standing s{.step = steps(), .loss_step = loss.last_at(), .loss = loss.last(), .tokens = tokens.last()};
  if (!saved || saved->step < s.step) return s;
  if (std::isfinite(saved->loss)) return *saved;
  s.step = saved->step;
  s.tokens = saved->tokens;
  return s;
}

double Run::epoch_at(double step) const { return examples && examples->epoch_steps > 0 ? step / examples->epoch_steps : kUnknown; }

double Run::above_floor() const {
  if (!floor) return kUnknown;
  return (valid.empty() ? standing().loss : valid.final_value()) - *floor;
}

void read_config(const std::string& yaml, Run& run) {
  run.config_text = yaml;
  try {
    flatten(YAML::Load(yaml), "", 0, run.config);
  } catch (const YAML::Exception& e) {
    run.config.clear();
    run.notes.push_back(fmt::format("resolved.yaml cannot be read: line {}: {}", e.mark.line + 1, e.msg));
  }
}

void find_floor(const fs::path& dir, Run& run) {
  try {
    const YAML::Node root = YAML::Load(run.config_text);
    const YAML::Node data = root.IsMap() ? root["data"] : YAML::Node();
    const std::string* tokenizer = run.value("data.tokenizer");
    if (!data.IsMap()) return;
    for (const char* key : {"train", "valid"})
      if (const YAML::Node node = data[key]; node && !run.floor)
        run.floor = common_rate(data_paths(node), tokenizer ? *tokenizer : "", dir);
  } catch (const YAML::Exception&) {
    // read_config has said so already
  } catch (const Error& e) {
    run.notes.push_back(fmt::format("the entropy floor is not known: {}", e.what()));  // a damaged token file
  }
}

void read_about(const fs::path& dir, Run& run) {
  std::error_code ec;
  if (fs::is_regular_file(dir / "run.json", ec)) {
    const Json j = read_json(dir / "run.json");
    if (j.is_object())
      for (const auto& [key, value] : j.items())
        if (!value.is_structured() && !value.is_null())
          run.about.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
    if (j.is_object() && j.contains("examples")) run.examples = read_examples(j["examples"]);
  }
  if (run.about.empty()) run.notes.push_back("run.json is missing or damaged: which machine and commit made this run is not known");
  if (const auto steps = checkpoint_steps(dir); !steps.empty())
    run.about.emplace_back("newest checkpoint", checkpoint_folder(dir, steps.front()).filename().string());
}

void read_saved(const fs::path& dir, Run& run) {
  const auto steps = checkpoint_steps(dir);
  if (steps.empty()) return;
  try {
    const Json state = json_or_discarded(bhyt::read_text(checkpoint_folder(dir, steps.front()) / kTrainerState));
    const Json& progress = state.at("bhyt").at("progress");
    Standing s{.step = progress.at("step"), .loss_step = progress.at("step"), .tokens = state.value("num_input_tokens_seen", kUnknown)};
    if (const double count = progress.at("loss_count"); count > 0) s.loss = progress.at("loss_sum").get<double>() / count;
    if (s.step >= 0 && s.step < kLargestStep) run.saved = s;
  } catch (const Error&) {  // no such file
  } catch (const Json::exception&) {
    // Of another program, or damaged: then the metrics are what is known.
  }
}

void read_chosen(const fs::path& dir, Run& run) {
  const auto step = best_step(dir);
  const std::string* select = run.value("train.select");
  if (!step || (select && *select != "best")) return;  // a run that goes on with select=last leaves the link as it was
  const auto at = std::ranges::find(run.valid.x, static_cast<double>(*step));
  if (at == run.valid.x.end()) return;
  const double loss = run.valid.y[static_cast<std::size_t>(at - run.valid.x.begin())];
  if (std::isfinite(loss)) run.chosen = {static_cast<double>(*step), loss};
}

void read_analysis(const fs::path& dir, Run& run) {
  std::error_code ec;
  const fs::path file = dir / kAnalysisFile;
  if (!fs::is_regular_file(file, ec)) return;
  const Json j = json_or_discarded(bhyt::read_text(file));
  const bool good = j.is_object() && j.contains("models") && j["models"].is_array();
  if (good) run.analysis = j["models"];
  if (!good) run.notes.push_back(fmt::format("{} cannot be read; bhyt analyze --save writes it anew", kAnalysisFile));
}

Run read_run(const fs::path& dir) {
  std::error_code ec;
  check_usage(fs::exists(dir, ec), "{}: no such directory", dir.string());
  check_usage(fs::is_directory(dir, ec), "{} is a file; expected a run directory, which is what bhyt pretrain writes", dir.string());
  Run run;
  run.dir = run.name = dir.string();
  if (holds_metrics(dir)) {
    std::ifstream metrics(dir / "metrics.jsonl", std::ios::binary);
    check(metrics.good(), "{}: cannot be opened", (dir / "metrics.jsonl").string());
    read_metrics(metrics, run);
  } else {
    run.notes.push_back("metrics.jsonl is missing: what was trained is known from the checkpoints alone");
  }
  if (fs::is_regular_file(dir / "resolved.yaml", ec))
    read_config(read_text(dir / "resolved.yaml", kMaxConfigBytes), run);
  else
    run.notes.push_back("resolved.yaml is missing: neither config nor entropy floor are known");
  find_floor(dir, run);
  read_about(dir, run);
  read_saved(dir, run);
  read_chosen(dir, run);
  read_analysis(dir, run);
  return run;
}

std::string run_around(const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec) || holds_metrics(path) || !runs_below(path).empty()) return path;
  const fs::path around = (fs::path(path) / "..").lexically_normal();
  if (!holds_metrics(around)) return path;
  const std::string run = (around.has_filename() ? around : around.parent_path()).string();
  log::info("{} lies in the run {}: the report is about that", path, run);
  return run;
}

std::vector<Run> read_runs(const std::vector<std::string>& paths) {
  std::vector<Run> runs;
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    std::error_code ec;
    std::vector<fs::path> dirs = {path};
    if (fs::is_directory(path, ec) && !holds_metrics(path)) {
      dirs = runs_below(path);
      check_usage(!dirs.empty(), "{}: no metrics.jsonl there or one folder below; a run directory is what bhyt pretrain writes", path);
    }
    for (const fs::path& dir : dirs)
      if (seen.insert(fs::weakly_canonical(dir, ec)).second) runs.push_back(read_run(dir));
  }
  make_names_distinct(runs);
  return runs;
}

}  // namespace bhyt::report
