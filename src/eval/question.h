// A document of a task as it is put to a model, and what the model made of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bhyt {

struct Question {
  std::string task;                    // "arc_easy"; of a group its member: "mmlu_anatomy"
  std::int64_t document = 0;           // its row among those that are evaluated, from 0
  std::vector<std::int64_t> examples;  // rows of the few-shot split, in the prompt's order
  std::vector<std::string> contexts;   // one, or one for each continuation
  std::vector<std::string> continuations;
  std::vector<std::int64_t> characters;  // of each choice without the delimiter, in code points
  std::int64_t gold = 0;                 // which continuation is right

  const std::string& context(std::size_t choice) const { return contexts[contexts.size() == 1 ? 0 : choice]; }
};

// How likely a continuation is behind its context.
struct Likelihood {
  double sum = 0;           // of the log-probabilities of its tokens
  bool greedy = true;       // each of them is the likeliest
  std::int64_t tokens = 0;  // of the continuation
};

// A question that was answered.
struct Graded {
  std::vector<Likelihood> choices;
  double acc = 0;                  // 0 or 1: the likeliest is the right one
  std::optional<double> acc_norm;  // the same by likelihood per character, where the task asks for it
};

}  // namespace bhyt
