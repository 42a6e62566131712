// Benchmark tasks while a model is trained (eval.tasks): the same documents and numbers as `bhyt eval` gives for a checkpoint.
#pragma once

#include <functional>
#include <optional>

#include "eval/evaluate.h"
#include "train/config.h"

namespace bhyt::train {

class TaskEval {
 public:
  // Reads the data. UsageError for tasks that are not known or whose data is not there. The tokenizer must outlive it.
  TaskEval(const EvalSection& config, const Tokenizer& tokenizer);

  std::int64_t documents() const { return evaluation_.documents(); }
  // The model as it is now; none when `stop` ended it. Takes memory of its own on the model's device while it works. The ranks of a group
  // (or null) share the documents out and come to the same results.
  std::optional<Results> run(const Model& model, int threads, parallel::Group* group, const std::function<bool()>& stop,
                             const std::function<void(std::int64_t done)>& progress) const;

 private:
  bhyt::Evaluation evaluation_;
  const Tokenizer& tokenizer_;
};

}  // namespace bhyt::train
