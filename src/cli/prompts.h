// The prompts of bhyt generate, as users give them: one text, or one a line.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace bhyt::cli {

struct Prompt {
  std::string text;
  std::vector<TokenId> ids;  // with --ids, instead of a text
  std::string where;         // "prompts.jsonl, line 3: " for messages; nothing where there is one prompt
};

struct Prompts {
  std::vector<Prompt> all;
  bool listed = false;  // they came line by line
};

// The prompt or the file that is given (the other null), else stdin. A file whose name ends in .jsonl holds one {"prompt": TEXT} a line,
// with `ids` one array of ids a line. Ids elsewhere: "5 17 3", "5,17,3" or "[5, 17, 3]". UsageError that names the line.
Prompts read_prompts(const std::string* prompt, const std::string* file, bool ids);

// All of it; Error where it cannot be read.
std::string read_stdin();

}  // namespace bhyt::cli
