#include "study/study.h"

#include <algorithm>

#include "core/check.h"
#include "io/files.h"
#include "study/files.h"
#include "study/table.h"

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

// The value under a key; nullptr where it is not there, or null.
const Json* take(schema::Reader& r, const char* key, const char* expected, bool (*fits)(const Json&)) {
  const Json* j = r.take(key);
  if (!j || j->is_null()) return nullptr;
  if (!fits(*j)) schema::wrong(r.full(key), expected, *j);
  return j;
}
const Json* take_map(schema::Reader& r, const char* key) {
  return take(r, key, "a map of keys", [](const Json& j) { return j.is_object(); });
}
const Json* take_list(schema::Reader& r, const char* key, const char* expected) {
  return take(r, key, expected, [](const Json& j) { return j.is_array(); });
}

// A variant with `config: NAME` begins with that recipe of configs/, but for where it runs.
Json with_recipe(const Json& settings) {
  if (!settings.is_object() || !settings.contains("config")) return settings;
  const std::string name = schema::Reader::as_text("config", settings["config"]);
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
  for (Json& axis : axes) {
    if (!axis.is_object()) schema::wrong("axes", "a list of names with their values, as train.lr: [1e-3, 2e-3]", axis);
    for (auto& [name, values] : axis.items())
      if (values.is_object())
        for (auto& [label, settings] : values.items()) settings = with_recipe(settings);
  }
  return axes;
}

// Of the models that are trained first, those that one of the axes asks for.
Json first_axes(const Json& axes, const Json& asked) {
  Json out = with_recipes(axes);
  for (Json& axis : out)
    for (auto& [name, variants] : axis.items()) {
      if (!variants.is_object()) schema::wrong("first.axes." + name, "a map of named variants", variants);
      std::vector<std::string> unused;
      for (const auto& [label, settings] : variants.items())
        if (asked.dump().find("{first}/" + slug(label) + "\"") == std::string::npos) unused.push_back(label);
      for (const std::string& label : unused) variants.erase(label);
    }
  return out;
}

std::vector<std::string> words_of(const Json& j, const std::string& key) {
  std::vector<std::string> out;
  if (!j.is_array()) schema::wrong(key, "a list of words", j);
  for (const Json& word : j) {
    if (word.is_structured() || word.is_null()) schema::wrong(key, "a list of words", j);
    out.push_back(label_of(word));
  }
  return out;
}

Column read_column(const Json& j) {
  static const schema::Names<std::string> kAs = {{"mean", "mean"}, {"min", "min"}, {"max", "max"}, {"last", "last"}};
  Column c;
  schema::Reader r(j, "table.columns");
  r.text("name", c.name, "");
  r.text("of", c.of, "");
  r.text("path", c.path, "");
  r.choice("as", c.as, kAs, "");
  r.integer("digits", c.digits, "", {.at_least = 0, .at_most = 9});
  r.finish();
  check_usage(c.of.empty() != c.path.empty(), "table.columns: {}: give `of` or `path`", c.name);
  if (c.name.empty()) c.name = c.of + c.path;
  const std::vector<std::string> kinds = column_kinds();
  if (!c.of.empty() && std::find(kinds.begin(), kinds.end(), c.of) == kinds.end())
    schema::wrong(r.full("of"), fmt::format("one of {}", fmt::join(kinds, ", ")), c.of);
  return c;
}

void read_table(const Json& j, Study& s) {
  schema::Reader r(j, "table");
  if (const Json* columns = take_list(r, "columns", "a list of columns"))
    for (const Json& c : *columns) s.columns.push_back(read_column(c));
  r.text("rows", s.rows_path, "");
  r.text("rank_by", s.rank_by, "");
  r.boolean("lower_is_better", s.lower_is_better, "");
  if (const Json* target = take_map(r, "target")) {
    s.target.emplace();
    schema::Reader t(*target, r.full("target"));
    t.text("row", s.target->row, "");
    t.number("at", s.target->at, "", {.above = 0, .at_most = 1});
    t.finish();
  }
  r.finish();
  const auto ranks = [&](const Column& c) { return c.name == s.rank_by; };
  check_usage(s.rank_by.empty() || std::any_of(s.columns.begin(), s.columns.end(), ranks),
              "table.rank_by must be the name of a column, got {}", s.rank_by);
}

PaperNumbers read_numbers(const Json& j) {
  PaperNumbers n;
  schema::Reader r(j, "numbers");
  r.text("at", n.at, "");
  const Json *columns = take_list(r, "columns", "a list of names"), *rows = take_map(r, "rows");
  r.finish();
  check_usage(columns && rows, "numbers: expected columns and rows");
  n.columns = words_of(*columns, "numbers.columns");
  const auto number = [](const Json& v) { return v.is_number() || v.is_string() || v.is_null(); };
  for (const auto& [label, values] : rows->items()) {
    if (!values.is_array() || values.size() != n.columns.size() || !std::all_of(values.begin(), values.end(), number))
      schema::wrong("numbers.rows." + label, fmt::format("a list of {} numbers (or words, or null)", n.columns.size()), values);
    n.rows.emplace_back(label, std::vector<Json>(values.begin(), values.end()));
  }
  return n;
}

// What a study says, and a scale in its place.
struct StudyParts {
  Json axes, commands, after, table, numbers;  // null: it says nothing
};

void take_parts(schema::Reader& r, StudyParts& p) {
  if (const Json* axes = take_list(r, "axes", "a list of axes")) p.axes = *axes;
  if (const Json* commands = take_map(r, "commands")) p.commands = *commands;
  if (const Json* after = take_list(r, "after", "a list of words")) p.after = *after;
  if (const Json* table = take_map(r, "table")) p.table = *table;
  if (const Json* numbers = take_map(r, "numbers")) p.numbers = *numbers;
}

struct StudyFile {
  std::string title, paper, question, command = "pretrain";
  bool statistics = false, alone = false, trains_first = false;
  Json base = Json::object(), first_base = Json::object(), first_axes = Json::array(), scales = Json::object();
  StudyParts parts;
};

StudyFile read_file(const std::string& name) {
  static const schema::Names<std::string> kCommands = {{"pretrain", "pretrain"}, {"sft", "sft"}};
  const Json tree = read_study(name);
  if (!tree.is_object()) schema::wrong(name, "a map of keys", tree);
  StudyFile f;
  schema::Reader r(tree, "");
  r.text("title", f.title, "");
  r.text("paper", f.paper, "");
  r.text("question", f.question, "");
  r.choice("command", f.command, kCommands, "");
  r.boolean("statistics", f.statistics, "");
  r.boolean("alone", f.alone, "");
  if (const Json* base = take_map(r, "base")) f.base = *base;
  if (const Json* first = take_map(r, "first")) {
    f.trains_first = true;
    schema::Reader inner(*first, "first");
    if (const Json* base = take_map(inner, "base")) f.first_base = *base;
    const Json* axes = take_list(inner, "axes", "a list of axes");
    inner.finish();
    check_usage(axes != nullptr, "first.axes is missing: the models that are trained first, by name");
    f.first_axes = *axes;
  }
  take_parts(r, f.parts);
  if (const Json* scales = take_map(r, "scales")) f.scales = *scales;
  r.finish();
  schema::Reader scales(f.scales, "scales");
  for (const char* scale : kAllScales)
    (void)take(scales, scale, "a map of keys, or false", [](const Json& j) { return j.is_object() || j.is_boolean(); });
  scales.finish();
  return f;
}

// Keys of runs, what it says in the place of the study, the seeds and the data it takes.
struct Scale {
  Json keys = Json::object();
  StudyParts parts;
  Json synth;
  Json first = Json::object();  // keys of what is trained first
  bool with_first = true;       // false: it is there already
  int seeds = 0;
  std::string note, text;
};

void read_scale(const Json& j, const std::string& where, Scale& s) {
  schema::Reader r(j, where);
  if (const Json* keys = take_map(r, "keys")) lay_over(s.keys, *keys);
  take_parts(r, s.parts);
  if (const Json* synth = take_map(r, "synth")) s.synth = *synth;
  r.boolean("first", s.with_first, "");
  r.text("text", s.text, "");
  r.integer("seeds", s.seeds, "", {.at_least = 1});
  r.text("note", s.note, "");
  r.finish();
}

bool has_scale(const StudyFile& study, const std::string& scale) {
  if (!study.scales.contains(scale)) return scale != "paper";
  return study.scales[scale] != false;
}

Scale scale_of(const StudyFile& study, const std::string& name, const std::string& scale) {
  std::vector<std::string> known;
  for (const char* s : kAllScales)
    if (has_scale(study, s)) known.emplace_back(s);
  check_usage(std::find(known.begin(), known.end(), scale) != known.end(), "study {} has no scale {}; it has {}", name, scale,
              fmt::join(known, ", "));
  Scale out;
  out.parts = study.parts;
  if (const Json shared = shared_scales(); shared.contains(scale)) read_scale(shared[scale], "scales." + scale, out);
  // Models that are trained first have the scale's keys; what follows has its own.
  if (study.trains_first) std::swap(out.first, out.keys);
  lay_over(out.keys, study.base);
  if (study.scales.contains(scale) && study.scales[scale].is_object()) read_scale(study.scales[scale], "scales." + scale, out);
  return out;
}

void read_synth(const Json& j, SynthData& synth) {
  schema::Reader r(j, "synth");
  r.number("tokens", synth.tokens, "", {.above = 0});
  r.boolean("documents", synth.documents, "");
  r.integer("conversations", synth.conversations, "", {.at_least = 1});
  r.finish();
}

}  // namespace

std::vector<StudyHead> list_studies() {
  std::vector<StudyHead> out;
  for (const BuiltInFile& f : study_files()) {
    if (f.name == kScales) continue;
    const StudyFile file = read_file(f.name);
    StudyHead head{.name = f.name, .title = file.title, .paper = file.paper};
    for (const char* s : kAllScales)
      if (has_scale(file, s)) head.scales.emplace_back(s);
    out.push_back(std::move(head));
  }
  return out;
}

Study open_study(const std::string& name, const std::string& scale, int seeds, const std::vector<std::string>& words) {
  const StudyFile file = read_file(name);
  const Scale at = scale_of(file, name, scale);
  const StudyParts& parts = at.parts;
  Study s;
  s.name = fs::path(name).stem().string();
  s.title = file.title;
  s.paper = file.paper;
  s.question = file.question;
  s.scale = scale;
  s.note = at.note;
  s.text = at.text;
  if (!parts.after.is_null()) s.after = words_of(parts.after, "after");
  s.counts_statistics = file.statistics;
  s.alone = file.alone;
  s.request.base = at.keys;
  s.request.called = "the study";
  s.request.words = words;
  if (!parts.axes.is_null()) {
    Json axes = with_recipes(parts.axes);
    const int n = seeds > 0 ? seeds : std::max(1, at.seeds);
    if (!s.counts_statistics) axes.push_back({{kSeedAxis, fmt::format("0..{}", n - 1)}});
    s.request.base["sweep"] = {{"command", file.command}, {"axes", axes}};
  }
  if (!parts.commands.is_null())
    for (const auto& [label, command] : parts.commands.items()) {
      s.commands.emplace_back(label, words_of(command, "commands." + label));
      check_usage(!s.commands.back().second.empty(), "commands.{} holds no words", label);
    }
  if (!parts.table.is_null()) read_table(parts.table, s);
  if (file.trains_first && at.with_first) {
    s.first = at.first;
    lay_over(s.first, file.first_base);
    s.first["sweep"] = {{"axes", first_axes(file.first_axes, parts.axes)}};
  }
  if (!parts.numbers.is_null()) s.numbers = read_numbers(parts.numbers);
  if (!at.synth.is_null()) read_synth(at.synth, s.synth);
  return s;
}

}  // namespace bhyt::study
