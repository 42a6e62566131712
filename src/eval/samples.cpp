#include "eval/samples.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/check.h"
#include "data/files.h"
#include "io/hash.h"
#include "io/json.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;

fs::path meta_of(const fs::path& file) { return file.string() + ".meta.json"; }

std::string as_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::uint64_t prompt_of(const Question& q) {
  Hash64 hash;
  for (std::size_t i = 0; i < q.continuations.size(); ++i) {
    hash.update(q.context(i));
    hash.update(q.continuations[i]);
  }
  hash.add(static_cast<std::uint64_t>(q.gold));
  return hash.digest();
}

std::uint64_t prompt_of(const Json& requests, std::int64_t gold) {
  Question q{.gold = gold};
  for (const Json& request : requests) {
    q.contexts.push_back(request.at("context").get<std::string>());
    q.continuations.push_back(request.at("continuation").get<std::string>());
  }
  return prompt_of(q);
}

std::uint64_t prompt_of(const std::string& text) { return hash64(text.data(), text.size()); }

Json likelihood_json(const Likelihood& l) { return {{"loglikelihood", l.sum}, {"is_greedy", l.greedy}, {"tokens", l.tokens}}; }

Likelihood read_likelihood(const Json& j) {
  return {
      .sum = j.at("loglikelihood").get<double>(), .greedy = j.at("is_greedy").get<bool>(), .tokens = j.at("tokens").get<std::int64_t>()};
}

Graded read_graded(const Json& j) {
  Graded graded{.acc = j.at("acc").get<double>()};
  for (const Json& request : j.at("requests")) graded.choices.push_back(read_likelihood(request));
  if (j.contains("acc_norm")) graded.acc_norm = j.at("acc_norm").get<double>();
  return graded;
}

Rolled read_rolled(const Json& j) {
  return {.sum = j.at("loglikelihood").get<double>(),
          .tokens = j.at("tokens").get<std::int64_t>(),
          .words = j.at("words").get<std::int64_t>(),
          .bytes = j.at("bytes").get<std::int64_t>()};
}

Json read_meta(const fs::path& file) {
  const fs::path meta = meta_of(file);
  check_usage(fs::exists(meta),
              "{} is there, but not {}, which says what it was made with: name another file for --samples, or --force starts it anew",
              file.string(), meta.string());
  const std::string expected = fmt::format("{}: expected the settings of {}", meta.string(), file.string());
  Json tree = parse_json(read_text(meta), expected);
  check(tree.is_object(), "{}, got {}", expected, as_text(tree));
  return tree;
}

void check_settings(const fs::path& file, const Json& before, const Json& now) {
  const auto value_in = [](const Json& settings, const std::string& key) {
    return settings.contains(key) ? as_text(settings.at(key)) : std::string("none");
  };
  Json either = before;
  for (const auto& [key, value] : now.items()) either[key] = value;
  for (const auto& [key, value] : either.items())
    check_usage(value_in(before, key) == value_in(now, key),
                "{} was made with another {}: {}; now it is {}. Name another file for --samples, or --force starts it anew", file.string(),
                key, value_in(before, key), value_in(now, key));
}

std::string name_of(const std::string& task, std::int64_t document, std::optional<std::int64_t> seed) {
  if (task.empty()) return "a request";
  const std::string name = fmt::format("{} document {}", task, document);
  return seed ? fmt::format("{} (seed {})", name, *seed) : name;
}

}  // namespace

SampleFile::SampleFile(const fs::path& file, const Json& settings, const SampleOptions& options)
    : file_(output_path(file.string())), documents_(options.documents), with_seeds_(options.with_seeds) {
  if (options.force || !fs::exists(file_) || (fs::is_empty(file_) && !fs::exists(meta_of(file_)))) {
    start(settings);
  } else {
    check_settings(file_, read_meta(file_), settings);
    read_held();
  }
  out_ = AppendFile(file_);
}

void SampleFile::start(const Json& settings) {
  if (file_.has_parent_path()) fs::create_directories(file_.parent_path());
  fs::remove(file_);  // first, so that no lines are ever taken for those of other settings
  replace_synced(meta_of(file_), settings.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

SampleFile::Line SampleFile::read_line(const Json& j) {
  Line line;
  if (!j.contains("task")) {
    line.scored.what = Graded{.choices = {read_likelihood(j)}};
    return line;
  }
  line.scored.task = j.at("task").get<std::string>();
  line.scored.document = j.at("doc_id").get<std::int64_t>();
  if (j.contains("seed")) line.seed = j.at("seed").get<std::int64_t>();
  if (j.contains("requests")) {
    line.prompt = prompt_of(j.at("requests"), j.at("target").get<std::int64_t>());
    line.scored.what = read_graded(j);
  } else {
    line.prompt = prompt_of(j.at("text").get<std::string>());
    line.scored.what = read_rolled(j);
  }
  return line;
}

void SampleFile::read_held() {
  std::ifstream in(file_, std::ios::binary);
  check(in.good(), "could not read {}", file_.string());
  std::uintmax_t whole = 0;  // bytes of complete lines
  for (std::string text; std::getline(in, text) && !in.eof(); whole += text.size() + 1) {
    const std::string expected = fmt::format("{}, line {}: expected a line that --samples has written", file_.string(), held_.size() + 1);
    try {
      held_.push_back(read_line(parse_json(text, expected)));
    } catch (const Json::exception& e) {
      throw Error(fmt::format("{}: {}", expected, plain_reason(e)));
    }
  }
  check(held() <= documents_, "{} has {} lines, but there are {} documents: it is not the file of this run (--force starts it anew)",
        file_.string(), held(), documents_);
  if (whole != fs::file_size(file_)) cut_file(file_, whole);  // the process that wrote it was killed within a line
}

const SampleFile::Line* SampleFile::take(const std::string& task, std::int64_t document, std::uint64_t prompt,
                                         std::optional<std::int64_t> seed) {
  if (given_ == held_.size()) return nullptr;
  const Line& line = held_[given_++];
  const Scored& found = line.scored;
  check(found.task == task && found.document == document && line.seed == seed, "{}, line {}: expected {}, got {}: --force starts it anew",
        file_.string(), given_, name_of(task, document, seed), name_of(found.task, found.document, line.seed));
  check(line.prompt == prompt, "{}, line {}: {} has another prompt now; have the data or the task changed? --force starts it anew",
        file_.string(), given_, name_of(task, document, seed));
  return &line;
}

std::optional<Scored> SampleFile::next(const Question& question, std::int64_t seed) {
  const auto written = with_seeds_ ? std::optional(seed) : std::nullopt;
  const Line* line = take(question.task, question.document, prompt_of(question), written);
  if (!line) return std::nullopt;
  Scored scored = line->scored;
  scored.seed = seed;
  return scored;
}

std::optional<Scored> SampleFile::next(const std::string& task, std::int64_t document, const std::string& text) {
  const Line* line = take(task, document, prompt_of(text), std::nullopt);
  return line ? std::optional(line->scored) : std::nullopt;
}

std::optional<Likelihood> SampleFile::next_request() {
  const Line* line = take("", 0, 0, std::nullopt);
  return line ? std::optional(std::get<Graded>(line->scored.what).choices.front()) : std::nullopt;
}

void SampleFile::append(const Json& line) {
  check(given_ == held_.size(), "[samples] expected the {} documents that {} holds to be asked for first, got {}", held_.size(),
        file_.string(), given_);
  out_.append(as_text(line) + "\n");
  ++added_;
}

void SampleFile::add(const Question& q, const Graded& graded, std::int64_t seed) {
  Json requests = Json::array();
  for (std::size_t i = 0; i < graded.choices.size(); ++i) {
    Json request = {{"context", q.context(i)}, {"continuation", q.continuations[i]}};
    request.update(likelihood_json(graded.choices[i]));
    requests.push_back(std::move(request));
  }
  Json line = {{"task", q.task}, {"doc_id", q.document}};
  if (with_seeds_) line["seed"] = seed;
  line["target"] = q.gold;
  line["requests"] = std::move(requests);
  line["fewshot"] = q.examples;
  line["acc"] = graded.acc;
  if (graded.acc_norm) line["acc_norm"] = *graded.acc_norm;
  append(line);
}

void SampleFile::add(const std::string& task, std::int64_t document, const std::string& text, const Rolled& rolled) {
  append({{"task", task},
          {"doc_id", document},
          {"text", text},
          {"loglikelihood", rolled.sum},
          {"tokens", rolled.tokens},
          {"words", rolled.words},
          {"bytes", rolled.bytes}});
}

void SampleFile::add_request(const Likelihood& likelihood) { append(likelihood_json(likelihood)); }

fs::path samples_of_model(const fs::path& file, const std::string& model) {
  std::string name = model;
  std::replace(name.begin(), name.end(), '/', '_');
  return fs::path(file).replace_extension("." + name + file.extension().string());
}

}  // namespace bhyt
