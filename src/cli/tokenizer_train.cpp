// bhyt tokenizer train: a byte-level BPE vocabulary from texts, and the folder that a tokenizer is written to.
#include "cli/tokenizer_train.h"

#include <unistd.h>

#include <filesystem>

#include "core/check.h"
#include "core/log.h"
#include "core/threads.h"
#include "data/files.h"
#include "data/pipeline.h"
#include "data/text_check.h"
#include "data/text_chunks.h"
#include "text/train.h"

namespace bhyt::cli {

namespace {

namespace fs = std::filesystem;

struct CountedChunk : TextChunk {
  TextFacts facts;  // made by a worker
};

void count_chunk(BpeTrainer& trainer, CountedChunk& chunk, const std::string& key) {
  chunk.facts = {};
  for_each_text(chunk, key, [&](std::string_view text, std::int64_t) {
    chunk.facts.add(text);
    trainer.count(text);
  });
}

}  // namespace

void check_tokenizer_out(const std::string& folder, bool force, const char* flag) {
  check_output_folder(folder);
  std::error_code ec;
  for (const char* name : kTokenizerFiles)
    check_usage(force || !fs::exists(fs::path(folder) / name, ec),
                "{} already holds {}; --force replaces the tokenizer there, another {} keeps it", folder, name, flag);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  const fs::path home = folder, beside = home / fmt::format("tokenizer.{}.tmp", ::getpid());
  std::error_code ignored;
  try {
    tokenizer.save(beside);
  } catch (...) {
    fs::remove_all(beside, ignored);
    throw;
  }
  for (const char* name : kTokenizerFiles) fs::remove(home / name, ignored);
  for (const auto& file : fs::directory_iterator(beside)) fs::rename(file.path(), home / file.path().filename());
  fs::remove(beside, ignored);
  log::info("{} tokens in {}", tokenizer.vocab_size(), folder);
}

int train_tokenizer(const TokenizerTrainArgs& args) {
  check_tokenizer_out(args.out, args.force);
  BpeTrainOptions options{.vocab = args.vocab};
  if (!args.special.empty()) options.special = args.special;
  BpeTrainer trainer(options);
  const std::vector<InputFile> files = find_inputs(args.files);
  double total = 0;
  for (const InputFile& f : files) total += static_cast<double>(f.bytes);
  {
    log::Progress progress("counting words", total, "B");
    TextChunkReader reader(files);
    TextCheck texts(files);
    ordered_pipeline<CountedChunk>(
        args.threads > 0 ? args.threads : available_cores(), [&](CountedChunk& c) { return reader.next(c); },
        [&](CountedChunk& c) { count_chunk(trainer, c, args.key); },
        [&](const CountedChunk& c) {
          texts.add(static_cast<std::size_t>(c.file - files.data()), c.facts);
          progress.update(static_cast<double>(c.consumed));
        });
    texts.tell("learn from");
    progress.update(total);
    progress.finish();
  }
  log::Progress progress("merging", static_cast<double>(args.vocab), "tokens");
  const auto tokenizer = trainer.train([&](std::int64_t done, std::int64_t) { progress.update(static_cast<double>(done)); });
  progress.update(static_cast<double>(tokenizer->vocab_size()));
  progress.finish();
  if (tokenizer->vocab_size() < args.vocab)
    log::warning("nothing was left to merge: {} tokens instead of {}", tokenizer->vocab_size(), args.vocab);
  save_tokenizer(*tokenizer, args.out);
  return 0;
}

}  // namespace bhyt::cli
