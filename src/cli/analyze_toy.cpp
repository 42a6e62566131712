// bhyt analyze toy.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "analysis/toy.h"
#include "cli/analyze.h"
#include "cli/cli.h"
#include "io/files.h"

namespace bhyt::cli {

namespace {

void print_toy(const std::vector<analysis::ToyProfile>& profiles, const analysis::ToyOptions& o) {
  const auto last = static_cast<std::size_t>(o.layers);
  fmt::print("{:<18} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9}  {}\n", "f", "‖x‖ at 1", "‖x‖ end", "variance 1", "half-way", "end",
             "rms f end", "saturated", "also");
  for (const analysis::ToyProfile& p : profiles)
    fmt::print("{:<18} {:>8.4g} {:>8.4g} {:>10.4g} {:>10.4g} {:>10.4g} {:>9.3g} {:>8.1f}%  {}\n", p.variant.name, p.norm.front(),
               p.norm.back(), p.variance.front(), p.variance[last / 2], p.variance.back(), p.output.back(), 100 * p.saturated.back(),
               fmt::join(p.variant.same, ", "));
}

std::string or_none(const std::optional<double>& v, const char* none) { return v ? fmt::format("{:.2g}", *v) : none; }

void print_findings(const analysis::ToyFindings& f) {
  fmt::print("\nNoise: from c = {} on a layer adds as much variance as the stream began with (the paper: growth turns rapid near 0.7).\n",
             or_none(f.rapid_noise, "none of those tried"));
  fmt::print(
      "DyT: f has come to that size at the end from α = {} on, and half of it is saturated there from α = {} on (the paper: α ≲ 0.5).\n",
      or_none(f.rapid_alpha, "none of those tried"), or_none(f.saturated_alpha, "none of those tried"));
  fmt::print("Flattest of the methods as they begin: {} (within 2 %), whose variance grows {:.3g} times.\n", fmt::join(f.flattest, ", "),
             f.flattest_growth);
}

nlohmann::ordered_json toy_json(const std::vector<analysis::ToyProfile>& profiles, const analysis::ToyOptions& o) {
  const analysis::ToyFindings f = analysis::toy_findings(profiles);
  const auto number = [](const std::optional<double>& v) { return v ? nlohmann::ordered_json(*v) : nlohmann::ordered_json(nullptr); };
  nlohmann::ordered_json j{{"dim", o.d}, {"layers", o.layers}, {"seeds", o.seeds}};
  j["rapid_noise"] = number(f.rapid_noise);
  j["rapid_alpha"] = number(f.rapid_alpha);
  j["saturated_alpha"] = number(f.saturated_alpha);
  j["flattest"] = f.flattest;
  j["profiles"] = nlohmann::ordered_json::array();
  for (const analysis::ToyProfile& p : profiles) {
    const analysis::ToyVariant& v = p.variant;
    j["profiles"].push_back({{"name", v.name},
                             {"family", v.family},
                             {"setting", number(v.setting)},
                             {"same", v.same},
                             {"norm", p.norm},
                             {"variance", p.variance},
                             {"output_rms", p.output},
                             {"saturated", p.saturated}});
  }
  return j;
}

struct ToyFlags {
  analysis::ToyOptions options;
  bool json = false;
  std::string svg;
  Placement where;
};

ToyFlags read_toy(const Args& args) {
  CLI::App app("A residual stack x + f(x)·W under noise and under every method (figure 6)", "bhyt analyze toy");
  ToyFlags f;
  analysis::ToyOptions& o = f.options;
  std::vector<std::string> words;
  app.add_option("--dim", o.d, "width of the stream")->capture_default_str()->check(between(2, 16384));
  app.add_option("--layers", o.layers, "depth of the stack")->capture_default_str()->check(between(1, 4096));
  app.add_option("--seeds", o.seeds, "matrices, inputs and noise are drawn so many times")->capture_default_str()->check(between(1, 1000));
  app.add_flag("--json", f.json, "print the profiles as JSON");
  app.add_option("--svg", f.svg, "folder for toy.svg (the paper's panels) and toy_methods.svg (every method)");
  app.add_option("key=value", words, "device=cpu|cuda[:N] (cpu), threads=N");
  parse(app, args);
  f.where = take_placement(words, "cpu");
  return f;
}

}  // namespace

void check_toy(const Args& args) { (void)read_toy(args); }

int analyze_toy(const Args& args) {
  const auto [o, json, svg, where] = read_toy(args);
  if (!svg.empty()) std::filesystem::create_directories(svg);
  Context ctx(where.device, where.threads);
  const auto profiles = analysis::run_toy(ctx, analysis::toy_variants(o.layers, o.d), o);
  if (!svg.empty()) {
    replace_synced(std::filesystem::path(svg) / "toy.svg", analysis::toy_figure(profiles));
    replace_synced(std::filesystem::path(svg) / "toy_methods.svg", analysis::toy_methods_figure(profiles));
  }
  if (json) {
    fmt::print("{}\n", toy_json(profiles, o).dump(2));
    return 0;
  }
  print_toy(profiles, o);
  print_findings(analysis::toy_findings(profiles));
  return 0;
}

}  // namespace bhyt::cli
