// What a dry run of fine-tuning shows: counts, lengths, what was dropped and why, a few examples with the scored part marked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/examples.h"
#include "text/tokenizer.h"

namespace bhyt::cli {

// A few examples from all over a file whose end is not known yet, the same ones every time.
class Samples {
 public:
  void offer(const Example& example);
  std::vector<Example> take();  // in file order

 private:
  static constexpr std::size_t kMost = 3;
  std::vector<Example> kept_;  // those whose places have the least hashes, the greatest of these first
};

struct Preview {
  ExampleSummary summary;
  std::vector<Example> samples;
};

// As lines for people. `color`: for a terminal; otherwise ⟦ ⟧ stand around what is scored.
std::string show_preview(const Preview& preview, const ExampleOptions& options, const Tokenizer& tokenizer, bool color);

}  // namespace bhyt::cli
