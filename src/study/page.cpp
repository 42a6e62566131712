#include "study/page.h"

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "report/figure.h"
#include "report/html.h"
#include "report/run.h"

namespace bhyt::study {

namespace {

using report::cell;
using report::escape;

std::string figure_html(const report::Figure& f, double window) {
  return fmt::format("<figure><header><h3>{}</h3><span class=\"unit\">{}</span></header>\n{}<figcaption>{}</figcaption></figure>\n",
                     escape(f.title), escape(f.unit), report::draw_svg(f, window), escape(f.caption));
}

std::string table(const std::vector<std::string>& headers, const std::string& rows) {
  std::string head;
  for (const std::string& h : headers) head += fmt::format("<th>{}</th>", escape(h));
  return fmt::format("<div class=\"scroll\"><table class=\"numbers\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>", head,
                     rows);
}

std::string short_name(const std::string& axis) { return axis.substr(axis.rfind('.') + 1); }

// The lowest mean of a column is marked.
std::string pivot_html(const Pivot& pivot) {
  std::vector<std::string> headers = {pivot.down};
  std::vector<double> lowest(pivot.columns.size(), INFINITY);
  for (std::size_t c = 0; c < pivot.columns.size(); ++c) {
    headers.push_back(pivot.across.empty() ? pivot.columns[c] : short_name(pivot.across) + " " + pivot.columns[c]);
    for (const auto& row : pivot.cells)
      if (row[c] && row[c]->valid.n > 0) lowest[c] = std::fmin(lowest[c], row[c]->valid.mean);
  }
  std::string rows;
  for (std::size_t r = 0; r < pivot.rows.size(); ++r) {
    rows += fmt::format("<tr><th>{}</th>", escape(pivot.rows[r]));
    for (std::size_t c = 0; c < pivot.columns.size(); ++c) {
      const Group* g = pivot.cells[r][c];
      rows += cell(headers[c + 1], cell_text(g), g && g->valid.n > 0 && g->valid.mean == lowest[c] ? "best" : "");
    }
    rows += "</tr>";
  }
  return table(headers, rows);
}

std::string every_run(const Index& index) {
  std::string rows;
  const auto loss = [](const std::optional<double>& v) { return v ? fmt::format("{:.4f}", *v) : "–"; };
  for (const Record& r : index.runs) {
    rows += fmt::format("<tr><th>{}</th>", escape(name_of(r.point)));
    rows += cell("status", name_of(r.status)) + cell("validation loss", loss(r.valid_loss), "main") +
            cell("lowest", loss(r.best_valid_loss)) + cell("training loss", loss(r.loss)) + cell("step", fmt::format("{}", r.step)) +
            cell("tokens/s", r.tok_s > 0 ? log::human_count(r.tok_s) : "–") +
            cell("time", r.seconds > 0 ? log::human_time(r.seconds) : "–") + cell("directory", r.dir) + "</tr>";
  }
  return table({"run", "status", "validation loss", "lowest", "training loss", "step", "tokens/s", "time", "directory"}, rows);
}

// Validation curves of every run, in the colour of its row.
std::string curves(const Pivot& pivot, const fs::path& folder) {
  report::Figure f{.id = "curves", .title = "Loss of every run", .unit = "nats per token", .width = 1120, .height = 420};
  double end = 1, lowest = INFINITY, highest = -INFINITY;
  for (std::size_t row = 0; row < pivot.rows.size(); ++row)
    for (const Group* g : pivot.cells[row])
      for (const Record* r : g ? g->runs : std::vector<const Record*>{}) {
        if (!fs::exists(folder / r->dir / "metrics.jsonl")) continue;
        const report::Run run = report::read_run(folder / r->dir);
        const report::Series& s = run.valid.size() > 2 ? run.valid : run.loss;
        if (s.empty()) continue;
        end = std::max(end, run.steps());
        f.lines.push_back({.run = static_cast<int>(row), .name = r->id, .data = report::thin(s, 0, std::max(1.0, run.steps()), 300)});
        for (const double v : s.y) lowest = std::isfinite(v) ? std::fmin(lowest, v) : lowest;
        highest = std::fmax(highest, s.first());
      }
  if (f.lines.empty() || !std::isfinite(lowest)) return "";
  f.cap = std::fmin(highest, lowest + 3);  // what is learned in the first steps would flatten the rest
  f.y = report::fit_axis(lowest, f.cap);
  f.x = {.lo = 0, .hi = end, .whole = true};
  return figure_html(f, 0);
}

}  // namespace

std::string legend(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i)
    out += fmt::format(R"(<label><svg class="swatch" viewBox="0 0 24 4" style="{}"><path d="M1 2h22"/></svg>{}</label> )",
                       report::look_of(static_cast<int>(i)), escape(names[i]));
  return fmt::format("<nav><div class=\"legend\">{}</div></nav>", out);
}

std::optional<report::Figure> across_figure(const Pivot& pivot) {
  std::vector<double> at;
  for (const std::string& column : pivot.columns)
    if (const auto v = as_number(column)) at.push_back(*v);
  if (pivot.across.empty() || at.size() != pivot.columns.size() || at.size() < 2) return std::nullopt;
  report::Figure f{.id = "across",
                   .title = "Loss by " + short_name(pivot.across),
                   .unit = "validation, nats per token, mean over seeds",
                   .width = 1120,
                   .height = 420,
                   .x_name = pivot.across};
  double lowest = INFINITY, highest = -INFINITY, least = INFINITY, most = -INFINITY;
  for (std::size_t row = 0; row < pivot.rows.size(); ++row) {
    report::Line line{.run = static_cast<int>(row), .name = pivot.rows[row], .dots = true};
    for (std::size_t c = 0; c < at.size(); ++c) {
      const Group* g = pivot.cells[row][c];
      if (!g || g->valid.n == 0) continue;
      line.data.x.push_back(at[c]);
      line.data.y.push_back(g->valid.mean);
      lowest = std::fmin(lowest, g->valid.mean);
      highest = std::fmax(highest, g->valid.mean);
      least = std::fmin(least, at[c]);
      most = std::fmax(most, at[c]);
    }
    if (!line.data.x.empty()) f.lines.push_back(std::move(line));
  }
  if (!(least < most)) return std::nullopt;           // one column that has losses is no line
  const double top = std::fmin(highest, lowest + 1);  // a run that learns nothing must not flatten the others
  if (top < highest) f.caption = "Cut one nat above the lowest.";
  f.y = report::fit_axis(lowest, top);
  f.x = {.lo = least, .hi = most, .log = least > 0 && most / least >= 3};
  const double air = f.x.log ? std::pow(most / least, 0.03) : 0.03 * (most - least);
  f.x.lo = f.x.log ? least / air : least - air;
  f.x.hi = f.x.log ? most * air : most + air;
  return f;
}

std::string html_table(const std::string& markdown) {
  std::vector<std::vector<std::string>> lines;
  for (std::size_t at = 0, end; at < markdown.size(); at = end + 1) {
    end = std::min(markdown.find('\n', at), markdown.size());
    std::vector<std::string> cells;
    for (std::size_t from = at + 1, bar; from < end && (bar = markdown.find('|', from)) < end; from = bar + 1) {
      const std::string text = markdown.substr(from, bar - from);
      const std::size_t first = text.find_first_not_of(' ');
      cells.push_back(first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first));
    }
    if (!cells.empty()) lines.push_back(std::move(cells));
  }
  if (lines.size() < 2) return "";
  std::string rows;
  for (std::size_t i = 2; i < lines.size(); ++i) {
    rows += fmt::format("<tr><th>{}</th>", escape(lines[i][0]));
    for (std::size_t c = 1; c < lines[i].size(); ++c) rows += cell(c < lines[0].size() ? lines[0][c] : "", lines[i][c]);
    rows += "</tr>";
  }
  return table(lines[0], rows);
}

std::string layer_sections(const Index& index, const fs::path& folder) {
  std::vector<report::Run> runs;
  std::vector<std::string> names;
  for (const Group& g : group_runs(index))
    for (const Record* r : g.runs)
      if (r->status == Status::done && fs::exists(folder / r->dir / "metrics.jsonl")) {
        runs.push_back(report::read_run(folder / r->dir));
        runs.back().name = g.label;
        names.push_back(g.label);
        break;
      }
  std::string figures;
  for (const report::Figure& f : report::make_figures(runs))
    if (f.section == "layers") figures += figure_html(f, 0);
  if (figures.empty()) return "";
  return legend(names) +
         report::section("Layers", "The residual stream at the output of each block, at a run’s first and last record.", "halves", figures);
}

std::string sweep_sections(const Index& index, const fs::path& folder) {
  const std::vector<Group> groups = group_runs(index);
  const Pivot pivot = pivot_of(groups);
  std::string out =
      report::section("Validation loss", "Nats per token, mean ± standard deviation over seeds; the lowest of each column is marked.",
                      "wide", pivot_html(pivot));
  out += legend(pivot.rows);
  const std::optional<report::Figure> across = across_figure(pivot);
  out += report::section("Across", "", "wide", across ? figure_html(*across, 0) : "");
  out += report::section("Curves", "Validation where a run was validated on the way, else training.", "wide", curves(pivot, folder));
  return out + report::section("Every run", "", "wide", every_run(index));
}

std::string sweep_page(const Index& index, const fs::path& folder, const std::string& title, const std::string& lead, const char* command) {
  return report::page_start("Sweep", title, lead, "") + sweep_sections(index, folder) + report::page_footer(command) +
         "</main></body></html>\n";
}

}  // namespace bhyt::study
