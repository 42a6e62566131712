// Learns a byte-level BPE vocabulary. The merges are those of Hugging Face's `tokenizers` on the same texts, ties included.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/split.h"
#include "text/tokenizer.h"

namespace bhyt {

struct BpeTrainOptions {
  std::int64_t vocab = 32000;  // special tokens and the 256 bytes included
  std::vector<std::string> special = {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  Pattern pattern = Pattern::llama3;
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainOptions options);
  ~BpeTrainer();
  BpeTrainer(const BpeTrainer&) = delete;
  BpeTrainer& operator=(const BpeTrainer&) = delete;

  // Counts the words of a text; from several threads at once, in any order.
  void count(std::string_view text);
  // Calls progress(tokens so far, tokens wanted) every so often. The result does not depend on threads or on the order of texts.
  // Fewer tokens than asked for come out when nothing is left to merge.
  std::unique_ptr<Tokenizer> train(const std::function<void(std::int64_t, std::int64_t)>& progress = {});

 private:
  struct Counters;
  BpeTrainOptions options_;
  std::unique_ptr<Counters> counters_;
};

}  // namespace bhyt
