#include "train/data.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/log.h"
#include "core/signals.h"
#include "data/files.h"
#include "data/kept_tokenizer.h"
#include "data/pack.h"
#include "data/token_file.h"
#include "io/checkpoint_folders.h"
#include "train/chat_data.h"

namespace bhyt::train {

namespace {

namespace fs = std::filesystem;

// What the config names, apart.
struct PackedFile {
  std::string path;
  TokenMeta meta;
};
struct Inputs {
  std::vector<PackedFile> packed;  // token files, those of data.train last
  std::vector<std::string> texts;
};

Inputs look_at(const std::vector<const std::vector<DataEntry>*>& all) {
  Inputs in;
  for (const auto* entries : all)
    for (const DataEntry& e : *entries)
      for (const std::string& path : expand_globs({e.path})) {
        if (!TokenFile::recognised(path)) {
          in.texts.push_back(path);
          continue;
        }
        const TokenFile file(path);
        check(file.tokens() > 0, "{}: expected a token file with tokens, got one that is empty", path);
        in.packed.push_back({path, file.info().meta});
      }
  (void)find_inputs(in.texts);  // what is wrong with them is said before anything is written
  return in;
}

// What people call the texts that one token file was packed from.
std::string called(const std::vector<std::string>& texts) {
  return texts.size() == 1 ? texts.front() : fmt::format("{} and {} more", texts.front(), texts.size() - 1);
}

// A packed text that was cut short is made again.
bool whole(const fs::path& file, const std::string& text) {
  try {
    return is_there(file.string()) && TokenFile(file.string()).tokens() > 0;
  } catch (const Error& e) {
    log::warning("the packed copy of {} is damaged ({}); packing again", text, e.what());
    return false;
  }
}

// What there was to say of texts when they were packed is said again by every run that uses them.
fs::path notes_of(const fs::path& packed) { return packed.string() + ".notes"; }

void keep_notes(const fs::path& packed, const std::vector<std::string>& warnings) {
  std::error_code ignored;
  fs::remove(notes_of(packed), ignored);
  if (!warnings.empty()) write_synced(notes_of(packed), fmt::format("{}\n", fmt::join(warnings, "\n")));
}

void repeat_notes(const fs::path& packed) {
  if (!is_there(notes_of(packed).string())) return;
  std::istringstream lines(read_text(notes_of(packed)));
  for (std::string line; std::getline(lines, line);) log::warning("{}", line);
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
    if (const fs::path file = fs::path(folder) / name; !folder.empty() && whole(file, called(texts))) {
      repeat_notes(file);
      return file.string();
    }
  std::error_code ec;
  if (!cache.empty()) fs::create_directories(cache, ec);
  const bool writable = !cache.empty() && ::access(cache.c_str(), W_OK | X_OK) == 0;
  const fs::path file = fs::path(writable ? cache : fallback) / name;
  log::info("packing {} into {} (tokenizer {}, {:016x})", fmt::join(texts, ", "), file.string(), tokenizer.kind(), tokenizer.fingerprint());
  const StopSignals stop("\nstopping\n");
  const PackResult result = pack(tokenizer, {.out = file.string(), .inputs = texts, .interrupted = [&] { return stop.received(); }});
  keep_notes(file, result.warnings);
  if (stop.received()) throw Interrupted(stop.received());
  return file.string();
}

std::string maker_of(const TokenMeta& meta) { return fmt::format("{}, {:016x}", meta.kind, meta.fingerprint); }

// The one token file that speaks for all that name their tokenizer: they must agree. Null where none does.
const PackedFile* spokesman(const Inputs& in) {
  const PackedFile* first = nullptr;
  for (const PackedFile& f : in.packed) {
    if (f.meta.fingerprint == 0) continue;
    check_usage(!first || f.meta.fingerprint == first->meta.fingerprint, "{} ({}) and {} ({}) were packed with different tokenizers",
                f.path, maker_of(f.meta), first ? first->path : "", first ? maker_of(first->meta) : "");
    if (!first) first = &f;
  }
  return first;
}

std::string why_none(const PackedFile& f) {
  if (f.meta.kind == "synth") return fmt::format("{} holds the ids of a generated language, which has no tokenizer", f.path);
  if (f.meta.fingerprint == 0)
    return fmt::format("{} does not say which tokenizer it was packed with; data.tokenizer=PATH names it", f.path);
  return fmt::format(
      "the tokenizer that {} was packed with ({}) is not at hand: there is no tokenizer-{:016x} beside it; data.tokenizer=PATH names one",
      f.path, maker_of(f.meta), f.meta.fingerprint);
}

// Where a tokenizer is that the run has already: the run itself where it goes on, else the checkpoint that it starts from; or "".
fs::path tokenizer_of_run(const RunConfig& config) {
  if (goes_on(config.run.resume))
    for (const std::int64_t step : checkpoint_steps(config.run.dir))
      if (holds_tokenizer(checkpoint_folder(config.run.dir, step))) return config.run.dir;
  return !config.model.init.empty() && holds_tokenizer(config.model.init) ? config.model.init : "";
}

// What the token files were packed with, for texts too; without token files, that of the run, else bytes.
void choose_by_files(const Inputs& in, const fs::path& own, RunData& out) {
  if (in.packed.empty()) {
    out.tokenizer = own.empty() ? make_byte_tokenizer() : load_tokenizer(own.string());
    return;
  }
  const PackedFile* speaks = spokesman(in);
  for (const PackedFile& f : in.packed)
    if (!out.tokenizer) out.tokenizer = find_tokenizer(f.path, f.meta).tokenizer;
  if (!out.tokenizer && speaks && !own.empty()) out.tokenizer = load_tokenizer(own.string());
  if (out.tokenizer && (!speaks || out.tokenizer->fingerprint() == speaks->meta.fingerprint)) return;
  out.tokenizer.reset();
  out.why_no_tokenizer = why_none(speaks ? *speaks : in.packed.back());
  check_usage(in.texts.empty(), "{} must be packed with the tokenizer of the token files, but {}", in.texts.empty() ? "" : in.texts.front(),
              out.why_no_tokenizer);
}

void choose_tokenizer(const RunConfig& config, const Inputs& in, RunData& out) {
  const DataSection& data = config.data;
  if (data.tokenizer == "auto") return choose_by_files(in, tokenizer_of_run(config), out);
  out.tokenizer = load_named_tokenizer(data.tokenizer);
  for (const PackedFile& f : in.packed)
    check_usage(f.meta.fingerprint == 0 || f.meta.fingerprint == out.tokenizer->fingerprint(),
                "{} was packed with another tokenizer ({}) than data.tokenizer ({}); pack it again or name the other one", f.path,
                maker_of(f.meta), maker_of(meta_of(*out.tokenizer)));
}

// One entry: its token files, and its texts packed into one more; an entry's weight is shared out by size.
void add_parts(const DataEntry& entry, const std::vector<std::string>& files, const Tokenizer* tokenizer, const std::string& fallback,
               std::vector<DataPart>& out) {
  std::vector<std::string> tokens, texts;
  for (const std::string& f : files) (TokenFile::recognised(f) ? tokens : texts).push_back(f);
  if (!texts.empty()) tokens.push_back(packed(texts, *tokenizer, fallback));  // these stand last
  double total = 0;
  std::vector<double> sizes;
  for (const std::string& f : tokens) total += sizes.emplace_back(static_cast<double>(TokenFile(f).tokens()));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    out.push_back({.path = tokens[i],
                   .weight = entry.weight > 0 && total > 0 ? entry.weight * sizes[i] / total : 0,
                   .name = !texts.empty() && i + 1 == tokens.size() ? called(texts) : ""});
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

// What a path or pattern of the config stands for.
std::vector<std::string> files_of(const char* key, const std::string& path) {
  try {
    std::vector<std::string> files = expand_globs({path});
    for (const std::string& file : files) check_usage(is_there(file), "{} does not exist", file);
    return files;
  } catch (const UsageError& e) {
    throw UsageError(fmt::format("{}: {}; docs/data.md says how data is made, that of the recipes too", key, e.what()));
  }
}

void expand_texts(const char* key, std::vector<DataEntry>& entries) {
  std::vector<DataEntry> out;
  for (const DataEntry& e : entries) {
    std::vector<std::string> paths = files_of(key, e.path);
    if (e.weight > 0) paths = {e.path};  // one weight for all that the pattern matches
    for (std::string& path : paths) out.push_back({std::move(path), e.weight});
  }
  entries = std::move(out);
}

// A model that starts from a checkpoint has its vocabulary: then it is the data that does not fit.
void check_start(const RunConfig& config, const Tokenizer* tokenizer, const Inputs& in) {
  const std::int64_t rows = config.model.config.vocab;
  const auto refuse = [&](const std::string& what, std::uint64_t ids) {
    throw UsageError(fmt::format("{} has a vocabulary of {} tokens, the model that starts from {} one of {}: they do not belong together",
                                 what, ids, config.model.init, rows));
  };
  for (const PackedFile& f : in.packed)
    if (f.meta.vocab > static_cast<std::uint64_t>(rows)) refuse(f.path, f.meta.vocab);
  if (tokenizer && tokenizer->vocab_size() > rows)
    refuse(config.data.tokenizer == "auto" ? "the tokenizer of " + config.model.init : "data.tokenizer " + config.data.tokenizer,
           static_cast<std::uint64_t>(tokenizer->vocab_size()));
}

void settle_vocabulary(RunConfig& config, const Tokenizer* tokenizer, const Inputs& in) {
  ModelConfig& model = config.model.config;
  std::int64_t file_vocab = 0;  // of token files that name no tokenizer
  for (const PackedFile& f : in.packed)
    if (!tokenizer || f.meta.fingerprint == 0) file_vocab = std::max(file_vocab, static_cast<std::int64_t>(f.meta.vocab));
  const std::int64_t tokenizer_vocab = tokenizer ? tokenizer->vocab_size() : 0;
  if (!config.model.vocab_given) model.vocab = std::max(tokenizer_vocab, file_vocab);
  if (!config.model.init.empty()) check_start(config, tokenizer, in);
  check_usage(model.vocab >= tokenizer_vocab, "model.vocab must be at least {}, the tokenizer's, got {}", tokenizer_vocab, model.vocab);
  check_usage(model.vocab >= file_vocab, "model.vocab must be at least {}, the vocabulary of the token files, got {}", file_vocab,
              model.vocab);
  if (!tokenizer) {
    if (const TokenId end = in.packed.back().meta.end_of_text; model.eos.empty() && end >= 0) model.eos = {end};
    return;
  }
  if (model.bos < 0 && tokenizer->bos()) model.bos = *tokenizer->bos();
  if (!model.eos.empty()) return;
  for (const TokenId id : tokenizer->stops()) model.eos.push_back(id);
  if (model.eos.empty() && tokenizer->end_of_text()) model.eos = {*tokenizer->end_of_text()};
}

}  // namespace

RunData::RunData() = default;
RunData::~RunData() = default;
RunData::RunData(RunData&&) noexcept = default;
RunData& RunData::operator=(RunData&&) noexcept = default;

std::unique_ptr<Tokenizer> load_named_tokenizer(const std::string& named) {
  check_usage(named == "bytes" || is_there(named), "data.tokenizer must be auto, {}, got {}", kTokenizerHelp, named);
  return load_tokenizer(named);
}

RunData choose_data(RunConfig& config) {
  check_usage(!config.data.train.empty(), "data.train must name what to train on: token files, texts or patterns");
  expand_texts("data.train", config.data.train);
  expand_texts("data.valid", config.data.valid);
  const Inputs in = look_at({&config.data.valid, &config.data.train});
  RunData out;
  choose_tokenizer(config, in, out);
  const Tokenizer* t = out.tokenizer.get();
  if (t && t->kind() == "bytes" && config.data.tokenizer == "auto") config.data.tokenizer = "bytes";
  settle_vocabulary(config, t, in);
  const PackedFile* speaks = spokesman(in);
  out.fingerprint = t ? t->fingerprint() : speaks ? speaks->meta.fingerprint : 0;
  return out;
}

void choose_calibration(RunConfig& config, const RunData& data) {
  expand_texts("data.calibrate", config.data.calibrate);
  const Inputs in = look_at({&config.data.calibrate});
  check_usage(in.texts.empty() || data.tokenizer, "data.calibrate: {} is a text, and there is no tokenizer: {}",
              in.texts.empty() ? "" : in.texts.front(), data.why_no_tokenizer);
  const auto vocab = static_cast<std::uint64_t>(config.model.config.vocab);
  for (const PackedFile& f : in.packed) {
    check_usage(f.meta.fingerprint == 0 || data.fingerprint == 0 || f.meta.fingerprint == data.fingerprint,
                "data.calibrate: {} was packed with another tokenizer ({}) than this run has ({:016x})", f.path, maker_of(f.meta),
                data.fingerprint);
    check_usage(f.meta.vocab <= vocab, "data.calibrate: {} has a vocabulary of {} tokens, the model one of {}", f.path, f.meta.vocab,
                vocab);
  }
}

void pack_calibration(const DataSection& config, RunData& data, const std::string& fallback) {
  data.calibrate = make_parts(config.calibrate, data.tokenizer.get(), fallback);
}

void pack_data(const DataSection& config, RunData& data, const std::string& fallback) {
  data.train = make_parts(config.train, data.tokenizer.get(), fallback);
  data.valid = make_parts(config.valid, data.tokenizer.get(), fallback);
}

}  // namespace bhyt::train
