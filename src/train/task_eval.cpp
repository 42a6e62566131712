#include "train/task_eval.h"

namespace bhyt::train {

TaskEval::TaskEval(const EvalSection& c, const Tokenizer& tokenizer)
    : evaluation_({.selection = resolve_tasks(c.tasks),
                   .data = c.data,
                   .data_setting = "eval.data",
                   .shots = c.shots,
                   .seeds = {c.seed},
                   .limit = c.limit}),
      tokenizer_(tokenizer) {}

std::optional<Results> TaskEval::run(const Model& model, int threads, parallel::Group* group, const std::function<bool()>& stop,
                                     const std::function<void(std::int64_t)>& progress) const {
  model.context().synchronize();  // what trains the model has to be done
  const Sharing ranks = Sharing::over(group, model.device());
  const std::int64_t length = model.config().max_positions;
  std::optional<Context> context;
  std::optional<Engine> engine;
  ranks.together([&] {
    context.emplace(model.device(), threads);
    engine.emplace(*context, model, EngineOptions{.length = length + 1, .interrupted = stop});
  });
  std::vector<Scored> scored;
  std::int64_t done = 0;
  const Reader reader{.engine = [&]() -> Engine& { return *engine; },
                      .tokenizer = tokenizer_,
                      .reading = {.length = length},
                      .chat = nullptr,
                      .threads = threads,
                      .ranks = ranks};
  if (!evaluation_.run(
          reader, nullptr, [&](const std::string&) { progress(++done); }, scored))
    return std::nullopt;
  return collect(evaluation_.catalog(), scored);
}

}  // namespace bhyt::train
