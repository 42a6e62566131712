// What a config's data list means: token files as they are, documents packed once into a cache and found there again.
#pragma once

#include <string>
#include <vector>

#include "data/loader.h"
#include "data/pack.h"
#include "text/tokenizer.h"

namespace bhyt {

struct PrepareOptions {
  std::vector<DataPart> parts;           // paths, folders and globs, of token files or documents
  const Tokenizer* tokenizer = nullptr;  // for documents; Error where one is needed and missing
  std::string cache;                     // the folder for packed files
  std::string key = "text";              // of JSONL objects
  int threads = 0;
  bool progress = true;
  std::function<bool()> interrupted{};
};

// Parts of token files only. The documents of one entry become one file in the cache, named by a hash of their paths, sizes and times,
// the tokenizer's fingerprint and the key: unchanged inputs are not packed again. An entry that means several files shares its weight
// among them by their tokens.
std::vector<DataPart> prepare_data(const PrepareOptions& options);

}  // namespace bhyt
