// Rolling perplexity, as lm-evaluation-harness has it for wikitext and c4: every token of a document is scored, BOS too
// where there is one, behind the token that starts texts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/encode.h"
#include "eval/score.h"
#include "eval/share.h"
#include "text/tokenizer.h"

namespace bhyt {

struct RollingDocument {
  std::string text;          // detokenized: what is scored
  double loglikelihood = 0;  // of all its tokens
  std::int64_t tokens = 0;   // of the text
  std::int64_t words = 0;    // of the page
  std::int64_t bytes = 0;    // of the page
};

// Scores pages in order and says so in order: done(number of the page, its document). False when the engine was interrupted before the
// last one. Several ranks share the windows out. UsageError for a tokenizer without a token that may stand before a text (BOS or EOS).
bool score_rolling(Engine& engine, const Tokenizer& tokenizer, std::span<const std::string> pages, const Reading& reading,
                   const std::function<void(std::size_t, const RollingDocument&)>& done, const Sharing& ranks = {});

}  // namespace bhyt
