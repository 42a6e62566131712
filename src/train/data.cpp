#include "train/data.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/log.h"
#include "core/signals.h"
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

// A packed text that was cut short is made again.
bool whole(const std::string& file) {
  try {
    return TokenFile(file).tokens() > 0;
  } catch (const Error& e) {
    log::warning("{}; packing again", e.what());
    return false;
  }
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
  const std::string cache = cache_folder(), name = fmt::format("{:016x}.tok", key.digest());
  for (const std::string& folder : {cache, fallback})
    if (const fs::path file = fs::path(folder) / name; !folder.empty() && fs::exists(file) && whole(file.string())) return file.string();
  const bool writable = !cache.empty() && ::access(cache.c_str(), W_OK | X_OK) == 0;
  const fs::path file = fs::path(writable ? cache : fallback) / name;
  log::info("packing {} into {}", fmt::join(texts, ", "), file.string());
  const StopSignals stop("\nstopping\n");
  pack(tokenizer, {.out = file.string(), .inputs = texts, .interrupted = [&] { return stop.received(); }});
  if (stop.received()) throw Interrupted(stop.received());
  return file.string();
}

std::unique_ptr<Tokenizer> choose_tokenizer(const DataSection& data) {
  if (data.tokenizer != "auto") {
    check_usage(data.tokenizer == "bytes" || fs::exists(data.tokenizer),
                "data.tokenizer must be auto, bytes, a tokenizer file or a folder that holds one, got {}", data.tokenizer);
    return load_tokenizer(data.tokenizer);
  }
  auto bytes = make_byte_tokenizer();
  for (const auto* entries : {&data.train, &data.valid})
    for (const DataEntry& e : *entries)
      for (const std::string& path : expand_globs({e.path}))
        if (!TokenFile::recognised(path) || TokenFile(path).info().meta.fingerprint == bytes->fingerprint()) return bytes;
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

// What the token files say of themselves must fit the tokenizer. Returns the largest vocabulary of those that name no tokenizer.
std::int64_t check_files(const DataSection& data, const Tokenizer* tokenizer, TokenMeta& meta) {
  std::int64_t vocab = 0;
  std::string named;  // the last file that says what it was packed with
  std::uint64_t fingerprint = 0;
  for (const auto* entries : {&data.valid, &data.train})
    for (const DataEntry& e : *entries)
      for (const std::string& path : expand_globs({e.path})) {
        if (!TokenFile::recognised(path)) continue;
        meta = TokenFile(path).info().meta;
        check_usage(
            !tokenizer || meta.fingerprint == 0 || meta.fingerprint == tokenizer->fingerprint(),
            "{} was packed with another tokenizer ({}, {:016x}) than data.tokenizer ({}, {:016x}); pack it again or name the other one",
            path, meta.kind, meta.fingerprint, tokenizer ? tokenizer->kind() : "", tokenizer ? tokenizer->fingerprint() : 0);
        if (meta.fingerprint != 0) {
          check_usage(named.empty() || meta.fingerprint == fingerprint, "{} and {} were packed with different tokenizers", path, named);
          named = path;
          fingerprint = meta.fingerprint;
        }
        if (!tokenizer || meta.fingerprint == 0) vocab = std::max(vocab, static_cast<std::int64_t>(meta.vocab));
      }
  return vocab;
}

void expand(DataSection& data) {
  check_usage(!data.train.empty(), "data.train must name what to train on: token files, texts or patterns");
  for (auto* entries : {&data.train, &data.valid}) {
    std::vector<DataEntry> out;
    for (const DataEntry& e : *entries) {
      std::vector<std::string> paths = expand_globs({e.path});
      if (e.weight > 0) paths = {e.path};  // one weight for all that the pattern matches
      for (std::string& path : paths) out.push_back({std::move(path), e.weight});
    }
    *entries = std::move(out);
  }
}

void settle_vocabulary(ModelSection& section, const Tokenizer* tokenizer, std::int64_t file_vocab, const TokenMeta& meta) {
  ModelConfig& model = section.config;
  const std::int64_t tokenizer_vocab = tokenizer ? tokenizer->vocab_size() : 0;
  if (!section.vocab_given) model.vocab = std::max(tokenizer_vocab, file_vocab);
  check_usage(model.vocab >= tokenizer_vocab, "model.vocab must be at least {}, the tokenizer's, got {}", tokenizer_vocab, model.vocab);
  check_usage(model.vocab >= file_vocab, "model.vocab must be at least {}, the vocabulary of the token files, got {}", file_vocab,
              model.vocab);
  if (!tokenizer) {
    if (model.eos.empty() && meta.end_of_text >= 0) model.eos = {meta.end_of_text};
    return;
  }
  if (model.bos < 0 && tokenizer->bos()) model.bos = *tokenizer->bos();
  if (!model.eos.empty()) return;
  for (const TokenId id : tokenizer->stops()) model.eos.push_back(id);
  if (model.eos.empty() && tokenizer->end_of_text()) model.eos = {*tokenizer->end_of_text()};
}

}  // namespace

RunData choose_data(RunConfig& config) {
  expand(config.data);
  for (const auto& [key, entries] : {std::pair{"data.train", &config.data.train}, {"data.valid", &config.data.valid}})
    for (const DataEntry& e : *entries)
      for (const std::string& path : expand_globs({e.path})) check_usage(fs::exists(path), "{}: {} does not exist", key, path);
  RunData out;
  out.tokenizer = choose_tokenizer(config.data);
  const Tokenizer* t = out.tokenizer.get();
  if (t && config.data.tokenizer == "auto") config.data.tokenizer = "bytes";
  TokenMeta meta;
  const std::int64_t file_vocab = check_files(config.data, t, meta);
  settle_vocabulary(config.model, t, file_vocab, meta);
  out.fingerprint = t ? t->fingerprint() : meta.fingerprint;
  return out;
}

void pack_data(const DataSection& config, RunData& data, const std::string& fallback) {
  data.train = make_parts(config.train, data.tokenizer.get(), fallback);
  data.valid = make_parts(config.valid, data.tokenizer.get(), fallback);
}

}  // namespace bhyt::train
