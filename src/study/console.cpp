#include "study/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "core/log.h"
#include "io/json.h"
#include "machine/machine.h"

namespace bhyt::study {

namespace {

std::string loss_text(const std::optional<double>& loss) { return loss ? fmt::format("{:.4f}", *loss) : "–"; }

// A line that is wider than the terminal would break the redrawing.
std::string cut(const std::string& text, std::size_t columns) {
  std::size_t width = 0, at = 0;
  for (; at < text.size() && width < columns; ++at) width += (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return text.substr(0, at);
}

std::size_t terminal_columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void RunProgress::update(const fs::path& metrics) {
  std::error_code none;
  const std::uintmax_t size = fs::file_size(metrics, none);
  if (none || size == read_) return;
  if (size < read_) *this = {};  // the run was started afresh
  if (steps == 0) {
    const fs::path resolved = metrics.parent_path() / "resolved.yaml";
    try {
      steps = read_yaml(resolved).at("train").value("steps", std::int64_t{0});
    } catch (const std::exception&) {
    }
  }
  std::ifstream in(metrics, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(read_));
  for (std::string line; std::getline(in, line) && !in.eof();) {
    read_ += line.size() + 1;
    const Json j = json_or_discarded(line);
    if (!j.is_object() || !j.contains("tok_s") || !j["tok_s"].is_number()) continue;
    ++lines;
    step = j.value("step", step);
    tok_s = j["tok_s"];
    if (j.contains("loss") && j["loss"].is_number()) loss = j["loss"];
  }
}

std::string finished_line(const Record& r, std::size_t ended, std::size_t total) {
  std::string out = fmt::format("[{}/{}] {}", ended, total, name_of(r.point));
  if (r.status != Status::done) out += fmt::format("  {}", name_of(r.status));
  if (r.valid_loss) out += fmt::format("  valid {:.4f}", *r.valid_loss);
  if (r.loss) out += fmt::format("  loss {:.4f}", *r.loss);
  if (r.status != Status::done && r.steps > 0) out += fmt::format("  step {} of {}", r.step, r.steps);
  if (r.tok_s > 0) out += fmt::format("  {} tok/s  {}", log::human_count(r.tok_s), log::human_time(r.seconds));
  if (!r.error.empty()) out += fmt::format(": {}", r.error);
  return out;
}

std::string tally_line(const Index& index, const Tally& tally) {
  const Record* best = nullptr;
  for (const Record& r : index.runs)
    if (r.status == Status::done && r.valid_loss && (!best || *r.valid_loss < *best->valid_loss)) best = &r;
  std::string out = fmt::format("{}/{} runs", tally.ended, tally.total);
  if (best) out += fmt::format("  best {} ({})", loss_text(best->valid_loss), name_of(best->point));
  for (const Status s : {Status::failed, Status::diverged})
    if (index.count(s) > 0) out += fmt::format("  {} {}", index.count(s), name_of(s));
  if (std::isfinite(tally.eta_s)) out += fmt::format("  eta {}", log::human_time(tally.eta_s));
  return out;
}

std::string last_error(const fs::path& log, int code) {
  std::ifstream in(log, std::ios::binary);
  std::string found;  // the last one, with the lines that belong to it
  const std::string tag = "error: ";
  bool inside = false;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(tag)) {
      found = line.substr(tag.size());
      inside = true;
    } else if (line.starts_with("warning: ")) {
      inside = false;
    } else if (inside && !line.empty()) {
      found += "\n" + line;
    }
  if (!found.empty()) return found;
  return code > 128 ? fmt::format("ended by signal {}", code - 128) : fmt::format("ended with exit code {}; see {}", code, log.string());
}

void LiveTable::draw(const Index& index, const Tally& tally, const std::vector<RunLine>& runs) {
  if (!log::stderr_is_terminal() || seconds() - drawn_ < 0.2) return;
  clear();
  drawn_ = seconds();
  const std::size_t columns = terminal_columns();
  std::string text = cut(tally_line(index, tally), columns) + "\n";
  std::size_t width = 0;
  for (const RunLine& r : runs) width = std::max(width, r.name.size());
  for (const RunLine& r : runs) {
    const RunProgress& p = r.progress;
    std::string line = fmt::format("  {:<{}}", r.name, width);
    if (p.lines > 0) line += fmt::format("  step {:>5}/{}  loss {:.4f}  {} tok/s", p.step, p.steps, p.loss, log::human_count(p.tok_s));
    text += cut(line, columns) + "\n";
  }
  lines_ = runs.size() + 1;
  log::print(text);
}

void LiveTable::clear() {
  if (lines_ == 0) return;
  log::print(fmt::format("\033[{}A\033[J", lines_));
  lines_ = 0;
}

}  // namespace bhyt::study
