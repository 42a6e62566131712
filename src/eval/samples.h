// The file of --samples: one line of JSON for each document, in their order, which a run that was stopped continues.
// Beside FILE lies FILE.meta.json, which says what it was made with. Every model has a file of its own.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/scored.h"
#include "io/files.h"

namespace bhyt {

struct SampleOptions {
  std::int64_t documents = 0;  // lines that it has in the end
  bool with_seeds = false;     // seeds are written into the lines
  bool force = false;          // start it anew
};

class SampleFile {
 public:
  // Starts `file`, or continues it where it is there: its settings (an object: model, tasks, seeds, …) must then be the same, field by
  // field.
  SampleFile(const fs::path& file, const nlohmann::ordered_json& settings, const SampleOptions& options);

  // Documents are asked for in the order they are written in. What the file says of the next one, after checking that it is the one that is
  // asked for, with the same prompt; nothing once all that it held was given out: the others are scored, and added in the same order.
  std::optional<Scored> next(const Question& question, std::int64_t seed);
  std::optional<Scored> next(const std::string& task, std::int64_t document, const std::string& text);
  std::optional<Likelihood> next_request();

  void add(const Question& question, const Graded& graded, std::int64_t seed);
  void add(const std::string& task, std::int64_t document, const std::string& text, const Rolled& rolled);
  void add_request(const Likelihood& likelihood);

  std::int64_t held() const { return static_cast<std::int64_t>(held_.size()); }  // lines it had when it was opened
  bool finished() const { return held() + added_ == documents_; }

 private:
  struct Line {
    std::uint64_t prompt = 0;  // a hash of all that was put to the model
    std::optional<std::int64_t> seed;
    Scored scored;  // of a request its only choice
  };
  static Line read_line(const nlohmann::ordered_json& j);

  void start(const nlohmann::ordered_json& settings);
  void read_held();
  const Line* take(const std::string& task, std::int64_t document, std::uint64_t prompt, std::optional<std::int64_t> seed);
  void append(const nlohmann::ordered_json& line);

  fs::path file_;
  std::int64_t documents_;
  bool with_seeds_;
  std::vector<Line> held_;
  std::size_t given_ = 0;
  std::int64_t added_ = 0;
  AppendFile out_;
};

// FILE of one of several models: out.jsonl → out.NAME.jsonl.
fs::path samples_of_model(const fs::path& file, const std::string& model);

}  // namespace bhyt
