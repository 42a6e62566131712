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

bool has_text(const TokenSource& source);  // not token files alone

// As many as there are where there are fewer. Error for files that cannot be read, for token files of another tokenizer, and for ids
// beyond the vocabulary. Only text needs a tokenizer.
std::vector<TokenId> read_tokens(const TokenSource& source, const Tokenizer* tokenizer, std::int64_t vocab);

}  // namespace bhyt::analysis
