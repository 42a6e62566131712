// bhyt bench: speed, each with the fraction of the machine's limit.
#include "bench/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
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
  int seq = 256;                             // where no data.seq_len is given
  int batch = 8;                             // where no train.batch is given
};
constexpr Test kTests[] = {{"train", bench::bench_train, bench::bytes_for_train, "small"},
                           {"norm", bench::bench_norm, bench::bytes_for_norm, "llama-1b"},
                           {"norm-calls", bench::bench_norm_calls, bench::bytes_for_norm_calls, "llama-1b", 1024, 1},
                           {"gemm", bench::bench_gemm, bench::bytes_for_gemm, "small"},
                           {"attention", bench::bench_attention, bench::bytes_for_attention, "small"},
                           {"prompt", bench::bench_prompt, bench::bytes_for_prompt, "small"},
                           {"decode", bench::bench_decode, bench::bytes_for_decode, "small"},
                           {"generation", bench::bench_generation, bench::bytes_for_generation, "small", 512},
                           {"requests", bench::bench_requests, bench::bytes_for_generation, "small", 1024}};

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
  std::vector<std::string> all{fmt::format("train.batch={}", test.batch), fmt::format("data.seq_len={}", test.seq)};
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
  const std::string spread = r.rates.deviation > 0 ? fmt::format(" ± {:.1f}", r.rates.deviation) : "";
  fmt::print("{:<56} {:<5} {:>11.3f} ms {:>18}{}  {:5.1f}% of {} ({})\n", r.test, name_of(dtype), r.ms, rate_of(r, r.rate()), spread,
             100 * r.fraction(), rate_of(r, r.limit), r.limit_name);
  double sum = 0;
  for (const bench::Share& part : r.shares) sum += part.ms;
  for (const bench::Share& part : r.shares)
    if (part.ms > 0)
      fmt::print("  {:<20} {:>11.3f} ms  {:5.1f}% of the whole{}\n", part.name, part.ms, 100 * part.ms / sum,
                 part.bandwidth > 0 ? fmt::format("  {:5.1f}% of the bandwidth", 100 * part.bandwidth) : "");
}

Json to_json(const Result& r, const Settings& s) {
  Json j{{"test", r.test}};
  const char* unit = r.tok_s > 0 ? "tok_s" : r.gb_s > 0 ? "gb_s" : "tflops";
  j[unit] = r.rate();
  j["ms"] = r.ms;
  j["fraction"] = r.fraction();
  j["limit"] = r.limit;
  j["limit_name"] = r.limit_name;
  if (!r.method.empty()) j["method"] = r.method;
  if (r.rates.mean > 0) {
    j["tok_s_mean"] = r.rates.mean;
    j["tok_s_std"] = r.rates.deviation;
  }
  j["device"] = name_of(s.ctx.device());
  j["dtype"] = name_of(s.dtype);
  j["threads"] = s.ctx.threads().count();
  for (const bench::Share& part : r.shares) {
    j["breakdown_ms"][part.name] = part.ms;
    if (part.bandwidth > 0) j["breakdown_bandwidth"][part.name] = part.bandwidth;
  }
  for (const auto& [name, value] : r.parts)
    j[name] = value == std::floor(value) && value < 1e15 ? Json(static_cast<std::int64_t>(value)) : Json(value);
  return j;
}

double part(const Result& r, std::string_view name) {
  return std::ranges::find_if(r.parts, [&](const auto& p) { return p.first == name; })->second;
}

// The table that llama-bench prints, for what reads prompts or writes tokens: by name, as text. Parameters that are what they are anyway
// have no column.
struct Column {
  const char* name;
  int width;
  bool left;
  std::string otherwise;  // shown only where a row differs from this
};
const std::vector<Column>& llama_columns() {
  static const std::vector<Column> columns{
      {"model", 30, true, ""},    {"size", 10, false, ""},  {"params", 10, false, ""}, {"backend", 10, true, ""},
      {"threads", 7, false, "-"}, {"batch", 7, false, "8"}, {"type", 10, true, ""},    {"norm", 14, true, ModelConfig{}.norm.method},
      {"test", 15, false, ""},    {"t/s", 20, false, ""}};
  return columns;
}

using LlamaRow = std::vector<std::string>;

LlamaRow llama_row(const Test& test, const Result& r, const Settings& s) {
  constexpr double kGiB = 1 << 30;
  const bool reads = test.name == std::string_view("prompt"), on_gpu = s.ctx.device().is_cuda();
  const double bytes = part(r, "held_bytes"), count = part(r, "parameters");
  return {s.model.preset.empty() ? fmt::format("d{}×{}", s.model.d, s.model.layers) : s.model.preset,
          bytes < kGiB ? fmt::format("{:.2f} MiB", bytes / (1 << 20)) : fmt::format("{:.2f} GiB", bytes / kGiB),
          count < 1e9 ? fmt::format("{:.2f} M", count * 1e-6) : fmt::format("{:.2f} B", count * 1e-9),
          on_gpu ? "CUDA" : "CPU",
          on_gpu ? "-" : fmt::format("{}", s.ctx.threads().count()),
          fmt::format("{}", s.batch),
          name_of(s.repack.weights.value_or(s.dtype)),
          s.model.norm.method,
          reads ? fmt::format("pp{}", s.seq) : fmt::format("tg1 @ d{}", s.seq),
          fmt::format("{:.2f} ± {:.2f}", r.rates.mean, r.rates.deviation)};
}

void print_table(const std::vector<LlamaRow>& rows) {
  const std::vector<Column>& columns = llama_columns();
  std::string head, rule, body;
  const auto shown = [&](std::size_t i) {
    return std::ranges::any_of(rows, [&](const LlamaRow& row) { return row[i] != columns[i].otherwise; });
  };
  const auto cell = [&](std::size_t i, const std::string& text) {
    return columns[i].left ? fmt::format("| {:<{}} ", text, columns[i].width) : fmt::format("| {:>{}} ", text, columns[i].width);
  };
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (!shown(i)) continue;
    head += cell(i, columns[i].name);
    rule += cell(i, columns[i].left ? fmt::format("{:-<{}}", "", columns[i].width) : fmt::format("{:->{}}", ":", columns[i].width));
  }
  for (const LlamaRow& row : rows) {
    for (std::size_t i = 0; i < columns.size(); ++i)
      if (shown(i)) body += cell(i, row[i]);
    body += "|\n";
  }
  fmt::print("\n{}|\n{}|\n{}", head, rule, body);
}

// The paper's table: milliseconds, a row for each method, a column for each length.
void print_norm_calls(const std::vector<Result>& results) {
  std::vector<std::string> methods;
  std::vector<double> lengths;
  for (const Result& r : results) {
    if (std::ranges::find(methods, r.method) == methods.end()) methods.push_back(r.method);
    if (std::ranges::find(lengths, part(r, "sequence")) == lengths.end()) lengths.push_back(part(r, "sequence"));
  }
  fmt::print("\n{:<16} {:>6} {:>11}", "ms of a forward", "calls", "statistics");
  for (const double length : lengths) fmt::print(" {:>10}", length);
  for (const std::string& m : methods) {
    const auto first = std::ranges::find(results, m, &Result::method);
    fmt::print("\n{:<16} {:>6} {:>11}", m, part(*first, "calls"), part(*first, "statistics"));
    for (const Result& r : results)
      if (r.method == m) fmt::print(" {:>10.3f}", r.ms);
  }
  fmt::print("\n\n");
}

struct BenchFlags {
  std::vector<std::string> words, tests, overrides;
  bool json = false, markdown = false;
  int reps = 5, warmup = 8, timed = 32;
  std::int64_t requests = 256;
  std::vector<std::int64_t> new_tokens = {128, 512, 1024}, sequences = {512, 768, 1024, 2048, 4096, 8192};
  RepackOption repack;
};

void add_options(CLI::App& app, BenchFlags& f) {
  app.add_option(
      "TEST | key=value", f.words,
      "tests: train norm gemm attention prompt decode generation requests norm-calls (default: the first four);\nkeys: model.*, norm.*, "
      "train.batch (several: 1,8,64), data.seq_len, device, dtype (default: fp32 and bf16), threads");
  app.add_flag("--json", f.json, "a JSON list, one object per measurement");
  app.add_flag("--markdown", f.markdown, "prompt and decode: a table like llama-bench's behind the figures");
  app.add_option("--reps", f.reps, "repetitions; figures are medians, generation's means")->capture_default_str()->check(between(1, 1000));
  app.add_option("--new-tokens", f.new_tokens, "generation: answers of these lengths; the shorter ones are how the longest begin")
      ->delimiter(',')
      ->capture_default_str()
      ->check(between(1))
      ->allow_extra_args(false);
  app.add_option("--warmup", f.warmup, "generation: batches before the first that is timed")
      ->capture_default_str()
      ->check(between(0, 1000));
  app.add_option("--timed", f.timed, "generation: batches of each repetition")->capture_default_str()->check(between(1, 1000));
  app.add_option("--requests", f.requests, "requests: how many; prompts of seq_len/32 to seq_len tokens, answers of up to half of that")
      ->capture_default_str()
      ->check(between(1, 100000));
  app.add_option("--sequences", f.sequences, "norm-calls: lengths of sequences")
      ->delimiter(',')
      ->capture_default_str()
      ->check(between(1))
      ->allow_extra_args(false);
  f.repack.add_to(app);
}

bool uses(const BenchFlags& f, std::initializer_list<std::string_view> tests) {
  return std::any_of(f.tests.begin(), f.tests.end(), [&](const std::string& t) { return std::ranges::find(tests, t) != tests.end(); });
}

// Tests and keys apart, and no flag that none of the tests reads.
void settle(BenchFlags& f, const CLI::App& app) {
  for (const std::string& w : f.words) {
    const bool key = w.find('=') != std::string::npos;
    check_usage(key || find_test(w),
                "unknown test {}; expected train, norm, gemm, attention, prompt, decode, generation, requests or norm-calls", w);
    (key ? f.overrides : f.tests).push_back(w);
  }
  if (f.tests.empty()) f.tests = {"train", "norm", "gemm", "attention"};
  f.repack.how();
  for (const char* flag : {"--weights", "--no-fold"})
    check_usage(!app.count(flag) || uses(f, {"prompt", "decode", "generation", "requests"}),
                "{} is for the tests prompt, decode, generation and requests", flag);
  for (const char* flag : {"--new-tokens", "--warmup", "--timed"})
    check_usage(!app.count(flag) || uses(f, {"generation"}), "{} is for the test generation", flag);
  check_usage(!app.count("--sequences") || uses(f, {"norm-calls"}), "--sequences is for the test norm-calls");
  check_usage(!app.count("--requests") || uses(f, {"requests"}), "--requests is for the test requests");
  check_usage(!f.markdown || (!f.json && uses(f, {"prompt", "decode"})), "--markdown is for the tests prompt and decode, without --json");
}

void read_flags(CLI::App& app, BenchFlags& f, const Args& args) {
  app.description("Speed, each with the fraction of the machine's limit measured in the same run");
  app.name("bhyt bench");
  add_options(app, f);
  parse(app, args);
  settle(f, app);
}

using Take = std::function<void(const Test&, const train::RunConfig&)>;

void for_each_config(const BenchFlags& f, const Take& take) {
  for (const std::string& name : f.tests)
    for (DType dtype : types(f.overrides))
      for (const auto& one : by_batch(f.overrides)) take(*find_test(name), config_of(*find_test(name), one, dtype));
}

}  // namespace

void check_bench(const Args& args) {
  CLI::App app;
  BenchFlags f;
  read_flags(app, f, args);
  for_each_config(f, [](const Test&, const train::RunConfig&) {});
}

int cmd_bench(const Args& args) {
  CLI::App app;
  BenchFlags f;
  read_flags(app, f, args);
  for_each_config(f, check_memory);
  Json list = Json::array();
  const bool one_length = gives(f.overrides, "data.seq_len=") && !app.count("--sequences");  // of norm-calls
  std::vector<LlamaRow> table;
  for_each_config(f, [&](const Test& test, const train::RunConfig& c) {
    Context ctx(c.device, static_cast<int>(c.run.threads));
    const Settings s{.ctx = ctx,
                     .model = c.model.config,
                     .batch = c.train.batch,
                     .seq = c.data.seq_len,
                     .dtype = *c.run.dtype,
                     .reps = f.reps,
                     .repack = f.repack.how(),
                     .all_methods = !gives(f.overrides, "norm."),
                     .new_tokens = f.new_tokens,
                     .warmup = f.warmup,
                     .timed = f.timed,
                     .requests = f.requests,
                     .sequences = one_length ? std::vector{c.data.seq_len} : f.sequences};
    const std::vector<Result> results = test.run(s);
    for (const Result& r : results) {
      if (!f.json) print_row(r, s.dtype);
      list.push_back(to_json(r, s));
      if (test.name == std::string_view("prompt") || test.name == std::string_view("decode")) table.push_back(llama_row(test, r, s));
    }
    if (!f.json && test.name == std::string_view("norm-calls")) print_norm_calls(results);
    std::fflush(stdout);
  });
  if (f.json) fmt::print("{}\n", list.dump(2));
  if (f.markdown) print_table(table);
  return 0;
}

}  // namespace bhyt::cli
