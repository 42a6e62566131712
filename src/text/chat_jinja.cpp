#include "text/chat_jinja.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "text/parse.h"

namespace bhyt {

namespace {

// What well-known tokenizers ship. Where a text holds kAnySystem, any system message may stand, and is the row's default.
constexpr std::string_view kAnySystem = "{any}";
struct KnownJinja {
  std::string_view row;
  bool trims;
  std::string_view jinja;
};
constexpr KnownJinja kKnown[] = {
    // Llama-3-Instruct
    {"llama3", true,
     "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
     "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
     "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif "
     "%}"},
    // ChatML as transformers' and TRL's documentation have it
    {"chatml", false,
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {"chatml", false,
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    // Qwen 1.5 and 2, SmolLM 2
    {"chatml", false,
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n{any}<|im_end|>\n' }}"
     "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// A character of a string in single quotes.
void add_quoted(std::string& out, char c) {
  if (c == '\'' || c == '\\') out += '\\';
  out += c;
}

// What stands inside a tag without its blanks; strings in one kind of quotes, with no escapes but \' and \\.
std::string plain_tag(std::string_view tag) {
  std::string out;
  char quote = 0;
  for (std::size_t i = 0; i < tag.size(); ++i) {
    char c = tag[i];
    if (!quote && is_blank(c)) continue;
    if (quote ? c == quote : c == '\'' || c == '"') {
      quote = quote ? 0 : c;
      out += '\'';
    } else if (!quote) {
      out += c;
    } else {
      if (c == '\\' && i + 1 < tag.size()) c = tag[++i] == 'n' ? '\n' : tag[i] == 't' ? '\t' : tag[i];
      add_quoted(out, c);
    }
  }
  return out;
}

std::size_t end_of_tag(std::string_view text, std::size_t at, std::string_view close) {
  char quote = 0;
  for (; at < text.size(); ++at) {
    if (!quote && text.substr(at).starts_with(close)) return at;
    if (quote && text[at] == '\\')
      ++at;
    else if (quote ? text[at] == quote : text[at] == '\'' || text[at] == '"')
      quote = quote ? 0 : text[at];
  }
  return std::string_view::npos;
}

// Text between tags as transformers renders it (trim_blocks, lstrip_blocks): less the line break after a block and the blanks before one.
struct BesideTag {
  bool block = false, cuts = false;  // {% %}; written with a minus
};
std::string plain_between(std::string_view text, BesideTag before, BesideTag after) {
  if (before.cuts) {
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  } else if (before.block && text.starts_with('\n')) {
    text.remove_prefix(1);
  }
  if (after.cuts) {
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  } else if (after.block) {
    const std::size_t last = text.find_last_not_of(" \t");
    if (last == std::string_view::npos || text[last] == '\n') text = text.substr(0, last + 1);
  }
  return std::string(text);
}

// The same for all spellings of a template that differ in blanks, quotes and escapes only.
std::string plain_jinja(std::string_view text) {
  std::string out;
  BesideTag before;
  for (;;) {
    std::size_t open = text.find('{');
    while (open != std::string_view::npos && !text.substr(open).starts_with("{%") && !text.substr(open).starts_with("{{"))
      open = text.find('{', open + 1);
    if (open == std::string_view::npos) return out + plain_between(text, before, {});
    const bool block = text[open + 1] == '%';
    const std::size_t close = end_of_tag(text, open + 2, block ? "%}" : "}}");
    if (close == std::string_view::npos) return out + std::string(text);
    std::string_view tag = text.substr(open + 2, close - open - 2);
    BesideTag after{.block = block, .cuts = tag.starts_with('-')};
    if (after.cuts) tag.remove_prefix(1);
    out += plain_between(text.substr(0, open), before, after);
    before = {.block = block, .cuts = tag.ends_with('-')};
    if (before.cuts) tag.remove_suffix(1);
    out += (block ? "{%" : "{{") + plain_tag(tag) + (block ? "%}" : "}}");
    text.remove_prefix(close + 2);
  }
}

std::string jinja_string(const std::string& text) {
  std::string out = "'";
  for (const char c : text) add_quoted(out, c);
  return out + "'";
}

// Slots as a Jinja sum: 'Human: ' + content + '<|endoftext|>' + '\nAssistant:'.
std::string jinja_sum(const ChatSlots& slots, const ChatTemplate& row, const Tokenizer& tokenizer, const std::string& content) {
  std::string sum;
  const auto add = [&](const std::string& term) { sum += (sum.empty() ? "" : " + ") + term; };
  const auto add_text = [&](const std::string& text) {
    if (!text.empty()) add(jinja_string(text));
  };
  for (const std::string& slot : slots) {
    if (const auto token = slot_token(slot, row, tokenizer)) {
      add_text(*token);
      continue;
    }
    const std::size_t at = slot.find(kContent);
    add_text(slot.substr(0, at));
    if (at == std::string::npos) continue;
    add(content);
    add_text(slot.substr(at + kContent.size()));
  }
  return sum.empty() ? "''" : sum;
}

// Reads a plain_jinja text from its beginning.
class JinjaCursor {
 public:
  explicit JinjaCursor(std::string_view text) : left_(text) {}
  bool eat(std::string_view literal) {
    const bool there = left_.starts_with(literal);
    if (there) left_.remove_prefix(literal.size());
    return there;
  }
  bool at_end() const { return left_.empty(); }

  bool string(std::string& out) {
    if (!eat("'")) return false;
    for (; !left_.empty() && left_.front() != '\''; left_.remove_prefix(1)) {
      if (left_.front() == '\\') left_.remove_prefix(1);
      if (!left_.empty()) out += left_.front();
    }
    return eat("'");
  }

  // {{'text'+content+'text'}} as one slot.
  bool slot(std::string_view content, ChatSlots& slots) {
    if (!eat("{{")) return false;
    std::string all;
    do {
      std::string text;
      if (!content.empty() && eat(content))
        all += kContent;
      else if (string(text) && text.find(kContent) == std::string::npos)
        all += text;
      else
        return false;
    } while (eat("+"));
    if (!all.empty()) slots = {all};
    return eat("}}");
  }

 private:
  std::string_view left_;
};

// A template of any texts in the shape that chat_jinja gives it: what a template from a user's file was saved as.
std::optional<ChatTemplate> read_own_shape(const std::string& plain) {
  ChatTemplate row{.name = "own"};
  JinjaCursor at(plain);
  if (!plain.starts_with("{%") && !at.slot("", row.prefix)) return std::nullopt;
  if (at.eat("{%setsystem_message=")) {
    if (!at.string(row.default_system.emplace()) || !at.eat("%}")) return std::nullopt;
  }
  if (!at.eat("{%ifmessages[0]['role']=='system'%}{%setloop_messages=messages[1:]%}{%setsystem_message=messages[0]['content']"))
    return std::nullopt;
  row.trims = at.eat("|trim");
  const std::string_view trim = row.trims ? "|trim" : "";
  const bool read = at.eat("%}{%else%}{%setloop_messages=messages%}{%endif%}{%ifsystem_messageisdefined%}") &&
                    at.slot("system_message", row.system) &&
                    at.eat("{%endif%}{%formessageinloop_messages%}{%setcontent=message['content']") && at.eat(trim) &&
                    at.eat("%}{%ifmessage['role']=='user'%}") && at.slot("content", row.user) &&
                    at.eat("{%elifmessage['role']=='assistant'%}") && at.slot("content", row.answer) && at.eat("{%endif%}{%endfor%}");
  return read && at.at_end() ? std::optional(row) : std::nullopt;
}

// The text in the place of kAnySystem where all else is equal.
std::optional<std::string> match_any_system(const std::string& known, const std::string& text) {
  const std::size_t hole = known.find(kAnySystem), after = known.size() - hole - kAnySystem.size();
  if (text.size() < hole + after || text.substr(0, hole) != known.substr(0, hole)) return std::nullopt;
  if (!text.ends_with(known.substr(hole + kAnySystem.size()))) return std::nullopt;
  const std::string system = text.substr(hole, text.size() - hole - after);
  return system.find('\'') == std::string::npos ? std::optional(system) : std::nullopt;
}

std::string read_beside(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// "chat_template": "…", or [{"name": "default", "template": "…"}, …].
std::string jinja_in_config(const std::filesystem::path& file) {
  const nlohmann::json config = parse_json(read_beside(file), file.c_str());
  if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null()) return "";
  const nlohmann::json& value = config["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array())
    for (const nlohmann::json& named : value)
      if (named.is_object() && named.value("name", nlohmann::json()) == "default" && named.value("template", nlohmann::json()).is_string())
        return named["template"].get<std::string>();
  throw UsageError(
      fmt::format("{}: expected chat_template to be a text or a list with one named default; --template NAME chooses one of {}",
                  file.string(), chat_template_names()));
}

}  // namespace

std::string chat_jinja(const ChatTemplate& row, const Tokenizer& tokenizer) {
  const std::string trim = row.trims ? " | trim" : "";
  const auto sum = [&](const ChatSlots& slots, const char* content) { return jinja_sum(slots, row, tokenizer, content); };
  std::string j;
  if (const std::string prefix = sum(row.prefix, ""); prefix != "''") j += "{{ " + prefix + " }}";
  if (row.default_system) j += "{% set system_message = " + jinja_string(*row.default_system) + " %}";
  j += "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content']";
  j += trim + " %}{% else %}{% set loop_messages = messages %}{% endif %}{% if system_message is defined %}{{ ";
  j += sum(row.system, "system_message");
  j += " }}{% endif %}{% for message in loop_messages %}{% set content = message['content']" + trim;
  j += " %}{% if message['role'] == 'user' %}{{ " + sum(row.user, "content");
  j += " }}{% elif message['role'] == 'assistant' %}{{ " + sum(row.answer, "content");
  return j + " }}{% endif %}{% endfor %}";
}

std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja, const Tokenizer& tokenizer) {
  const std::string text = plain_jinja(jinja);
  for (const ChatTemplate& row : chat_templates())
    if (plain_jinja(chat_jinja(row, tokenizer)) == text) return row;
  for (const KnownJinja& known : kKnown) {
    const std::string plain = plain_jinja(known.jinja);
    const bool any_system = plain.find(kAnySystem) != std::string::npos;
    const std::optional<std::string> system = any_system ? match_any_system(plain, text) : std::nullopt;
    if (any_system ? !system : plain != text) continue;
    ChatTemplate row = find_chat_template(known.row);
    row.trims = known.trims;
    if (system) row.default_system = system;
    return row;
  }
  return read_own_shape(text);
}

std::optional<ChatTemplate> own_chat_template(const std::filesystem::path& where, const Tokenizer& tokenizer, Verify verify) {
  if (where == "bytes") return std::nullopt;  // built in
  const std::filesystem::path folder = tokenizer_folder(where, verify);
  std::filesystem::path file = folder / "chat_template.jinja";
  std::string jinja;
  std::error_code error;
  if (std::filesystem::is_regular_file(file, error))
    jinja = read_beside(file);
  else if (file = folder / "tokenizer_config.json"; std::filesystem::is_regular_file(file, error))
    jinja = jinja_in_config(file);
  if (jinja.empty()) return std::nullopt;
  const std::optional<ChatTemplate> row = recognise_chat_template(jinja, tokenizer);
  check_usage(row.has_value(), "the chat template of {} is not one that is known; --template NAME chooses one of {}", file.string(),
              chat_template_names());
  return row;
}

}  // namespace bhyt
