#include "eval/render.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "core/check.h"
#include "eval/python_random.h"

namespace bhyt {

namespace {

constexpr const char* kDelimiter = " ";     // between a text and its choice
constexpr const char* kSeparator = "\n\n";  // behind a solved example

std::int64_t code_points(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

// A document in the words of its task.
struct Filled {
  std::vector<std::string> contexts;  // one, or one for each choice
  std::vector<std::string> choices;
  std::int64_t gold = 0;

  std::string solved() const {
    const auto right = static_cast<std::size_t>(gold);
    return contexts[contexts.size() == 1 ? 0 : right] + kDelimiter + choices[right] + kSeparator;
  }
};

std::vector<std::string> columns_of(const Prompt& prompt) {
  std::vector<std::string> all = prompt.gold.columns();
  const auto add = [&](const Template& t) {
    for (std::string& name : t.columns()) all.push_back(std::move(name));
  };
  for (const auto* list : {&prompt.text, &prompt.choices, &prompt.labels})
    for (const Template& t : *list) add(t);
  if (prompt.ending) add(*prompt.ending);
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

const Prompt& fitting_prompt(const Task& task, const Row& row) {
  if (task.prompts.size() == 1) return task.prompts.front();  // it says by itself which column is missing
  std::string expected;
  for (const Prompt& p : task.prompts) {
    const std::vector<std::string> columns = columns_of(p);
    if (std::ranges::all_of(columns, [&](const std::string& c) { return row.columns.contains(c); })) return p;
    expected += fmt::format("{}{}", expected.empty() ? "" : " or ", fmt::join(columns, ", "));
  }
  row.fail_columns("the columns " + expected);
}

std::int64_t find_gold(const Prompt& prompt, const Row& row, std::size_t choices) {
  const std::string word = prompt.gold.fill_label(row), column = fmt::format("{}", fmt::join(prompt.gold.columns(), ", "));
  const auto fail = [&](const std::string& expected) {
    check(!column.empty(), "{}, line {}: expected gold to be {}, got {:?} for every document (a column is written {{NAME}})", row.file,
          row.line, expected, word);
    row.fail(column, expected, Document(word));
  };
  std::size_t place = 0;
  if (prompt.labels.empty()) {
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), place);
    if (error != std::errc() || stop != word.data() + word.size() || place >= choices)
      fail(fmt::format("the place of the right choice, 0 to {}", choices - 1));
    return static_cast<std::int64_t>(place);
  }
  const std::vector<std::string> labels = fill_all(prompt.labels, row);
  place = static_cast<std::size_t>(std::ranges::find(labels, word) - labels.begin());
  if (place >= labels.size()) fail(fmt::format("one of {}", fmt::join(labels, ", ")));
  if (place >= choices) fail(fmt::format("the label of one of {} choices", choices));
  return static_cast<std::int64_t>(place);
}

Filled fill(const Task& task, const Row& row) {
  const Prompt& prompt = fitting_prompt(task, row);
  Filled out;
  for (const Template& t : prompt.text) out.contexts.push_back(t.fill(row));
  if (prompt.ending)
    out.choices.assign(out.contexts.size(), prompt.ending->fill(row));
  else
    out.choices = fill_all(prompt.choices, row);
  if (prompt.clean)
    for (auto* list : {&out.contexts, &out.choices})
      for (std::string& text : *list) text = prompt.clean->apply(text, row, "text");
  out.gold = find_gold(prompt, row, out.choices.size());
  return out;
}

// Which rows of the pool stand before each document, one document after the other.
class ExampleRows {
 public:
  ExampleRows(const LoadedTask& loaded, const Subtask& subtask, const RenderOptions& options)
      : loaded_(loaded), subtask_(subtask), options_(options), random_(PythonRandom::signed_seed(options.seed)) {
    const std::int64_t there = std::ssize(subtask.pool);
    check_usage(options.shots == 0 || needed() <= there, "{}: {} examples before a document take {} rows, {} has {}", subtask.name,
                options.shots, needed(), loaded.examples ? loaded.examples->file : "its split of examples", there);
  }

  std::vector<std::int64_t> next(const Document& document) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(options_.shots));
    std::iota(rows.begin(), rows.end(), 0);
    if (!loaded_.task.seed_matters(options_.shots)) return rows;
    if (options_.chat) random_.sample(std::ssize(subtask_.pool), needed());  // the harness draws twice and takes the second
    rows = random_.sample(std::ssize(subtask_.pool), needed());
    std::erase_if(rows, [&](std::int64_t r) { return row(r).columns == document; });
    if (std::ssize(rows) > options_.shots) rows.resize(static_cast<std::size_t>(options_.shots));
    return rows;
  }

  Row row(std::int64_t r) const { return loaded_.examples->row(subtask_.pool[static_cast<std::size_t>(r)]); }

 private:
  std::int64_t needed() const { return options_.shots + (loaded_.task.examples == Examples::drawn ? loaded_.task.extra_draws : 0); }

  const LoadedTask& loaded_;
  const Subtask& subtask_;
  const RenderOptions& options_;
  PythonRandom random_;
};

std::vector<std::string> plain_contexts(const std::string& description, const std::string& solved, const std::vector<std::string>& texts) {
  std::vector<std::string> out;
  for (const std::string& t : texts) out.push_back(description + solved + t);
  return out;
}

// Examples and text are one turn. Several texts have a turn each, of a conversation of its own behind that of the examples.
std::vector<std::string> chat_contexts(const ChatFormat& chat, const std::string& description, const std::string& solved,
                                       const std::vector<std::string>& texts) {
  std::vector<ChatMessage> before;
  if (!description.empty()) before.push_back({ChatRole::system, description});
  if (texts.size() == 1) {
    before.push_back({ChatRole::user, solved + texts.front()});
    return {chat.text(before)};
  }
  if (!solved.empty()) before.push_back({ChatRole::user, solved});
  const std::string head = before.empty() ? "" : chat.text(before);
  std::vector<std::string> out;
  for (const std::string& t : texts) out.push_back(head + chat.text(std::vector<ChatMessage>{{ChatRole::user, t}}));
  return out;
}

}  // namespace

std::vector<Question> render(const LoadedTask& loaded, const Subtask& subtask, const RenderOptions& options) {
  ExampleRows examples(loaded, subtask, options);
  const std::int64_t all = std::ssize(subtask.documents), count = options.limit > 0 ? std::min(options.limit, all) : all;
  std::vector<Question> questions;
  questions.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const Row row = loaded.evaluated->row(subtask.documents[static_cast<std::size_t>(i)]);
    Filled filled = fill(loaded.task, row);
    Question& q = questions.emplace_back(Question{.task = subtask.name, .document = i, .gold = filled.gold});
    q.examples = examples.next(row.columns);
    std::string solved;
    for (const std::int64_t r : q.examples) solved += fill(loaded.task, examples.row(r)).solved();
    const std::string description = loaded.task.description.fill(row);
    q.contexts = options.chat ? chat_contexts(*options.chat, description, solved, filled.contexts)
                              : plain_contexts(description, solved, filled.contexts);
    for (const std::string& choice : filled.choices) {
      q.continuations.push_back((options.chat ? "" : kDelimiter) + choice);
      q.characters.push_back(code_points(choice));
    }
  }
  return questions;
}

}  // namespace bhyt
