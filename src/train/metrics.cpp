#include "train/metrics.h"

#include <charconv>
#include <cmath>

#include "io/json.h"
#include "machine/machine.h"

namespace bhyt::train {

namespace {

constexpr const char* kValidTag = "valid/loss";

// Bytes of the lines that are whole and not made after the progress that a run goes on from.
std::size_t good_lines(const std::string& text, const Progress& progress) {
  std::size_t at = 0;
  if (progress.step == 0) return at;
  for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const Json line = json_or_discarded(std::string_view(text).substr(at, end - at));
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number() || line["step"] > progress.step) break;
    const bool after = line.contains("valid_loss") || line.contains("tasks");
    if (progress.unvalidated && line["step"] == progress.step && after) break;
  }
  return at;
}

AppendFile open_lines(const fs::path& file, const Progress& progress) {
  if (fs::exists(file)) cut_file(file, good_lines(read_text(file), progress));
  return AppendFile(file);
}

double rounded(double value, double per_unit) { return std::round(value * per_unit) / per_unit; }

}  // namespace

double short_decimal(float value) {
  double out = 0;
  const std::string text = fmt::format("{}", value);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() ? out : static_cast<double>(value);
}

Metrics::Metrics(const fs::path& dir, const Progress& progress)
    : lines_(open_lines(dir / "metrics.jsonl", progress)),
      events_(std::in_place, dir, progress.step, unix_time(), progress.unvalidated ? kValidTag : "") {}

void Metrics::put(const Json& line) {
  if (lines_) lines_->append(line.dump() + "\n");
}

void Metrics::show(double time, std::int64_t step, const std::vector<Scalar>& scalars) {
  if (events_) events_->write(time, step, scalars);
}

void Metrics::training(const TrainingLine& l) {
  const double now = unix_time();
  Json line = {{"step", l.step},
               {"tokens", l.tokens},
               {"loss", l.loss},
               {"grad_norm", short_decimal(l.grad_norm)},
               {"lr", l.lr},
               {"tok_s", std::llround(l.tok_s)},
               {"step_ms", rounded(l.step_ms, 1000)}};
  if (l.mfu) line["mfu"] = rounded(*l.mfu, 10000);
  line["time"] = rounded(now, 1000);
  put(line);
  std::vector<Scalar> scalars = {{"train/loss", static_cast<float>(l.loss)},
                                 {"train/grad_norm", l.grad_norm},
                                 {"train/lr", static_cast<float>(l.lr)},
                                 {"train/tok_s", static_cast<float>(l.tok_s)}};
  if (l.mfu) scalars.emplace_back("train/mfu", static_cast<float>(*l.mfu));
  show(now, l.step, scalars);
}

void Metrics::validation(std::int64_t step, double loss, std::int64_t tokens, std::optional<double> by_row) {
  Json line = {{"step", step}, {"valid_loss", loss}, {"valid_tokens", tokens}};
  if (by_row) line["eval_loss_hf"] = *by_row;
  put(line);
  show(unix_time(), step, {{kValidTag, static_cast<float>(loss)}});
}

void Metrics::tasks(std::int64_t step, const Results& results) {
  Json tasks = Json::object();
  std::vector<Scalar> scalars;
  for (const ResultRow& row : results.rows)
    for (const Metric& m : row.metrics) {
      tasks[row.name][m.name] = m.value;
      if (m.error) tasks[row.name][m.name + "_stderr"] = *m.error;
      scalars.emplace_back("tasks/" + row.name + "/" + m.name, static_cast<float>(m.value));
    }
  put({{"step", step}, {"tasks", tasks}});
  show(unix_time(), step, scalars);
}

void Metrics::layers(std::int64_t step, const Json& layers) { put({{"step", step}, {"layers", layers}}); }

void Metrics::event(std::int64_t step, const std::string& what, const std::string& reason) {
  put({{"step", step}, {"event", what}, {"reason", reason}});
}

void Metrics::sync() {
  if (!lines_) return;
  lines_->sync();
  events_->sync();
}

}  // namespace bhyt::train
