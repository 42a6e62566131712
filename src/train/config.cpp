#include "train/config.h"

#include <algorithm>
#include <set>

#include "core/log.h"
#include "data/input.h"
#include "data/token_file.h"
#include "io/checkpoint_folders.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "train/config_keys.h"

namespace bhyt::train {

namespace {

constexpr double kMostSteps = 9e15;  // whole numbers beyond have gaps in a double

constexpr const char* kResolved = "resolved.yaml";

// Keys that say the same thing. Where the config has the one and a word behind it the other, the word wins.
constexpr std::pair<const char*, const char*> kTwins[] = {
    {"train.steps", "train.tokens"}, {"train.steps", "train.epochs"}, {"train.tokens", "train.epochs"}, {"norm.p", "norm.kappa"}};

bool names_key(const std::string& word, const std::string& key) { return word.starts_with(key + "=") && word != key + "=null"; }

void let_words_win(Json& tree, const std::string& file, const std::vector<std::string>& words) {
  const auto given = [&](const std::string& key) {
    return std::find_if(words.begin(), words.end(), [&](const std::string& w) { return names_key(w, key); });
  };
  const auto replace = [&](const std::string& old, const std::string& now) {
    const std::string section = old.substr(0, old.find('.')), key = old.substr(old.find('.') + 1);
    if (given(now) == words.end() || given(old) != words.end()) return;
    if (!tree.contains(section) || !tree[section].is_object() || !tree[section].contains(key)) return;
    log::info("{} takes the place of {}: {} in {}", *given(now), old, schema::show(tree[section][key]), file);
    tree[section].erase(key);
  };
  for (const auto& [one, other] : kTwins) {
    replace(one, other);
    replace(other, one);
  }
}

// What may change when a run goes on.
bool may_change(const std::string& key) {
  static const std::set<std::string> kFree = {
      "model.init",         "model.preset",     "norm.from",      "data.train",        "data.valid",
      "data.calibrate",     "data.tokenizer",   "train.steps",    "train.micro_batch", "train.eval_every",
      "train.eval_batches", "train.save_every", "train.keep",     "train.save",        "train.log_every",
      "train.max_skipped",  "train.select",     "train.patience", "train.recompute",   "run.dir",
      "run.device",         "run.threads",      "run.resume",     "lora.init",         "lora.merge"};
  return kFree.contains(key) || key.starts_with("eval.") || key.starts_with("analysis.");
}

void flatten(const Json& tree, const std::string& path, std::vector<std::pair<std::string, Json>>& out) {
  for (const auto& [key, value] : tree.items()) {
    const std::string full = path.empty() ? key : path + "." + key;
    if (value.is_object())
      flatten(value, full, out);
    else
      out.emplace_back(full, value);
  }
}

// A bare key that only exists inside a section: say where.
void explain_bare(const Json& tree, Work work) {
  const auto keys = config_keys(work);
  for (const auto& [name, value] : tree.items()) {
    const auto has = [&](const std::string& prefix, const std::string& suffix) {
      return std::find_if(keys.begin(), keys.end(), [&](const auto& e) { return e.key.starts_with(prefix) && e.key.ends_with(suffix); });
    };
    if (name == "version" || has(name + ".", "") != keys.end()) continue;
    std::vector<std::string> sections, ends;
    for (const auto& e : keys) {
      sections.push_back(e.key.substr(0, e.key.find('.')));
      ends.push_back(e.key.substr(e.key.rfind('.') + 1));
    }
    std::string meant = name;  // where it is no section misspelt, perhaps an end misspelt
    if (const std::string end = schema::nearest(name, ends); schema::nearest(name, sections).empty() && !end.empty()) meant = end;
    if (const auto found = has("", "." + meant); found != keys.end())
      throw UsageError(fmt::format("unknown key {} (did you mean {}?)", name, found->key));
  }
}

// The checkpoint that model.init names is the base on which the model and norm sections stand.
// Where it is gone and its run goes on, what that run made of it.
void start_from(Json& model, const fs::path& run, RunConfig& config, Verify verify) {
  ModelSection& section = config.model;
  if (!model.is_object() || !model.contains("init") || !model["init"].is_string()) return;
  check_usage(!model.contains("preset"), "model.preset and model.init: a checkpoint brings its own shapes; give one of them");
  fs::path dir = model["init"].get<std::string>();
  std::error_code ignored;
  const bool begun = !run.empty() && !checkpoint_steps(run).empty();
  if (begun && !fs::exists(dir, ignored) && fs::is_regular_file(run / kResolved, ignored)) {
    Json own = read_yaml((run / kResolved).string());
    if (own.is_object() && own.contains("model") && own["model"].is_object()) own["model"].erase("init");
    if (own.is_object() && own.contains("run") && own["run"].is_object()) own["run"].erase("resume");
    section.config = read_run_config(own, verify, config.work).model.config;
    // What begins and ends a text is no key of a config; an adapter's checkpoint does not hold it.
    const fs::path kept = checkpoint_folder(run, checkpoint_steps(run).front()) / "config.json";
    if (fs::is_regular_file(kept, ignored)) {
      const ModelConfig saved = read_model_config(kept);
      section.config.bos = saved.bos;
      section.config.eos = saved.eos;
    }
    section.vocab_given = true;
    return;
  }
  check_usage(is_checkpoint(dir) || !checkpoint_steps(dir).empty(),
              "model.init: {} is neither a checkpoint folder (config.json and weights) nor a run directory with checkpoints", dir.string());
  dir = named_checkpoint(dir, begun ? Verify::no : verify);  // a run that goes on has weights of its own
  model["init"] = dir.string();
  section.config = read_model_config(dir / "config.json");
  section.config.preset.clear();
  section.vocab_given = true;
}

// A preset of norms was found with a scale of the embedding, and is worth little without it (docs/results.md): it brings that along, but
// not to a checkpoint, which has its own.
void scale_embedding_for_preset(Json& tree) {
  const auto given = [&](const char* section, const char* key) {
    return tree.contains(section) && tree[section].is_object() && tree[section].contains(key);
  };
  if (!given("norm", "preset") || given("model", "embedding_scale") || given("model", "init")) return;
  if (!tree.contains("model") || tree["model"].is_object()) tree["model"]["embedding_scale"] = "sqrt_d";
}

}  // namespace

Json config_tree(const std::string& file, const std::vector<std::string>& overrides) {
  Json tree = file.empty() ? Json::object() : read_yaml(file);
  if (!tree.is_object()) tree = tree.is_null() ? Json::object() : tree;
  check_usage(tree.is_object(), "{}: expected a map of keys, got {}", file, schema::show(tree));
  apply_words(tree, file, overrides);
  return tree;
}

void apply_words(Json& tree, const std::string& called, const std::vector<std::string>& words) {
  let_words_win(tree, called, words);
  for (const std::string& word : words) apply_override(tree, word);
}

namespace {

// What a command's defaults are.
RunConfig defaults_of(Work work) {
  RunConfig c;
  c.work = work;
  if (work == Work::pretraining) return c;
  c.run.dir = "runs/sft";
  c.data.seq_len = 2048;
  c.data.chat.emplace();
  c.train.epochs = 3;
  c.train.lr = 1e-5;
  c.train.betas = {0.9, 0.999};
  c.train.eval_every = c.train.save_every = c.eval.every = kEveryEpoch;
  c.train.eval_batches = 0;
  c.train.select = Select::best;
  c.lora.config.alpha = 0;  // auto
  return c;
}

}  // namespace

Json training_tree(const std::string& file, const std::vector<std::string>& overrides, Work work) {
  std::error_code ignored;
  check_usage(!fs::is_directory(file, ignored), "config {0} is a folder; run.dir={0} resume=auto goes on with the run that is there", file);
  check_usage(!TokenFile::recognised(file) && !(is_there(file) && named_as_text(file)),
              "config {0} is data, not a config: data.train={0} trains on it", file);
  const Json words = config_tree(file, overrides);
  const auto given = [&](const char* section, const char* key) {
    const auto found = words.find(section);
    return found != words.end() && found->is_object() && found->contains(key) ? &found->at(key) : nullptr;
  };
  const fs::path run = given("run", "dir") ? schema::Reader::as_text("run.dir", *given("run", "dir")) : defaults_of(work).run.dir;
  if (!file.empty() || given("data", "train")) return words;
  const bool goes_on = given("run", "resume") && *given("run", "resume") != "never";
  const bool there = fs::is_regular_file(run / kResolved, ignored);
  check_usage(there || !goes_on, "{} holds no run to go on with (no {} there){}", run.string(), kResolved,
              is_checkpoint(run) ? fmt::format("; it is a checkpoint: run.dir={} is its run", run.parent_path().string()) : "");
  if (!there) return words;
  check_usage(goes_on, "{} already holds a run; resume=auto goes on with it, resume=restart puts it aside and trains it again",
              run.string());
  check_usage(!given("model", "preset"), "model.preset cannot change in a run that goes on; {} says what it is made of",
              (run / kResolved).string());
  return config_tree((run / kResolved).string(), overrides);
}

namespace {

void settle_lora(RunConfig& c) {
  LoraConfig& l = c.lora.config;
  if (c.work == Work::pretraining) return;
  const LoraConfig none;
  if (l.rank == 0) {
    const bool begun = goes_on(c.run.resume);  // maybe by a version that let these two pass
    check_usage(l.targets == none.targets && l.layers.empty() && c.lora.init.empty() && (begun || (l.alpha <= 0 && l.dropout == 0)),
                "lora.rank is 0: there are no adapters for the other keys of lora (targets, layers, init, alpha, dropout); give a rank");
    check_usage(!c.lora.merge || l.train_norms, "lora.merge: lora.rank is 0, there is nothing to merge");
  } else if (l.alpha <= 0) {
    l.alpha = 2 * static_cast<double>(l.rank);
  }
  if (l.active()) validate(l, c.model.config);
  if (std::ssize(l.layers) == c.model.config.layers) l.layers.clear();  // all of them
}

}  // namespace

void check_lora_init(const std::string& folder) {
  check_usage(folder.empty() || is_adapter(folder) || !checkpoint_steps(folder).empty(),
              "lora.init: {} is neither an adapter folder ({} and {}) nor a run directory with checkpoints", folder, kAdapterConfig,
              kAdapterWeights);
}

RunConfig read_run_config(const Json& given, Verify verify, Work work) {
  Json tree = given;
  explain_bare(tree, work);
  RunConfig c = defaults_of(work);
  const Json run = tree.value("run", Json::object());
  const Json resume = run.is_object() ? run.value("resume", Json()) : Json();
  const bool resuming = resume == "auto" || resume == "must";
  const auto dir = [&] { return run.contains("dir") ? schema::Reader::as_text("run.dir", run["dir"]) : c.run.dir; };
  if (tree.contains("model")) start_from(tree["model"], resuming ? dir() : "", c, verify);
  scale_embedding_for_preset(tree);
  read_keys(c, tree);
  if (c.train.tokens > 0) {
    const double per_step = static_cast<double>(c.train.batch) * static_cast<double>(c.data.seq_len);
    const double steps = std::ceil(c.train.tokens / per_step);
    check_usage(steps <= kMostSteps, "train.tokens must come to at most {:.0e} steps, got {:g} tokens, {:.3e} steps of {:g}", kMostSteps,
                c.train.tokens, steps, per_step);
    c.train.steps = static_cast<std::int64_t>(steps);
    c.train.tokens = 0;
  }
  c.train.micro_batch = std::min(c.train.micro_batch, c.train.batch);
  c.model.config.max_positions = std::max(c.model.config.max_positions, c.data.seq_len);
  if (c.model.config.norm.seq_len == 0) c.model.config.norm.seq_len = c.data.seq_len;
  settle_lora(c);
  check_usage(c.train.select != Select::best || !c.data.valid.empty() || work == Work::fine_tuning,
              "train.select=best takes the checkpoint with the lowest validation loss, and there is no data.valid");
  // What is kept for the backward is most of the memory of adapters, and what is cheap to make again a third of that.
  const bool chosen = tree.contains("train") && tree["train"].is_object() && tree["train"].contains("recompute");
  if (c.lora.config.rank > 0 && !chosen) c.train.recompute = Recompute::swiglu;
  return c;
}

void settle_epochs(RunConfig& c, std::int64_t batches) {
  if (c.train.epochs > 0) {
    const double steps = std::ceil(c.train.epochs * static_cast<double>(batches) * (1 - 1e-12));
    check_usage(steps <= kMostSteps, "train.epochs must come to at most {:.0e} steps, got {:g} epochs of {} steps", kMostSteps,
                c.train.epochs, batches);
    c.train.steps = std::max<std::int64_t>(static_cast<std::int64_t>(steps), 1);
    c.train.epochs = 0;
  }
  for (std::int64_t* every : {&c.train.eval_every, &c.train.save_every, &c.eval.every})
    if (*every == kEveryEpoch) *every = batches;
}

Json resolved_tree(const RunConfig& config) { return write_keys(config); }

Json mathematics(const Json& resolved) {
  std::vector<std::pair<std::string, Json>> flat;
  flatten(resolved, "", flat);
  Json out = Json::object();
  for (auto& [key, value] : flat)
    if (!may_change(key)) out[key] = std::move(value);
  return out;
}

std::vector<std::string> differences(const Json& before, const Json& now) {
  std::vector<std::string> out;
  for (const auto& [key, value] : now.items()) {
    const Json old = before.contains(key) ? before[key] : Json();
    if (old != value) out.push_back(fmt::format("{} was {}, now is {}", key, schema::show(old), schema::show(value)));
  }
  for (const auto& [key, value] : before.items())
    if (!now.contains(key)) out.push_back(fmt::format("{} was {}, now is absent", key, schema::show(value)));
  return out;
}

std::vector<schema::Lister::Entry> config_keys(Work work) { return list_keys(defaults_of(work)); }

}  // namespace bhyt::train
