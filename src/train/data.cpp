#include "train/data.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/log.h"
#include "data/pack.h"
#include "data/token_file.h"

namespace bhyt::train {

namespace {

namespace fs = std::filesystem;

// $BHYT_CACHE, else the user's cache folder; "" when there is none that can be made.
std::string cache_folder() {
  const auto env = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  fs::path dir = env("BHYT_CACHE");
  if (dir.empty() && !env("XDG_CACHE_HOME").empty()) dir = fs::path(env("XDG_CACHE_HOME")) / "bhyt";
  if (dir.empty() && !env("HOME").empty()) dir = fs::path(env("HOME")) / ".cache" / "bhyt";
  if (dir.empty()) return "";
  std::error_code error;
  fs::create_directories(dir, error);
  return error ? "" : dir.string();
}

// Texts are packed once per content (path, size, time) and tokenizer, whatever run asks.
std::string packed(const std::vector<std::string>& texts, const Tokenizer& tokenizer, const std::string& fallback) {
  Hash64 key;
  key.add(tokenizer.fingerprint());
  for (const InputFile& f : find_inputs(texts)) {
    key.update(fs::absolute(f.path).lexically_normal().string());
    key.add(f.bytes);
    key.add(static_cast<std::uint64_t>(f.modified));
  }
  const std::string cache = cache_folder();
  const fs::path file = fs::path(cache.empty() ? fallback : cache) / fmt::format("{:016x}.tok", key.digest());
  if (!fs::exists(file)) {
    log::info("packing {} into {}", fmt::join(texts, ", "), file.string());
    pack(tokenizer, {.out = file.string(), .inputs = texts});
  }
  return file.string();
}

std::unique_ptr<Tokenizer> choose_tokenizer(const DataSection& data) {
  if (data.tokenizer != "auto") return load_tokenizer(data.tokenizer);
  auto bytes = make_byte_tokenizer();
  for (const auto* entries : {&data.train, &data.valid})
    for (const DataEntry& e : *entries) {
      if (!TokenFile::recognised(e.path)) return bytes;
      if (TokenFile(e.path).info().meta.fingerprint == bytes->fingerprint()) return bytes;
    }
  return nullptr;
}

// One entry: its token files, and its texts packed into one more; an entry's weight is shared out by size.
void add_parts(const DataEntry& entry, const std::vector<std::string>& files, const Tokenizer* tokenizer, const std::string& fallback,
               std::vector<DataPart>& out) {
  std::vector<std::string> tokens, texts;
  for (const std::string& f : files) (TokenFile::recognised(f) ? tokens : texts).push_back(f);
  if (!texts.empty()) tokens.push_back(packed(texts, *tokenizer, fallback));
  double total = 0;
  std::vector<double> sizes;
  for (const std::string& f : tokens) total += sizes.emplace_back(static_cast<double>(TokenFile(f).tokens()));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    out.push_back({tokens[i], entry.weight > 0 && total > 0 ? entry.weight * sizes[i] / total : 0});
}

std::vector<DataPart> make_parts(const std::vector<DataEntry>& entries, const Tokenizer* tokenizer, const std::string& fallback) {
  std::vector<DataPart> parts;
  std::vector<std::string> plain;
  for (const DataEntry& e : entries) {
    if (e.weight > 0)
      add_parts(e, expand_globs({e.path}), tokenizer, fallback, parts);
    else
      plain.push_back(e.path);
  }
  if (!plain.empty()) add_parts({}, plain, tokenizer, fallback, parts);
  return parts;
}

// What the token files say of themselves must fit the tokenizer. Returns the largest vocabulary of files that name no tokenizer.
std::int64_t check_parts(const std::vector<DataPart>& parts, const Tokenizer* tokenizer, TokenMeta& meta) {
  std::int64_t vocab = 0;
  for (const DataPart& p : parts) {
    const TokenMeta m = TokenFile(p.path).info().meta;
    check_usage(!tokenizer || m.fingerprint == 0 || m.fingerprint == tokenizer->fingerprint(),
                "{} was packed with another tokenizer ({}, {:016x}) than data.tokenizer ({}, {:016x}); pack it again or name the other one",
                p.path, m.kind, m.fingerprint, tokenizer ? tokenizer->kind() : "", tokenizer ? tokenizer->fingerprint() : 0);
    if (!tokenizer || m.fingerprint == 0) vocab = std::max(vocab, static_cast<std::int64_t>(m.vocab));
    meta = m;
  }
  return vocab;
}

}  // namespace

void expand_data(DataSection& data) {
  check_usage(!data.train.empty(), "data.train must name what to train on: token files, texts or patterns");
  for (auto* entries : {&data.train, &data.valid}) {
    std::vector<DataEntry> out;
    for (const DataEntry& e : *entries) {
      if (e.weight > 0) {
        expand_globs({e.path});
        out.push_back(e);
      } else {
        for (std::string& path : expand_globs({e.path})) out.push_back({std::move(path), 0});
      }
    }
    *entries = std::move(out);
  }
}

RunData open_data(RunConfig& config, const std::string& fallback) {
  RunData out;
  out.tokenizer = choose_tokenizer(config.data);
  const Tokenizer* t = out.tokenizer.get();
  if (t && config.data.tokenizer == "auto") config.data.tokenizer = "bytes";
  out.train = make_parts(config.data.train, t, fallback);
  out.valid = make_parts(config.data.valid, t, fallback);
  TokenMeta meta;
  const std::int64_t file_vocab = std::max(check_parts(out.valid, t, meta), check_parts(out.train, t, meta));
  out.fingerprint = t ? t->fingerprint() : meta.fingerprint;

  ModelConfig& model = config.model.config;
  const std::int64_t tokenizer_vocab = t ? t->vocab_size() : 0;
  if (!config.model.vocab_given) model.vocab = std::max(tokenizer_vocab, file_vocab);
  check_usage(model.vocab >= tokenizer_vocab, "model.vocab must be at least {}, the tokenizer's, got {}", tokenizer_vocab, model.vocab);
  check_usage(model.vocab >= file_vocab, "model.vocab must be at least {}, the vocabulary of the token files, got {}", file_vocab,
              model.vocab);
  if (model.bos < 0 && t && t->bos()) model.bos = *t->bos();
  if (model.eos.empty()) {
    const std::optional<TokenId> end = t ? t->end_of_text() : meta.end_of_text >= 0 ? std::optional(meta.end_of_text) : std::nullopt;
    if (t)
      for (const TokenId id : t->stops()) model.eos.push_back(id);
    if (model.eos.empty() && end) model.eos = {*end};
  }
  return out;
}

}  // namespace bhyt::train
