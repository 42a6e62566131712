#include "eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/threads.h"
#include "eval/detokenize.h"
#include "eval/metrics.h"
#include "eval/rolling.h"

namespace bhyt {

namespace {

std::int64_t at_most(std::int64_t limit, std::int64_t count) { return limit > 0 ? std::min(limit, count) : count; }

// The harness's number; none where it has no number.
std::optional<double> version_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

Evaluation::Evaluation(EvaluationSettings settings) : settings_(std::move(settings)) {
  check_data(settings_.selection, settings_.data, settings_.shots, settings_.data_setting);
  for (const ChosenTask& chosen : settings_.selection.tasks) {
    if (chosen.task.kind == TaskKind::multiple_choice) {
      choices_.push_back(load_task(chosen, settings_.data, settings_.shots));
      (void)questions(choices_.back(), settings_.seeds.front(), nullptr);
    } else {
      texts_.push_back({chosen.task, read_texts(chosen.task, settings_.data, settings_.limit)});
    }
  }
}

std::vector<std::pair<std::string, std::span<const std::string>>> Evaluation::texts() const {
  std::vector<std::pair<std::string, std::span<const std::string>>> all;
  for (const Texts& t : texts_) all.emplace_back(t.task.name, t.read.texts);
  return all;
}

// Those that ask different questions.
std::vector<std::int64_t> Evaluation::seeds_of(const Task& task) const {
  if (task.seed_matters(settings_.shots)) return settings_.seeds;
  return {settings_.seeds.front()};
}

std::int64_t Evaluation::documents() const {
  std::int64_t count = 0;
  for (const LoadedTask& t : choices_)
    for (const Subtask& s : t.subtasks) count += at_most(settings_.limit, std::ssize(s.documents)) * std::ssize(seeds_of(t.task));
  for (const Texts& t : texts_) count += std::ssize(t.read.texts);
  return count;
}

Catalog Evaluation::catalog() const {
  Catalog catalog;
  for (const LoadedTask& t : choices_)
    for (const Subtask& s : t.subtasks)
      catalog.tasks.push_back({.name = s.name,
                               .alias = s.alias,
                               .version = version_of(t.task.version),
                               .group = settings_.selection.group_of(s.name),
                               .shots = settings_.shots,
                               .documents = std::ssize(s.documents)});
  for (const Texts& t : texts_)
    catalog.tasks.push_back({.name = t.task.name,
                             .alias = t.task.name,
                             .version = version_of(t.task.version),
                             .group = "",
                             .shots = 0,
                             .documents = t.read.documents});
  for (const TaskGroup& g : settings_.selection.groups)
    catalog.groups.push_back({.name = g.name, .alias = g.alias, .version = version_of(g.version), .group = g.parent});
  return catalog;
}

std::vector<Question> Evaluation::questions(const LoadedTask& task, std::int64_t seed, const ChatFormat* chat) const {
  std::vector<Question> all;
  for (const Subtask& s : task.subtasks) {
    std::vector<Question> some = render(task, s, {.shots = settings_.shots, .seed = seed, .limit = settings_.limit, .chat = chat});
    std::ranges::move(some, std::back_inserter(all));
  }
  return all;
}

void Evaluation::for_each_question(std::int64_t seed, const ChatFormat* chat, const std::function<void(const Question&)>& take) const {
  for (const LoadedTask& t : choices_)
    for (const Question& q : questions(t, seed, chat)) take(q);
}

namespace {

// Questions of this rank.
bool score_here(const Reader& reader, std::span<const Question> questions,
                const std::function<void(std::size_t, std::vector<Likelihood>)>& done) {
  std::vector<std::vector<Passage>> apart(questions.size());
  {
    Threads threads(reader.threads);
    parallel_tasks(threads, std::ssize(questions), [&](std::int64_t i) {
      const auto q = static_cast<std::size_t>(i);
      apart[q] = passages_of(reader.tokenizer, questions[q], reader.reading);
    });
  }
  std::vector<Passage> passages;
  std::vector<std::size_t> owner;
  for (std::size_t q = 0; q < apart.size(); ++q)
    for (Passage& p : apart[q]) {
      passages.push_back(std::move(p));
      owner.push_back(q);
    }
  std::vector<Likelihood> collected;
  std::size_t at = 0;  // the passage that comes next
  const auto take = [&](std::size_t i, std::span<const EndingScore> scores) {
    at = i + 1;
    for (std::size_t e = 0; e < scores.size(); ++e)
      collected.push_back({.sum = scores[e].sum, .greedy = scores[e].greedy, .tokens = std::ssize(passages[i].endings[e])});
    if (i + 1 == owner.size() || owner[i + 1] != owner[i]) done(owner[i], std::exchange(collected, {}));
  };
  Engine& engine = reader.engine();
  try {
    return score_passages(engine, passages, take);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& e) {
    if (at >= owner.size()) throw;
    const Question& q = questions[owner[at]];
    throw Error(fmt::format("{}, document {}: {}", q.task, q.document, e.what()));
  }
}

// What a model computes for each, in tokens of four characters: whoever scores a question encodes it, and no other. A context's beginning
// that stood before is not computed again.
std::vector<double> costs_of(std::span<const Question> questions) {
  std::vector<double> costs;
  const std::string none;
  const std::string* before = &none;
  for (const Question& q : questions) {
    double characters = 0;
    for (std::size_t i = 0; i < q.continuations.size(); ++i) {
      const std::string& context = q.context(i);
      const auto own = std::ranges::mismatch(context, *before).in1;
      characters += static_cast<double>(context.end() - own) + static_cast<double>(q.continuations[i].size());
      before = &context;
    }
    costs.push_back(characters / 4 + 1);
  }
  return costs;
}

}  // namespace

bool score_questions(const Reader& reader, std::span<const Question> questions,
                     const std::function<void(std::size_t, std::vector<Likelihood>)>& done) {
  if (questions.empty()) return true;
  if (!reader.ranks.several()) return score_here(reader, questions, done);
  return share_out(
      reader.ranks, costs_of(questions),
      [&](std::size_t first, std::size_t last, const auto& give) {
        score_here(reader, questions.subspan(first, last - first),
                   [&](std::size_t, const std::vector<Likelihood>& choices) { give(as_bytes(std::span(choices))); });
      },
      [&](std::size_t i, const std::string& bytes) { done(i, from_bytes<Likelihood>(bytes)); });
}

bool Evaluation::run_task(const Reader& reader, const LoadedTask& task, std::int64_t seed, SampleFile* samples,
                          const std::function<void(const std::string&)>& done, std::vector<Scored>& scored) const {
  const std::vector<Question> all = questions(task, seed, reader.chat);
  const std::size_t known = reader.ranks.first_counts([&] {
    std::size_t n = 0;
    for (; samples && n < all.size(); ++n) {
      std::optional<Scored> one = samples->next(all[n], seed);
      if (!one) break;
      scored.push_back(std::move(*one));
      done(all[n].task);
    }
    return n;
  });
  const std::span<const Question> left = std::span(all).subspan(known);
  return score_questions(reader, left, [&](std::size_t i, std::vector<Likelihood> choices) {
    const Question& q = left[i];
    Graded graded = grade(q, std::move(choices), task.task.acc_norm);
    if (samples) samples->add(q, graded, seed);
    scored.push_back({.task = q.task, .document = q.document, .seed = seed, .what = std::move(graded)});
    done(q.task);
  });
}

bool Evaluation::run_texts(const Reader& reader, const Texts& texts, SampleFile* samples,
                           const std::function<void(const std::string&)>& done, std::vector<Scored>& scored) const {
  const std::string& name = texts.task.name;
  const std::vector<std::string>& pages = texts.read.texts;
  const std::size_t first = reader.ranks.first_counts([&] {
    std::size_t n = 0;
    for (; samples && n < pages.size(); ++n) {
      std::optional<Scored> known = samples->next(name, static_cast<std::int64_t>(n), detokenize(pages[n]));
      if (!known) break;
      known->seed = settings_.seeds.front();
      scored.push_back(std::move(*known));
      done(name);
    }
    return n;
  });
  const std::span<const std::string> left = std::span(pages).subspan(first);
  if (left.empty()) return true;
  Engine* engine = nullptr;
  reader.ranks.together([&] { engine = &reader.engine(); });
  const auto take = [&](std::size_t i, const RollingDocument& d) {
    const auto document = static_cast<std::int64_t>(first + i);
    const Rolled rolled{.sum = d.loglikelihood, .tokens = d.tokens, .words = d.words, .bytes = d.bytes};
    if (samples) samples->add(name, document, d.text, rolled);
    scored.push_back({.task = name, .document = document, .seed = settings_.seeds.front(), .what = rolled});
    done(name);
  };
  return score_rolling(*engine, reader.tokenizer, left, reader.reading, take, reader.ranks);
}

bool Evaluation::run(const Reader& reader, SampleFile* samples, const std::function<void(const std::string&)>& done,
                     std::vector<Scored>& scored) const {
  // What no other seed changes stands for every seed.
  const auto repeat = [&](std::size_t from, std::size_t seeds) {
    const std::size_t end = scored.size();
    for (std::size_t s = seeds; s < settings_.seeds.size(); ++s)
      for (std::size_t i = from; i < end; ++i) {
        scored.push_back(scored[i]);
        scored.back().seed = settings_.seeds[s];
      }
  };
  for (const LoadedTask& task : choices_) {
    const std::size_t from = scored.size();
    const std::vector<std::int64_t> seeds = seeds_of(task.task);
    for (const std::int64_t seed : seeds)
      if (!run_task(reader, task, seed, samples, done, scored)) return false;
    repeat(from, seeds.size());
  }
  for (const Texts& texts : texts_) {
    const std::size_t from = scored.size();
    if (!run_texts(reader, texts, samples, done, scored)) return false;
    repeat(from, 1);
  }
  return true;
}

}  // namespace bhyt
