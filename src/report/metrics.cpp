// metrics.jsonl: one pass, one line in memory at a time.
#include <fmt/format.h>

#include <cmath>
#include <istream>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "report/run.h"

namespace bhyt::report {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kLargest = 1e30;             // beyond it a value is as good as infinite, and scales would overflow
constexpr std::size_t kMaxLayerRecords = 32;  // as many as λ's curves need; fewer than twice as many are kept

double finite_or_gap(const Json& j) {
  if (!j.is_number()) return kGap;
  const double v = j.get<double>();
  return std::fabs(v) <= kLargest ? v : kGap;
}

double number(const Json& line, const char* key) {
  const auto it = line.find(key);
  return it == line.end() ? kGap : finite_or_gap(*it);
}

std::vector<double> numbers(const Json& object, const char* key) {
  std::vector<double> out;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return out;
  for (const Json& j : *it) out.push_back(finite_or_gap(j));
  return out;
}

// Writers that are not strict leave bare NaN and Infinity behind; JSON has only null for them.
std::string without_bare_nonfinite(const std::string& line) {
  std::string out;
  bool text = false;
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] == '"' && (i == 0 || line[i - 1] != '\\')) text = !text;
    std::size_t length = 0;
    if (!text)
      for (const std::string_view word : {"-Infinity", "Infinity", "-inf", "inf", "-NaN", "NaN", "-nan", "nan"})
        if (length == 0 && line.compare(i, word.size(), word) == 0) length = word.size();
    if (length) {
      out += "null";
      i += length;
    } else {
      out += line[i++];
    }
  }
  return out;
}

Json parse(const std::string& line) {
  Json j = json_or_discarded(line);
  if (j.is_discarded()) j = json_or_discarded(without_bare_nonfinite(line));
  return j;
}

class Reader {
 public:
  explicit Reader(Run& run) : run_(run) {}

  // False when the line is not a record of a step.
  bool take(const Json& line) {
    if (!line.is_object()) return false;
    const double step = number(line, "step");
    if (!(step >= 0)) return false;
    if (step < last_) rewind(step);
    last_ = step;
    if (line.contains("event")) event(line, step);
    if (line.contains("valid_loss")) {
      run_.valid.add(step, number(line, "valid_loss"));
      run_.valid_tokens = number(line, "valid_tokens");
    }
    if (const auto it = line.find("tasks"); it != line.end() && it->is_object()) tasks(*it, step);
    if (const auto it = line.find("layers"); it != line.end() && it->is_object()) layers(*it, step);
    if (line.contains("loss")) training(line, step);
    return true;
  }

  void finish() {
    if (!run_.layers.empty() && run_.layers.back().step < newest_.step) keep(newest_);
  }

 private:
  // The step went back: the run was resumed from an earlier checkpoint, and what follows replaces what was there.
  void rewind(double step) {
    for (Series* s : {&run_.loss, &run_.valid, &run_.lr, &run_.grad_norm, &run_.tok_s, &run_.tokens, &run_.seconds}) s->rewind(step);
    for (auto& [name, series] : run_.tasks) series.rewind(step);
    while (!run_.layers.empty() && run_.layers.back().step >= step) run_.layers.pop_back();
    while (!run_.skipped.empty() && run_.skipped.back() >= step) run_.skipped.pop_back();
    newest_ = {};
    time_ = kGap;
  }

  void tasks(const Json& all, double step) {
    for (const auto& [name, values] : all.items()) {
      if (!values.is_object()) continue;
      // Of a group the whole: its members would be dozens of figures.
      const std::size_t end = name.find('_');
      if (end != std::string::npos && all.contains(name.substr(0, end))) continue;
      for (const char* metric : {"acc_norm", "acc", "bits_per_byte"})
        if (values.contains(metric)) {
          run_.tasks[name + " " + metric].add(step, number(values, metric));
          break;
        }
    }
  }

  void event(const Json& line, double step) {
    if (line["event"] == "skipped_step" && (run_.skipped.empty() || run_.skipped.back() < step)) run_.skipped.push_back(step);
  }

  void training(const Json& line, double step) {
    const double before = run_.seconds.empty() ? 0 : run_.seconds.y.back();
    const double steps = step - (run_.seconds.empty() ? 0 : run_.seconds.x.back());
    const double step_ms = number(line, "step_ms"), time = number(line, "time");
    double spent = steps * step_ms / 1000;
    if (!std::isfinite(spent)) spent = std::isfinite(time - time_) ? std::fmax(0, time - time_) : 0;
    time_ = time;
    run_.seconds.add(step, before + spent);
    run_.loss.add(step, number(line, "loss"));
    const auto add = [&](Series& s, const char* key) {
      if (line.contains(key)) s.add(step, number(line, key));
    };
    add(run_.lr, "lr");
    add(run_.grad_norm, "grad_norm");
    add(run_.tok_s, "tok_s");
    add(run_.tokens, "tokens");
  }

  void layers(const Json& o, double step) {
    newest_ = {.step = step,
               .norm = numbers(o, "norm"),
               .abs = numbers(o, "abs"),
               .variance = numbers(o, "variance"),
               .lambda_attn = numbers(o, "lambda_attn"),
               .lambda_mlp = numbers(o, "lambda_mlp"),
               .alpha_attn = numbers(o, "alpha_attn"),
               .alpha_mlp = numbers(o, "alpha_mlp"),
               .saturated_attn = numbers(o, "saturated_attn"),
               .saturated_mlp = numbers(o, "saturated_mlp"),
               .approximation_ratio = numbers(o, "approximation_ratio"),
               .approximation_r = numbers(o, "approximation_r")};
    if (seen_++ % every_ == 0) keep(newest_);
  }

  // At most 2 × kMaxLayerRecords are held: when full, every second one goes, and half as many come in from there on.
  void keep(const LayerRecord& record) {
    run_.layers.push_back(record);
    if (run_.layers.size() < 2 * kMaxLayerRecords) return;
    std::size_t kept = 1;
    for (std::size_t i = 2; i < run_.layers.size(); i += 2) run_.layers[kept++] = std::move(run_.layers[i]);
    run_.layers.resize(kept);
    every_ *= 2;
  }

  Run& run_;
  LayerRecord newest_;
  double last_ = 0, time_ = kGap;
  std::size_t seen_ = 0, every_ = 1;
};

}  // namespace

void read_metrics(std::istream& in, Run& run) {
  Reader reader(run);
  std::string line;
  std::size_t count = 0, broken = 0, first_broken = 0;
  while (std::getline(in, line)) {
    ++count;
    if (line.find_first_not_of(" \t\r") == std::string::npos || reader.take(parse(line))) continue;
    if (in.eof()) {
      run.notes.push_back("metrics.jsonl: the last line is incomplete and was left out (the run is being written, or was killed)");
    } else if (broken++ == 0) {
      first_broken = count;
    }
  }
  reader.finish();
  if (broken)
    run.notes.push_back(
        fmt::format("metrics.jsonl: {} of {} lines are not records and were left out, the first is line {}", broken, count, first_broken));
  if (run.loss.empty() && run.valid.empty()) run.notes.push_back("metrics.jsonl holds no loss yet");
}

}  // namespace bhyt::report
