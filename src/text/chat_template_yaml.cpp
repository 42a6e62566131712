#include "text/chat_template_yaml.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "io/files.h"
#include "io/yaml.h"

namespace bhyt {

namespace {

// A list of texts, or one text.
std::vector<std::string> read_texts(const schema::Json& j, const std::string& key) {
  if (j.is_string()) return {j.get<std::string>()};
  // {c} without quotes is a map in YAML: the likeliest mistake.
  const char* expected = "a text in quotes (\"{c}\") or a list of such texts";
  if (!j.is_array()) schema::wrong(key, expected, j);
  std::vector<std::string> texts;
  for (const schema::Json& text : j) {
    if (!text.is_string()) schema::wrong(key, expected, text);
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

template <class V>
void texts_field(V& v, const char* key, std::vector<std::string>& texts) {
  v.custom(
      key, "", [&](const schema::Json& j, const std::string& full) { texts = read_texts(j, full); }, [&] { return schema::Json(texts); });
}

bool holds_content(const ChatSlots& slots) {
  return std::ranges::any_of(slots, [](const std::string& s) { return s.find(kContent) != std::string::npos; });
}

void check_slots(const ChatTemplate& row) {
  for (const auto& [key, slots] : {std::pair("user", &row.user), {"answer", &row.answer}}) {
    check_usage(!slots->empty(), "{} is missing: a list of slots, one of them with {} for the message", key, kContent);
    check_usage(holds_content(*slots), "{} must have {} where the message stands", key, kContent);
  }
  check_usage(!row.default_system || holds_content(row.system), "default_system needs slots under system, one of them with {}", kContent);
  check_usage(!holds_content(row.prefix), "prefix cannot hold a message ({})", kContent);
  for (const ChatSlots* slots : {&row.prefix, &row.system, &row.user, &row.answer})
    for (const std::string& s : *slots)
      for (const std::string_view token : {kBosSlot, kEosSlot})
        check_usage(s == token || s.find(token) == std::string::npos, "{} must be a slot of its own, got {}", token, schema::show(s));
  for (const ChatSlots* slots : {&row.system, &row.user, &row.answer})
    for (const std::string& s : *slots)
      check_usage(s.find(kContent) == s.rfind(kContent), "a slot holds {} once, got {}", kContent, schema::show(s));
  for (const std::string& token : row.tokens) check_usage(!token.empty(), "tokens cannot hold an empty text");
  for (const std::string& stop : row.stops) check_usage(!stop.empty(), "stops cannot hold an empty text");
}

}  // namespace

template <class V>
void fields(ChatTemplate& t, V& v) {
  v.text("name", t.name, "");
  texts_field(v, "prefix", t.prefix);
  texts_field(v, "system", t.system);
  texts_field(v, "user", t.user);
  texts_field(v, "answer", t.answer);
  v.custom(
      "default_system", "",
      [&](const schema::Json& j, const std::string& key) {
        if (!j.is_null()) t.default_system = schema::Reader::as_text(key, j);
      },
      [&] { return t.default_system ? schema::Json(*t.default_system) : schema::Json(); });
  texts_field(v, "tokens", t.tokens);
  texts_field(v, "stops", t.stops);
  v.boolean("trims", t.trims, "");
}

ChatTemplate parse_chat_template(const std::string& yaml, const std::string& where) {
  ChatTemplate row{.name = std::filesystem::path(where).stem().string()};
  const schema::Json tree = parse_yaml(yaml, where);
  try {
    schema::read(row, tree);
    check_slots(row);
  } catch (const UsageError& e) {
    throw UsageError(fmt::format("chat template {}: {}", where, e.what()));
  }
  return row;
}

ChatTemplate load_chat_template(const std::string& name_or_file) {
  const std::filesystem::path path(name_or_file);
  if (path.extension() != ".yaml" && path.extension() != ".yml") return find_chat_template(name_or_file);
  check_usage(std::filesystem::is_regular_file(path), "chat template {}: there is no such file", name_or_file);
  return parse_chat_template(read_text(path), name_or_file);
}

}  // namespace bhyt
