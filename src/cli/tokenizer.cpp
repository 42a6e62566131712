// bhyt tokenizer train | encode | decode | convert | info.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "core/check.h"
#include "core/log.h"
#include "core/threads.h"
#include "data/input.h"
#include "data/json_text.h"
#include "data/pipeline.h"
#include "text/tokenizer.h"
#include "text/train.h"

namespace bhyt::cli {

namespace {

struct TrainArgs {
  std::string out, key = "text";
  std::vector<std::string> files;
  std::vector<std::string> special;
  std::int64_t vocab = 0;
  int threads = 0;
};

struct CodeArgs {
  std::string tokenizer, out;
  bool no_special = false, special = false, lines = false, json = false;
};

// Whole lines of one JSONL file, or one whole text.
struct Chunk {
  std::string data;
  const InputFile* file = nullptr;
  std::int64_t first_line = 1;
  std::uint64_t consumed = 0;
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

void count_chunk(BpeTrainer& trainer, const Chunk& chunk, const std::string& key) {
  if (chunk.file->records != Records::jsonl) return trainer.count(chunk.data);
  JsonText json(key);
  std::string_view rest = chunk.data;
  for (std::int64_t number = chunk.first_line; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::string_view text;
    check(json.scan(line, text), "{}:{}: {}", chunk.file->path, number, json.error());
    trainer.count(text);
  }
}

int train(const TrainArgs& args) {
  BpeTrainOptions options{.vocab = args.vocab};
  if (!args.special.empty()) options.special = args.special;
  BpeTrainer trainer(options);
  const std::vector<InputFile> files = find_inputs(args.files);
  double total = 0;
  for (const InputFile& f : files) total += static_cast<double>(f.bytes);
  {
    log::Progress progress("counting words", total, "B");
    ChunkReader reader(files);
    ordered_pipeline<Chunk>(
        args.threads > 0 ? args.threads : available_cores(), [&](Chunk& c) { return reader.next(c); },
        [&](Chunk& c) { count_chunk(trainer, c, args.key); }, [&](Chunk& c) { progress.update(static_cast<double>(c.consumed)); });
    progress.update(total);
    progress.finish();
  }
  log::Progress progress("merging", static_cast<double>(args.vocab), "tokens");
  const auto tokenizer = trainer.train([&](std::int64_t done, std::int64_t) { progress.update(static_cast<double>(done)); });
  progress.update(static_cast<double>(tokenizer->vocab_size()));
  progress.finish();
  if (tokenizer->vocab_size() < args.vocab)
    log::warning("nothing was left to merge: {} tokens instead of {}", tokenizer->vocab_size(), args.vocab);
  tokenizer->save(args.out);
  log::info("{} tokens in {}", tokenizer->vocab_size(), args.out);
  return 0;
}

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) text.append(buffer, n);
  check(!std::ferror(stdin), "cannot read stdin");
  return text;
}

void print_ids(const std::vector<TokenId>& ids) {
  fmt::memory_buffer out;
  out.push_back('[');
  for (std::size_t i = 0; i < ids.size(); ++i) fmt::format_to(std::back_inserter(out), "{}{}", i ? "," : "", ids[i]);
  fmt::format_to(std::back_inserter(out), "]\n");
  std::fwrite(out.data(), 1, out.size(), stdout);
}

int encode(const CodeArgs& args) {
  const auto tokenizer = load_tokenizer(args.tokenizer);
  const std::string input = read_stdin();
  std::vector<std::string_view> texts;
  if (args.lines) {
    for (std::string_view rest = input; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      texts.push_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  } else {
    texts.push_back(input);
  }
  Threads threads;
  for (const auto& ids : encode_all(threads, *tokenizer, texts, {.special = !args.no_special})) print_ids(ids);
  return 0;
}

// Reads "[1, 2, 3]" at `at` and moves behind it; false at the end of the text.
bool next_array(std::string_view text, std::size_t& at, std::vector<TokenId>& ids) {
  const auto skip = [&] { at = std::min(text.find_first_not_of(" \t\r\n", at), text.size()); };
  const auto expect = [&](bool ok) {
    check(ok, "expected arrays of ids such as [1, 2, 3], got {:?} at byte {}", text.substr(std::min(at, text.size()), 20), at);
  };
  ids.clear();
  skip();
  if (at == text.size()) return false;
  expect(text[at] == '[');
  ++at;
  skip();
  while (at < text.size() && text[at] != ']') {
    TokenId id = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    expect(error == std::errc());
    ids.push_back(id);
    at = static_cast<std::size_t>(end - text.data());
    skip();
    if (at < text.size() && text[at] == ']') break;
    expect(at < text.size() && text[at] == ',');
    ++at;
    skip();
    expect(at < text.size() && text[at] != ']');
  }
  expect(at < text.size());
  ++at;
  return true;
}

int decode(const CodeArgs& args) {
  const auto tokenizer = load_tokenizer(args.tokenizer);
  const std::string input = read_stdin();
  std::vector<TokenId> ids;
  for (std::size_t at = 0; next_array(input, at, ids);) {
    const std::string text = tokenizer->decode(ids, args.special) + (args.lines ? "\n" : "");
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return 0;
}

int convert(const CodeArgs& args) {
  const auto tokenizer = load_tokenizer(args.tokenizer);
  std::filesystem::create_directories(args.out);
  tokenizer->save(args.out);
  log::info("{} tokens in {}", tokenizer->vocab_size(), args.out);
  return 0;
}

int info(const CodeArgs& args) {
  const auto t = load_tokenizer(args.tokenizer);
  nlohmann::ordered_json j{{"kind", t->kind()}, {"vocab_size", t->vocab_size()}};
  j["bos"] = t->bos() ? nlohmann::ordered_json(*t->bos()) : nullptr;
  j["end_of_text"] = t->end_of_text() ? nlohmann::ordered_json(*t->end_of_text()) : nullptr;
  j["stops"] = t->stops();
  j["fingerprint"] = fmt::format("{:016x}", t->fingerprint());
  for (const auto& [name, value] : t->details()) j[name] = value;
  const auto special = t->special_tokens();
  if (args.json) {
    j["special_tokens"] = nlohmann::ordered_json::object();
    for (const SpecialToken& s : special) j["special_tokens"][s.text] = s.id;
    fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  for (const auto& [name, value] : j.items()) fmt::print("{:<14} {}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  constexpr std::size_t kShown = 12;
  for (std::size_t i = 0; i < std::min(special.size(), kShown); ++i)
    fmt::print("{:<14} {:>7} {}\n", i ? "" : "special", special[i].id, special[i].text);
  if (special.size() > kShown) fmt::print("{:<14} and {} more (--json lists them)\n", "", special.size() - kShown);
  return 0;
}

}  // namespace

int cmd_tokenizer(const Args& args) {
  CLI::App app("Train a tokenizer, or look at what one does", "bhyt tokenizer");
  app.require_subcommand(1);
  TrainArgs t;
  CodeArgs c;
  CLI::App* trainer = app.add_subcommand("train", "learn a byte-level BPE vocabulary from JSONL (.gz, .zst) or text files");
  trainer->add_option("--vocab", t.vocab, "tokens, with the 256 bytes and the special ones")->required();
  trainer->add_option("--out", t.out, "folder to write tokenizer.json and its companions to")->required();
  trainer->add_option("--threads", t.threads, "default: all cores")->check(CLI::PositiveNumber);
  trainer->add_option("--key", t.key, "key of the text in JSONL")->capture_default_str();
  trainer->add_option("--special", t.special, "special tokens instead of the usual five, separated by commas")->delimiter(',');
  trainer->add_option("files", t.files, "files, folders or globs")->required();

  const auto code = [&](const char* name, const char* what) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->add_option("--tokenizer", c.tokenizer, "bytes, a tokenizer file or a folder that holds one")->required();
    return sub;
  };
  CLI::App* encoder = code("encode", "text on stdin to a JSON array of ids");
  encoder->add_flag("--no-special", c.no_special, "add no special tokens and read none in the text");
  encoder->add_flag("--lines", c.lines, "each line is a text, and gives an array");
  CLI::App* decoder = code("decode", "JSON arrays of ids on stdin to text");
  decoder->add_flag("--special", c.special, "write the text of special tokens too");
  decoder->add_flag("--lines", c.lines, "end each text with a newline");
  CLI::App* converter = code("convert", "write it as tokenizer.json and its companions, which transformers loads");
  converter->add_option("--out", c.out, "folder to write to")->required();
  CLI::App* teller = app.add_subcommand("info", "what a tokenizer is");
  teller->add_option("--tokenizer,tokenizer", c.tokenizer, "bytes, a tokenizer file or a folder that holds one")->required();
  teller->add_flag("--json", c.json, "as one JSON value");
  parse(app, args);

  if (trainer->parsed()) return train(t);
  if (encoder->parsed()) return encode(c);
  if (decoder->parsed()) return decode(c);
  if (converter->parsed()) return convert(c);
  return info(c);
}

}  // namespace bhyt::cli
