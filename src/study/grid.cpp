#include "study/grid.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/check.h"
#include "ops/norm/config.h"

namespace bhyt::study {

namespace {

constexpr const char* kSection = "sweep";
constexpr const char* kVariant = "variant";  // the axis that words variant.NAME= make
constexpr std::int64_t kMostRuns = 100000;

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }  // train.lr → lr

// Axes have the short names of keys that have one.
std::string axis_name(const std::string& key) {
  const std::string bare = last_part(key);
  return key == "run." + bare && is_short_for_run(bare) ? bare : key;
}

Json value_of(const std::string& key, const std::string& text) {
  Json tree = Json::object();
  apply_override(tree, "value=" + text);
  check_usage(tree.contains("value"), "{}: null is no value of an axis", key);
  return tree["value"];
}

// "0..2" → 0, 1, 2; nothing where it is no range.
std::vector<Json> read_range(const std::string& key, const std::string& text) {
  const std::size_t dots = text.find("..");
  std::int64_t from = 0, to = 0;
  const auto number = [](std::string_view s, std::int64_t& n) {
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
    return error == std::errc() && end == s.data() + s.size();
  };
  const std::string_view all = text;
  if (dots == std::string::npos || !number(all.substr(0, dots), from) || !number(all.substr(dots + 2), to)) return {};
  check_usage(from <= to && to - from < kMostRuns, "{}={}: expected a range of whole numbers that rises, as 0..2", key, text);
  std::vector<Json> out;
  for (std::int64_t n = from; n <= to; ++n) out.emplace_back(n);
  return out;
}

Axis key_axis(const std::string& key, const std::vector<Json>& values) {
  Axis axis{.name = axis_name(key)};
  for (const Json& v : values) axis.choices.push_back({label_of(v), {{key, v}}});
  return axis;
}

// {norm: {method: bhyt}} and {norm.method: bhyt} are the same.
void flatten(const Json& settings, const std::string& path, std::vector<std::pair<std::string, Json>>& out) {
  for (const auto& [key, value] : settings.items()) {
    const std::string full = path.empty() ? key : path + "." + key;
    if (value.is_object())
      flatten(value, full, out);
    else
      out.emplace_back(full, value);
  }
}

Axis read_axis(const Json& entry) {
  check_usage(entry.is_object() && entry.size() == 1, "sweep.axes: expected a name and its values, as train.lr: [1e-3, 2e-3], got {}",
              schema::show(entry));
  const std::string name = entry.items().begin().key();
  const Json& values = entry.items().begin().value();
  if (values.is_array()) return key_axis(name, {values.begin(), values.end()});
  if (!values.is_object()) return key_axis(name, read_values(name, values.is_string() ? values.get<std::string>() : values.dump()));
  Axis axis{.name = name};
  for (const auto& [label, settings] : values.items()) {
    check_usage(settings.is_object() || settings.is_null(), "sweep.axes: {}: {}: expected a map of keys, got {}", name, label,
                schema::show(settings));
    axis.choices.push_back({label, {}});
    if (settings.is_object()) flatten(settings, "", axis.choices.back().settings);
  }
  return axis;
}

Axes read_axes(const Json& list) {
  check_usage(list.is_array(), "sweep.axes: expected a list of axes, got {}", schema::show(list));
  Axes axes;
  for (const Json& entry : list) axes.push_back(read_axis(entry));
  return axes;
}

struct Section {
  train::Work work = train::Work::pretraining;
  std::vector<Axes> grids;
};

Section read_section(const Json& tree) {
  Section out;
  if (!tree.contains(kSection)) {
    out.grids.emplace_back();
    return out;
  }
  schema::Reader r(tree[kSection], kSection);
  std::string command = "pretrain";
  r.text("command", command, "");
  check_usage(command == "pretrain" || command == "sft", "sweep.command must be pretrain or sft, got {}", command);
  if (command == "sft") out.work = train::Work::fine_tuning;
  const Json *axes = r.take("axes"), *grids = r.take("grids");
  r.finish();
  check_usage(!axes || !grids, "sweep.axes and sweep.grids say the same thing: give one of them");
  check_usage(!grids || grids->is_array(), "sweep.grids: expected a list of lists of axes, got {}", grids ? schema::show(*grids) : "");
  if (axes) out.grids.push_back(read_axes(*axes));
  if (grids)
    for (const Json& grid : *grids) out.grids.push_back(read_axes(grid));
  if (out.grids.empty()) out.grids.emplace_back();
  return out;
}

// Words of the command line, taken apart: those with several values are axes, variants are one axis, the others hold for every run. Of
// two that say the same the last counts.
struct Words {
  Axes axes;
  std::vector<std::string> fixed;
};

Choice read_variant(const std::string& name, const std::string& text) {
  Choice choice{.label = name};
  for (std::size_t at = 0; (at = text.find_first_not_of(' ', at)) != std::string::npos;) {
    const std::size_t end = std::min(text.find(' ', at), text.size()), equals = text.find('=', at);
    check_usage(equals < end, "variant.{}: expected key=value words with spaces between, got {}", name, text.substr(at, end - at));
    const std::string key = text.substr(at, equals - at);
    choice.settings.emplace_back(key, value_of(key, text.substr(equals + 1, end - equals - 1)));
    at = end;
  }
  return choice;
}

Words read_words(const std::vector<std::string>& words) {
  Words out;
  Axis variants{.name = kVariant};
  const std::string prefix = std::string(kVariant) + ".";
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    check_usage(equals != std::string::npos && equals > 0, "expected key=value, got {}", word);
    const std::string key = word.substr(0, equals), text = word.substr(equals + 1);
    if (key.starts_with(prefix)) {
      variants.choices.push_back(read_variant(key.substr(prefix.size()), text));
      continue;
    }
    const std::vector<Json> values = text == "null" || text.empty() ? std::vector<Json>{} : read_values(key, text);
    if (values.size() > 1) {
      std::erase_if(out.fixed, [&](const std::string& w) { return axis_name(w.substr(0, w.find('='))) == axis_name(key); });
      out.axes.push_back(key_axis(key, values));
    } else {
      out.fixed.push_back(word);
    }
  }
  if (!variants.choices.empty()) out.axes.insert(out.axes.begin(), variants);
  for (Axis& axis : out.axes) axis.given_in_words = true;
  return out;
}

// A word takes the place of an axis of the config with its name, or of what the config says of its key.
void let_words_win(Axes& axes, Words& words) {
  for (const Axis& word : words.axes) {
    const auto found = std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.name == word.name; });
    if (found != axes.end())
      *found = word;
    else
      axes.push_back(word);
  }
  for (const std::string& word : words.fixed) {
    const std::string key = word.substr(0, word.find('='));
    const auto found = std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.name == axis_name(key); });
    if (found != axes.end()) *found = key_axis(key, read_values(key, word.substr(word.find('=') + 1)));
  }
}

void check_axes(const Axes& axes) {
  std::set<std::string> names;
  double runs = 1;
  for (const Axis& axis : axes) {
    check_usage(!axis.choices.empty(), "{} has no values", axis.name);
    check_usage(names.insert(axis.name).second, "{} is given twice", axis.name);
    std::set<std::string> labels;
    for (const Choice& c : axis.choices) check_usage(labels.insert(c.label).second, "{}: {} is given twice", axis.name, c.label);
    runs *= static_cast<double>(axis.choices.size());
  }
  check_usage(runs <= static_cast<double>(kMostRuns), "expected at most {} runs, got {:.0f}", kMostRuns, runs);
}

std::string id_of(const Point& point) {
  std::string out;
  for (const auto& [axis, label] : point) {
    const bool key = axis.find('.') != std::string::npos || is_short_for_run(axis);
    out += (out.empty() ? "" : "_") + (key ? slug(last_part(axis)) + "-" : "") + slug(label);
  }
  return out.empty() ? "run" : out;
}

// The n-th combination; the last axis changes fastest.
PlannedRun combine(const Request& request, const std::vector<std::string>& fixed, const Axes& axes, std::size_t n) {
  PlannedRun run{.tree = request.base};
  std::vector<std::string> of_config, of_words;
  std::vector<std::size_t> at(axes.size());
  for (std::size_t i = axes.size(); i-- > 0; n /= axes[i].choices.size()) at[i] = n % axes[i].choices.size();
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Choice& choice = axes[i].choices[at[i]];
    run.point.emplace_back(axes[i].name, choice.label);
    for (const auto& [key, value] : choice.settings)
      (axes[i].given_in_words ? of_words : of_config).push_back(fmt::format("{}={}", key, value.is_null() ? "null" : value.dump()));
  }
  run.id = id_of(run.point);
  run.tree.erase(kSection);
  train::apply_words(run.tree, request.called, of_config);
  train::apply_words(run.tree, name_of(run.point), fixed);
  train::apply_words(run.tree, request.called, of_words);
  return run;
}

// As far as a config can be judged without its data.
void check_run(const PlannedRun& run, train::Work work) {
  const auto& section = run.tree.contains("run") && run.tree["run"].is_object() ? run.tree["run"] : Json::object();
  check_usage(!section.contains("dir") && !section.contains("resume"),
              "run.dir and run.resume are what a sweep gives its runs: --out names its folder");
  try {
    const train::RunConfig config = train::read_run_config(run.tree, Verify::no, work);
    const ModelConfig& model = config.model.config;
    check_usage(config.parallel.trace == 0, "parallel.trace draws how several processes work together, and a sweep's runs have one each");
    if (model.layers > 0) (void)plan_norms(model.norm, model.layers, model.d, model.eps);
  } catch (const UsageError& e) {
    if (run.point.empty()) throw;
    throw UsageError(fmt::format("{}: {}", name_of(run.point), e.what()));
  }
}

}  // namespace

std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> out(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote ? c == quote : c == '"' || c == '\'') quote = quote ? 0 : c;
    if (!quote) depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    if (c == ',' && depth <= 0 && !quote)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

std::vector<Json> read_values(const std::string& key, const std::string& text) {
  std::vector<Json> out;
  for (const std::string& piece : split_values(text)) {
    check_usage(!piece.empty(), "{}={}: expected a value before and behind every comma", key, text);
    const std::vector<Json> range = read_range(key, piece);
    out.insert(out.end(), range.begin(), range.end());
    if (range.empty()) out.push_back(value_of(key, piece));
  }
  return out;
}

std::string label_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

std::string slug(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+';
    if (plain || static_cast<unsigned char>(c) >= 0x80)
      out += c;
    else if (c == '*')
      out += "-star";  // BHyT* is not BHyT
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  while (!out.empty() && (out.front() == '.' || out.front() == '-')) out.erase(0, 1);  // neither hidden nor a flag
  constexpr std::size_t kLongest = 80;
  std::size_t end = std::min(out.size(), kLongest);
  while (end < out.size() && (static_cast<unsigned char>(out[end]) & 0xC0u) == 0x80u) --end;  // between characters
  return out.empty() ? "x" : out.substr(0, end);
}

std::string name_of(const Point& point) {
  std::string out;
  for (const auto& [axis, label] : point) {
    const bool speaks = axis == "norm.method" || axis == "model.preset";  // rmsnorm needs no word before it, 0.001 does
    const bool key = !speaks && (axis.find('.') != std::string::npos || is_short_for_run(axis));
    out += fmt::format("{}{}{}", out.empty() ? "" : ", ", key ? last_part(axis) + " " : "", label);
  }
  return out;
}

Plan make_plan(const Request& request) {
  const Section section = read_section(request.base);
  Plan plan{.work = section.work};
  std::map<std::string, const PlannedRun*> seen;
  std::vector<PlannedRun> all;
  for (Axes axes : section.grids) {
    Words words = read_words(request.words);
    check_axes(words.axes);
    let_words_win(axes, words);
    check_axes(axes);
    std::size_t runs = 1;
    for (const Axis& axis : axes) runs *= axis.choices.size();
    for (std::size_t n = 0; n < runs; ++n) all.push_back(combine(request, words.fixed, axes, n));
  }
  for (const PlannedRun& run : all) {
    const auto [found, fresh] = seen.emplace(run.id, &run);
    check_usage(run.id != "configs" && run.id != "logs" && run.id != "index.json", "a run cannot be called {}, as a part of the sweep is",
                run.id);
    check_usage(fresh || found->second->tree == run.tree, "two runs would be called {}: {} and {}", run.id, name_of(found->second->point),
                name_of(run.point));
    if (!fresh) continue;  // in two of the grids
    check_run(run, plan.work);
    plan.runs.push_back(run);
  }
  return plan;
}

}  // namespace bhyt::study
