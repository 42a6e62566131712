#include "data/records.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "data/bytes_in.h"
#include "data/files.h"
#include "data/json_text.h"
#include "io/json.h"

namespace bhyt {

const char* drop_name(Drop drop) {
  constexpr const char* kNames[kDrops] = {"not an object",
                                          "neither alpaca nor ShareGPT nor OpenAI messages",
                                          "a field is missing or of the wrong kind",
                                          "output is not a text",
                                          "no messages",
                                          "the last message has no answer",
                                          "roles out of turn"};
  return kNames[static_cast<std::size_t>(drop)];
}

namespace {

using RecordJson = nlohmann::json;

// Thrown by what takes a record apart, caught where the record is left out.
struct LeftOut {
  Drop drop;
  std::string detail;
};

struct RecordName {
  Compression compression = Compression::none;
  bool array = false;
};
std::optional<RecordName> record_name(const std::string& path) {
  RecordName name;
  std::filesystem::path p(path);
  if (p.extension() == ".gz") name.compression = Compression::gzip;
  if (p.extension() == ".zst") name.compression = Compression::zstd;
  if (name.compression != Compression::none) p = p.stem();
  name.array = p.extension() == ".json";
  return name.array || p.extension() == ".jsonl" || p.extension() == ".ndjson" ? std::optional(name) : std::nullopt;
}

std::string json_kind(const RecordJson* value) {
  if (!value) return "nothing";
  if (value->is_null()) return "null";
  if (value->is_object()) return "an object";
  if (value->is_array()) return "a list";
  return value->is_string() ? "a text" : value->is_boolean() ? "true or false" : "a number";
}

// The field, or nullptr where it is missing.
const RecordJson* field_of(const RecordJson& record, const char* key) {
  const auto found = record.find(key);
  return found == record.end() ? nullptr : &*found;
}

bool has_value(const RecordJson& record, const char* key) {
  const RecordJson* value = field_of(record, key);
  return value && !value->is_null();
}

// A text that may be missing or null: both are empty.
std::string text_or_empty(const RecordJson& record, const char* key) {
  const RecordJson* value = field_of(record, key);
  if (!value || value->is_null()) return "";
  if (!value->is_string()) throw LeftOut{Drop::bad_field, fmt::format("{}: expected a text, found {}", key, json_kind(value))};
  return value->get<std::string>();
}

void add_system(std::vector<ChatMessage>& messages, std::string text) {
  if (!text.empty()) messages.push_back({ChatRole::system, std::move(text)});
}

std::vector<ChatMessage> from_alpaca(const RecordJson& record) {
  const RecordJson *output = field_of(record, "output"), *history = field_of(record, "history");
  if (!output || !output->is_string()) throw LeftOut{Drop::no_answer, "output is " + json_kind(output)};
  if (!field_of(record, "instruction") && !field_of(record, "input")) throw LeftOut{Drop::bad_field, "neither instruction nor input"};
  std::vector<ChatMessage> messages;
  add_system(messages, text_or_empty(record, "system"));
  if (history && !history->is_null() && *history != "") {
    if (!history->is_array()) throw LeftOut{Drop::bad_field, "history: expected a list, found " + json_kind(history)};
    for (const RecordJson& pair : *history) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
        throw LeftOut{Drop::bad_field, "history: expected pairs of texts"};
      messages.push_back({ChatRole::user, pair[0].get<std::string>()});
      messages.push_back({ChatRole::assistant, pair[1].get<std::string>()});
    }
  }
  std::string user = text_or_empty(record, "instruction");
  const std::string input = text_or_empty(record, "input");
  if (!user.empty() && !input.empty()) user += '\n';
  messages.push_back({ChatRole::user, user + input});
  messages.push_back({ChatRole::assistant, output->get<std::string>()});
  return messages;
}

// How a form with a list of messages names its parts.
struct ListForm {
  const char *list, *role, *content;
  const char* roles[3];  // by ChatRole
  bool system;           // may stand beside the list too
};
constexpr ListForm kOpenAi{"messages", "role", "content", {"system", "user", "assistant"}, false};
constexpr ListForm kShareGpt{"conversations", "from", "value", {"system", "human", "gpt"}, true};

const std::string& text_of_message(const RecordJson& list, std::size_t i, const char* key) {
  const RecordJson* value = list[i].is_object() ? field_of(list[i], key) : nullptr;
  if (!value || !value->is_string())
    throw LeftOut{Drop::bad_field, fmt::format("message {}: expected a text under {}, found {}", i + 1, key, json_kind(value))};
  return value->get_ref<const std::string&>();
}

std::vector<ChatMessage> from_list(const RecordJson& record, const ListForm& form) {
  const RecordJson* list = field_of(record, form.list);
  if (!list->is_array()) throw LeftOut{Drop::bad_field, fmt::format("{}: expected a list, found {}", form.list, json_kind(list))};
  std::vector<ChatMessage> messages;
  std::size_t at = 0;
  if (!list->empty() && text_of_message(*list, 0, form.role) == form.roles[0])
    add_system(messages, text_of_message(*list, at++, form.content));  // the one beside the list does not count then
  else if (form.system)
    add_system(messages, text_or_empty(record, "system"));
  if (at == list->size()) throw LeftOut{Drop::no_messages, fmt::format("{} is empty", form.list)};
  const std::size_t first = at;
  for (; at < list->size(); ++at) {
    const ChatRole expected = (at - first) % 2 == 0 ? ChatRole::user : ChatRole::assistant;
    const char* name = form.roles[static_cast<std::size_t>(expected)];
    const std::string& role = text_of_message(*list, at, form.role);
    if (role != name) throw LeftOut{Drop::out_of_turn, fmt::format("message {}: expected {}, found {}", at + 1, name, role)};
    messages.push_back({expected, text_of_message(*list, at, form.content)});
  }
  if ((at - first) % 2 != 0) throw LeftOut{Drop::odd_messages, fmt::format("{} messages", at - first)};
  return messages;
}

std::vector<ChatMessage> messages_of(const RecordJson& record) {
  if (!record.is_object()) throw LeftOut{Drop::not_an_object, "found " + json_kind(&record)};
  for (const ListForm* form : {&kOpenAi, &kShareGpt})
    if (has_value(record, form->list)) return from_list(record, *form);
  for (const char* key : {"instruction", "input", "output"})
    if (record.contains(key)) return from_alpaca(record);
  for (const ListForm* form : {&kOpenAi, &kShareGpt})
    if (record.contains(form->list)) return from_list(record, *form);
  std::string found;
  for (const auto& entry : record.items())
    if (found.size() < 80) found += (found.empty() ? "" : ", ") + entry.key();
  throw LeftOut{Drop::unknown_fields, found.empty() ? "no fields" : "fields " + found};
}

bool is_space(int c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

bool named_as_records(const std::string& path) { return record_name(path).has_value(); }

struct RecordFile::Scan {
  Scan(const std::string& file, const RecordName& name)
      : path(file), bytes(InputFile{.path = file, .compression = name.compression}), array(name.array) {
    if (bytes.peek() == 0xEF)  // a byte order mark, as some editors leave it
      for (int i = 0; i < 3; ++i) bytes.get();
    if (array) skip_space();
    array = array && bytes.peek() != '{';  // a .json file may hold lines, too
  }

  bool next_line(RecordText& record) {
    while (bytes.line(record.json)) {
      record.line = line++;
      if (record.json.find_first_not_of(" \t\r") != std::string::npos) return true;
    }
    return false;
  }

  bool next_element(RecordText& record) {
    skip_space();
    if (!open) {
      check(bytes.peek() >= 0, "{} is empty: expected a list of records", path);
      check(bytes.get() == '[', "{}, line {}: expected [ and a list of records", path, line);
      open = true;
      skip_space();
      if (bytes.peek() == ']') close();
    }
    if (done) return false;
    record.line = line;
    record.json.clear();
    read_value(record.json);
    check(record.json.find_first_not_of(" \t\r\n") != std::string::npos, "{}, line {}: expected a record", path, line);
    if (bytes.peek() == ']')
      close();
    else
      bytes.get();  // the comma
    return true;
  }

  std::string path;
  InputBytes bytes;
  bool array;
  std::int64_t line = 1, index = 0;

 private:
  void skip_space() {
    while (is_space(bytes.peek())) line += bytes.get() == '\n';
  }

  // Up to the comma or bracket behind a value; whether it is JSON is asked when it is parsed.
  void read_value(std::string& out) {
    const std::int64_t begin = line;
    std::int64_t depth = 0;
    for (bool quoted = false;;) {
      const int c = bytes.peek();
      check(c >= 0, "{} ends inside the record that begins at line {}: it is truncated", path, begin);
      if (!quoted && depth == 0 && (c == ',' || c == ']')) return;
      out += static_cast<char>(bytes.get());
      line += c == '\n';
      if (quoted && c == '\\' && bytes.peek() >= 0)
        out += static_cast<char>(bytes.get());
      else if (c == '"')
        quoted = !quoted;
      else if (!quoted && (c == '{' || c == '['))
        ++depth;
      else if (!quoted && (c == '}' || c == ']') && depth > 0)
        --depth;
    }
  }

  void close() {
    bytes.get();
    done = true;
    skip_space();
    check(bytes.peek() < 0, "{}, line {}: expected the end of the file behind the list of records", path, line);
  }

  bool open = false, done = false;
};

RecordFile::RecordFile(const std::string& path) {
  const auto name = record_name(path);
  check(name || !is_there(path), "cannot read {} as records: expected .json, .jsonl or .ndjson, plain or with .gz or .zst", path);
  check(std::filesystem::is_regular_file(path), "cannot read {}: {}", path,
        is_there(path) ? "not a regular file" : "there is no such file");
  scan_ = std::make_unique<Scan>(path, *name);
}

RecordFile::~RecordFile() = default;

const std::string& RecordFile::path() const { return scan_->path; }

bool RecordFile::next(RecordText& record) {
  if (!(scan_->array ? scan_->next_element(record) : scan_->next_line(record))) return false;
  record.index = scan_->index++;
  return true;
}

std::variant<Record, DroppedRecord> RecordFile::parse(const RecordText& record) const {
  const RecordJson json = json_or_discarded<RecordJson>(record.json);
  check(!json.is_discarded(), "{}, record {}, line {}: {}", path(), record.index, record.line, json_mistake(record.json));
  try {
    return Record{record.index, messages_of(json)};
  } catch (LeftOut& e) {
    return DroppedRecord{record.index, record.line, e.drop, std::move(e.detail)};
  }
}

}  // namespace bhyt
