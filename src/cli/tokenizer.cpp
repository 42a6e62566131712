// bhyt tokenizer train | encode | decode | convert | info.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/prompts.h"
#include "cli/tokenizer_train.h"
#include "core/check.h"
#include "core/threads.h"
#include "text/tokenizer.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

struct CodeArgs {
  std::string tokenizer, out;
  bool no_special = false, special = false, lines = false, json = false, force = false;
};

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
  check_tokenizer_out(args.out, args.force);
  save_tokenizer(*load_tokenizer(args.tokenizer), args.out);
  return 0;
}

// Of what a tokenizer says of itself: the ids that it adds as a list, counts as numbers.
nlohmann::ordered_json as_json(const std::string& name, const std::string& value) {
  if (name.starts_with("adds_")) {
    std::istringstream words(value);  // or "nothing"
    return std::vector<TokenId>(std::istream_iterator<TokenId>(words), {});
  }
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  return error == std::errc() && end == value.data() + value.size() ? nlohmann::ordered_json(count) : nlohmann::ordered_json(value);
}

int info(const CodeArgs& args) {
  const auto t = load_tokenizer(args.tokenizer);
  nlohmann::ordered_json j{{"kind", t->kind()}, {"vocab_size", t->vocab_size()}};
  j["bos"] = t->bos() ? nlohmann::ordered_json(*t->bos()) : nullptr;
  j["end_of_text"] = t->end_of_text() ? nlohmann::ordered_json(*t->end_of_text()) : nullptr;
  j["stops"] = t->stops();
  j["fingerprint"] = fmt::format("{:016x}", t->fingerprint());
  for (const auto& [name, value] : t->details()) j[name] = args.json ? as_json(name, value) : nlohmann::ordered_json(value);
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
  TokenizerTrainArgs t;
  CodeArgs c;
  CLI::App* trainer = app.add_subcommand("train", "learn a byte-level BPE vocabulary from JSONL (.gz, .zst) or text files");
  trainer->add_option("--vocab", t.vocab, "tokens, with the 256 bytes and the special ones: 4096, 32K")->required()->transform(count());
  trainer->add_option("--out", t.out, "folder to write tokenizer.json and its companions to")->required();
  trainer->add_flag("--force", t.force, "replace the tokenizer that is there");
  trainer->add_option("--threads", t.threads, "default: all cores")->check(between(1, train::kMostThreads));
  trainer->add_option("--key", t.key, "key of the text in JSONL")->capture_default_str();
  trainer->add_option("--special", t.special, "special tokens instead of the usual five, separated by commas")->delimiter(',');
  trainer->add_option("files", t.files, "files, folders or globs")->required();

  const auto code = [&](const char* name, const char* what) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->add_option("--tokenizer", c.tokenizer, kTokenizerHelp)->required();
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
  converter->add_flag("--force", c.force, "replace the tokenizer that is there");
  CLI::App* teller = app.add_subcommand("info", "what a tokenizer is");
  teller->add_option("--tokenizer,tokenizer", c.tokenizer, kTokenizerHelp)->required();
  teller->add_flag("--json", c.json, "as one JSON value");
  parse(app, args);

  if (trainer->parsed()) return train_tokenizer(t);
  if (encoder->parsed()) return encode(c);
  if (decoder->parsed()) return decode(c);
  if (converter->parsed()) return convert(c);
  return info(c);
}

}  // namespace bhyt::cli
