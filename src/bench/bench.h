// How fast the machine does our work, and what share of its limit that is. Every limit is measured in the same run, in turns with the
// thing it limits, and figures are medians: so a busy or throttled machine shifts both alike.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/dtype.h"
#include "model/model.h"

namespace bhyt::bench {

struct Settings {
  Context& ctx;
  ModelConfig model;
  std::int64_t batch = 8, seq = 256;
  DType dtype = DType::f32;
  int reps = 5;
  Model::Repack repack = {};  // prompt, decode, generation, requests: how the model is made ready
  // " int8" where weights are rounded.
  std::string rounded() const { return repack.weights ? std::string(" ") + name_of(*repack.weights) : ""; }
  bool all_methods = false;  // norm, generation: every method, not only the model's
  // generation: answers of these lengths, the shorter ones as the longest begin; batches that nobody times, and timed ones of each
  // repetition.
  std::vector<std::int64_t> new_tokens = {128, 512, 1024};
  int warmup = 8, timed = 32;
  std::int64_t requests = 256;                                               // requests: how many
  std::vector<std::int64_t> sequences = {512, 768, 1024, 2048, 4096, 8192};  // norm-calls: of these lengths
};

struct Spread {
  double mean = 0, deviation = 0;  // n − 1
};
Spread spread_of(const std::vector<double>& values);
double median_of(std::vector<double> values);

// A part of a measurement. bandwidth: the fraction of the machine's that reading its bytes makes, where that bounds it.
struct Share {
  std::string name;
  double ms = 0, bandwidth = 0;
};

// One measurement. Of the three rates the one that applies is set.
struct Result {
  std::string test;                                        // "train small 8×256 bhyt"
  double tok_s = 0, gb_s = 0, tflops = 0;                  // gb_s: bytes that have to move, in 1e9
  double ms = 0;                                           // median of one run
  double limit = 0;                                        // in the same unit as the rate
  std::string limit_name;                                  // what the limit is: "copy", "its matrix products", …
  std::vector<std::pair<std::string, double>> parts = {};  // further figures: bytes, …
  std::vector<Share> shares = {};                          // where the time of a further run goes
  Spread rates = {};                                       // over the repetitions, where more than the median is wanted
  std::string method = {};                                 // norm-calls: the method
  double rate() const { return tok_s + gb_s + tflops; }
  double fraction() const { return limit > 0 ? rate() / limit : 0; }
};

std::vector<Result> bench_train(const Settings& s);       // a step with the optimizer, against its matrix products alone
std::vector<Result> bench_norm(const Settings& s);        // against a copy
std::vector<Result> bench_norm_calls(const Settings& s);  // every norm call of one forward, method by method, against a copy
std::vector<Result> bench_gemm(const Settings& s);        // the model's own products, against a large square one
std::vector<Result> bench_attention(const Settings& s);   // against a large square product
std::vector<Result> bench_prompt(const Settings& s);      // reading a prompt of seq tokens, against its matrix products alone
std::vector<Result> bench_decode(const Settings& s);      // one token at a time, against reading the weights once per token
std::vector<Result> bench_generation(const Settings& s);  // batches of prompts and answers through the engine
std::vector<Result> bench_requests(const Settings& s);    // many requests of different lengths at once through the engine

// Median seconds of each job: all are warmed up (on a GPU their matrix products are tuned), then run in turns `reps` times. Short jobs are
// repeated until the clock can see them.
std::vector<double> take_turns(Context& ctx, const std::vector<std::function<void()>>& jobs, int reps);
// The same with every repetition's seconds, in order.
std::vector<std::vector<double>> take_all_turns(Context& ctx, const std::vector<std::function<void()>>& jobs, int reps);

}  // namespace bhyt::bench
