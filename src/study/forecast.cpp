// What a sweep would come to, without running anything.
#include <map>

#include "core/check.h"
#include "model/parameters.h"
#include "study/sweep.h"
#include "train/data.h"

namespace bhyt::study {

namespace {

struct Sizes {
  double weights = 0, state = 0;  // bytes of a checkpoint's two parts
};

// Of one run's checkpoint; nothing where its data, and so its vocabulary, is not there.
std::optional<Sizes> checkpoint_sizes(train::RunConfig c, std::map<std::string, std::int64_t>& vocabularies) {
  const std::string data = train::resolved_tree(c)["data"].dump();
  if (c.work == train::Work::pretraining && !c.model.vocab_given) {
    if (!vocabularies.contains(data)) try {
        train::RunConfig chosen = c;
        (void)train::choose_data(chosen);
        vocabularies[data] = chosen.model.config.vocab;
      } catch (const Error&) {
        vocabularies[data] = 0;
      }
    c.model.config.vocab = vocabularies[data];
  }
  if (c.model.config.vocab <= 0) return std::nullopt;
  const bool bf16 = c.run.dtype ? *c.run.dtype == DType::bf16 : parse_device(c.run.device).is_cuda();
  const Parameters::Sizes sizes = Parameters::planned(c.model.config, bf16 ? DType::bf16 : DType::f32, c.lora.config);
  const double learned = static_cast<double>(sizes.arena);
  // Adapters are saved alone. Beside the weights lie two moments and, in a bf16 run, the masters, all in fp32.
  return Sizes{.weights = c.lora.config.active() ? 4 * learned : static_cast<double>(sizes.value_bytes),
               .state = learned * (bf16 ? 12 : 8)};
}

}  // namespace

Forecast forecast(const Plan& plan, const SweepOptions& options) {
  const Index index = merge(read_index(options.folder), plan);
  Forecast out{.runs = plan.runs.size(), .bytes = 0};
  std::map<std::string, std::int64_t> vocabularies;
  double timed_tokens = 0, timed_seconds = 0;
  for (const Record& r : index.runs)
    if (r.status == Status::done) {
      timed_tokens += r.tokens;
      timed_seconds += r.seconds;
    }
  for (const PlannedRun& run : plan.runs) {
    const Record& r = *index.find(run.id);
    const train::RunConfig c = train::read_run_config(run.tree, Verify::no, plan.work);
    const double all = static_cast<double>(c.train.steps) * static_cast<double>(c.train.batch) * static_cast<double>(c.data.seq_len);
    const bool ended = r.status == Status::failed || r.status == Status::diverged;
    out.done += r.status == Status::done;
    out.ended += ended && !options.retry;
    if (r.status != Status::done && (!ended || options.retry)) out.tokens += c.train.epochs > 0 ? 0 : all;
    const auto sizes = checkpoint_sizes(c, vocabularies);
    if (!sizes) out.bytes = {};
    if (!sizes || !out.bytes) continue;
    const auto kept = static_cast<double>(options.keep == Keep::all ? c.train.keep : 1);
    const double whole = sizes->weights + sizes->state;
    *out.bytes += options.keep == Keep::none ? 0 : options.keep == Keep::weights ? kept * sizes->weights : kept * whole;
    out.working_bytes = std::max(out.working_bytes, 2 * whole);  // the newest one, and the next while it is written
  }
  if (timed_tokens > 0 && out.tokens > 0) out.seconds = out.tokens * timed_seconds / timed_tokens;
  return out;
}

}  // namespace bhyt::study
