#include "study/reproduce.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "data/synth.h"
#include "io/checkpoint_folders.h"
#include "io/files.h"
#include "io/json.h"
#include "report/figure.h"
#include "report/html.h"
#include "study/console.h"
#include "study/page.h"
#include "study/process.h"
#include "study/results.h"
#include "study/table.h"

namespace bhyt::study {

namespace {

constexpr const char* kStopNotice = "\nstopping\n";
constexpr const char* kFirst = "first";  // the folder of models that are trained before the others

bool trains(const Study& s) { return s.commands.empty() && !s.counts_statistics; }

bool names(const std::vector<std::string>& words, const std::string& key) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& w) { return w.starts_with(key + "="); });
}

// Where every run of the plan has data, by its own recipe.
bool data_is_named(const Study& s) {
  const Plan plan = make_plan(s.request);
  return std::all_of(plan.runs.begin(), plan.runs.end(),
                     [](const PlannedRun& r) { return r.tree.contains("data") && r.tree["data"].contains("train"); });
}

SynthOptions synth_options(const Study& s, const fs::path& folder) {
  return {.out = (folder / "data").string(),
          .tokens = static_cast<std::int64_t>(s.synth.tokens),
          .documents = s.synth.documents,
          .progress = false};
}

constexpr const char* kParts[] = {"train", "valid"};

fs::path conversations_file(const fs::path& folder, const std::string& part) {
  return folder / "data" / ("conversations-" + part + ".jsonl");
}

// {"instruction", "output"}: the beginnings of documents, and how they go on.
void make_conversations(const fs::path& documents, const fs::path& to, std::int64_t count) {
  constexpr std::size_t kAsked = 8, kAnswered = 16;  // words
  std::ifstream in(documents);
  std::string out;
  for (std::string line; count > 0 && std::getline(in, line);) {
    const Json document = json_or_discarded(line);
    check(document.is_object() && document.contains("text") && document["text"].is_string(), "{}: expected {{\"text\": TEXT}}, got {}",
          documents.string(), line.substr(0, 80));
    std::istringstream words(document["text"].get<std::string>());
    std::string asked, answered, word;
    for (std::size_t i = 0; i < kAsked + kAnswered && words >> word; ++i) (i < kAsked ? asked : answered) += word + " ";
    if (answered.empty()) continue;
    out += Json{{"instruction", asked}, {"output", answered}}.dump() + "\n";
    --count;
  }
  replace_synced(to, out);
}

void make_data(const Study& s, const fs::path& folder) {
  if (s.synth.tokens <= 0 || names(s.request.words, "data.train")) return;
  const SynthOptions options = synth_options(s, folder);
  const std::vector<std::string> files = synth_files(options);
  const auto there = [](const fs::path& f) { return fs::exists(f); };
  if (!std::all_of(files.begin(), files.end(), there)) (void)synthesize(options);
  for (std::size_t i = 0; i < 2 && s.synth.conversations > 0; ++i)
    if (const fs::path file = conversations_file(folder, kParts[i]); !there(file))
      make_conversations(files.at(i), file, s.synth.conversations);
}

// Runs a command and waits; its stdout as JSON, null where it failed.
class Commands {
 public:
  explicit Commands(fs::path folder) : folder_(std::move(folder)) { fs::create_directories(folder_); }

  Json run(const std::string& label, const std::vector<std::string>& args) {
    if (missing_) return {};
    const fs::path out = output(label), err = folder_ / (slug(label) + ".txt");
    log::info("bhyt {}", fmt::join(args, " "));
    Child child(args, out.string(), err.string());
    for (bool told = false; !child.ended(); std::this_thread::sleep_for(std::chrono::milliseconds(20)))
      if (StopSignals::received() && !told) {
        child.send(StopSignals::received());
        told = true;
      }
    if (child.code() != 0) {
      if (!StopSignals::received()) tell(label, args, last_error(err, child.code()));
      return {};
    }
    if (Json j = printed(label); !j.is_null()) return j;
    notes.push_back(fmt::format("{}: `bhyt {}` printed no JSON", label, fmt::join(args, " ")));
    return {};
  }

  // What it printed when it last ran; null where that is not there or no JSON.
  Json printed(const std::string& label) const {
    if (!fs::exists(output(label))) return {};
    Json j = json_or_discarded(read_text(output(label)));
    return j.is_discarded() ? Json() : j;
  }

  std::vector<std::string> notes;

 private:
  fs::path output(const std::string& label) const { return folder_ / (slug(label) + ".json"); }

  // A command that this program does not have is told once.
  void tell(const std::string& label, const std::vector<std::string>& args, const std::string& error) {
    missing_ = error.starts_with("unknown command") || error.starts_with("unknown test");
    if (missing_)
      notes.push_back(fmt::format("this study needs `bhyt {}`, which this program does not have ({})",
                                  fmt::join(args.begin(), args.begin() + std::min<std::ptrdiff_t>(2, std::ssize(args)), " "), error));
    else
      notes.push_back(fmt::format("{}: `bhyt {}` failed: {}", label, fmt::join(args, " "), error));
  }

  fs::path folder_;
  bool missing_ = false;
};

std::string replaced(std::string word, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = word.find(what, at)) != std::string::npos; at += by.size()) word.replace(at, what.size(), by);
  return word;
}

// Where to run: words that hold for every command.
std::vector<std::string> placement(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words)
    for (const char* key : {"device=", "run.device=", "threads=", "run.threads="})
      if (word.starts_with(key)) out.push_back(word);
  return out;
}

// data.valid of a run as words of a command.
std::string validation_file(const Record& r) {
  for (const char* key : {"data.valid", "data.train"}) {
    if (!r.settings.contains(key)) continue;
    const Json& j = r.settings[key];
    const Json& first = j.is_array() && !j.empty() ? j[0] : j;
    return first.is_object() ? first.value("path", std::string()) : label_of(first);
  }
  return "";
}

// Keep::none holds once a run has been looked at: what was printed then is there still when the study goes on.
std::map<std::string, Json> look_at_runs(const Study& s, const Index& index, const SweepOptions& options, Commands& commands) {
  std::map<std::string, Json> out;
  for (const Record& r : index.runs) {
    if (s.after.empty() || r.status != Status::done || StopSignals::received()) continue;
    const fs::path dir = options.folder / r.dir;
    if (checkpoint_steps(dir).empty())
      if (Json before = commands.printed(r.id); !before.is_null()) {
        out[r.id] = std::move(before);
        continue;
      }
    std::vector<std::string> args;
    for (const std::string& word : s.after)
      args.push_back(replaced(replaced(replaced(word, "{dir}", dir.string()), "{valid}", validation_file(r)), "{text}", s.text));
    for (const std::string& word : placement(s.request.words)) args.push_back(word);
    out[r.id] = commands.run(r.id, args);
    if (options.keep == Keep::none && !out[r.id].is_null()) tidy(dir, Keep::none);
  }
  return out;
}

struct Parts {
  std::string table, own, verdict, sections;
  Json rows;
  std::vector<std::string> notes;
};

// The models that a study starts from.
SweepOutcome train_first(const Study& s, const SweepOptions& options) {
  log::info("first, the models to start from: {}", options.folder.string());
  return run_sweep(plan_of(s), options);
}

std::string inside_json(const fs::path& path) {
  const std::string quoted = Json(path.string()).dump(-1, ' ', false, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

// Where a first model did not come through, the variants that start from it are left out and named; the others go on.
void leave_out_lost(Study& s, const Index& first, const fs::path& folder, std::vector<std::string>& notes) {
  for (const Record& r : first.runs) {
    if (r.status == Status::done) continue;
    const std::string model = fmt::format("\"{}\"", inside_json(folder / r.dir));
    for (Json& axis : s.request.base["sweep"]["axes"])
      for (auto& [name, variants] : axis.items()) {
        if (!variants.is_object()) continue;
        std::vector<std::string> lost;
        for (const auto& [label, settings] : variants.items())
          if (settings.dump().find(model) != std::string::npos) lost.push_back(label);
        for (const std::string& label : lost) {
          variants.erase(label);
          notes.push_back(fmt::format("{}: left out, the model that it starts from ended as {}: {}", label, name_of(r.status), r.error));
        }
        check(!variants.empty(), "none of the models to start from came through; {} says why", (folder / kIndexFile).string());
      }
  }
}

// "Table 5, scale tiny"
std::string which(const Study& s) {
  std::string out = fmt::format("{}, scale {}", s.paper, s.scale);
  if (out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out;
}

std::string text_of(const Study& s, const Parts& p) {
  std::string out = fmt::format("# {}\n\n{}. {}\n\n", s.title, which(s), s.question);
  if (!s.note.empty()) out += s.note + "\n\n";
  out += p.table + "\n" + p.verdict + "\n";
  if (!p.own.empty()) out += fmt::format("\nThe paper's own numbers, at its scale ({}):\n\n{}", s.numbers->at, p.own);
  for (const std::string& note : p.notes) out += fmt::format("\n- {}", note);
  return p.notes.empty() ? out : out + "\n";
}

std::string page_of(const Study& s, const Parts& p) {
  std::string notes;
  for (const std::string& note : p.notes) notes += fmt::format("<li>{}</li>", report::escape(note));
  if (!s.note.empty()) notes = fmt::format("<li>{}</li>", report::escape(s.note)) + notes;
  std::string out = report::page_start("Study", s.title, p.verdict, notes.empty() ? "" : fmt::format("<ul class=\"notes\">{}</ul>", notes));
  // Without columns of its own a study has the table of its sweep, which follows.
  const std::string table = s.columns.empty() && !s.counts_statistics ? "" : html_table(p.table);
  out += table.empty() ? fmt::format("<section><h2>{}</h2><p>{}</p></section>\n", report::escape(which(s)), report::escape(s.question))
                       : report::section(which(s), report::escape(s.question), "wide", table);
  if (!p.own.empty()) out += report::section("The paper’s own numbers", report::escape(s.numbers->at), "wide", html_table(p.own));
  return out + p.sections + report::page_footer("bhyt reproduce") + "</main></body></html>\n";
}

// Whether our numbers are of the paper's scale: what holds at any scale always is.
bool beside_paper(const Study& s) { return s.scale == "paper" || (s.numbers && s.numbers->at == "any"); }

void fill_table(const Study& s, const Table& table, Parts& p) {
  const bool beside = beside_paper(s);
  p.table = markdown(table, s.numbers, beside);
  p.rows = to_json(table);
  p.verdict = table_verdict(table, s.rank_by, s.lower_is_better);
}

bool shows_layers(const Study& s) {
  return std::any_of(s.columns.begin(), s.columns.end(), [](const Column& c) { return c.of == "magnitude" || c.of == "variance"; });
}

void fill_from_sweep(const Study& s, const Index& index, const SweepOptions& options, Commands* commands, Parts& p) {
  const fs::path& folder = options.folder;
  std::map<std::string, Json> printed;
  if (commands) printed = look_at_runs(s, index, options, *commands);  // not when the sweep was told to stop
  if (s.columns.empty()) {
    const std::vector<Group> groups = group_runs(index);
    const Pivot pivot = pivot_of(groups);
    p.table = pivot_markdown(pivot);
    p.verdict = verdict(pivot);
    p.rows = summary_json(index)["groups"];
  } else {
    fill_table(s, make_table(s, index, folder, printed), p);
  }
  write_figure(index, folder);
  p.sections = (shows_layers(s) ? layer_sections(index, folder) : "") + sweep_sections(index, folder);
  for (const Record& r : index.runs)
    if (!r.error.empty()) p.notes.push_back(fmt::format("{}: {}, {}", name_of(r.point), name_of(r.status), r.error));
}

void train_and_look(const Study& given, const SweepOptions& options, Commands& commands, Parts& p, StudyOutcome& out) {
  SweepOptions how = options;
  if (given.alone && how.jobs == 0) how.jobs = 1;
  Study s = given;
  if (s.first.is_object()) {
    const SweepOptions first = first_options(s, how);
    const SweepOutcome trained = train_first(s, first);
    out.signal = trained.signal;
    out.failed = trained.failed;
    if (trained.signal) return;
    leave_out_lost(s, trained.index, first.folder, p.notes);
  }
  if (!s.after.empty() && how.keep == Keep::none) how.keep = Keep::weights;  // until they have been looked at
  const SweepOutcome sweep = run_sweep(make_plan(s.request), how);
  out.signal = sweep.signal;
  out.failed = out.failed || sweep.failed;
  const StopSignals stop(kStopNotice);
  fill_from_sweep(s, sweep.index, options, sweep.signal ? nullptr : &commands, p);
  if (stop.received()) out.signal = stop.received();
}

}  // namespace

void name_data(Study& s, const fs::path& folder) {
  s.request.base = Json::parse(replaced(s.request.base.dump(), "{first}", inside_json(folder / kFirst)));
  if (!trains(s) || names(s.request.words, "data.train")) return;
  if (s.synth.tokens > 0) {
    const std::vector<std::string> files = synth_files(synth_options(s, folder));
    Json& trained = s.first.is_object() ? s.first : s.request.base;
    trained["data"]["train"] = Json::array({files.at(0)});
    trained["data"]["valid"] = Json::array({files.at(1)});
    if (s.text.empty()) s.text = files.at(1);
    for (const char* part : kParts)
      if (s.synth.conversations > 0) s.request.base["data"][part] = conversations_file(folder, part).string();
    return;
  }
  if (s.first.is_object()) return;  // what is trained first is asked for its data when it begins
  check_usage(data_is_named(s), "scale {} trains on your data: data.train=FILE data.valid=FILE (token files or texts)", s.scale);
}

Plan plan_of(const Study& s) {
  if (!s.commands.empty()) return {};
  return make_plan(s.first.is_object() ? Request{.base = s.first, .called = "the study", .words = placement(s.request.words)} : s.request);
}

SweepOptions first_options(const Study& s, SweepOptions options) {
  if (!s.first.is_object()) return options;
  options.folder /= kFirst;
  options.keep = Keep::weights;  // whoever starts from them needs them
  return options;
}

StudyOutcome run_study(const Study& s, const SweepOptions& options) {
  fs::create_directories(options.folder);
  Parts p;
  StudyOutcome out;
  Commands commands(options.folder / "commands");
  if (s.counts_statistics) {
    fill_table(s, statistics_table(plan_of(s)), p);
    p.verdict = "";  // a count, not a contest
  } else if (!s.commands.empty()) {
    const StopSignals stop(kStopNotice);
    std::vector<std::pair<std::string, Json>> printed;
    for (const auto& [label, command] : s.commands) {
      if (stop.received()) break;
      std::vector<std::string> args = command;
      args.insert(args.end(), s.request.words.begin(), s.request.words.end());
      printed.emplace_back(label, commands.run(label, args));
    }
    out.signal = stop.received();
    fill_table(s, make_table(s, printed), p);
  } else {
    make_data(s, options.folder);
    train_and_look(s, options, commands, p, out);
    if (p.table.empty()) return out;  // stopped before there was one
  }
  p.notes.insert(p.notes.end(), commands.notes.begin(), commands.notes.end());
  out.failed = out.failed || !commands.notes.empty();
  if (s.numbers && !beside_paper(s)) p.own = paper_markdown(*s.numbers);
  out.text = text_of(s, p);
  out.json = {{"study", s.name}, {"paper", s.paper}, {"scale", s.scale}, {"verdict", p.verdict}, {"rows", p.rows}, {"notes", p.notes}};
  replace_synced(options.folder / "study.md", out.text);
  replace_synced(options.folder / "study.json", out.json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  report::write_html(page_of(s, p), (options.folder / "report.html").string());
  return out;
}

}  // namespace bhyt::study
