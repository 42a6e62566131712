#include "study/study.h"

#include <algorithm>

#include "core/check.h"
#include "io/files.h"
#include "study/files.h"

namespace bhyt::study {

namespace {

constexpr const char* kScales = "scales";  // the file that all studies share
constexpr const char* kAllScales[] = {"tiny", "small", "59m", "paper"};

const BuiltInFile* find_file(const std::vector<BuiltInFile>& files, const std::string& name) {
  const auto found = std::find_if(files.begin(), files.end(), [&](const BuiltInFile& f) { return f.name == name; });
  return found == files.end() ? nullptr : &*found;
}

Json shared_scales() { return parse_yaml(find_file(study_files(), kScales)->text, "studies/scales.yaml"); }

Json read_study(const std::string& name) {
  if (name.ends_with(".yaml") || name.ends_with(".yml")) return read_yaml(name);
  const BuiltInFile* file = name == kScales ? nullptr : find_file(study_files(), name);
  if (file) return parse_yaml(file->text, "studies/" + name + ".yaml");
  std::vector<std::string> names;
  for (const BuiltInFile& f : study_files())
    if (f.name != kScales) names.push_back(f.name);
  const std::string near = schema::nearest(name, names);
  throw UsageError(
      fmt::format("unknown study {}{}; bhyt reproduce lists them all", name, near.empty() ? "" : " (did you mean " + near + "?)"));
}

// Maps go into maps, anything else takes the place of what was there, null takes it away; model.d is d in the map model.
void lay_over(Json& tree, const Json& more) {
  if (!more.is_object()) return;
  for (const auto& [key, value] : more.items()) {
    if (const std::size_t dot = key.find('.'); dot != std::string::npos)
      lay_over(tree, {{key.substr(0, dot), {{key.substr(dot + 1), value}}}});
    else if (value.is_null())
      tree.erase(key);
    else if (value.is_object() && tree.contains(key) && tree[key].is_object())
      lay_over(tree[key], value);
    else
      tree[key] = value;
  }
}

// A variant with `config: NAME` begins with that recipe of configs/, but for where it runs.
Json with_recipe(const Json& settings) {
  if (!settings.is_object() || !settings.contains("config")) return settings;
  const std::string name = settings["config"];
  const BuiltInFile* file = find_file(recipe_files(), name);
  check_usage(file != nullptr, "there is no recipe configs/{}.yaml", name);
  Json tree = parse_yaml(file->text, "configs/" + name + ".yaml");
  const Json run = tree.value("run", Json::object());
  tree["run"] = Json::object();
  if (run.contains("dtype")) tree["run"]["dtype"] = run["dtype"];
  Json rest = settings;
  rest.erase("config");
  for (const auto& [key, value] : rest.items()) {
    if (value.is_object())
      lay_over(tree[key], value);
    else
      apply_override(tree, fmt::format("{}={}", key, value.dump()));
  }
  return tree;
}

Json with_recipes(Json axes) {
  for (Json& axis : axes)
    for (auto& [name, values] : axis.items())
      if (values.is_object())
        for (auto& [label, settings] : values.items()) settings = with_recipe(settings);
  return axes;
}

// Of the models that are trained first, those that one of the axes asks for.
Json first_axes(const Json& axes, const Json& asked) {
  Json out = with_recipes(axes);
  for (Json& axis : out)
    for (auto& [name, variants] : axis.items()) {
      std::vector<std::string> unused;
      for (const auto& [label, settings] : variants.items())
        if (asked.dump().find("{first}/" + slug(label) + "\"") == std::string::npos) unused.push_back(label);
      for (const std::string& label : unused) variants.erase(label);
    }
  return out;
}

std::vector<std::string> words_of(const Json& j, const std::string& key) {
  std::vector<std::string> out;
  if (j.is_null()) return out;
  if (!j.is_array()) schema::wrong(key, "a list of words", j);
  for (const Json& word : j) out.push_back(label_of(word));
  return out;
}

Column read_column(const Json& j) {
  Column c;
  schema::Reader r(j, "table.columns");
  r.text("name", c.name, "");
  r.text("of", c.of, "");
  r.text("path", c.path, "");
  r.text("as", c.as, "");
  r.integer("digits", c.digits, "", {.at_least = 0, .at_most = 9});
  r.finish();
  check_usage(c.of.empty() != c.path.empty(), "table.columns: {}: give `of` or `path`", c.name);
  return c;
}

void read_table(const Json& j, Study& s) {
  schema::Reader r(j, "table");
  if (const Json* columns = r.take("columns"))
    for (const Json& c : *columns) s.columns.push_back(read_column(c));
  r.text("rows", s.rows_path, "");
  r.text("rank_by", s.rank_by, "");
  r.boolean("lower_is_better", s.lower_is_better, "");
  if (const Json* target = r.take("target")) {
    s.target.emplace();
    schema::Reader t(*target, "table.target");
    t.text("row", s.target->row, "");
    t.number("at", s.target->at, "", {.above = 0, .at_most = 1});
    t.finish();
  }
  r.finish();
}

PaperNumbers read_numbers(const Json& j) {
  PaperNumbers n;
  schema::Reader r(j, "numbers");
  r.text("at", n.at, "");
  const Json *columns = r.take("columns"), *rows = r.take("rows");
  r.finish();
  check_usage(columns && rows && rows->is_object(), "numbers: expected columns and rows");
  n.columns = words_of(*columns, "numbers.columns");
  for (const auto& [label, values] : rows->items()) {
    check_usage(values.is_array() && values.size() == n.columns.size(), "numbers: {}: expected {} values", label, n.columns.size());
    n.rows.emplace_back(label, std::vector<Json>(values.begin(), values.end()));
  }
  return n;
}

// What a scale says: keys of runs, axes or commands in the place of the study's, the seeds and the data it takes.
struct Scale {
  Json keys = Json::object();
  Json axes, commands, numbers, synth, table, after;
  Json first = Json::object();  // keys of what is trained first
  bool with_first = true;       // false: it is there already
  int seeds = 0;
  std::string note, text;
};

void read_scale(const Json& j, const std::string& where, Scale& s) {
  schema::Reader r(j, where);
  if (const Json* keys = r.take("keys")) lay_over(s.keys, *keys);
  if (const Json* axes = r.take("axes")) s.axes = *axes;
  if (const Json* commands = r.take("commands")) s.commands = *commands;
  if (const Json* numbers = r.take("numbers")) s.numbers = *numbers;
  if (const Json* synth = r.take("synth")) s.synth = *synth;
  if (const Json* table = r.take("table")) s.table = *table;
  if (const Json* after = r.take("after")) s.after = *after;
  r.boolean("first", s.with_first, "");
  r.text("text", s.text, "");
  r.integer("seeds", s.seeds, "", {.at_least = 1});
  r.text("note", s.note, "");
  r.finish();
}

bool has_scale(const Json& study, const std::string& scale) {
  const Json own = study.value("scales", Json::object());
  if (own.contains(scale)) return !own[scale].is_boolean() || own[scale].get<bool>();
  return scale != "paper";
}

Scale scale_of(const Json& study, const std::string& name, const std::string& scale) {
  std::vector<std::string> known;
  for (const char* s : kAllScales)
    if (has_scale(study, s)) known.emplace_back(s);
  check_usage(std::find(known.begin(), known.end(), scale) != known.end(), "study {} has no scale {}; it has {}", name, scale,
              fmt::join(known, ", "));
  Scale out;
  if (const Json shared = shared_scales(); shared.contains(scale)) read_scale(shared[scale], "scales." + scale, out);
  // Models that are trained first have the scale's keys; what follows has its own.
  if (study.contains("first")) std::swap(out.first, out.keys);
  lay_over(out.keys, study.value("base", Json::object()));
  const Json own = study.value("scales", Json::object());
  if (own.contains(scale) && own[scale].is_object()) read_scale(own[scale], "scales." + scale, out);
  if (out.after.is_null()) out.after = study.value("after", Json());
  if (out.table.is_null()) out.table = study.value("table", Json());
  if (out.axes.is_null()) out.axes = study.value("axes", Json());
  if (out.commands.is_null()) out.commands = study.value("commands", Json());
  if (out.numbers.is_null()) out.numbers = study.value("numbers", Json());
  return out;
}

void check_study_keys(const Json& tree) {
  schema::Reader r(tree, "");
  for (const char* key : {"title", "paper", "question", "base", "axes", "commands", "after", "statistics", "table", "numbers", "scales",
                          "alone", "command", "first"})
    (void)r.take(key);
  r.finish();
}

std::string text_of(const Json& tree, const char* key) { return tree.value(key, std::string()); }

}  // namespace

std::vector<StudyHead> list_studies() {
  std::vector<StudyHead> out;
  for (const BuiltInFile& f : study_files()) {
    if (f.name == kScales) continue;
    const Json tree = read_study(f.name);
    StudyHead head{.name = f.name, .title = text_of(tree, "title"), .paper = text_of(tree, "paper")};
    for (const char* s : kAllScales)
      if (has_scale(tree, s)) head.scales.emplace_back(s);
    out.push_back(std::move(head));
  }
  return out;
}

Study open_study(const std::string& name, const std::string& scale, int seeds, const std::vector<std::string>& words) {
  const Json tree = read_study(name);
  check_study_keys(tree);
  const Scale at = scale_of(tree, name, scale);
  Study s{.name = fs::path(name).stem().string(),
          .title = text_of(tree, "title"),
          .paper = text_of(tree, "paper"),
          .question = text_of(tree, "question"),
          .scale = scale,
          .note = at.note,
          .text = at.text,
          .after = words_of(at.after, "after"),
          .counts_statistics = tree.value("statistics", false),
          .alone = tree.value("alone", false)};
  s.request = {.base = at.keys, .called = "the study", .words = words};
  if (at.axes.is_array()) {
    Json axes = with_recipes(at.axes);
    const int n = seeds > 0 ? seeds : std::max(1, at.seeds);
    if (!s.counts_statistics) axes.push_back({{kSeedAxis, fmt::format("0..{}", n - 1)}});
    s.request.base["sweep"] = {{"command", tree.value("command", "pretrain")}, {"axes", axes}};
  }
  if (at.commands.is_object())
    for (const auto& [label, command] : at.commands.items()) s.commands.emplace_back(label, words_of(command, "commands"));
  if (at.table.is_object()) read_table(at.table, s);
  if (tree.contains("first") && at.with_first) {
    s.first = at.first;
    lay_over(s.first, tree["first"].value("base", Json::object()));
    s.first["sweep"] = {{"axes", first_axes(tree["first"].at("axes"), at.axes)}};
  }
  if (at.numbers.is_object()) s.numbers = read_numbers(at.numbers);
  if (at.synth.is_object()) {
    schema::Reader r(at.synth, "synth");
    r.number("tokens", s.synth.tokens, "", {.above = 0});
    r.boolean("documents", s.synth.documents, "");
    r.integer("conversations", s.synth.conversations, "", {.at_least = 1});
    r.finish();
  }
  return s;
}

}  // namespace bhyt::study
