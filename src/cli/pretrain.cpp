// bhyt pretrain: trains from scratch, goes on with a run, or starts from a checkpoint.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/training.h"
#include "core/log.h"

namespace bhyt::cli {

int cmd_pretrain(const Args& args) {
  TrainingWords w;
  on_ranks([&] { w = parse_training(args, "pretrain", train::Work::pretraining); });
  if (w.help) {
    fmt::print(
        "usage: bhyt pretrain [CONFIG.yaml] [key=value ...] [--force] [--no-verify] [--json] [--quiet]\n"
        "       bhyt pretrain run.dir=RUN resume=auto      goes on with a run, by the config that it has\n\n"
        "Trains a model and writes a run directory (run.dir).\n\n{}\n{}\n",
        kSharedFlags, kKeyNotes);
    print_keys(w.work);
    return 0;
  }
  log::set_quiet(w.quiet);
  train::Trainer trainer(read_config(w), {.force = w.force});
  const train::Outcome out = trainer.run();
  if (w.json) fmt::print("{}\n", outcome_json(trainer.config(), out).dump());
  return out.signal ? 128 + out.signal : 0;
}

}  // namespace bhyt::cli
