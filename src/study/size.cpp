#include "study/size.h"

#include <algorithm>

#include "core/check.h"
#include "train/data.h"
#include "train/memory.h"

namespace bhyt::study {

std::optional<train::RunConfig> Settler::operator()(const PlannedRun& run) {
  train::RunConfig c = train::read_run_config(run.tree, Verify::no, work_);
  const std::string data = train::resolved_tree(c)["data"].dump();
  if (work_ == train::Work::pretraining && !c.model.vocab_given) {
    if (!vocabularies_.contains(data)) try {
        train::RunConfig chosen = c;
        (void)train::choose_data(chosen);
        vocabularies_[data] = chosen.model.config.vocab;
      } catch (const Error&) {
        vocabularies_[data] = 0;
      }
    c.model.config.vocab = vocabularies_[data];
  }
  if (c.model.config.vocab <= 0) return std::nullopt;
  c.device = parse_device(c.run.device);
  if (!c.run.dtype) c.run.dtype = c.device.is_cuda() ? DType::bf16 : DType::f32;
  return c;
}

std::optional<double> largest_memory(const std::vector<const PlannedRun*>& runs, train::Work work) {
  Settler settled(work);
  double largest = 0;
  for (const PlannedRun* run : runs) {
    std::optional<train::RunConfig> c = settled(*run);
    if (!c) return std::nullopt;
    train::settle_memory(*c, {});
    largest = std::max(largest, train::plan_memory(*c, c->train.micro_batch).device());
  }
  return largest;
}

}  // namespace bhyt::study
