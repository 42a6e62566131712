#include "model/hf_files.h"

#include <fmt/format.h>

#include "core/check.h"
#include "ops/norm/methods.h"

namespace bhyt {

namespace {

const char* python_name(SiteStat s) {
  switch (s) {
    case SiteStat::none: return "none";
    case SiteStat::rms: return "rms";
    case SiteStat::mean_var: return "mean_var";
    case SiteStat::mean_std: return "mean_std";
    case SiteStat::approximate: return "approximate";
    case SiteStat::block_input: return "block_input";
  }
  throw Error("[hf_files] a statistic has no name in Python");
}
const char* python_name(Map m) {
  switch (m) {
    case Map::id: return "id";
    case Map::tanh: return "tanh";
    case Map::erf: return "erf";
  }
  throw Error("[hf_files] a map has no name in Python");
}
const char* python_name(ScaleKind s) {
  switch (s) {
    case ScaleKind::none: return "";
    case ScaleKind::lambda: return "lam";
    case ScaleKind::alpha: return "alpha";
  }
  throw Error("[hf_files] a learned scalar has no name in Python");
}
const char* python_name(End e) {
  switch (e) {
    case End::rms: return "rms";
    case End::own: return "own";
    case End::rms_or_exact: return "rms_or_exact";
  }
  throw Error("[hf_files] a kind of final norm has no name in Python");
}
const char* python_name(bool b) { return b ? "True" : "False"; }

std::string python_row(const Method& m) {
  return fmt::format(
      "    \"{}\": Method(\"{}\", \"{}\", map=\"{}\", scalar=\"{}\", bias={}, shift={}, seed={}, over_depth={}, output_norms={},\n"
      "        gamma_in_constant={}, end=\"{}\", eps={}),\n",
      m.name, python_name(m.site1), python_name(m.site2), python_name(m.map), python_name(m.scale), python_name(m.beta),
      python_name(m.shift), python_name(m.seed), python_name(m.depth == Depth::inv_sqrt), python_name(m.place == Place::pre_and_post),
      python_name(m.gamma_in_constant), python_name(m.end), m.own_eps ? kOwnEps : 0.0);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> hf_files() {
  constexpr std::string_view kRows = "    # rows of METHODS\n";
  std::string rows;
  for (const Method& m : methods()) rows += python_row(m);
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [name, text] : embedded_hf_files()) {
    auto& [file, python] = files.emplace_back(name, text);
    if (const auto at = python.find(kRows); at != std::string::npos) python.replace(at, kRows.size(), rows);
  }
  return files;
}

}  // namespace bhyt
