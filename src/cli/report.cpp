// bhyt report: run directories → one HTML file, and a line per run on stdout.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "report/page.h"

namespace bhyt::cli {

namespace {

using Json = nlohmann::ordered_json;

Json describe(const report::Run& r) {
  const auto number = [](double v) { return std::isfinite(v) ? Json(v) : Json(); };
  return {{"name", r.name},
          {"dir", r.dir},
          {"steps", static_cast<std::int64_t>(r.steps())},
          {"tokens", r.tokens.empty() ? Json() : Json(static_cast<std::int64_t>(r.tokens.last()))},
          {"loss", number(r.loss.last())},
          {"valid_loss", number(r.valid.last())},
          {"floor", r.floor ? Json(*r.floor) : Json()},
          {"above_floor", number(r.above_floor())},
          {"seconds", number(r.seconds.last())},
          {"skipped_steps", r.skipped.size()},
          {"notes", r.notes}};
}

std::string line(const report::Run& r, std::size_t width) {
  std::string out = fmt::format("{:<{}}  step {:.0f}", r.name, width, r.steps());
  if (std::isfinite(r.loss.last())) out += fmt::format("  loss {:.4f}", r.loss.last());
  if (std::isfinite(r.valid.last())) out += fmt::format("  valid {:.4f}", r.valid.last());
  if (std::isfinite(r.above_floor())) out += fmt::format("  above floor {:.4f}", r.above_floor());
  if (!r.skipped.empty()) out += fmt::format("  skipped {}", r.skipped.size());
  return out;
}

}  // namespace

int cmd_report(const Args& args) {
  CLI::App app("One self-contained HTML file about one or several runs", "bhyt report");
  std::vector<std::string> paths;
  std::string out;
  bool json = false;
  app.add_option("RUN", paths, "run directories, or folders of them")->required();
  app.add_option("--out", out, "the file to write (default: report.html in the first RUN)");
  app.add_flag("--json", json, "print the numbers as one JSON value");
  parse(app, args);

  const std::vector<report::Run> runs = report::read_runs(paths);
  if (out.empty()) out = (std::filesystem::path(paths.front()) / "report.html").string();
  report::write_page(runs, out);
  if (json) {
    Json all = Json::array();
    for (const report::Run& r : runs) all.push_back(describe(r));
    const Json result = {{"report", out}, {"verdict", report::verdict(runs)}, {"runs", all}};
    fmt::print("{}\n", result.dump(-1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  std::size_t width = 0;
  for (const report::Run& r : runs) width = std::max(width, r.name.size());
  for (const report::Run& r : runs) fmt::print("{}\n", line(r, width));
  fmt::print("{}\n{}\n", report::verdict(runs), out);
  return 0;
}

}  // namespace bhyt::cli
