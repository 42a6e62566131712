#include "text/chat_template.h"

#include <algorithm>

#include "core/check.h"
#include "text/unicode.h"

namespace bhyt {

const char* chat_role_name(ChatRole role) {
  constexpr const char* kNames[] = {"system", "user", "assistant"};
  return kNames[static_cast<std::size_t>(role)];
}

// default, alpaca, llama3 and chatml are LLaMA-Factory's. plain is for models that know no turns: contents, each on lines of its own.
const std::vector<ChatTemplate>& chat_templates() {
  static const std::vector<ChatTemplate> table = {
      {.name = "default",
       .system = {"System: {c}", "{eos}", "\n"},
       .user = {"Human: {c}", "{eos}", "\nAssistant:"},
       .answer = {"{c}", "{eos}", "\n"},
       .stops = {"\nHuman:"}},
      {.name = "alpaca",
       .system = {"{c}"},
       .user = {"### Instruction:\n{c}\n\n### Response:\n"},
       .answer = {"{c}", "{eos}", "\n\n"},
       .default_system = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n",
       .stops = {"\n### Instruction:"}},
      {.name = "llama3",
       .prefix = {"{bos}"},
       .system = {"<|start_header_id|>system<|end_header_id|>\n\n{c}<|eot_id|>"},
       .user = {"<|start_header_id|>user<|end_header_id|>\n\n{c}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
       .answer = {"{c}<|eot_id|>"},
       .tokens = {"<|eot_id|>", "<|eom_id|>"}},
      {.name = "chatml",
       .system = {"<|im_start|>system\n{c}<|im_end|>\n"},
       .user = {"<|im_start|>user\n{c}<|im_end|>\n<|im_start|>assistant\n"},
       .answer = {"{c}<|im_end|>\n"},
       .tokens = {"<|im_end|>", "<|im_start|>"}},
      {.name = "plain", .prefix = {"{bos}"}, .system = {"{c}\n"}, .user = {"{c}\n"}, .answer = {"{c}", "{eos}", "\n"}},
  };
  return table;
}

std::string chat_template_names() {
  std::string names;
  for (const ChatTemplate& t : chat_templates()) names += (names.empty() ? "" : ", ") + t.name;
  return names;
}

const ChatTemplate& find_chat_template(std::string_view name) {
  for (const ChatTemplate& t : chat_templates())
    if (t.name == name) return t;
  throw UsageError(fmt::format("unknown chat template {}; expected one of {}", name, chat_template_names()));
}

namespace {

std::string_view trimmed(std::string_view text) {
  const char *const end = text.data() + text.size(), *first = end, *last = end;
  for (const char* p = text.data(); p < end;) {
    const unicode::Char c = unicode::decode(p, end);
    if (unicode::ClassTable::get()(c.code) != unicode::Class::space) {
      first = std::min(first, p);
      last = p + c.size;
    }
    p += c.size;
  }
  return {first, static_cast<std::size_t>(last - first)};
}

bool is_one_token(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, ids, {.special = true, .adds = false});
  return ids.size() == 1;
}

}  // namespace

std::optional<std::string> slot_token(const std::string& slot, const ChatTemplate& row, const Tokenizer& tokenizer) {
  if (slot != kBosSlot && slot != kEosSlot) return std::nullopt;
  if (slot == kEosSlot && !row.tokens.empty()) return row.tokens.front();
  const std::optional<TokenId> id = slot == kBosSlot ? tokenizer.bos() : tokenizer.eos();
  return id ? tokenizer.piece(*id, true) : "";
}

ChatFormat::ChatFormat(ChatTemplate row, const Tokenizer& tokenizer) : row_(std::move(row)), tokenizer_(tokenizer) {
  const bool needs_eos = row_.tokens.empty() && std::ranges::count(row_.answer, kEosSlot) > 0;
  check_usage(!needs_eos || tokenizer.eos(), "chat template {} ends answers with the tokenizer's end token, and this one has none",
              row_.name);
  for (const std::string& text : row_.tokens)
    if (!is_one_token(tokenizer, text)) missing_.push_back({static_cast<TokenId>(tokenizer.vocab_size() + std::ssize(missing_)), text});
}

void ChatFormat::walk_slots(const ChatSlots& slots, std::string_view content, bool answer, const Put& put) const {
  if (row_.trims) content = trimmed(content);
  for (const std::string& slot : slots) {
    if (const auto token = slot_token(slot, row_, tokenizer_)) {
      if (!token->empty()) put(*token, answer);
      continue;
    }
    std::string text = slot;
    if (const auto at = text.find(kContent); at != std::string::npos) text.replace(at, kContent.size(), content);
    put(text, answer);
  }
}

void ChatFormat::walk(std::span<const ChatMessage> messages, const Put& put) const {
  const bool own_system = !messages.empty() && messages.front().role == ChatRole::system;
  walk_slots(row_.prefix, "", false, put);
  if (own_system)
    walk_slots(row_.system, messages.front().content, false, put);
  else if (row_.default_system)
    walk_slots(row_.system, *row_.default_system, false, put);
  for (const ChatMessage& m : messages.subspan(own_system ? 1 : 0)) {
    check(m.role != ChatRole::system, "[chat] expected a system message to be the first message");
    const bool answer = m.role == ChatRole::assistant;
    walk_slots(answer ? row_.answer : row_.user, m.content, answer, put);
  }
}

void ChatFormat::encode_all_tokens(std::string_view text, std::vector<TokenId>& ids) const {
  // The tokenizer does not know the missing ones: cut them out, the first to come first.
  while (!missing_.empty()) {
    const auto next = std::ranges::min_element(missing_, {}, [&](const SpecialToken& t) { return text.find(t.text); });
    const std::size_t at = text.find(next->text);
    if (at == std::string_view::npos) break;
    tokenizer_.encode(text.substr(0, at), ids, {.special = true, .adds = false});
    ids.push_back(next->id);
    text.remove_prefix(at + next->text.size());
  }
  tokenizer_.encode(text, ids, {.special = true, .adds = false});
}

bool ChatFormat::takes_system() const {
  return std::ranges::any_of(row_.system, [](const std::string& slot) { return slot.find(kContent) != std::string::npos; });
}

std::string ChatFormat::text(std::span<const ChatMessage> messages) const {
  std::string all;
  walk(messages, [&](const std::string& slot, bool) { all += slot; });
  return all;
}

std::vector<TokenId> ChatFormat::prompt(std::span<const ChatMessage> messages, Missing missing) const {
  std::vector<TokenId> ids;
  if (missing == Missing::are_text)
    tokenizer_.encode(text(messages), ids, {.special = true, .adds = false});
  else
    encode_all_tokens(text(messages), ids);
  return ids;
}

std::vector<ChatFormat::Turn> ChatFormat::turns(std::span<const ChatMessage> messages) const {
  std::vector<Turn> all;
  bool before = true;
  walk(messages, [&](const std::string& slot, bool answer) {
    if (before && !answer) all.emplace_back();
    before = answer;
    encode_all_tokens(slot, answer ? all.back().target : all.back().source);
  });
  return all;
}

TokenId ChatFormat::token(std::string_view text) const {
  std::vector<TokenId> ids;
  encode_all_tokens(text, ids);
  check(ids.size() == 1, "[chat] expected a token of the template, got {}", text);
  return ids.front();
}

std::optional<TokenId> ChatFormat::end() const {
  return row_.tokens.empty() ? tokenizer_.eos() : std::optional(token(row_.tokens.front()));
}

std::vector<TokenId> ChatFormat::stops() const {
  std::vector<TokenId> ids = tokenizer_.stops();
  if (const auto last = end(); last && std::ranges::count(ids, *last) == 0) ids.push_back(*last);
  return ids;
}

}  // namespace bhyt
