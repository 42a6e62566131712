// Rolling perplexity, as lm-evaluation-harness has it for wikitext and c4: every token of a document is scored, and the perplexity is that
// of the words and bytes of the page as it was before detokenizing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/score.h"
#include "text/tokenizer.h"

namespace bhyt {

struct RollingOptions {
  std::int64_t length = 0;  // tokens that the model reads at most
  bool bos = true;          // what the tokenizer's post-processor adds is part of the text, and scored
};

struct RollingDocument {
  std::string text;          // detokenized: what is scored
  double loglikelihood = 0;  // of all its tokens
  std::int64_t tokens = 0;   // of the text
  std::int64_t words = 0;    // of the page
  std::int64_t bytes = 0;    // of the page
};

// Of all documents together.
struct RollingTotals {
  double loglikelihood = 0;
  std::int64_t words = 0, bytes = 0;

  void add(const RollingDocument& document);
  double word_perplexity() const;
  double byte_perplexity() const;
  double bits_per_byte() const;
};

// Scores pages in order and says so in order: done(number of the page, its document). False when the engine was interrupted before the
// last one. UsageError for a tokenizer without a token that may stand before a text (BOS or EOS).
bool score_rolling(Engine& engine, const Tokenizer& tokenizer, std::span<const std::string> pages, const RollingOptions& options,
                   const std::function<void(std::size_t, const RollingDocument&)>& done);

}  // namespace bhyt
