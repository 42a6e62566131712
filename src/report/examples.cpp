#include "report/examples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "io/format.h"
#include "report/figure.h"
#include "report/html.h"
#include "report/run.h"
#include "report/scale.h"

namespace bhyt::report {

namespace {

using ExamplesJson = nlohmann::ordered_json;

// A count that a page can show: from 0, far below where a double has gaps.
double count_of(const ExamplesJson& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || it == object.end() || !it->is_number()) return 0;
  const double v = it->get<double>();
  return v >= 0 && v < 9e15 ? v : 0;
}

std::string text_of(const ExamplesJson& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

const ExamplesJson& list_of(const ExamplesJson& object, const char* key) {
  static const ExamplesJson none = ExamplesJson::array();
  return object.is_object() && object.contains(key) && object[key].is_array() ? object[key] : none;
}

ExampleFile read_file(const ExamplesJson& j, const std::string& use) {
  ExampleFile f{.file = text_of(j, "file"),
                .use = use,
                .records = count_of(j, "records"),
                .examples = count_of(j, "examples"),
                .tokens = count_of(j, "tokens"),
                .scored = count_of(j, "scored"),
                .cut = count_of(j, "cut"),
                .unscored = count_of(j, "unscored"),
                .longest = count_of(j, "longest"),
                .median = count_of(j, "median"),
                .lengths = {},
                .dropped = {}};
  constexpr std::size_t kMostBins = 64;
  for (const ExamplesJson& b : list_of(j, "lengths"))
    if (f.lengths.size() < kMostBins) f.lengths.push_back({count_of(b, "from"), count_of(b, "to"), count_of(b, "count")});
  for (const ExamplesJson& d : list_of(j, "dropped")) f.dropped.emplace_back(text_of(d, "reason"), count_of(d, "count"));
  return f;
}

// A file with the names of the runs that have it.
struct Shown {
  const ExampleFile* file;
  std::string runs;
};

std::vector<Shown> distinct_files(const std::vector<Run>& runs) {
  std::vector<Shown> out;
  for (const Run& r : runs) {
    if (!r.examples) continue;
    for (const ExampleFile& f : r.examples->files) {
      const auto same = std::ranges::find_if(out, [&](const Shown& s) { return *s.file == f; });
      if (same == out.end())
        out.push_back({&f, r.name});
      else
        same->runs += ", " + r.name;
    }
  }
  return out;
}

std::string whole(double v) { return grouped(std::llround(v)); }

std::string share(double part, double all) { return all > 0 ? fmt::format("{:.1f} %", 100 * part / all) : "–"; }

std::string dropped_words(const ExampleFile& f) {
  std::string out = whole(f.records - f.examples);
  for (const auto& [reason, count] : f.dropped)
    out += fmt::format("{} {} {}", &reason == &f.dropped[0].first ? ":" : ",", whole(count), reason);
  return out;
}

std::string name_of(const ExampleFile& f) { return std::filesystem::path(f.file).filename().string(); }

std::string table_of(const std::vector<Shown>& files, bool several) {
  std::string head, rows;
  for (const char* name :
       {"data", "use", "records", "examples", "tokens", "scored", "median", "longest", "cut", "without a scored token", "dropped"})
    head += fmt::format("<th>{}</th>", name);
  for (const auto& [file, runs] : files) {
    const ExampleFile& f = *file;
    rows += fmt::format("<tr><th>{}{}</th>", escape(name_of(f)), several ? escape(fmt::format(" ({})", runs)) : "");
    rows +=
        cell("use", f.use == "valid" ? "validation" : "training") + cell("records", whole(f.records)) + cell("examples", whole(f.examples));
    rows += cell("tokens", whole(f.tokens)) + cell("scored", share(f.scored, f.tokens), "main") + cell("median", whole(f.median));
    rows += cell("longest", whole(f.longest)) + cell("cut", fmt::format("{} ({})", whole(f.cut), share(f.cut, f.examples)));
    rows += cell("without a scored token", whole(f.unscored)) + cell("dropped", dropped_words(f)) + "</tr>";
  }
  return fmt::format("<div class=\"scroll\"><table class=\"numbers\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>", head,
                     rows);
}

// Bars that stand as they are: there is nothing to zoom or to smooth.
std::string histogram(const ExampleFile& f) {
  constexpr double kWidth = 550, kHeight = 220, kLeft = 52, kRight = 14, kTop = 12, kBottom = 34;
  double most = 1;
  const double end = f.lengths.back().to;
  for (const auto& b : f.lengths) most = std::max(most, b.count);
  const Axis x{.lo = 0, .hi = std::max(end, 1.0), .whole = true}, y{.lo = 0, .hi = 1.05 * most, .whole = true};
  const auto across = [&](double v) { return kLeft + x.at(v) * (kWidth - kLeft - kRight); };
  const auto up = [&](double v) { return kHeight - kBottom - y.at(v) * (kHeight - kTop - kBottom); };
  std::string out = fmt::format(
      R"(<svg class="plot histogram" viewBox="0 0 {} {}" role="img" aria-label="Lengths of examples"><g class="axes">)", kWidth, kHeight);
  for (const auto& [t, label] : y.ticks(4))
    out += fmt::format(R"(<path d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" class="y">{}</text>)", kLeft, up(t), kWidth - kRight, kLeft - 8,
                       up(t) + 3.5, label);
  for (const auto& [t, label] : x.ticks(6))
    out += fmt::format(R"(<path class="tick" d="M{0:.1f} {1}v4"/><text x="{0:.1f}" y="{2}" class="x">{3}</text>)", across(t),
                       kHeight - kBottom, kHeight - kBottom + 17, label);
  out += fmt::format(R"(<path class="base" d="M{0} {1}H{2}"/><text x="{2}" y="{3}" class="name">tokens</text></g>)", kLeft,
                     kHeight - kBottom, kWidth - kRight, kHeight - 3);
  for (const auto& b : f.lengths) {
    if (b.count <= 0) continue;
    const double left = across(b.from - 1), right = across(b.to);
    out += fmt::format(
        R"(<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{} to {} tokens: {}</title></rect>)", left + 0.5,
        up(b.count), std::max(right - left - 1, 0.5), kHeight - kBottom - up(b.count), whole(b.from), whole(b.to), whole(b.count));
  }
  return out + "</svg>\n";
}

std::string figure_of(const Shown& s) {
  const ExampleFile& f = *s.file;
  const bool drawable = !f.lengths.empty() && std::ranges::all_of(f.lengths, [](const auto& b) { return b.from >= 1 && b.to >= b.from; });
  if (!drawable) return "";
  return fmt::format(
      "<figure><header><h3>{}</h3><span class=\"unit\">examples by their number of tokens</span></header>\n{}<figcaption>Median {}, "
      "longest {}; "
      "{} of the tokens are scored.</figcaption></figure>\n",
      escape(name_of(f)), histogram(f), whole(f.median), whole(f.longest), share(f.scored, f.tokens));
}

}  // namespace

Examples read_examples(const nlohmann::ordered_json& json) {
  Examples out{.epoch_steps = count_of(json, "epoch_steps"), .files = {}};
  for (const char* use : {"train", "valid"})
    for (const ExamplesJson& file : list_of(json, use)) out.files.push_back(read_file(file, use));
  return out;
}

std::string examples_html(const std::vector<Run>& runs) {
  const std::vector<Shown> files = distinct_files(runs);
  if (files.empty()) return "";
  std::string figures;
  for (const Shown& s : files) figures += figure_of(s);
  return table_of(files, runs.size() > 1) + fmt::format("<div class=\"halves\">{}</div>", figures);
}

}  // namespace bhyt::report
