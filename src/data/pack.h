// Documents → token file: streamed, in constant memory (one batch of documents per thread, or one document where it is larger).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/input.h"
#include "data/token_file.h"
#include "text/tokenizer.h"

namespace bhyt {

struct PackOptions {
  std::string out;
  std::vector<std::string> inputs;  // files, folders, globs
  std::string key = "text";         // of the JSONL objects
  bool lines = false;               // .txt: a document per line instead of per file
  bool skip_bad = false;            // leave bad lines out instead of stopping at the first
  int threads = 0;                  // 0: as many as there are; the file is the same with any number
  bool progress = true;
  std::function<int()> interrupted{};  // asked between batches; a signal stops with Interrupted and leaves nothing behind
};

struct PackResult {
  TokenFileInfo file;
  std::uint64_t text_bytes = 0;  // of all documents
  std::uint64_t empty = 0;       // documents without text, left out
  std::uint64_t bad_lines = 0;
  std::string first_bad;              // "FILE:LINE: why"
  std::vector<std::string> warnings;  // of texts that may be none
  double seconds = 0;
};

// Every document ends with the tokenizer's end-of-text (if it has one); special-token text in documents is not parsed.
// The tokenizer is kept beside the file. Texts that hold nothing are an Error, those that may be no text a warning.
PackResult pack(const Tokenizer& tokenizer, const PackOptions& options);

}  // namespace bhyt
