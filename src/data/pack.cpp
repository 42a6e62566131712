#include "data/pack.h"

#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "core/threads.h"
#include "data/json_text.h"
#include "data/kept_tokenizer.h"
#include "data/pipeline.h"
#include "data/text_check.h"

namespace bhyt {

namespace {

// Small enough that a batch's text and ids stay in a core's cache, large enough that handing it over costs nothing.
constexpr std::size_t kBatch = 1 << 18;

enum class Cut : std::uint8_t {
  json_lines,  // a document per line, under a key
  text_lines,  // a document per line
  whole,       // one document
  piece        // part of one; the tokenizer may be applied to it alone
};

struct Batch {
  // Made by the reader.
  std::vector<char> buffer;
  std::size_t size = 0;
  std::size_t file = 0;
  Cut cut = Cut::whole;
  bool last_piece = false;
  std::uint64_t consumed = 0;
  // Made by a worker.
  std::vector<TokenId> ids;
  std::vector<std::size_t> ends;  // in ids
  std::uint64_t lines = 0, empty = 0, bad = 0, first_bad = 0;
  TextFacts facts;
  std::string error;  // of the first bad line
};

// Cuts the input into batches of whole lines, whole files or pieces of files.
class Reader {
 public:
  // text: how files of text are cut; JSONL is always read by lines.
  Reader(std::vector<InputFile> files, Cut text) : files_(std::move(files)), text_(text) {}

  const std::vector<InputFile>& files() const { return files_; }

  bool next(Batch& b) {
    if (!stream_) {
      if (file_ == files_.size()) return false;
      stream_ = open_input(files_[file_]);
      start_ = true;
    }
    b.file = file_;
    b.cut = files_[file_].records == Records::jsonl ? Cut::json_lines : text_;
    fill(b);
    if (start_) drop_byte_order_mark(b);
    start_ = false;
    b.consumed = before_ + stream_->consumed();
    b.last_piece = ended_;
    if (ended_) {
      before_ += files_[file_++].bytes;
      stream_.reset();
      ended_ = false;
    }
    return true;
  }

 private:
  void fill(Batch& b) {
    b.buffer.resize(kBatch + rest_.size());  // also when a large document has made it larger
    std::copy(rest_.begin(), rest_.end(), b.buffer.begin());
    b.size = rest_.size();
    rest_.clear();
    for (std::size_t looked = 0;;) {
      while (b.size < b.buffer.size() && !ended_) {
        const std::size_t n = stream_->read(b.buffer.data() + b.size, b.buffer.size() - b.size);
        b.size += n;
        ended_ = n == 0;
      }
      if (ended_ || b.cut == Cut::piece) return;
      if (b.cut != Cut::whole) {
        const void* newline = ::memrchr(b.buffer.data() + looked, '\n', b.size - looked);
        if (newline) {
          const char *cut = static_cast<const char*>(newline) + 1, *end = b.buffer.data() + b.size;
          rest_.assign(cut, end);
          b.size -= rest_.size();
          return;
        }
      }
      looked = b.size;
      b.buffer.resize(2 * b.buffer.size());  // one document larger than a batch
    }
  }

  static void drop_byte_order_mark(Batch& b) {
    if (b.size < 3 || std::memcmp(b.buffer.data(), "\xEF\xBB\xBF", 3) != 0) return;
    std::memmove(b.buffer.data(), b.buffer.data() + 3, b.size - 3);
    b.size -= 3;
  }

  std::vector<InputFile> files_;
  Cut text_;
  std::size_t file_ = 0;
  std::unique_ptr<InputStream> stream_;
  std::vector<char> rest_;  // the start of a line that the next batch completes
  bool start_ = false, ended_ = false;
  std::uint64_t before_ = 0;
};

// The work on one batch: lines apart, JSON undone, text encoded.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const PackOptions& options)
      : tokenizer_(tokenizer), options_(options), eot_(tokenizer.end_of_text()) {}

  void operator()(Batch& b) const {
    b.ids.clear();
    b.ends.clear();
    b.error.clear();
    b.lines = b.empty = b.bad = b.first_bad = 0;
    b.facts = {};
    const std::string_view all(b.buffer.data(), b.size);
    if (b.cut == Cut::piece) {
      b.facts.add(all);
      tokenizer_.encode(all, b.ids, {.special = false});
    } else if (b.cut == Cut::whole) {
      document(b, all);
    } else {
      lines(b, all);
    }
  }

 private:
  void lines(Batch& b, std::string_view all) const {
    JsonText json(options_.key);
    while (!all.empty()) {
      const auto* newline = static_cast<const char*>(std::memchr(all.data(), '\n', all.size()));
      const std::size_t n = newline ? static_cast<std::size_t>(newline - all.data()) : all.size();
      std::string_view line = all.substr(0, n);
      all.remove_prefix(std::min(all.size(), n + 1));
      ++b.lines;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
      std::string_view text = line;
      if (b.cut == Cut::json_lines && !json.scan(line, text)) {
        if (b.bad++ == 0) {
          b.first_bad = b.lines;
          b.error = json.error();
        }
        if (!options_.skip_bad) return;
        continue;
      }
      document(b, text);
    }
  }

  void document(Batch& b, std::string_view text) const {
    const std::size_t before = b.ids.size();
    if (text.size() > kBatch) b.ids.reserve(before + text.size() + 1);  // a vector that grows would hold a large document twice
    tokenizer_.encode(text, b.ids, {.special = false});
    if (b.ids.size() == before) {
      ++b.empty;
      return;
    }
    b.facts.add(text);
    if (eot_) b.ids.push_back(*eot_);
    b.ends.push_back(b.ids.size());
  }

  const Tokenizer& tokenizer_;
  const PackOptions& options_;
  std::optional<TokenId> eot_;
};

// Takes the batches in order: counts, names the first bad line, writes.
class Collector {
 public:
  Collector(const Tokenizer& tokenizer, const PackOptions& options, const std::vector<InputFile>& files)
      : tokenizer_(tokenizer), options_(options), files_(files), check_(files), writer_(options.out, meta_of(tokenizer)) {}

  void take(const Batch& b) {
    if (b.file != file_) {
      file_ = b.file;
      line_ = 0;
    }
    if (b.bad > 0) {
      const std::string where = fmt::format("{}:{}: {}", files_[b.file].path, line_ + b.first_bad, b.error);
      check(options_.skip_bad, "{} (bhyt data pack --skip-bad leaves such lines out)", where);
      if (result.bad_lines == 0) result.first_bad = where;
    }
    line_ += b.lines;
    result.bad_lines += b.bad;
    result.empty += b.empty;
    result.text_bytes += b.facts.bytes;
    check_.add(b.file, b.facts);
    std::size_t from = 0;
    for (const std::size_t end : b.ends) {
      writer_.append(b.ids.data() + from, end - from);
      writer_.end_document();
      from = end;
    }
    writer_.append(b.ids.data() + from, b.ids.size() - from);
    if (b.cut == Cut::piece) end_piece(b);
  }

  std::uint64_t tokens() const { return writer_.tokens(); }
  void finish() {
    result.warnings = check_.tell("pack");
    keep_tokenizer(tokenizer_, std::filesystem::path(output_path(options_.out)).parent_path());
    result.file = writer_.finish();
  }

  PackResult result;

 private:
  void end_piece(const Batch& b) {
    open_ = open_ || !b.ids.empty();
    if (!b.last_piece) return;
    if (open_) {
      if (const auto end = tokenizer_.end_of_text()) writer_.append(&*end, 1);
      writer_.end_document();
    } else {
      ++result.empty;
    }
    open_ = false;
  }

  const Tokenizer& tokenizer_;
  const PackOptions& options_;
  const std::vector<InputFile>& files_;
  TextCheck check_;
  TokenFileWriter writer_;
  std::size_t file_ = 0;
  std::uint64_t line_ = 0;
  bool open_ = false;  // a document in pieces has begun
};

}  // namespace

PackResult pack(const Tokenizer& tokenizer, const PackOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  check_usage(!options.inputs.empty(), "nothing to pack: name files, folders or globs");
  const Cut text = options.lines ? Cut::text_lines : tokenizer.splits_anywhere() ? Cut::piece : Cut::whole;
  Reader reader(find_inputs(options.inputs), text);
  double total = 0;
  for (const InputFile& f : reader.files()) {
    std::error_code ec;
    check_usage(!std::filesystem::equivalent(f.path, options.out, ec), "{} is an input: writing to it would destroy it", options.out);
    total += static_cast<double>(f.bytes);
  }
  Collector collector(tokenizer, options, reader.files());
  std::optional<log::Progress> progress;
  if (options.progress) progress.emplace("pack", total, "B");
  ordered_pipeline<Batch>(
      options.threads > 0 ? options.threads : available_cores(), [&](Batch& b) { return reader.next(b); }, Encoder(tokenizer, options),
      [&](const Batch& b) {
        if (const int signal = options.interrupted ? options.interrupted() : 0) throw Interrupted(signal);
        collector.take(b);
        if (progress)
          progress->update(static_cast<double>(b.consumed), log::human_count(static_cast<double>(collector.tokens()), "tokens"));
      });
  collector.finish();
  if (progress) progress->finish(log::human_count(static_cast<double>(collector.tokens()), "tokens"));
  collector.result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return collector.result;
}

}  // namespace bhyt
