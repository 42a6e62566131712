// The keys of a run, each declared once.
#include "train/config_keys.h"

#include <algorithm>
#include <charconv>

#include "eval/task.h"
#include "ops/norm/config.h"
#include "train/optimizer.h"

namespace bhyt::train {

namespace {

constexpr std::int64_t kVersion = 1;

const schema::Names<Attend> kAttend = {{"row", Attend::row}, {"document", Attend::document}};
const schema::Names<Packing> kPacking = {{"none", Packing::none}, {"documents", Packing::documents}};
const schema::Names<Shuffle> kShuffle = {{"own", Shuffle::own}, {"torch", Shuffle::torch}, {"none", Shuffle::none}};
const schema::Names<Select> kSelect = {{"last", Select::last}, {"best", Select::best}};
const schema::Names<ScheduleKind> kSchedule = {{"cosine", ScheduleKind::cosine},
                                               {"cosine_hf", ScheduleKind::cosine_hf},
                                               {"linear", ScheduleKind::linear},
                                               {"constant", ScheduleKind::constant},
                                               {"wsd", ScheduleKind::wsd}};
const schema::Names<NormFrom> kNormFrom = {{"checkpoint", NormFrom::checkpoint}, {"calibrate", NormFrom::calibrate}};
const schema::Names<parallel::Reduce> kReduce = {{"fp32", parallel::Reduce::fp32}, {"bf16", parallel::Reduce::bf16}};
const schema::Names<Save> kSave = {{"full", Save::full}, {"weights", Save::weights}};
const schema::Names<Recompute> kRecompute = {
    {"none", Recompute::none}, {"norm", Recompute::norm}, {"swiglu", Recompute::swiglu}, {"block", Recompute::block}};
const schema::Names<Resume> kResume = {
    {"never", Resume::never}, {"auto", Resume::auto_}, {"must", Resume::must}, {"restart", Resume::restart}};

// 20B, 1.5M, 300K, or a plain number.
double read_count(const Json& j, const std::string& key) {
  if (j.is_number()) return schema::Reader::as_number(key, j, {.at_least = 1});
  const std::optional<double> count = j.is_string() ? schema::parse_count(j.get<std::string>()) : std::nullopt;
  if (!count) schema::wrong(key, "a number, with K, M, B or T behind it if you like", j);
  schema::check_range(key, *count, {.at_least = 1});
  return *count;
}

DataEntry read_entry(const Json& j, const std::string& key) {
  DataEntry entry;
  if (j.is_object()) {
    schema::Reader r(j, key);
    r.text("path", entry.path, "");
    r.number("weight", entry.weight, "", {.above = 0, .below = 1e300});
    r.finish();
  } else {
    if (!j.is_string()) schema::wrong(key, "a path, or {path, weight}", j);
    entry.path = j.get<std::string>();
  }
  check_usage(!entry.path.empty(), "{} must have a path, got {}", key, schema::show(j));
  return entry;
}

std::vector<DataEntry> read_entries(const Json& j, const std::string& key) {
  std::vector<DataEntry> out;
  if (!j.is_array()) {
    out.push_back(read_entry(j, key));
  } else {
    for (std::size_t i = 0; i < j.size(); ++i) out.push_back(read_entry(j[i], fmt::format("{}[{}]", key, i)));
  }
  const auto weighted = std::count_if(out.begin(), out.end(), [](const DataEntry& e) { return e.weight > 0; });
  check_usage(weighted == 0 || weighted == static_cast<std::ptrdiff_t>(out.size()), "{}: give every path a weight, or none", key);
  return out;
}

Json write_entries(const std::vector<DataEntry>& entries) {
  Json out = Json::array();
  for (const DataEntry& e : entries) out.push_back(e.weight > 0 ? Json{{"path", e.path}, {"weight", e.weight}} : Json(e.path));
  return out;
}

// A list, or one text with commas.
std::vector<std::string> read_names(const Json& j, const std::string& key) {
  std::vector<std::string> names;
  if (j.is_string()) return split_names(j.get<std::string>());
  if (!j.is_array()) schema::wrong(key, "a list of names", j);
  for (std::size_t i = 0; i < j.size(); ++i) names.push_back(schema::Reader::as_text(fmt::format("{}[{}]", key, i), j[i]));
  return names;
}

std::optional<DType> read_type(const Json& j, const std::string& key) {
  const std::string text = schema::Reader::as_text(key, j);
  if (text == "auto") return std::nullopt;
  return parse_float_type(text, key);
}

std::string read_optimizer(const Json& j, const std::string& key) {
  const std::vector<std::string> known = optimizer_names();
  if (!j.is_string() || std::find(known.begin(), known.end(), j.get<std::string>()) == known.end())
    schema::wrong(key, fmt::format("one of {}", fmt::join(known, ", ")), j);
  return j.get<std::string>();
}

// Numbers with a word for 0: micro_batch, threads.
template <class V>
void number_or_auto(V& v, const char* key, std::int64_t& value, const char* help, schema::Range range) {
  v.custom(
      key, help, [&](const Json& j, const std::string& full) { value = schema::Reader::as_integer_or_auto(full, j, range); },
      [&] { return value ? Json(value) : Json("auto"); });
}

// A number of steps, or the word epoch.
template <class V>
void interval(V& v, const char* key, std::int64_t& value, const char* help) {
  v.custom(
      key, help,
      [&](const Json& j, const std::string& full) {
        value = j == "epoch" ? kEveryEpoch : schema::Reader::as_integer(full, j, {.at_least = 0});
      },
      [&] { return value == kEveryEpoch ? Json("epoch") : Json(value); });
}

void read_length(TrainSection& c, schema::Reader& v) {
  const char* given = nullptr;
  for (const char* key : {"steps", "tokens", "epochs"}) {
    const Json* j = v.take(key);
    if (!j) continue;
    check_usage(!given, "{} and {} say the same thing: give one of them", v.full(given ? given : ""), v.full(key));
    given = key;
    c.epochs = 0;
    if (key == std::string_view("steps")) c.steps = schema::Reader::as_integer(v.full(key), *j, {.at_least = 1});
    if (key == std::string_view("tokens")) c.tokens = read_count(*j, v.full(key));
    if (key == std::string_view("epochs")) c.epochs = schema::Reader::as_number(v.full(key), *j, {.above = 0});
  }
}
void read_length(TrainSection& c, schema::Writer& v) {
  if (c.epochs > 0)
    v.number("epochs", c.epochs, "");
  else
    v.integer("steps", c.steps, "");
}
void read_length(TrainSection& c, schema::Lister& v) {
  v.custom(
      "steps", "optimizer steps", [](const Json&, const std::string&) {}, [&] { return c.epochs > 0 ? Json("") : Json(c.steps); });
  v.custom(
      "epochs", "or the passes over the data", [](const Json&, const std::string&) {},
      [&] { return c.epochs > 0 ? Json(c.epochs) : Json(""); });
  std::string none;
  v.text("tokens", none, "or the tokens to train on: 20B, 300M; rounded up to whole steps");
}

}  // namespace

template <class V>
static void chat_fields(ChatSection& c, V& v) {
  v.text("template", c.chat_template, "how conversations are written: a name, or a YAML file; auto = the tokenizer's own, else default");
  v.boolean("mask_prompt", c.mask_prompt, "learn the answers alone, not what they answer");
  v.choice("packing", c.packing, kPacking,
           "what a batch counts: conversations, or rows of seq_len tokens filled with them (they do not see each other)");
  v.choice("shuffle", c.shuffle, kShuffle, "the order of an epoch: our own, torch.randperm's, or that of the file");
}

template <class V>
static void fields(DataSection& c, V& v) {
  v.custom(
      "train",
      c.chat ? "conversations: .json, .jsonl (.gz, .zst) as alpaca, ShareGPT or messages; prepared .safetensors; or [{path: A, weight: "
               "0.7}, …]"
             : "token files, text files (.txt, .jsonl, .gz, .zst), folders, patterns; or [{path: A, weight: 0.7}, …]",
      [&](const Json& j, const std::string& key) { c.train = read_entries(j, key); }, [&] { return write_entries(c.train); });
  v.custom(
      "valid", "the same, for validation; in file order", [&](const Json& j, const std::string& key) { c.valid = read_entries(j, key); },
      [&] { return write_entries(c.valid); });
  v.custom(
      "calibrate", "texts or token files for norm.from=calibrate; default: data.train",
      [&](const Json& j, const std::string& key) { c.calibrate = read_entries(j, key); }, [&] { return write_entries(c.calibrate); });
  v.text(
      "tokenizer", c.tokenizer,
      "bytes, a file, a folder, a checkpoint or a run; auto = what the token files were packed with, else that of model.init, else bytes");
  v.integer("seq_len", c.seq_len, c.chat ? "tokens of a conversation; what is longer is cut" : "tokens per row",
            {.at_least = 1, .at_most = kMostPositions});
  if (c.chat)
    chat_fields(*c.chat, v);
  else
    v.choice("attend", c.attend, kAttend, "whether packed documents see each other");
}

template <class V>
static void fields(TrainSection& c, V& v) {
  const schema::Range share{.at_least = 0, .at_most = 1}, from0{.at_least = 0}, from1{.at_least = 1};
  read_length(c, v);
  v.integer("batch", c.batch, "sequences per optimizer step", from1);
  number_or_auto(v, "micro_batch", c.micro_batch, "sequences computed at a time; auto = as many as memory holds", from1);
  v.custom(
      "optimizer", fmt::format("what makes new weights out of gradients ({})", fmt::join(optimizer_names(), " | ")).c_str(),
      [&](const Json& j, const std::string& key) { c.optimizer = read_optimizer(j, key); }, [&] { return Json(c.optimizer); });
  v.choice("schedule", c.schedule, kSchedule, "how the rate falls behind the warm-up; cosine_hf is transformers' cosine_with_min_lr");
  v.number("lr", c.lr, "peak learning rate", {.above = 0});
  v.number("min_lr_ratio", c.min_lr_ratio, "learning rate of the last step, as a share of the peak", share);
  v.number("warmup_ratio", c.warmup_ratio, "share of the steps in which the rate rises to its peak", share);
  v.number("decay_ratio", c.decay_ratio, "wsd: share of the steps, at the end, in which the rate falls", share);
  v.number("weight_decay", c.weight_decay, "decoupled weight decay, on matrices and SeeDNorm's gate and direction", from0);
  v.custom(
      "betas", "AdamW's decay of the first and second moment",
      [&](const Json& j, const std::string& key) {
        if (!j.is_array() || j.size() != 2) schema::wrong(key, "a list of 2 numbers", j);
        for (std::size_t i = 0; i < 2; ++i)
          c.betas[i] = schema::Reader::as_number(fmt::format("{}[{}]", key, i), j[i], {.below = 1, .at_least = 0});
      },
      [&] { return Json(c.betas); });
  v.number("adam_eps", c.adam_eps, "AdamW's epsilon", {.above = 0});
  v.number("clip", c.clip, "largest global gradient norm; 0 = no clipping", from0);
  interval(v, "eval_every", c.eval_every, "steps between evaluations, or epoch (one more at the end); 0 = only at the end");
  v.integer("eval_batches", c.eval_batches, "batches per evaluation; 0 = all of data.valid", from0);
  interval(v, "save_every", c.save_every, "steps between checkpoints, or epoch (one more at the end); 0 = only at the end");
  v.integer("keep", c.keep, "checkpoints to keep", from1);
  v.choice("save", c.save, kSave, "weights: only the newest checkpoint keeps its optimizer state");
  v.choice("select", c.select, kSelect, "best: the checkpoint with the lowest validation loss is kept, and linked as best");
  v.integer("patience", c.patience, "end after so many validations in a row without a lower loss; 0 = never", from0);
  v.integer("log_every", c.log_every, "steps between lines of metrics", from1);
  v.integer("max_skipped", c.max_skipped, "stop after so many steps in a row whose loss or gradient is not finite", from1);
  v.choice("recompute", c.recompute, kRecompute, "what the backward computes again instead of keeping it (none; with adapters swiglu)");
}

// all-linear, one name, or a list of them.
static std::vector<Projection> read_targets(const Json& j, const std::string& key) {
  if (j == "all-linear") return all_projections();
  std::vector<Projection> out;
  for (const std::string& name : read_names(j, key)) out.push_back(projection_named(name));
  std::ranges::sort(out);
  return out;
}

static Json write_targets(const std::vector<Projection>& targets) {
  if (targets == all_projections()) return "all-linear";
  Json out = Json::array();
  for (const Projection p : targets) out.push_back(name_of(p));
  return out;
}

// all, or "4-7": the layers from the first to the last of them.
static std::vector<std::int64_t> read_layers(const Json& j, const std::string& key) {
  if (j == "all") return {};
  std::vector<std::int64_t> out;
  if (j.is_array()) {
    for (const Json& layer : j) out.push_back(schema::Reader::as_integer(key, layer, {.at_least = 0}));
    return out;
  }
  std::int64_t first = 0, last = 0;
  const std::string text = schema::Reader::as_text(key, j);
  const auto dash = text.find('-');
  const auto number = [&](const std::string& s, std::int64_t& to) {
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), to);
    return error == std::errc() && end == s.data() + s.size() && to >= 0 && to < 100000;
  };
  if (dash == std::string::npos || !number(text.substr(0, dash), first) || !number(text.substr(dash + 1), last) || first > last)
    schema::wrong(key, "all, a list of layers, or FIRST-LAST, counted from 0", j);
  for (std::int64_t l = first; l <= last; ++l) out.push_back(l);
  return out;
}

template <class V>
static void fields(LoraSection& c, V& v) {
  const schema::Range from0{.at_least = 0};
  LoraConfig& l = c.config;
  v.integer("rank", l.rank, "of the adapters; 0 = none: all weights are trained", from0);
  v.custom(
      "alpha", "their factor is alpha/rank; auto = twice the rank",
      [&](const Json& j, const std::string& key) { l.alpha = j == "auto" ? 0 : schema::Reader::as_number(key, j, {.above = 0}); },
      [&] { return l.alpha > 0 ? Json(l.alpha) : Json("auto"); });
  v.number("dropout", l.dropout, "share of the inputs of A that is left out in training", {.below = 1, .at_least = 0});
  v.custom(
      "targets", "all-linear, or which of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
      [&](const Json& j, const std::string& key) { l.targets = read_targets(j, key); }, [&] { return write_targets(l.targets); });
  v.custom(
      "layers", "all, or FIRST-LAST, counted from 0", [&](const Json& j, const std::string& key) { l.layers = read_layers(j, key); },
      [&] { return l.layers.empty() ? Json("all") : Json(l.layers); });
  v.custom(
      "train", "[norms]: what the norms learn is trained too, or alone with rank 0",
      [&](const Json& j, const std::string& key) {
        for (const std::string& name : read_names(j, key)) check_usage(name == "norms", "{}: expected [norms] or [], got {}", key, name);
        l.train_norms = !read_names(j, key).empty();
      },
      [&] { return l.train_norms ? Json::array({"norms"}) : Json::array(); });
  v.text("init", c.init, "an adapter folder as PEFT writes it, to go on from");
  v.boolean("merge", c.merge, "also write the adapted model as a whole checkpoint, RUN/merged, at the end");
}

template <class V>
static void fields(EvalSection& c, V& v) {
  const schema::Range from0{.at_least = 0};
  v.custom(
      "tasks", "benchmark tasks to ask between steps, as bhyt eval knows them: [arc_easy, piqa]",
      [&](const Json& j, const std::string& key) { c.tasks = read_names(j, key); }, [&] { return Json(c.tasks); });
  v.text("data", c.data, "folder with their data sets: TASK/SPLIT.jsonl[.gz|.zst]");
  interval(v, "every", c.every, "steps between them, or epoch (once more at the end); 0 = only at the end");
  v.integer("shots", c.shots, "solved examples before each question", from0);
  v.integer("seed", c.seed, "of the draw of examples");
  v.integer("limit", c.limit, "the first documents of each task only; 0 = all", from0);
}

template <class V>
static void fields(AnalysisSection& c, V& v) {
  number_or_auto(v, "every", c.every, "steps between lines about the layers (one more at the first and the last); auto = sixteen in a run",
                 {.at_least = 1});
}

template <class V>
static void fields(ParallelSection& c, V& v) {
  v.custom(
      "zero", "what ranks share out: 0 nothing, 1 the optimizer's state, 2 gradients too; auto = 2 with several ranks",
      [&](const Json& j, const std::string& key) {
        c.zero = j == "auto" ? -1 : schema::Reader::as_integer(key, j, {.at_least = 0, .at_most = 2});
      },
      [&] { return c.zero < 0 ? Json("auto") : Json(c.zero); });
  v.number("bucket", c.bucket, "megabytes of gradients that are added up at a time", {.above = 0});
  v.choice("reduce", c.reduce, kReduce, "the type in which gradients travel between ranks");
  v.number("timeout", c.timeout, "seconds after which a rank that does not answer ends the run", {.above = 0});
  v.boolean("share_gpu", c.share_gpu, "several ranks on one GPU, through the host's memory: slow, for tests");
  v.integer("trace", c.trace, "write a timeline of this step and the next, RUN/trace.json (Chrome's format, Perfetto reads it); 0 = none",
            {.at_least = 0});
}

template <class V>
static void fields(RunSection& c, V& v) {
  v.text("dir", c.dir, "the run directory");
  v.text("device", c.device, "auto, cpu, cuda or cuda:N");
  v.custom(
      "dtype", "fp32 or bf16; auto = bf16 on a GPU, fp32 on a CPU",
      [&](const Json& j, const std::string& key) { c.dtype = read_type(j, key); },
      [&] { return Json(c.dtype ? name_of(*c.dtype) : "auto"); });
  v.integer("seed", c.seed, "of the weights and of the order of the data", {.at_least = 0});
  number_or_auto(v, "threads", c.threads, "auto = all cores", {.at_least = 1, .at_most = kMostThreads});
  v.choice("resume", c.resume, kResume,
           "what to do with a directory that holds a run: refuse, go on, insist on a run to go on with, or put it aside and start afresh");
}

// The norm section of a run: that of a model, and where its values come from.
struct NormSection {
  NormConfig& config;
  NormFrom& from;
};
template <class V>
static void fields(NormSection& c, V& v) {
  fields(c.config, v);
  v.choice("from", c.from, kNormFrom,
           "with model.init: calibrate = fit gamma and lambda of this method to what the checkpoint's norms give (data.calibrate)");
}

template <class V>
static void fields(RunConfig& c, V& v) {
  std::int64_t version = kVersion;
  v.integer("version", version, "of the config's format");
  check_usage(version == kVersion, "version must be {}, got {}", kVersion, version);
  v.section("model", c.model, "");
  NormSection norms{c.model.config.norm, c.norm_from};
  v.section("norm", norms, "");
  v.section("data", c.data, "");
  v.section("train", c.train, "");
  if (c.work == Work::fine_tuning) v.section("lora", c.lora, "");
  v.section("run", c.run, "");
  v.section("eval", c.eval, "");
  v.section("analysis", c.analysis, "");
  v.section("parallel", c.parallel, "");
}

void read_keys(RunConfig& c, const Json& tree) { schema::read(c, tree); }

Json write_keys(const RunConfig& c) { return schema::write(c); }

std::vector<schema::Lister::Entry> list_keys(RunConfig c) {
  schema::Lister lister;
  fields(c, lister);
  return std::move(lister.entries);
}

}  // namespace bhyt::train
