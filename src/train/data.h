// The data of a run: patterns expanded, texts packed (once, into a cache), tokenizer and vocabulary checked against each other.
#pragma once

#include <memory>
#include <vector>

#include "data/loader.h"
#include "text/tokenizer.h"
#include "train/config.h"

namespace bhyt::train {

struct ChatData;  // train/chat_data.h

struct RunData {
  RunData();
  ~RunData();
  RunData(RunData&&) noexcept;
  RunData& operator=(RunData&&) noexcept;
  std::unique_ptr<Tokenizer> tokenizer;  // null: the run knows ids only
  std::string why_no_tokenizer;          // then
  std::vector<DataPart> train, valid;    // token files
  std::vector<DataPart> calibrate;       // the same, where norms are fitted to data of their own
  std::uint64_t fingerprint = 0;         // of the tokenizer
  std::unique_ptr<ChatData> chat;        // fine-tuning's, in the place of train and valid
};

// What data.tokenizer names where that is not `auto`.
std::unique_ptr<Tokenizer> load_named_tokenizer(const std::string& named);

// Expands the config's patterns in place, so that resolved.yaml names files; chooses the tokenizer (`auto`: what the token files were
// packed with), checks the token files against it, and settles the model's vocabulary and end-of-text. Writes nothing.
RunData choose_data(RunConfig& config);

// The same for data.calibrate, whose files must have the run's tokenizer.
void choose_calibration(RunConfig& config, const RunData& data);

// Fills train and valid: token files as they are, texts packed; where no cache folder can be written, into `fallback`.
void pack_data(const DataSection& config, RunData& data, const std::string& fallback);
void pack_calibration(const DataSection& config, RunData& data, const std::string& fallback);

}  // namespace bhyt::train
