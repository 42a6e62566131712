// Log-likelihoods through the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "generate/engine.h"
#include "text/tokenizer.h"

namespace bhyt {

// Endings to be scored behind what a model reads first. Every token of an ending is given all that stands before it.
struct Passage {
  std::vector<TokenId> context;  // at least one token
  std::vector<std::vector<TokenId>> endings;
};

struct EndingScore {
  double sum = 0;      // of the log-probabilities
  double squares = 0;  // of their squares
  bool greedy = true;  // every token is the likeliest of its place
};

// Scores passages in order and says so in order: done(i, a score for each ending of passage i). Contexts that passages have in common are
// computed once. False when `interrupted` of the engine ended it before the last one. Throws Error where a model gives no numbers (NaN).
bool score_passages(Engine& engine, std::span<const Passage> passages,
                    const std::function<void(std::size_t, std::span<const EndingScore>)>& done);

}  // namespace bhyt
