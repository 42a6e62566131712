// bhyt bench: speed, each with the fraction of the machine's limit.
#include "bench/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/plan.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/context.h"
#include "core/log.h"
#include "io/format.h"
#include "machine/machine.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

using bench::Result;
using bench::Settings;
using Json = nlohmann::ordered_json;

struct Test {
  const char* name;
  std::vector<Result> (*run)(const Settings&);
  double (*bytes)(const train::RunConfig&);  // that it takes at least
  const char* preset;                        // where no model.* is given
};
constexpr Test kTests[] = {{"train", bench::bench_train, bench::bytes_for_train, "small"},
                           {"norm", bench::bench_norm, bench::bytes_for_norm, "llama-1b"},
                           {"gemm", bench::bench_gemm, bench::bytes_for_gemm, "small"},
                           {"attention", bench::bench_attention, bench::bytes_for_attention, "small"},
                           {"prompt", bench::bench_prompt, bench::bytes_for_prompt, "small"},
                           {"decode", bench::bench_decode, bench::bytes_for_decode, "small"}};

const Test* find_test(const std::string& name) {
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests), [&](const Test& t) { return name == t.name; });
  return it == std::end(kTests) ? nullptr : it;
}

bool gives(const std::vector<std::string>& words, std::string_view prefix) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& w) { return w.starts_with(prefix); });
}

// "train.batch=1,8,64" stands for three measurements.
std::vector<std::vector<std::string>> by_batch(const std::vector<std::string>& words) {
  constexpr std::string_view kKey = "train.batch=";
  std::vector<std::vector<std::string>> all{words};
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with(kKey)) continue;
    const std::vector<std::string> before = all[0];
    all.clear();
    std::istringstream list(words[i].substr(kKey.size()) + ",");
    for (std::string one; std::getline(list, one, ',');) {
      all.push_back(before);
      all.back()[i] = std::string(kKey) + one;
    }
  }
  return all;
}

// What one test measures: a config, with the bench's own defaults below them.
train::RunConfig config_of(const Test& test, const std::vector<std::string>& words, DType dtype) {
  std::vector<std::string> all{"train.batch=8", "data.seq_len=256"};
  if (!gives(words, "model.")) all.push_back(std::string("model.preset=") + test.preset);
  all.insert(all.end(), words.begin(), words.end());
  train::RunConfig c = train::read_run_config(train::config_tree("", all));
  c.device = parse_device(c.run.device);
  c.run.dtype = dtype;
  return c;
}

// Before any work, as a run is checked.
void check_memory(const Test& test, const train::RunConfig& c) {
  const double needed = test.bytes(c), free = static_cast<double>(free_memory(c.device));
  check_usage(free <= 0 || needed <= free,
              "bench {} needs {} or more in {}, {} has {} free; lower train.batch or data.seq_len (now {} and {}), or take a smaller model",
              test.name, human_bytes(needed), name_of(*c.run.dtype), c.device.is_cuda() ? name_of(c.device) : "this machine",
              human_bytes(free), c.train.batch, c.data.seq_len);
}

std::vector<DType> types(const std::vector<std::string>& words) {
  for (auto w = words.rbegin(); w != words.rend(); ++w)
    for (const std::string key : {"dtype=", "run.dtype="})
      if (w->starts_with(key) && w->substr(key.size()) != "auto") return {parse_float_type(w->substr(key.size()), "dtype")};
  return {DType::f32, DType::bf16};
}

std::string rate_of(const Result& r, double value) {
  if (r.tok_s > 0) return fmt::format("{:.1f} tok/s", value);
  return r.gb_s > 0 ? fmt::format("{:.2f} GB/s", value) : fmt::format("{:.4f} TFLOP/s", value);
}

void print_row(const Result& r, DType dtype) {
  fmt::print("{:<56} {:<5} {:>11.3f} ms {:>18}  {:5.1f}% of {} ({})\n", r.test, name_of(dtype), r.ms, rate_of(r, r.rate()),
             100 * r.fraction(), rate_of(r, r.limit), r.limit_name);
  double sum = 0;
  for (const auto& [name, value] : r.parts)
    if (name.ends_with(" ms")) sum += value;
  for (const auto& [name, value] : r.parts)
    if (name.ends_with(" ms") && value > 0)
      fmt::print("  {:<20} {:>11.3f} ms  {:5.1f}% of the whole\n", name.substr(0, name.size() - 3), value, 100 * value / sum);
}

Json to_json(const Result& r, const Settings& s) {
  Json j{{"test", r.test}};
  const char* unit = r.tok_s > 0 ? "tok_s" : r.gb_s > 0 ? "gb_s" : "tflops";
  j[unit] = r.rate();
  j["ms"] = r.ms;
  j["fraction"] = r.fraction();
  j["limit"] = r.limit;
  j["limit_name"] = r.limit_name;
  j["device"] = name_of(s.ctx.device());
  j["dtype"] = name_of(s.dtype);
  j["threads"] = s.ctx.threads().count();
  for (const auto& [name, value] : r.parts) {
    if (name.ends_with(" ms"))
      j["breakdown_ms"][name.substr(0, name.size() - 3)] = value;
    else
      j[name] = value == std::floor(value) && value < 1e15 ? Json(static_cast<std::int64_t>(value)) : Json(value);
  }
  return j;
}

}  // namespace

int cmd_bench(const Args& args) {
  CLI::App app("Speed, each with the fraction of the machine's limit measured in the same run", "bhyt bench");
  std::vector<std::string> words, tests, overrides;
  bool json = false;
  int reps = 5;
  RepackOption repack;
  app.add_option(
      "TEST | key=value", words,
      "tests: train norm gemm attention prompt decode (default: the first four); keys: model.*, norm.*, train.batch (several: 1,8,64),\n"
      "data.seq_len, device, dtype (default: fp32 and bf16), threads");
  app.add_flag("--json", json, "a JSON list, one object per measurement");
  app.add_option("--reps", reps, "repetitions; figures are medians")->capture_default_str()->check(between(1, 1000));
  repack.add_to(app);
  parse(app, args);
  repack.how();
  for (const std::string& w : words) {
    if (w.find('=') != std::string::npos) {
      overrides.push_back(w);
      continue;
    }
    check_usage(find_test(w), "unknown test {}; expected train, norm, gemm, attention, prompt or decode", w);
    tests.push_back(w);
  }
  if (tests.empty()) tests = {"train", "norm", "gemm", "attention"};

  for (const std::string& name : tests)
    for (DType dtype : types(overrides))
      for (const auto& one : by_batch(overrides)) check_memory(*find_test(name), config_of(*find_test(name), one, dtype));

  Json list = Json::array();
  const auto measure = [&](const Test& test, const std::vector<std::string>& settings, DType dtype) {
    const train::RunConfig c = config_of(test, settings, dtype);
    Context ctx(c.device, static_cast<int>(c.run.threads));
    const Settings s{.ctx = ctx,
                     .model = c.model.config,
                     .batch = c.train.batch,
                     .seq = c.data.seq_len,
                     .dtype = dtype,
                     .reps = reps,
                     .repack = repack.how(),
                     .all_methods = !gives(overrides, "norm.")};
    for (const Result& r : test.run(s)) {
      if (!json) print_row(r, dtype);
      list.push_back(to_json(r, s));
    }
    std::fflush(stdout);
  };
  for (const std::string& name : tests)
    for (DType dtype : types(overrides))
      for (const auto& one : by_batch(overrides)) measure(*find_test(name), one, dtype);
  if (json) fmt::print("{}\n", list.dump(2));
  return 0;
}

}  // namespace bhyt::cli
