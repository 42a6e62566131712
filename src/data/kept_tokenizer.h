// The tokenizer that a token file was packed with, kept in a folder beside it, so that the token file is enough to train on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "data/token_file.h"
#include "text/tokenizer.h"

namespace bhyt {

// Writes the tokenizer to tokenizer-FINGERPRINT in `folder`, unless it is there; token files of one tokenizer share it. "bytes" is built
// in.
void keep_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder);

struct KeptTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;  // null: not to be had
  std::string at;                        // its folder, or "built in"
};

// What a token file was packed with: from the folder of the file (where a link leads, too), else from the cache folder.
// What lies there under its name must have its fingerprint.
KeptTokenizer find_tokenizer(const std::string& token_file, const TokenMeta& meta);

}  // namespace bhyt
