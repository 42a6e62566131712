// Text as a model is trained on it: documents joined, end-of-text behind each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace bhyt::analysis {

struct TokenSource {
  std::vector<std::string> inputs;  // text files, folders, globs; token files
  std::string key = "text";         // of JSONL objects
  std::int64_t tokens = 0;          // the first so many of them
};

// As many as there are where there are fewer. Error for files that cannot be read, and for token files of another tokenizer.
std::vector<TokenId> read_tokens(const TokenSource& source, const Tokenizer& tokenizer);

}  // namespace bhyt::analysis
