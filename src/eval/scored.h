// A document that a model was scored on: all that results and comparisons are made of.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "eval/question.h"

namespace bhyt {

// A text of which every token was predicted (wikitext, c4).
struct Rolled {
  double sum = 0;  // of the log-probabilities of its tokens
  std::int64_t tokens = 0;
  std::int64_t words = 0, bytes = 0;  // of the text as the data set has it
};

struct Scored {
  std::string task;           // "arc_easy", "mmlu_anatomy"
  std::int64_t document = 0;  // its row among those that are evaluated, from 0
  std::int64_t seed = 0;      // of the few-shot examples; what it does not change stands there once for each
  std::variant<Graded, Rolled> what;
};

}  // namespace bhyt
