// Perplexity per token of texts in files: each text in windows of its own, or all of them joined and cut into blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/score.h"
#include "eval/share.h"
#include "text/tokenizer.h"

namespace bhyt {

enum class PerplexityMode : std::uint8_t {
  windows,  // each text once, BOS before it
  packed    // every text without BOS and with end-of-text behind it, joined; what does not fill a block is dropped
};

struct PerplexityOptions {
  std::vector<std::string> inputs;  // files, folders, globs
  std::string key = "text";         // of the JSONL objects
  PerplexityMode mode = PerplexityMode::windows;
  std::int64_t window = 0;  // tokens of a window or block
  std::int64_t stride = 0;  // from window to window
  bool bos = true;          // windows: what the tokenizer's post-processor adds stands in the text
  std::int64_t limit = 0;   // texts at most; 0: all
  bool progress = true;
  Sharing ranks = {};  // that score together: all read the texts
};

// What scored tokens cost.
struct TokenCosts {
  std::int64_t windows = 0, scored = 0;
  std::int64_t bytes = 0;       // of the text that the scored tokens stand for; special tokens stand for none
  double sum = 0, squares = 0;  // of −log p, in nats

  void add(const TokenCosts& more);
  // All of them need a scored token, the standard errors two, bits per byte a byte.
  double nll() const;
  double ppl() const;
  std::optional<double> nll_stderr() const;
  std::optional<double> ppl_stderr() const;  // by the slope of exp
  std::optional<double> bits_per_byte() const;
};

// A text, or a block of packed ones.
struct ScoredText {
  std::int64_t number = 0;  // from 0
  std::string file;         // "" of a block
  std::int64_t line = 0;
  std::int64_t tokens = 0;
  TokenCosts costs;
};

struct Perplexity {
  std::int64_t documents = 0, tokens = 0;  // read
  TokenCosts costs;
  bool interrupted = false;  // by the engine's: the costs are those so far
};

// UsageError for options that make no sense; score_files asks, too.
void check_perplexity(const PerplexityOptions& options);

// Error for files that cannot be read and for texts of which nothing can be scored. Calls each(text) in order as texts or blocks are done.
// Memory holds some texts, never all.
Perplexity score_files(Engine& engine, const Tokenizer& tokenizer, const PerplexityOptions& options,
                       const std::function<void(const ScoredText&)>& each = {});

}  // namespace bhyt
