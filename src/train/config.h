// What a run is: the sections model, norm, data, train and run of a config (docs/training.md), read from YAML and key=value words.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/schema.h"
#include "data/loader.h"
#include "io/yaml.h"
#include "model/activations.h"
#include "model/checkpoint_files.h"
#include "model/config_keys.h"
#include "model/lora.h"
#include "parallel/collectives.h"
#include "train/schedule.h"

namespace bhyt::train {

using schema::Json;

struct DataEntry {
  std::string path;   // a token file, a text file or a pattern
  double weight = 0;  // of a mixture; 0 = by its size
};

// What a run makes of its data: texts to continue, or conversations whose answers are learned. The second has keys and defaults of its own.
enum class Work : std::uint8_t { pretraining, fine_tuning };

enum class Packing : std::uint8_t { none, documents };
enum class Shuffle : std::uint8_t { own, torch, none };

// How fine-tuning reads conversations.
struct ChatSection {
  std::string chat_template = "auto";  // auto: the tokenizer's own, else default
  bool mask_prompt = true;
  Packing packing = Packing::none;
  Shuffle shuffle = Shuffle::own;
};

struct DataSection {
  std::vector<DataEntry> train, valid;
  std::vector<DataEntry> calibrate;  // texts that norms are fitted to; none: data.train
  std::string tokenizer = "auto";    // auto: what the token files were packed with, else bytes
  std::int64_t seq_len = 1024;
  Attend attend = Attend::row;
  std::optional<ChatSection> chat;  // fine-tuning
};

// Whether rows hold several documents that do not see each other.
inline bool tells_documents(const DataSection& c) { return c.attend == Attend::document || c.chat; }

enum class Save : std::uint8_t { full, weights };
enum class Select : std::uint8_t { last, best };
constexpr std::int64_t kEveryEpoch = -1;  // of eval_every, save_every and eval.every, until the data is known

struct TrainSection {
  std::int64_t steps = 20000;
  double tokens = 0;             // replaces steps until the config is settled
  double epochs = 0;             // replaces steps until the data is known
  std::int64_t batch = 16;       // sequences per optimizer step
  std::int64_t micro_batch = 0;  // 0 = auto
  std::string optimizer = "adamw";
  ScheduleKind schedule = ScheduleKind::cosine;
  double lr = 5e-4, min_lr_ratio = 0.01, warmup_ratio = 0.1, decay_ratio = 0.2, weight_decay = 0.1;
  std::array<double, 2> betas{0.9, 0.95};
  double adam_eps = 1e-8, clip = 1.0;
  std::int64_t eval_every = 500, eval_batches = 32, save_every = 1000, keep = 3, log_every = 10, max_skipped = 10;
  Save save = Save::full;
  Select select = Select::last;
  std::int64_t patience = 0;  // validations without a better one before the run ends; 0 = no such end
  Recompute recompute = Recompute::none;
};

// Benchmark tasks between steps, as `bhyt eval` asks them.
struct EvalSection {
  std::vector<std::string> tasks;  // none: no tasks
  std::string data;
  std::int64_t every = 0, shots = 0, seed = 1234, limit = 0;
};

// Looking inside while training: what metrics.jsonl says of the layers.
struct AnalysisSection {
  std::int64_t every = 0;  // steps between looks, beside the first and the last; 0 = auto, sixteen times over the run
};

// Adapters that are trained in the place of the weights (model/lora.h).
struct LoraSection {
  LoraConfig config;  // its alpha is settled: 2·rank where the key says auto
  std::string init;   // a PEFT folder to go on from; "" = drawn from the seed
  bool merge = false;
};

// Where what norms learn comes from in a run with model.init: the checkpoint, or a fit to its norms' outputs (train/calibrate.h).
enum class NormFrom : std::uint8_t { checkpoint, calibrate };

enum class Resume : std::uint8_t { never, auto_, must, restart };
// Whether a run that is there already is gone on with.
constexpr bool goes_on(Resume r) { return r == Resume::auto_ || r == Resume::must; }

constexpr std::int64_t kMostThreads = 4096;  // that a command may ask for

struct RunSection {
  std::string dir = "runs/pretrain";
  std::string device = "auto";
  std::optional<DType> dtype;  // none = auto: bf16 on a GPU, fp32 on a CPU; always there once the run is open
  std::uint64_t seed = 0;
  std::int64_t threads = 0;  // 0 = auto
  Resume resume = Resume::never;
};

// How the ranks of a run that MPI launched share it out (train/data_parallel.h).
struct ParallelSection {
  std::int64_t zero = -1;  // -1 = auto: 2 with several ranks
  double bucket = 32;      // megabytes that are under way at a time
  parallel::Reduce reduce = parallel::Reduce::fp32;
  double timeout = 600;  // seconds
  bool share_gpu = false;
  std::int64_t trace = 0;  // the step at which a timeline begins; 0 = none
};

// Which of how many processes this one is.
struct Ranks {
  std::int64_t rank = 0, size = 1;
  std::int64_t on_host = 1;  // of them
  bool launched = false;     // by MPI, be it alone
};

struct RunConfig {
  Work work = Work::pretraining;
  ModelSection model;  // its config holds the norm section too
  NormFrom norm_from = NormFrom::checkpoint;
  DataSection data;
  TrainSection train;
  LoraSection lora;
  EvalSection eval;
  AnalysisSection analysis;
  RunSection run;
  ParallelSection parallel;
  Device device;  // what run.device came to, once the run is open
  Ranks ranks;    // the same of how the process was launched
};

// CONFIG.yaml ("" = none) with key=value words on top. A word takes the place of a key that says the same thing (steps, tokens; p, kappa).
Json config_tree(const std::string& file, const std::vector<std::string>& overrides);
// The same for a tree that is read already; `called` names it in messages.
void apply_words(Json& tree, const std::string& called, const std::vector<std::string>& words);

// The same for a command that trains. Words alone that name neither data nor a config mean the run that run.dir holds (resume=auto): its
// own config is then the base.
Json training_tree(const std::string& file, const std::vector<std::string>& overrides, Work work = Work::pretraining);

void check_lora_init(const std::string& folder);  // UsageError where lora.init names no adapter

// Reads and checks a tree: unknown keys, types, ranges, tokens → steps, p → κ. With model.init the checkpoint's config is the base, once
// its files were found to be whole.
// data.train may still be missing: not every command trains.
RunConfig read_run_config(const Json& tree, Verify verify = Verify::yes, Work work = Work::pretraining);

// Once it is known how many batches one pass over the data makes: epochs → steps, "every epoch" → so many steps.
void settle_epochs(RunConfig& config, std::int64_t batches);

// Every key explicit, with the format version: what goes into resolved.yaml, and what read_run_config turns back into the same config.
Json resolved_tree(const RunConfig& config);

// The part of a resolved tree that a resumed run may not change.
Json mathematics(const Json& resolved);
// "train.lr was 0.0005, now is 0.001" for every difference.
std::vector<std::string> differences(const Json& before, const Json& now);

// Rows of a batch that a rank has at most.
inline std::int64_t rows_of_a_rank(const RunConfig& c) { return (c.train.batch + c.ranks.size - 1) / c.ranks.size; }
std::int64_t zero_of(const RunConfig& config);  // what parallel.zero comes to

// All keys with help and default, for `bhyt help pretrain` and `bhyt help sft`.
std::vector<schema::Lister::Entry> config_keys(Work work = Work::pretraining);

}  // namespace bhyt::train
