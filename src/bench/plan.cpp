#include "bench/plan.h"

#include <algorithm>

#include "bench/measure.h"
#include "machine/machine.h"
#include "train/memory.h"

namespace bhyt::bench {

namespace {

double element(const train::RunConfig& c) { return static_cast<double>(size_of(*c.run.dtype)); }

double tokens(const train::RunConfig& c) { return static_cast<double>(c.train.batch) * static_cast<double>(c.data.seq_len); }

// x, w and y; in double, for a batch may be beyond all bounds.
double operands(const Product& p, double rows, double size) {
  const auto n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  return (rows * k + n * k + rows * n) * size;
}

double weights(const train::RunConfig& c) { return static_cast<double>(Parameters::planned(c.model.config, *c.run.dtype).value_bytes); }

double cache(const train::RunConfig& c, double capacity) {
  const ModelConfig& m = c.model.config;
  return static_cast<double>(m.layers) * 2 * static_cast<double>(m.kv_width()) * capacity * element(c);
}

}  // namespace

double bytes_for_train(const train::RunConfig& c) {
  // First without activations: a batch beyond all bounds is not worth a plan of them.
  const double least = train::plan_memory(c, 0).device();
  const auto free = static_cast<double>(free_memory(c.device));
  return free > 0 && least > free ? least : train::plan_memory(c, c.train.batch).device();
}

double bytes_for_norm(const train::RunConfig& c) {
  const double bytes = c.device.is_cuda() ? tokens(c) * static_cast<double>(c.model.config.d) * element(c) : kBeyondCache;
  return 4 * bytes;  // x, what is added to it, their sum and z
}

// The copy that is compared with, and what the calls read and write; 8192 is the longest unless others are asked for.
double bytes_for_norm_calls(const train::RunConfig& c) {
  return 2.0 * kBeyondCache + 4.0 * static_cast<double>(c.train.batch) * 8192 * static_cast<double>(c.model.config.d) * element(c);
}

double bytes_for_gemm(const train::RunConfig& c) {
  double most = 0;
  for (const Product& p : products(c.model.config, 1)) most = std::max(most, operands(p, tokens(c), element(c)));
  return most;
}

double bytes_for_attention(const train::RunConfig& c) {
  const ModelConfig& m = c.model.config;
  return 2 * tokens(c) * static_cast<double>(m.qkv_width() + m.q_width()) * element(c);
}

double bytes_for_prompt(const train::RunConfig& c) { return weights(c) + cache(c, tokens(c)); }

double bytes_for_decode(const train::RunConfig& c) {
  return 3 * weights(c) + cache(c, tokens(c));  // and what is copied to compare with
}

// Answers may be as long as prompts.
double bytes_for_generation(const train::RunConfig& c) { return weights(c) + 2 * cache(c, tokens(c)); }

}  // namespace bhyt::bench
