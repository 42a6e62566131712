// Fine-tuning's data: conversations with the template that they are written in, or rows that somebody prepared.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "train/data.h"
#include "train/example_rows.h"

namespace bhyt::train {

struct ChatData {
  std::unique_ptr<Tokenizer> tokenizer;  // that the format extends; null for prepared rows
  std::unique_ptr<ChatFormat> format;    // null for prepared rows
  bool prepared = false;                 // .safetensors: no template is needed, and rows come in file order
  std::vector<WeightedExamples> train, valid;
  std::vector<ExampleSummary> train_files, valid_files;  // what each file came to
};

// Opens tokenizer and template, and checks that the files are there. model: the folder whose tokenizer `auto` means; "" = none.
std::unique_ptr<ChatData> open_chat_data(DataSection& config, const std::string& model);

// The same for a run: settles the model's vocabulary, which grows where the template brings tokens that it lacks, and its end of text.
RunData choose_chat_data(RunConfig& config);

// Reads all examples of training and validation. Warns where they share some.
void read_chat_data(Threads& threads, const DataSection& config, ChatData& data);

// UsageError where an example holds a token that the model lacks.
void check_vocabulary(const ChatData& data, const ModelConfig& model);

// Of all examples in order: a resumed run must have the same to learn from.
std::uint64_t fingerprint(const std::vector<WeightedExamples>& sets);

// For run.json, where the report finds it: what each file came to, and how many steps make an epoch.
Json about_examples(const ChatData& data, std::int64_t epoch_steps);

}  // namespace bhyt::train
