// bhyt tokenizer train: a byte-level BPE vocabulary from texts, and the folder that a tokenizer is written to.
#include "cli/tokenizer_train.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "core/log.h"
#include "core/threads.h"
#include "data/files.h"
#include "data/json_text.h"
#include "data/pipeline.h"
#include "data/text_check.h"
#include "text/train.h"

namespace bhyt::cli {

namespace {

// Whole lines of one JSONL file, or one whole text.
struct Chunk {
  std::string data;
  const InputFile* file = nullptr;
  std::int64_t first_line = 1;
  std::uint64_t consumed = 0;
  TextFacts facts;  // made by a worker
};

// Reads inputs as chunks of about a megabyte that end with a line, texts whole.
class ChunkReader {
 public:
  explicit ChunkReader(const std::vector<InputFile>& files) : files_(files) {}

  bool next(Chunk& chunk) {
    if (!stream_) {
      if (at_ == files_.size()) return false;
      stream_ = open_input(files_[at_]);
      line_ = 1;
    }
    chunk.file = &files_[at_];
    chunk.first_line = line_;
    chunk.data.swap(rest_);
    rest_.clear();
    const bool lines = chunk.file->records == Records::jsonl;
    for (bool ended = false; !ended;) {
      const std::size_t size = chunk.data.size();
      chunk.data.resize(size + kStep);
      const std::size_t n = stream_->read(chunk.data.data() + size, kStep);
      chunk.data.resize(size + n);
      ended = n == 0;
      const std::size_t newline = lines && !ended ? chunk.data.rfind('\n') : chunk.data.npos;
      if (newline != chunk.data.npos && chunk.data.size() >= kStep) {
        rest_ = chunk.data.substr(newline + 1);
        chunk.data.resize(newline + 1);
        break;
      }
      if (ended) done_ += files_[at_++].bytes;
      if (ended) stream_.reset();
    }
    if (lines && line_ == 1 && chunk.data.starts_with("\xEF\xBB\xBF")) chunk.data.erase(0, 3);  // a byte order mark
    line_ += std::count(chunk.data.begin(), chunk.data.end(), '\n');
    chunk.consumed = done_ + (stream_ ? stream_->consumed() : 0);
    return true;
  }

 private:
  static constexpr std::size_t kStep = 1 << 20;
  const std::vector<InputFile>& files_;
  std::size_t at_ = 0;
  std::unique_ptr<InputStream> stream_;
  std::string rest_;
  std::int64_t line_ = 1;
  std::uint64_t done_ = 0;
};

void count_chunk(BpeTrainer& trainer, Chunk& chunk, const std::string& key) {
  chunk.facts = {};
  const auto count = [&](std::string_view text) {
    chunk.facts.add(text);
    trainer.count(text);
  };
  if (chunk.file->records != Records::jsonl) return count(chunk.data);
  JsonText json(key);
  std::string_view rest = chunk.data;
  for (std::int64_t number = chunk.first_line; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::string_view text;
    check(json.scan(line, text), "{}:{}: {}", chunk.file->path, number, json.error());
    count(text);
  }
}

}  // namespace

void check_tokenizer_out(const std::string& folder, bool force) {
  check_output_folder(folder);
  std::error_code ec;
  for (const char* name : kTokenizerFiles)
    check_usage(force || !std::filesystem::exists(std::filesystem::path(folder) / name, ec),
                "{} already holds {}; --force replaces the tokenizer there, another --out keeps it", folder, name);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  std::error_code ec;
  for (const char* name : kTokenizerFiles) std::filesystem::remove(std::filesystem::path(folder) / name, ec);
  tokenizer.save(folder);
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
    ChunkReader reader(files);
    TextCheck texts(files);
    ordered_pipeline<Chunk>(
        args.threads > 0 ? args.threads : available_cores(), [&](Chunk& c) { return reader.next(c); },
        [&](Chunk& c) { count_chunk(trainer, c, args.key); },
        [&](const Chunk& c) {
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
