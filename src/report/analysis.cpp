#include "report/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "report/figure_parts.h"
#include "report/html.h"
#include "report/svg_file.h"

namespace bhyt::report {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kPanel = 550, kSquare = 360;
constexpr int kGrey = 6;  // the look of a line that belongs to no model

// The number at a path of keys; a gap where there is none.
double number_at(const Json& j, std::initializer_list<const char*> path) {
  const Json* at = &j;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) return kGap;
    at = &at->at(key);
  }
  return at->is_number() ? at->get<double>() : kGap;
}

// A list at a key; empty where there is none.
const Json& list_at(const Json& j, const char* key) {
  static const Json kNone = Json::array();
  return j.is_object() && j.contains(key) && j.at(key).is_array() ? j.at(key) : kNone;
}

std::string name_of(const Json& model) {
  return model.is_object() && model.contains("model") && model.at("model").is_string() ? model.at("model").get<std::string>() : "";
}

std::vector<std::string> names_of(const Json& models) {
  std::vector<std::string> out;
  for (const Json& m : models) out.push_back(name_of(m));
  return out;
}

using ByLayer = std::function<double(const Json& model, const Json& layer)>;
ByLayer at(std::initializer_list<const char*> path) {
  return [keys = std::vector<const char*>(path)](const Json&, const Json& layer) {
    return keys.size() == 1 ? number_at(layer, {keys[0]}) : number_at(layer, {keys[0], keys[1]});
  };
}

// What is drawn by layer, a line for each model.
struct Curve {
  const char *id, *title, *unit, *section, *caption;
  ByLayer value;
  bool embedding = false;           // its output is layer 0
  bool bounded = false;             // never on a log axis
  const char* chebyshev = nullptr;  // the site whose bound stands beside it
};

std::vector<Curve> curves() {
  return {
      {"magnitude", "Magnitude", "mean ‖x‖₂ of a token", "stream", "", at({"norm"}), true},
      {"variance", "Variance", "over features, token mean", "stream", "", at({"variance"}), true},
      {"kurtosis", "Kurtosis", "over features, token mean", "stream", "3 is a Gaussian's.", at({"kurtosis"}), true},
      {"gradient", "Gradient norm", "of all parameters of a block", "stream", "", at({"gradient_norm"})},
      {"cosine", "Similarity", "cosine of a block's input and output", "worth", "1: the block turns the stream nowhere.", at({"cosine"}),
       false, true},
      {"left-out", "Loss without a block", "nats more than with it", "worth", "The stream goes past the block unchanged.",
       [](const Json& model, const Json& layer) { return number_at(layer, {"left_out_loss"}) - number_at(model, {"batch_loss"}); }},
      {"entropy", "Attention entropy", "relative to log(position + 1)", "worth", "1: heads look everywhere alike.",
       at({"entropy_relative"}), false, true},
      {"saturated-attention", "Saturation before attention", "share of |f| > 0.95", "norms", "", at({"attention", "saturated"})},
      {"saturated-mlp", "Saturation before the MLP", "share of |f| > 0.95", "norms", "", at({"mlp", "saturated"})},
      {"beyond-attention", "Beyond λ before attention", "share of |a·x| > λ", "norms", "", at({"attention", "beyond_lambda"}), false, true,
       "attention"},
      {"beyond-mlp", "Beyond λ before the MLP", "share of |a·x| > λ", "norms", "", at({"mlp", "beyond_lambda"}), false, true, "mlp"},
      {"gain-attention", "Gain before attention", "rms(z)/rms(x)", "norms", "", at({"attention", "gain"})},
      {"gain-mlp", "Gain before the MLP", "rms(z)/rms(x)", "norms", "", at({"mlp", "gain"})},
      {"ratio", "Approximated / actual", "token mean of s̃²/s²", "approximation", "", at({"approximation", "ratio"})},
      {"correlation", "Pearson r", "of s̃² and s² over tokens", "approximation", "", at({"approximation", "r"}), false, true},
  };
}

// Ranges from what is drawn; a log axis where all of it is positive and spans more than a factor of 20.
void fit_panel(Figure& f, bool may_log) {
  double lo = kGap, hi = kGap;
  widen(f, 0, lo, hi);
  f.log = may_log && lo > 0 && hi > 20 * lo;
  f.y = fit_axis(lo, hi, {.log = f.log, .from_zero = !f.log && lo >= 0});
  double end = 1;
  for (const Line& l : f.lines)
    for (const double x : l.data.x) end = std::fmax(end, x);
  f.x = {.lo = f.x_name == "layer" && end > 1 ? 1.0 : 0.0, .hi = end, .whole = true};
}

// Chebyshev's 1 − p, where it is the same in every layer of every model.
void add_bound(const Json& models, const char* site, Figure& f) {
  std::set<double> bounds;
  for (const Json& m : models)
    for (const Json& layer : list_at(m, "layers"))
      if (const double p = number_at(layer, {site, "chebyshev"}); std::isfinite(p)) bounds.insert(p);
  if (bounds.size() == 1) f.levels.push_back({*bounds.begin(), fmt::format("Chebyshev’s 1 − p = {}", number(*bounds.begin()))});
}

void add_curves(const Json& models, std::vector<Figure>& out) {
  for (const Curve& q : curves()) {
    Figure f{.id = fmt::format("analysis-{}", q.id),
             .title = q.title,
             .unit = q.unit,
             .caption = q.caption,
             .width = kPanel,
             .height = 270,
             .section = q.section,
             .steps = false};
    bool any = false;
    for (std::size_t i = 0; i < models.size(); ++i) {
      Line line{.run = static_cast<int>(i), .name = name_of(models[i]), .dots = true};
      const auto put = [&](double layer, double value) {
        line.data.x.push_back(layer);
        line.data.y.push_back(value);
        any |= std::isfinite(value);
      };
      if (q.embedding && models[i].is_object() && models[i].contains("embedding")) put(0, q.value(models[i], models[i].at("embedding")));
      for (const Json& layer : list_at(models[i], "layers")) put(number_at(layer, {"layer"}), q.value(models[i], layer));
      if (!line.data.x.empty()) f.lines.push_back(std::move(line));
    }
    if (!any) continue;
    f.x_name = q.embedding ? "" : "layer";
    if (q.chebyshev) add_bound(models, q.chebyshev, f);
    fit_panel(f, !q.bounded);
    out.push_back(std::move(f));
  }
}

// Over training, where the models are checkpoints of one run: each line a layer.
void add_step_figures(const Json& all, std::vector<Figure>& out) {
  const auto run_of = [](const Json& m) {
    return m.is_object() && m.contains("run") && m["run"].is_string() ? m["run"].get<std::string>() : "";
  };
  std::map<double, Json> models;
  for (const Json& m : all) {
    if (run_of(m).empty() || run_of(m) != run_of(all[0])) return;
    if (const double step = number_at(m, {"step"}); std::isfinite(step)) models[step] = m;
  }
  if (models.size() < 2 || models.size() != all.size()) return;
  struct Kind {
    const char *id, *title, *unit, *key;
  };
  for (const Kind& k : {Kind{"ratio-steps", "Approximated / actual over training", "token mean of s̃²/s², a line for each layer", "ratio"},
                        Kind{"correlation-steps", "Pearson r over training", "a line for each layer, the last one darkest", "r"}}) {
    std::map<double, Series> by_layer;
    for (const auto& [step, m] : models)
      for (const Json& layer : list_at(m, "layers"))
        if (const double v = number_at(layer, {"approximation", k.key}); std::isfinite(v))
          by_layer[number_at(layer, {"layer"})].add(step, v);
    Figure f{.id = fmt::format("analysis-{}", k.id),
             .title = k.title,
             .unit = k.unit,
             .width = kPanel,
             .height = 270,
             .section = "approximation"};
    double place = 0;
    for (const auto& [layer, series] : by_layer)
      f.lines.push_back({.run = 0,
                         .name = fmt::format("{:.0f}", layer),
                         .data = thin(series, 0, models.rbegin()->first, 500),
                         .tint = by_layer.size() > 1 ? place++ / static_cast<double>(by_layer.size() - 1) : 0});
    if (f.lines.empty()) continue;
    fit_panel(f, std::string_view(k.key) == "ratio");
    out.push_back(std::move(f));
  }
}

// One layer of one model: a point for each token of the sample, and where they would lie were the approximation exact.
Figure scatter_figure(const Json& model, int run, const Json& layer, bool several) {
  const double number = number_at(layer, {"layer"});
  Figure f{.id = fmt::format("analysis-scatter-{}-{:.0f}", run, number),
           .title = fmt::format("Layer {:.0f}", number),
           .unit = fmt::format("r = {:.3f}{}", number_at(layer, {"approximation", "r"}), several ? ", " + name_of(model) : ""),
           .width = kSquare,
           .height = 300,
           .section = "scatter",
           .x_name = "actual s²; upwards: approximated s̃²"};
  Line points{.run = run, .name = name_of(model), .scatter = true};
  double lo = kGap, hi = kGap;
  for (const Json& p : list_at(layer.at("approximation"), "points")) {
    if (!p.is_array() || p.size() != 2 || !p[0].is_number() || !p[1].is_number()) continue;
    points.data.x.push_back(p[0].get<double>());
    points.data.y.push_back(p[1].get<double>());
    for (const Json& v : p) {
      lo = std::fmin(lo, v.get<double>());
      hi = std::fmax(hi, v.get<double>());
    }
  }
  f.log = lo > 0 && hi > 20 * lo;
  f.x = f.y = fit_axis(lo, hi, {.log = f.log});
  f.lines.push_back({.run = kGrey, .data = {.x = {f.x.lo, f.x.hi}, .y = {f.x.lo, f.x.hi}, .lo = {}, .hi = {}}});
  f.lines.push_back(std::move(points));
  return f;
}

void add_scatter_figures(const Json& models, std::vector<Figure>& out) {
  for (std::size_t i = 0; i < models.size(); ++i)
    for (const Json& layer : list_at(models[i], "layers"))
      if (layer.is_object() && layer.contains("approximation") && layer.at("approximation").is_object())
        out.push_back(scatter_figure(models[i], static_cast<int>(i), layer, models.size() > 1));
}

std::vector<Figure> analysis_figures(const Json& models) {
  std::vector<Figure> out;
  add_curves(models, out);
  add_step_figures(models, out);
  add_scatter_figures(models, out);
  return out;
}

std::string drawn(const std::vector<Figure>& figures, const char* section) {
  std::string out;
  for (const Figure& f : figures)
    if (f.section == section)
      out += fmt::format("<figure><header><h3>{}</h3><span class=\"unit\">{}</span></header>\n{}<figcaption>{}</figcaption></figure>\n",
                         escape(f.title), escape(f.unit), draw_svg(f, 0), escape(f.caption));
  return out;
}

std::string model_legend(const Json& models) {
  std::string out;
  for (std::size_t i = 0; i < models.size(); ++i)
    if (!name_of(models[i]).empty())
      out += fmt::format(R"html(<span><svg class="swatch" viewBox="0 0 24 4" style="{}"><path d="M1 2h22"/></svg>{}</span> )html",
                         look_of(static_cast<int>(i)), escape(name_of(models[i])));
  return fmt::format("<div class=\"legend\">{}</div>", out);
}

std::string shown(double v) { return std::isfinite(v) ? fmt::format("{:.4g}", v) : "–"; }

struct Column {
  const char* name;
  ByLayer value;
};

std::string table_of(const Json& model) {
  static const std::vector<Column> kColumns = {{"‖x‖₂", at({"norm"})},
                                               {"|x|", at({"abs"})},
                                               {"variance", at({"variance"})},
                                               {"kurtosis", at({"kurtosis"})},
                                               {"largest", at({"largest", "value"})},
                                               {"its feature", at({"largest", "feature"})},
                                               {"cosine", at({"cosine"})},
                                               {"gradient", at({"gradient_norm"})},
                                               {"loss without", at({"left_out_loss"})},
                                               {"entropy", at({"entropy"})},
                                               {"λ, attention", at({"attention", "lambda"})},
                                               {"λ, MLP", at({"mlp", "lambda"})},
                                               {"gain, attention", at({"attention", "gain"})},
                                               {"gain, MLP", at({"mlp", "gain"})},
                                               {"s̃²/s²", at({"approximation", "ratio"})},
                                               {"r", at({"approximation", "r"})}};
  std::string head = "<th>layer</th>", rows;
  std::vector<const Column*> there;
  for (const Column& c : kColumns) {
    const Json& layers = list_at(model, "layers");
    if (std::ranges::none_of(layers, [&](const Json& l) { return std::isfinite(c.value(model, l)); })) continue;
    there.push_back(&c);
    head += fmt::format("<th>{}</th>", c.name);
  }
  for (const Json& layer : list_at(model, "layers")) {
    rows += fmt::format("<tr><th>{:.0f}</th>", number_at(layer, {"layer"}));
    for (const Column* c : there) rows += cell(c->name, shown(c->value(model, layer)));
    rows += "</tr>";
  }
  return fmt::format(
      "<details><summary>{}</summary><div class=\"scroll\"><table class=\"numbers\"><thead><tr>{}</tr></thead><tbody>{}"
      "</tbody></table></div></details>",
      escape(name_of(model)), head, rows);
}

// "bhyt-a: loss 3.7412 over 8192 tokens."
std::string lead_of(const Json& models) {
  std::string out;
  for (const Json& m : models)
    if (!name_of(m).empty())
      out += fmt::format("{}{}: loss {:.4f} over {:.0f} tokens", out.empty() ? "" : "; ", name_of(m), number_at(m, {"loss"}),
                         number_at(m, {"tokens"}));
  return out.empty() ? "" : out + ".";
}

}  // namespace

std::string analysis_sections(const Json& analysis) {
  const Json& models = list_at(analysis, "models");
  const std::vector<Figure> figures = analysis_figures(models);
  std::string out = section("Inside the models", escape(lead_of(models)), "wide", figures.empty() ? "" : model_legend(models));
  out += section("Residual stream by layer", "At the output of each block.", "halves", drawn(figures, "stream"));
  out += section("What each block is worth", "", "halves", drawn(figures, "worth"));
  out += section("Norms by layer", "", "halves", drawn(figures, "norms"));
  out += section("The second site’s statistic, approximated", "s̃² from the block’s input, against s² of what the norm sees.", "halves",
                 drawn(figures, "approximation"));
  out += section("Approximated against actual", "A point for each token of a sample; on the line both are the same.", "thirds",
                 drawn(figures, "scatter"));
  std::string tables;
  for (const Json& m : models)
    if (!name_of(m).empty()) tables += table_of(m);
  return out + section("Layer by layer", "", "wide", tables);
}

std::string render_analysis(const Json& analysis) {
  const std::vector<std::string> names = names_of(list_at(analysis, "models"));
  const std::string title = names.size() > 4 ? fmt::format("{} models", names.size()) : fmt::format("{}", fmt::join(names, ", "));
  return page_start("Analysis", title, "", "") + analysis_sections(analysis) + page_footer("bhyt analyze") + "</main></body></html>\n";
}

std::vector<NamedSvg> analysis_svgs(const Json& analysis) {
  const Json& models = list_at(analysis, "models");
  std::vector<NamedSvg> out;
  for (const Figure& f : analysis_figures(models))
    out.push_back({f.id.substr(std::string_view("analysis-").size()), svg_file(f, names_of(models)).text});
  return out;
}

}  // namespace bhyt::report
