#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/log.h"
#include "report/analysis.h"
#include "report/figure.h"
#include "report/figure_parts.h"
#include "report/html.h"
#include "report/verdict.h"

namespace bhyt::report {

namespace {

constexpr const char* kScript =
#include "report/script.inc"
    ;

std::string fixed(double v, int digits = 4) { return std::isfinite(v) ? fmt::format("{:.{}f}", v, digits) : "–"; }

std::string swatch(std::size_t run) {
  return fmt::format(R"html(<svg class="swatch" viewBox="0 0 24 4" style="{}"><path d="M1 2h22"/></svg>)html",
                     look_of(static_cast<int>(run)));
}

std::string steps_of(const Run& r) {
  const std::string* planned = r.value("train.steps");
  const std::string done = fmt::format("{:.0f}", r.standing().step);
  return planned && *planned != done ? done + " of " + *planned : done;
}

// The final validation loss in words, where there is no number for it.
std::string validation_of(const Run& r) {
  if (r.valid.empty()) return "not validated";
  return std::isfinite(r.valid.final_value()) ? fixed(r.valid.final_value()) : "not finite";
}

// "1.2345, epoch 3", or the step where epochs are not known.
std::string chosen_of(const Run& r) {
  return r.chosen ? fmt::format("{}, {}", fixed(r.chosen->loss), epoch_or_step(r, r.chosen->step)) : "–";
}

std::string summary_table(const std::vector<Run>& runs, int best) {
  std::string head, rows;
  const bool chosen = std::ranges::any_of(runs, [](const Run& r) { return r.chosen.has_value(); });
  std::vector<const char*> names = {"run",    "training loss", "validation loss", "above the floor", "steps",
                                    "tokens", "time",          "tokens/s",        "skipped"};
  if (chosen) names.insert(names.begin() + 3, "best checkpoint");
  for (const char* name : names) head += fmt::format("<th>{}</th>", name);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& r = runs[i];
    const double seconds = r.seconds.last(), timed = r.tokens.last();  // both by the metrics
    const Standing now = r.standing();
    rows += fmt::format("<tr{}><th>{}{}</th>", static_cast<int>(i) == best ? " class=\"best\"" : "", swatch(i), escape(r.name));
    rows += cell("training loss", fixed(now.loss)) + cell("validation loss", validation_of(r), "main");
    if (chosen) rows += cell("best checkpoint", chosen_of(r), "main");
    rows += cell("above the floor", fixed(r.above_floor())) + cell("steps", steps_of(r));
    rows += cell("tokens", std::isfinite(now.tokens) ? log::human_count(now.tokens) : "–");
    rows += cell("time", seconds > 0 ? log::human_time(seconds) : "–");
    rows += cell("tokens/s", seconds > 0 && std::isfinite(timed) ? log::human_count(timed / seconds) : "–");
    rows += cell("skipped", fmt::format("{}", r.skipped.size())) + "</tr>";
  }
  return fmt::format(
      "<div class=\"scroll\"><table class=\"numbers\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
      "<p class=\"small\">Losses are the last recorded, in nats per token. Time is what the training steps took, without evaluation and "
      "saving.</p>",
      head, rows);
}

// Rows of keys against columns of runs; with differing_only, those where the runs agree are left out.
std::string key_table(const std::vector<Run>& runs, const Entries Run::*member, bool differing_only) {
  std::vector<std::string> keys;
  std::set<std::string> seen;
  for (const Run& r : runs)
    for (const auto& [key, value] : r.*member)
      if (seen.insert(key).second) keys.push_back(key);
  const auto find = [&](const Run& r, const std::string& key) -> std::string {
    for (const auto& [k, v] : r.*member)
      if (k == key) return v;
    return "–";
  };
  std::string rows;
  for (const std::string& key : keys) {
    std::set<std::string> values;
    std::string cells;
    for (const Run& r : runs) {
      values.insert(find(r, key));
      cells += cell(r.name, find(r, key));
    }
    if (differing_only && (values.size() == 1 || key == "run.dir")) continue;
    if (values.size() == 1) cells = fmt::format("<td colspan=\"{}\">{}</td>", runs.size(), escape(*values.begin()));
    rows += fmt::format("<tr><th>{}</th>{}</tr>", escape(key), cells);
  }
  if (rows.empty()) return "";
  std::string head;
  for (std::size_t i = 0; i < runs.size(); ++i) head += fmt::format("<th>{}{}</th>", swatch(i), escape(runs[i].name));
  return fmt::format("<div class=\"scroll\"><table class=\"keys\"><thead><tr><th></th>{}</tr></thead><tbody>{}</tbody></table></div>", head,
                     rows);
}

// What could not be read, as a list.
std::string notes(const std::vector<Run>& runs) {
  std::string out;
  for (const Run& r : runs)
    for (const std::string& note : r.notes) out += fmt::format("<li>{}.</li>", escape(runs.size() > 1 ? r.name + ": " + note : note));
  return out.empty() ? "" : fmt::format("<ul class=\"notes\">{}</ul>", out);
}

std::string value(double v) { return std::isfinite(v) ? fmt::format("{:.5g}", v) : "null"; }

// Adds an element to a list that is written by hand.
void append(std::string& list, const std::string& element) {
  if (!list.empty()) list += ',';
  list += element;
}

std::string array(const std::vector<double>& values, bool whole = false) {
  std::string out;
  for (const double v : values) append(out, whole ? fmt::format("{:.0f}", v) : value(v));
  return fmt::format("[{}]", out);
}

// "<" is written so that no name can end the script element.
std::string text_value(const std::string& text) {
  std::string out;
  for (const char c : nlohmann::ordered_json(text).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace))
    out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

std::string figure_data(const Figure& f) {
  std::string lines, levels, marks, skipped;
  const std::vector<double>* before = nullptr;
  for (const Line& l : f.lines) {
    if (l.data.x.empty()) continue;
    const std::string x = before && *before == l.data.x ? "null" : array(l.data.x, !f.epochs);
    before = &l.data.x;
    const std::string extremes = l.data.exact() ? "" : fmt::format(R"(,"lo":{},"hi":{})", array(l.data.lo), array(l.data.hi));
    append(lines, fmt::format(R"({{"run":{},"name":{},"smoothed":{},"dots":{},"tint":{:.2f},"x":{},"y":{}{}}})", l.run, text_value(l.name),
                              l.smoothed, l.dots, l.tint, x, array(l.data.y), extremes));
  }
  for (const Level& l : f.levels) append(levels, fmt::format(R"({{"y":{},"label":{}}})", value(l.y), text_value(l.label)));
  for (const Mark& m : f.marks) append(marks, fmt::format(R"({{"run":{},"x":{},"y":{}}})", m.run, m.x, value(m.y)));
  for (const auto& s : f.skipped) append(skipped, array(s, true));
  return fmt::format(
      R"({{"id":"{}","w":{},"h":{},"group":"{}","steps":{},"epochs":{},"close":{},"log":{},"zero":{},"cap":{},"start":{},"end":{},"lines":[{}],"levels":[{}],"marks":[{}],"skipped":[{}]}})",
      f.id, f.width, f.height, f.group, f.steps, f.epochs, f.close, f.log, f.from_zero, value(f.cap), f.x.lo, f.x.hi, lines, levels, marks,
      skipped);
}

std::string page_data(const std::vector<Run>& runs, const std::vector<Figure>& figures, double window) {
  std::string names, looks, data;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    append(names, text_value(runs[i].name));
    append(looks, text_value(look_of(static_cast<int>(i))));
  }
  for (const Figure& f : figures) append(data, figure_data(f));
  return fmt::format(R"({{"window":{:.0f},"runs":[{}],"looks":[{}],"figures":[{}]}})", window, names, looks, data);
}

std::string figure_html(const Figure& f, double window) {
  const std::string scale = f.can_log ? fmt::format(R"(<button class="scale js" data-figure="{}" type="button">{}</button>)", f.id,
                                                    f.log ? "show linear scale" : "show log scale")
                                      : "";
  return fmt::format("<figure{}><header><h3>{}</h3><span class=\"unit\">{}</span>{}</header>\n{}<figcaption>{}</figcaption></figure>\n",
                     f.only_run >= 0 ? fmt::format(" class=\"r{}\"", f.only_run) : "", escape(f.title), escape(f.unit), scale,
                     draw_svg(f, window), escape(f.caption));
}

std::string figures_of(const std::vector<Figure>& figures, const char* section, double window) {
  std::string out;
  for (const Figure& f : figures)
    if (f.section == section) out += figure_html(f, window);
  return out;
}

std::string controls(const std::vector<Run>& runs, double window) {
  std::string legend, rules;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    legend += fmt::format(R"(<label><input type="checkbox" id="run{}" checked>{}{}</label>)", i, swatch(i), escape(runs[i].name));
    // Hiding a run works without a script; the script only rescales what is left.
    rules += fmt::format(":root:has(#run{0}:not(:checked)) :is(.plot .r{0},figure.r{0}){{display:none}}", i);
  }
  return fmt::format(
      R"(<style>{}</style><nav><div class="legend">{}</div><div class="tools js"><label>smoothing <input type="range" id="smoothing" min="0" max="8" step="1"></label>)"
      R"(<output id="window">{}</output><button type="button" id="reset" hidden>show whole run</button><button type="button" id="theme">show in dark</button></div></nav>)"
      "\n",
      rules, legend, window > 0 ? fmt::format("mean over {:.0f} steps", window) : "off");
}

// λ and α by layer: the section is named after what is there.
std::string scalars_section(const std::vector<Run>& runs, const std::vector<Figure>& figures, double window) {
  std::size_t layers = 0;
  bool lambda = false, alpha = false;
  for (const Run& r : runs)
    for (const LayerRecord& l : r.layers) {
      layers = std::max({layers, l.lambda_attn.size(), l.lambda_mlp.size(), l.alpha_attn.size(), l.alpha_mlp.size()});
      lambda |= !l.lambda_attn.empty() || !l.lambda_mlp.empty();
      alpha |= !l.alpha_attn.empty() || !l.alpha_mlp.empty();
    }
  const char* title = lambda && alpha ? "λ and α by layer" : lambda ? "λ by layer" : "α by layer";
  const std::string lead = fmt::format(
      "Each line is one layer. Panels of the same site share one axis. <span class=\"ramp\">layer 1 <i></i> layer {}</span>", layers);
  return section(title, lead, "halves", figures_of(figures, "scalars", window));
}

// λ and α are not alone: what the norms do with the stream.
std::string norms_section(const std::vector<Figure>& figures, double window) {
  return section("Norms over training",
                 "Each line is one layer, the first light, the last dark. Saturation is the share of |f| > 0.95; s̃² is the second site’s "
                 "statistic as the block’s input gives it, s² what the norm sees; of a sample of the tokens.",
                 "halves", figures_of(figures, "norms", window));
}

// What bhyt analyze left in the runs: all models of a single run, else the newest of each, in the run's colour.
std::string analyses(const std::vector<Run>& runs) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const Run& r : runs) {
    if (runs.size() == 1 && r.analysis.is_array()) models = r.analysis;
    if (runs.size() == 1) break;
    models.push_back(r.analysis.is_array() && !r.analysis.empty() ? r.analysis.back() : nlohmann::ordered_json());
    if (models.back().is_object()) models.back()["model"] = r.name;
  }
  return analysis_sections({{"models", models}});
}

std::string title_of(const std::vector<Run>& runs) {
  if (runs.size() > 4) return fmt::format("{} runs", runs.size());
  std::string names;
  for (const Run& r : runs) names += fmt::format("{}{}", names.empty() ? "" : ", ", r.name);
  return names;
}

std::string configs(const std::vector<Run>& runs) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (!runs[i].config_text.empty())
      out += fmt::format("<details><summary>{}{}: resolved.yaml</summary><pre>{}</pre></details>", swatch(i), escape(runs[i].name),
                         escape(runs[i].config_text));
  return out;
}

}  // namespace

std::string render_page(const std::vector<Run>& runs) {
  const std::vector<Figure> figures = make_figures(runs);
  const double window = default_window(runs);
  const Verdict verdict = judge(runs);
  const std::string differences = runs.size() > 1 ? key_table(runs, &Run::config, true) : "";
  std::string out = page_start("Training report", title_of(runs), verdict.text, notes(runs));
  out += summary_table(runs, verdict.best);
  out += controls(runs, window);
  out += section("Loss", "", "loss", figures_of(figures, "loss", window));
  out += section("By epoch", "", "wide", figures_of(figures, "epochs", window));
  out += section("Optimisation", "", "thirds", figures_of(figures, "optimisation", window));
  out += section("Tasks", "Benchmark tasks between steps, as <code>bhyt eval</code> asks them.", "thirds",
                 figures_of(figures, "tasks", window));
  out += section("Data", "What the files of conversations came to, and how long their examples are.", "wide", examples_html(runs));
  out += section("Layers",
                 "The residual stream at the output of each block, at a run’s first and last record. Both panels of a row share one axis.",
                 "halves", figures_of(figures, "layers", window));
  out += scalars_section(runs, figures, window);
  out += norms_section(figures, window);
  out += analyses(runs);
  out +=
      section("What differs", "Keys of resolved.yaml on which the runs do not agree, but for <code>run.dir</code>.", "wide", differences);
  out += section("Where it ran", "", "wide", key_table(runs, &Run::about, false));
  out += section("Configs", "", "wide", configs(runs));
  out += page_footer("bhyt report") + "</main>\n<div id=\"hover\" hidden></div>\n";
  out += fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n<script>{}</script></body></html>\n",
                     page_data(runs, figures, window), kScript);
  return out;
}

void write_page(const std::vector<Run>& runs, const std::string& path) { write_html(render_page(runs), path); }

}  // namespace bhyt::report
