// What an engine is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/target.h"

namespace bhyt {

// How tokens are chosen (ops/sample has the rules and their order).
struct Sampling {
  double temperature = 0;  // 0 = greedy
  std::int64_t top_k = 0;  // the k likeliest tokens only; 0 = all
  double top_p = 1;        // the fewest likeliest tokens whose probabilities reach p
  double min_p = 0;        // tokens at least this many times as likely as the likeliest
  double repetition_penalty = 1;
  std::uint64_t seed = 0;
};
void check_sampling(const Sampling& sampling);  // UsageError for what makes no sense

// A prompt to be continued, a sequence to be scored, or both.
struct Request {
  std::vector<std::int32_t> prompt;  // at least one id, all below the vocabulary
  std::int64_t max_tokens = 0;       // new tokens at most
  Sampling sampling = {};
  std::vector<std::int32_t> stops = {};  // ids that end the answer; they are not part of it
  // Asked with each new token, in the engine's thread: true ends the answer behind it. Once more, at most, after cancel() has returned.
  std::function<bool(std::int32_t)> stop = {};
  bool logprobs = false;             // of the new tokens are wanted
  std::vector<Target> targets = {};  // to be scored behind tokens of the prompt, in that order
};

}  // namespace bhyt
