// A whole evaluation: the tasks of a selection, put to one model after the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "eval/encode.h"
#include "eval/render.h"
#include "eval/results.h"
#include "eval/samples.h"
#include "eval/scored.h"
#include "eval/share.h"

namespace bhyt {

struct EvaluationSettings {
  Selection selection;
  std::filesystem::path data;
  const char* data_setting = "--data";  // what names it, for messages
  std::int64_t shots = 0;
  std::vector<std::int64_t> seeds = {1234};
  std::int64_t limit = 0;  // documents of each subtask; 0: all
};

// What is put to a model, and how it reads it.
struct Reader {
  std::function<Engine&()> engine;  // asked for when there is something to score
  const Tokenizer& tokenizer;
  Reading reading;
  const ChatFormat* chat = nullptr;
  int threads = 0;     // that encode; 0: all
  Sharing ranks = {};  // that score together
};

class Evaluation {
 public:
  // Reads the data and looks at every document, so that what is wrong with one is known before the first is scored.
  explicit Evaluation(EvaluationSettings settings);

  const EvaluationSettings& settings() const { return settings_; }
  std::int64_t documents() const;  // of all tasks and seeds, those that are the same for every seed once
  Catalog catalog() const;
  std::vector<std::pair<std::string, std::span<const std::string>>> texts() const;  // of each task with texts
  // All questions of a seed, task by task.
  void for_each_question(std::int64_t seed, const ChatFormat* chat, const std::function<void(const Question&)>& take) const;

  // Every document of every task and seed; `samples` (or null) gives those that were scored before and takes the others. `done` hears of
  // each. What a seed does not change is scored once and stands for all of them. False when the engine was interrupted. Of several ranks
  // the first has the samples, and `scored` is whole there.
  bool run(const Reader& reader, SampleFile* samples, const std::function<void(const std::string& task)>& done,
           std::vector<Scored>& scored) const;

 private:
  struct Texts {
    Task task;
    TaskTexts read;
  };
  bool run_task(const Reader& reader, const LoadedTask& task, std::int64_t seed, SampleFile* samples,
                const std::function<void(const std::string&)>& done, std::vector<Scored>& scored) const;
  bool run_texts(const Reader& reader, const Texts& texts, SampleFile* samples, const std::function<void(const std::string&)>& done,
                 std::vector<Scored>& scored) const;
  std::vector<std::int64_t> seeds_of(const Task& task) const;
  std::vector<Question> questions(const LoadedTask& task, std::int64_t seed, const ChatFormat* chat) const;

  EvaluationSettings settings_;
  std::vector<LoadedTask> choices_;
  std::vector<Texts> texts_;
};

// Questions one after the other: done(i, its likelihoods), of several ranks on all of them. False when the engine was interrupted.
bool score_questions(const Reader& reader, std::span<const Question> questions,
                     const std::function<void(std::size_t, std::vector<Likelihood>)>& done);

}  // namespace bhyt
