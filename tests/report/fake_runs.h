// Runs that look like real ones, written as files: what the report's tests read.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>

#include "data/synth.h"
#include "tests/temporary_folder.h"

namespace bhyt::report::fake {

namespace fs = std::filesystem;

class Folder {
 public:
  fs::path operator/(const std::string& name) const { return folder_.path / name; }
  const fs::path& path() const { return folder_.path; }

 private:
  test::TemporaryFolder folder_;
};

inline void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

struct Options {
  std::string method = "bhyt";
  int steps = 400, log_every = 2, eval_every = 50, layers = 12, layer_every = 20;
  double peak_lr = 3e-3, excess = 0.11, speed = 5200, growth = 1.05;
  unsigned seed = 1;
  bool lambda = true, nonfinite = false;
};

inline std::string list(int n, const std::function<double(int)>& value) {
  std::string out = "[";
  for (int i = 0; i < n; ++i) out += fmt::format("{}{:.5g}", i ? "," : "", value(i));
  return out + "]";
}

inline std::string metrics(const Options& o, double floor) {
  std::mt19937 gen(o.seed);
  std::normal_distribution<double> normal;
  std::string out;
  const double warmup = 0.1 * o.steps;
  for (int s = 1; s <= o.steps; ++s) {
    const double part = static_cast<double>(s) / o.steps;
    const double lr = o.peak_lr * (s < warmup ? s / warmup : 0.01 + 0.99 * 0.5 * (1 + std::cos(M_PI * (s - warmup) / (o.steps - warmup))));
    const double mean = floor + o.excess + 3.2 * std::exp(-9 * part) + 0.35 * std::exp(-2.5 * part);
    const bool bad = o.nonfinite && s % 97 == 0;
    if (bad) out += fmt::format("{{\"step\":{},\"event\":\"skipped_step\"}}\n", s);
    if (s % o.log_every == 0 || s == 1)
      out += fmt::format(
          "{{\"step\":{},\"tokens\":{},\"loss\":{},\"grad_norm\":{},\"lr\":{:.6g},\"tok_s\":{:.1f},\"step_ms\":{:.2f},\"mfu\":0.61,"
          "\"time\":{:.2f}}}\n",
          s, s * 2048, bad ? "null" : fmt::format("{:.6f}", mean + 0.05 * normal(gen)),
          bad ? "null" : fmt::format("{:.6f}", (0.4 + 6 * std::exp(-14 * part)) * std::exp(0.25 * normal(gen))), lr,
          o.speed * (1 + 0.02 * normal(gen)), 2048e3 / o.speed, 1.7e9 + s * 2048 / o.speed);
    if (s % o.eval_every == 0 || s == o.steps)
      out += fmt::format("{{\"step\":{},\"valid_loss\":{:.6f},\"valid_tokens\":65536}}\n", s, mean + 0.01 * normal(gen));
    if (s == 1 || s % o.layer_every == 0) {
      const double grown = 1 + 3 * part;
      out += fmt::format(
          "{{\"step\":{},\"layers\":{{\"norm\":{},\"abs\":{},\"variance\":{}", s,
          list(o.layers + 1, [&](int l) { return grown * 16 * (1 + (o.growth - 1) * part * 4 * l) * (1 + 0.02 * normal(gen)); }),
          list(o.layers + 1, [&](int l) { return grown * 0.8 * std::pow(o.growth, l); }), list(o.layers + 1, [&](int l) {
            return grown * grown * std::pow(1 + (o.growth - 1) * part * 4 * l, 2) * (1 + 0.04 * normal(gen));
          }));
      if (o.lambda)
        out += fmt::format(",\"lambda_attn\":{},\"lambda_mlp\":{}",
                           list(o.layers, [&](int l) { return 2 + 0.5 * part * (1 - 2.0 * l / o.layers) + 0.15 * std::sin(4 * part + l); }),
                           list(o.layers, [&](int l) { return 1 + 0.4 * std::sqrt(part) * l / o.layers; }));
      out += "}}\n";
    }
  }
  return out;
}

inline std::string config(const Options& o, const std::string& dir) {
  return fmt::format(
      "format: 1\nmodel: {{preset: small, layers: {}}}\nnorm:\n  method: {}\n  lambda: [2.0, 1.0]\ndata:\n  train: [lang/train.tok]\n  "
      "valid: [lang/valid.tok]\n"
      "train: {{steps: {}, batch: 8, lr: {}}}\nrun: {{dir: {}, device: cpu, dtype: fp32}}\n",
      o.layers, o.method, o.steps, o.peak_lr, dir);
}

// A small language of known entropy in lang/: the rate, nats per token.
inline double language(const Folder& folder) {
  static const double rate = SynthLanguage(64, 0).entropy().rate;
  if (!fs::exists(folder / "lang")) synthesize({.out = (folder / "lang").string(), .tokens = 500, .vocab = 64, .progress = false});
  return rate;
}

// A run directory under the folder, trained on its language.
inline fs::path run(const Folder& folder, const std::string& name, const Options& o) {
  const fs::path dir = folder / name;
  write(dir / "metrics.jsonl", metrics(o, language(folder)));
  write(dir / "resolved.yaml", config(o, dir.string()));
  write(dir / "run.json",
        "{\"version\": \"0.1.0\", \"commit\": \"a1b2c3d\", \"machine\": \"cpu: Neoverse-N1, 2 threads\", \"dtype\": \"fp32\", "
        "\"model\": \"small, 15,012,864 parameters\"}\n");
  return dir;
}

}  // namespace bhyt::report::fake
