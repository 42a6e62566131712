#include "study/results.h"

#include "report/html.h"
#include "report/svg_file.h"
#include "study/page.h"
#include "study/summary.h"

namespace bhyt::study {

void write_figure(const Index& index, const fs::path& folder) {
  const std::vector<Group> groups = group_runs(index);
  const Pivot pivot = pivot_of(groups);
  const std::optional<report::Figure> across = across_figure(pivot);
  if (across) replace_synced(folder / "across.svg", report::svg_file(*across, pivot.rows).text);
}

std::string write_results(const Index& index, const fs::path& folder, const std::string& title) {
  const std::string text = summary_markdown(index, title);
  replace_synced(folder / "summary.md", text);
  replace_synced(folder / "summary.json", summary_json(index).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  const std::string lead = verdict(pivot_of(group_runs(index)));
  report::write_html(sweep_page(index, folder, title, lead, "bhyt sweep"), (folder / "report.html").string());
  write_figure(index, folder);
  return text;
}

}  // namespace bhyt::study
