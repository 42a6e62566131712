// The data of a run: patterns expanded, texts packed (once, into a cache), tokenizer and vocabulary checked against each other.
#pragma once

#include <memory>
#include <vector>

#include "data/loader.h"
#include "text/tokenizer.h"
#include "train/config.h"

namespace bhyt::train {

struct RunData {
  std::unique_ptr<Tokenizer> tokenizer;  // null: token files that name none; the run knows ids only
  std::vector<DataPart> train, valid;    // token files
  std::uint64_t fingerprint = 0;         // of the tokenizer
};

// Expands the config's patterns in place, so that resolved.yaml names files. Touches nothing on disk.
void expand_data(DataSection& data);

// Settles data and, with it, the model's vocabulary and end-of-text. Packs texts; where no cache folder can be written, into `fallback`.
RunData open_data(RunConfig& config, const std::string& fallback);

}  // namespace bhyt::train
