// From the strings of a question to the ids that a model reads, as lm-evaluation-harness does it.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/question.h"
#include "eval/score.h"
#include "text/tokenizer.h"

namespace bhyt {

struct Reading {
  std::int64_t length = 0;  // tokens that a model reads at most: what is longer loses its beginning
  bool bos = true;          // what the tokenizer's post-processor adds stands at the beginning
};

// The continuations of a question as the endings of one passage or several, in order: where contexts differ, or lose different beginnings,
// a new passage begins. White space at the end of a context belongs to the continuation; a continuation's tokens are those that the whole
// has beyond as many as the context alone. Error for a continuation without tokens of its own, and for one that is longer than a model
// reads.
std::vector<Passage> passages_of(const Tokenizer& tokenizer, const Question& question, const Reading& reading);

}  // namespace bhyt
