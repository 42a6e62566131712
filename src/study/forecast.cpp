// What a sweep would come to, without running anything.
#include <algorithm>

#include "model/parameters.h"
#include "study/size.h"
#include "study/sweep.h"

namespace bhyt::study {

namespace {

struct Sizes {
  double weights = 0, state = 0;  // bytes of a checkpoint's two parts
};

// Of one run's checkpoint, its type and vocabulary settled.
Sizes checkpoint_sizes(const train::RunConfig& c) {
  const bool bf16 = *c.run.dtype == DType::bf16;
  const Parameters::Sizes sizes = Parameters::planned(c.model.config, *c.run.dtype, c.lora.config);
  const double learned = static_cast<double>(sizes.arena);
  // Adapters are saved alone. Beside the weights lie two moments and, in a bf16 run, the masters, all in fp32.
  return {.weights = c.lora.config.active() ? 4 * learned : static_cast<double>(sizes.value_bytes), .state = learned * (bf16 ? 12 : 8)};
}

}  // namespace

Forecast forecast(const Plan& plan, const SweepOptions& options) {
  const Index index = merge(read_index(plan, options), plan);
  Forecast out{.runs = plan.runs.size(), .bytes = 0};
  Settler settled(plan.work);
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
    const std::optional<train::RunConfig> known = settled(run);
    if (!known) out.bytes = {};
    if (!known || !out.bytes) continue;
    const Sizes sizes = checkpoint_sizes(*known);
    const auto kept = static_cast<double>(options.keep == Keep::all ? c.train.keep : 1);
    const double whole = sizes.weights + sizes.state;
    *out.bytes += options.keep == Keep::none ? 0 : options.keep == Keep::weights ? kept * sizes.weights : kept * whole;
    out.working_bytes = std::max(out.working_bytes, 2 * whole);  // the newest one, and the next while it is written
  }
  if (timed_tokens > 0 && out.tokens > 0) out.seconds = out.tokens * timed_seconds / timed_tokens;
  return out;
}

}  // namespace bhyt::study
