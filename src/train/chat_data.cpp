#include "train/chat_data.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "core/log.h"
#include "data/example_summary.h"
#include "data/files.h"
#include "data/input.h"
#include "io/checkpoint_folders.h"
#include "io/format.h"
#include "io/hash.h"
#include "model/safetensors.h"
#include "text/chat_jinja.h"
#include "text/chat_template_yaml.h"
#include "text/chat_tokenizer.h"

namespace bhyt::train {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVocabularyMultiple = 64;  // what a vocabulary that grows is padded to

bool is_prepared(const std::string& path) { return path.ends_with(".safetensors"); }

// Patterns become files; returns whether they are prepared rows.
bool expand_files(const char* key, std::vector<DataEntry>& entries) {
  std::vector<DataEntry> out;
  for (const DataEntry& e : entries) {
    std::vector<std::string> paths = expand_globs({e.path});
    for (std::string& path : paths) {
      check_usage(is_there(path), "{}: {} does not exist", key, path);
      out.push_back({std::move(path), e.weight / static_cast<double>(paths.size())});  // one weight for all that the pattern matches
    }
  }
  const auto prepared = std::ranges::count_if(out, [](const DataEntry& e) { return is_prepared(e.path); });
  check_usage(prepared == 0 || prepared == std::ssize(out), "{}: prepared rows (.safetensors) and conversations cannot be mixed", key);
  check_usage(prepared <= 1, "{}: expected one file of prepared rows, got {}", key, prepared);
  for (const DataEntry& e : out)
    check_usage(prepared > 0 || named_as_records(e.path),
                "{}: expected conversations in .json or .jsonl (.gz, .zst), or prepared rows in .safetensors, got {}", key, e.path);
  entries = std::move(out);
  return prepared > 0;
}

ChatTemplate choose_template(const std::string& named, const std::string& tokenizer_at, const Tokenizer& tokenizer) {
  if (named != "auto") return load_chat_template(named);
  if (const auto own = own_chat_template(tokenizer_at, tokenizer)) {
    log::info("template {}, the tokenizer's own", own->name);
    return *own;
  }
  log::info("template default: the tokenizer names none, data.template=NAME chooses one of {}", chat_template_names());
  return find_chat_template("default");
}

std::vector<std::int32_t> read_integers(const SafeTensors& file, const std::string& name, std::int64_t& rows, std::int64_t& width) {
  const SafeTensor& t = file.at(name);
  const std::string where = file.path().string();
  check(t.shape.size() == 2 && (t.dtype == "I64" || t.dtype == "I32"), "{}: expected {} as int64 [rows, tokens], got {} {}", where, name,
        t.dtype, shape_string(t.shape));
  rows = t.shape[0];
  width = t.shape[1];
  std::vector<std::int32_t> out(static_cast<std::size_t>(t.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::int64_t value = 0;
    std::int32_t narrow = 0;
    if (t.dtype == "I64") {
      std::memcpy(&value, static_cast<const char*>(t.data) + 8 * i, 8);
    } else {
      std::memcpy(&narrow, static_cast<const char*>(t.data) + 4 * i, 4);
      value = narrow;
    }
    check(value >= INT32_MIN && value <= INT32_MAX, "{}: {} holds {}, which is no token", where, name, value);
    out[i] = static_cast<std::int32_t>(value);
  }
  return out;
}

std::vector<Example> read_prepared(const std::string& path, std::int64_t seq_len) {
  const SafeTensors file{fs::path(path)};
  std::int64_t rows = 0, width = 0, label_rows = 0, label_width = 0;
  const auto ids = read_integers(file, "input_ids", rows, width);
  const auto labels = read_integers(file, "labels", label_rows, label_width);
  check(rows == label_rows && width == label_width, "{}: expected labels of the shape of input_ids, [{}, {}], got [{}, {}]", path, rows,
        width, label_rows, label_width);
  check(rows > 0, "{}: it holds no rows", path);
  check_usage(width <= seq_len, "{}: rows of {} tokens are longer than data.seq_len={}", path, width, seq_len);
  std::vector<Example> out;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto begin = r * width;
    Example e{.index = r,
              .ids = {ids.begin() + begin, ids.begin() + begin + width},
              .labels = {labels.begin() + begin, labels.begin() + begin + width}};
    for (std::int64_t t = 0; t < width; ++t) {
      const std::int32_t id = e.ids[static_cast<std::size_t>(t)], label = e.labels[static_cast<std::size_t>(t)];
      check(id >= 0, "{}: row {} holds the token {}", path, r, id);
      check(label == kNotScored || label >= 0, "{}: row {}: expected labels of tokens, or {} where nothing is scored, got {}", path, r,
            kNotScored, label);
    }
    out.push_back(std::move(e));
  }
  std::int64_t scored = 0;
  for (const Example& e : out) scored += scored_tokens(e);
  check_usage(scored > 0, "{}: none of the tokens of its {} rows is scored: all labels are {}", path, rows, kNotScored);
  return out;
}

void read_sets(Threads& threads, const DataSection& config, const std::vector<DataEntry>& entries, const ChatData& data,
               std::vector<WeightedExamples>& sets, std::vector<ExampleSummary>& files) {
  sets.clear();
  for (const DataEntry& e : entries) {
    if (is_prepared(e.path)) {
      sets.push_back({std::make_shared<const std::vector<Example>>(read_prepared(e.path, config.seq_len)), e.weight});
      files.push_back(summarize(e.path, *sets.back().examples));
      continue;
    }
    ExampleSet set = read_examples(threads, e.path, *data.format, {.seq_len = config.seq_len, .mask_prompt = config.chat->mask_prompt});
    sets.push_back({std::make_shared<const std::vector<Example>>(std::move(set.examples)), e.weight});
    files.push_back(std::move(set.summary));
  }
}

}  // namespace

std::unique_ptr<ChatData> open_chat_data(DataSection& config, const std::string& model) {
  check_usage(!config.train.empty(),
              "data.train must name what to learn from: conversations in .json or .jsonl, or prepared rows in .safetensors");
  auto out = std::make_unique<ChatData>();
  out->prepared = expand_files("data.train", config.train);
  const bool valid_prepared = expand_files("data.valid", config.valid);
  if (out->prepared && (valid_prepared || config.valid.empty())) return out;
  const bool own = config.tokenizer == "auto";
  if (own)
    check_usage(!model.empty() && holds_tokenizer(model), "data.tokenizer must be {}: {}", kTokenizerHelp,
                model.empty() ? "there is no model whose own could be taken" : model + " holds none");
  const std::string& from = own ? model : config.tokenizer;
  out->tokenizer = own ? load_tokenizer(model) : load_named_tokenizer(from);
  out->format = std::make_unique<ChatFormat>(choose_template(config.chat->chat_template, from, *out->tokenizer), *out->tokenizer);
  return out;
}

namespace {

// Whose tokenizer `auto` means: that of the model that is started from; where that is gone and its run goes on, what the run saved of it.
std::string tokenizer_owner(const RunConfig& config) {
  std::error_code ignored;
  if (!goes_on(config.run.resume) || fs::exists(config.model.init, ignored)) return config.model.init;
  for (const std::int64_t step : checkpoint_steps(config.run.dir))
    if (const std::string saved = checkpoint_folder(config.run.dir, step).string(); holds_tokenizer(saved)) return saved;
  return config.model.init;
}

}  // namespace

RunData choose_chat_data(RunConfig& config) {
  check_usage(!config.model.init.empty(), "model.init must name the checkpoint to fine-tune");
  const std::string owner = tokenizer_owner(config);
  RunData out;
  out.chat = open_chat_data(config.data, owner);
  const ChatData& chat = *out.chat;
  ModelConfig& model = config.model.config;
  if (!chat.format) {
    if (holds_tokenizer(owner)) out.tokenizer = load_tokenizer(owner);
    out.why_no_tokenizer = owner + " holds none";
    if (out.tokenizer) out.fingerprint = out.tokenizer->fingerprint();
    return out;
  }
  const auto needed = chat.tokenizer->vocab_size() + std::ssize(chat.format->missing());
  check_usage(chat.tokenizer->vocab_size() <= model.vocab,
              "data.tokenizer has {} tokens, the model that starts from {} {}: they do not belong together", chat.tokenizer->vocab_size(),
              config.model.init, model.vocab);
  if (needed > model.vocab) {
    const std::int64_t grown = (needed + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
    std::vector<std::string> names;
    check_usage(
        !config.lora.config.active(),
        "template {} brings tokens that the model lacks, and adapters leave its embedding as it is: take a template whose tokens the "
        "tokenizer has, or lora.rank=0",
        chat.format->row().name);
    for (const SpecialToken& t : chat.format->missing()) names.push_back(t.text);
    log::info("the vocabulary grows from {} to {}: template {} brings {}", grouped(model.vocab), grouped(grown), chat.format->row().name,
              fmt::join(names, ", "));
    model.vocab = grown;
  }
  out.tokenizer = chat_tokenizer(*chat.format);
  out.fingerprint = out.tokenizer->fingerprint();
  model.eos.clear();
  for (const TokenId id : out.tokenizer->stops()) model.eos.push_back(id);
  return out;
}

void read_chat_data(Threads& threads, const DataSection& config, ChatData& data) {
  data.train_files.clear();
  data.valid_files.clear();
  read_sets(threads, config, config.train, data, data.train, data.train_files);
  read_sets(threads, config, config.valid, data, data.valid, data.valid_files);
  std::vector<std::uint64_t> learned, held_out;
  for (const ExampleSummary& s : data.train_files) learned.insert(learned.end(), s.fingerprints.begin(), s.fingerprints.end());
  for (const ExampleSummary& s : data.valid_files) held_out.insert(held_out.end(), s.fingerprints.begin(), s.fingerprints.end());
  if (const std::int64_t shared = count_shared(held_out, learned); shared > 0)
    log::warning("{} of the {} conversations of data.valid are in data.train too: their loss says little about what is new",
                 grouped(shared), grouped(std::ssize(held_out)));
}

void check_vocabulary(const ChatData& data, const ModelConfig& model) {
  for (const auto* sets : {&data.train, &data.valid})
    for (const WeightedExamples& set : *sets)
      for (const Example& e : *set.examples)
        for (std::size_t t = 0; t < e.ids.size(); ++t)
          check_usage(std::max(e.ids[t], e.labels[t]) < model.vocab, "record {} holds the token {}, beyond the model's vocabulary of {}",
                      e.index, std::max(e.ids[t], e.labels[t]), model.vocab);
}

std::uint64_t fingerprint(const std::vector<WeightedExamples>& sets) {
  Hash64 hash;
  for (const WeightedExamples& set : sets) {
    hash.add(set.examples->size());
    for (const Example& e : *set.examples)
      for (const auto* values : {&e.ids, &e.labels}) {
        hash.add(values->size());
        hash.update(values->data(), values->size() * sizeof(std::int32_t));
      }
  }
  return hash.digest();
}

Json about_examples(const ChatData& data, std::int64_t epoch_steps) {
  Json out{{"epoch_steps", epoch_steps}};
  if (data.format) out["template"] = data.format->row().name;
  for (const ExampleSummary& s : data.train_files) out["train"].push_back(summary_json(s));
  for (const ExampleSummary& s : data.valid_files) out["valid"].push_back(summary_json(s));
  return out;
}

}  // namespace bhyt::train
