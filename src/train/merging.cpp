#include "train/merging.h"

#include <map>

#include "core/log.h"
#include "model/adapter.h"

namespace bhyt::train {

void merge_adapters(Session& s) {
  const RunConfig& c = s.config;
  const fs::path to = s.dir->path() / kMerged;
  if (!c.lora.merge || s.parallel->first_says(fs::exists(to))) return;
  const Progress& p = s.progress;
  const bool chosen = c.train.select == Select::best && p.best_step > 0 && p.best_step != p.step;
  if (chosen && fs::exists(s.dir->checkpoint(p.best_step)))
    load_adapter(Adapter(s.dir->checkpoint(p.best_step)), *s.model, s.optimizer->masters().sink());
  std::map<const Parameter*, std::vector<float>> masters;
  for (const Parameter& q : s.model->parameters().list())
    if (!q.frozen) masters[&q] = s.parallel->master(*s.optimizer, q);
  if (!s.dir->owned()) return;
  s.dir->write_folder(to, [&](const fs::path& folder) {
    save_merged(folder, *s.model, [&](const Parameter& q) {
      const auto own = masters.find(&q);
      return own != masters.end() ? own->second : s.model->parameters().read_value(q);
    });
    if (s.data.tokenizer) s.data.tokenizer->save(folder);
  });
  log::info("merged  {}", to.string());
}

}  // namespace bhyt::train
