// What `bhyt tokenizer` writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace bhyt::cli {

struct TokenizerTrainArgs {
  std::string out, key = "text";
  std::vector<std::string> files;
  std::vector<std::string> special;
  std::int64_t vocab = 0;
  int threads = 0;
  bool force = false;
};

int train_tokenizer(const TokenizerTrainArgs& args);

// Before the work: the folder can be written, and holds no tokenizer unless `force`. `flag` names it.
void check_tokenizer_out(const std::string& folder, bool force, const char* flag = "--out");
// Replaces the tokenizer in the folder, if any, once the new one is written.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace bhyt::cli
