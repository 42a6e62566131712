// bhyt report: run directories → one HTML file, and a line per run on stdout.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "data/files.h"
#include "report/html.h"
#include "report/page.h"
#include "report/verdict.h"

namespace bhyt::cli {

namespace {

using Json = nlohmann::ordered_json;

Json describe(const report::Run& r) {
  const auto number = [](double v) { return std::isfinite(v) ? Json(v) : Json(); };
  const report::Standing now = r.standing();
  return {{"name", r.name},
          {"dir", r.dir},
          {"steps", static_cast<std::int64_t>(now.step)},
          {"tokens", std::isfinite(now.tokens) ? Json(static_cast<std::int64_t>(now.tokens)) : Json()},
          {"loss", number(now.loss)},
          {"valid_loss", number(r.valid.final_value())},
          {"best", r.chosen ? Json{{"step", static_cast<std::int64_t>(r.chosen->step)},
                                   {"epoch", number(r.epoch_at(r.chosen->step))},
                                   {"valid_loss", r.chosen->loss}}
                            : Json()},
          {"floor", r.floor ? Json(*r.floor) : Json()},
          {"above_floor", number(r.above_floor())},
          {"seconds", number(r.seconds.last())},
          {"skipped_steps", r.skipped.size()},
          {"notes", r.notes}};
}

std::string line(const report::Run& r, std::size_t width) {
  const report::Standing now = r.standing();
  std::string out = fmt::format("{:<{}}  step {:.0f}", r.name, width, now.step);
  if (std::isfinite(now.loss)) out += fmt::format("  loss {:.4f}", now.loss);
  if (std::isfinite(r.valid.final_value())) out += fmt::format("  valid {:.4f}", r.valid.final_value());
  if (!std::isfinite(r.valid.final_value())) out += r.valid.empty() ? "  not validated" : "  valid not finite";
  if (r.chosen) out += fmt::format("  best {:.4f} at step {:.0f}", r.chosen->loss, r.chosen->step);
  if (std::isfinite(r.above_floor())) out += fmt::format("  above floor {:.4f}", r.above_floor());
  if (!r.skipped.empty()) out += fmt::format("  skipped {}", r.skipped.size());
  return out;
}

}  // namespace

int cmd_report(const Args& args) {
  CLI::App app("One self-contained HTML file about one or several runs", "bhyt report");
  std::vector<std::string> paths;
  std::string out;
  bool json = false, force = false;
  app.add_option("RUN", paths, "run directories, or folders of them; a checkpoint stands for its run")->required();
  app.add_option("--out", out, "the file to write (default: report.html in the first RUN)");
  app.add_flag("--force", force, "replace the file that is there, whatever it is (a report is replaced anyway)");
  app.add_flag("--json", json, "print the numbers as one JSON value");
  parse(app, args);

  for (std::string& path : paths) path = report::run_around(path);
  const std::vector<report::Run> runs = report::read_runs(paths);
  if (out.empty()) out = (std::filesystem::path(paths.front()) / "report.html").string();
  check_output_file(out, force || report::is_page(out));
  report::write_page(runs, out);
  const report::Verdict verdict = report::judge(runs);
  if (json) {
    Json all = Json::array();
    for (const report::Run& r : runs) all.push_back(describe(r));
    const Json best = verdict.best < 0 ? Json() : Json(runs[static_cast<std::size_t>(verdict.best)].name);
    const Json result = {{"report", out}, {"verdict", verdict.text}, {"best", best}, {"runs", all}};
    fmt::print("{}\n", result.dump(-1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  std::size_t width = 0;
  for (const report::Run& r : runs) width = std::max(width, r.name.size());
  for (const report::Run& r : runs) fmt::print("{}\n", line(r, width));
  fmt::print("{}\n{}\n", verdict.text, out);
  return 0;
}

}  // namespace bhyt::cli
