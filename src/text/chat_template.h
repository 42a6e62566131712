// Conversations as the text that a model was fine-tuned on. A template is a row of one table; whoever talks to a model, evaluates it in
// turns or fine-tunes it reads the same row.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace bhyt {

enum class ChatRole : std::uint8_t { system, user, assistant };
const char* chat_role_name(ChatRole role);

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
};

// Fine-tuning takes the tokens of each slot by itself. kBosSlot and kEosSlot are those tokens of the tokenizer (kEosSlot is the template's
// own end token where it brings one); in any other slot kContent is the message.
using ChatSlots = std::vector<std::string>;
constexpr std::string_view kBosSlot = "{bos}", kEosSlot = "{eos}", kContent = "{c}";

struct ChatTemplate {
  std::string name;
  ChatSlots prefix, system, user, answer;     // user ends where the answer begins
  std::optional<std::string> default_system;  // of a conversation without a system message
  std::vector<std::string> tokens;            // special tokens it brings, first the one that ends an answer; none: the tokenizer's eos does
  std::vector<std::string> stops;             // where a model that never ends an answer begins the next turn itself
  bool trims = false;                         // contents lose the white space around them

  bool operator==(const ChatTemplate&) const = default;
};

const std::vector<ChatTemplate>& chat_templates();
std::string chat_template_names();                              // "default, alpaca, …"
const ChatTemplate& find_chat_template(std::string_view name);  // UsageError with all names for one that is not there

// The text of the token that a slot is; "" where the tokenizer has none; nothing where the slot is text.
std::optional<std::string> slot_token(const std::string& slot, const ChatTemplate& row, const Tokenizer& tokenizer);

// A template with the tokenizer whose ids it gives. The tokenizer must outlive it.
class ChatFormat {
 public:
  ChatFormat(ChatTemplate row, const Tokenizer& tokenizer);  // UsageError where it needs an end token and the tokenizer has none
  const ChatTemplate& row() const { return row_; }
  bool takes_system() const;  // whether it has a place for a system message
  const Tokenizer& tokenizer() const { return tokenizer_; }

  // Messages: a system message first or none, then user and assistant. After a user's, what opens the answer is there.
  std::string text(std::span<const ChatMessage> messages) const;
  // Of the whole text, as transformers gives it. Tokens that the vocabulary lacks are text to a model that was not trained with them.
  enum class Missing { have_ids, are_text };
  std::vector<TokenId> prompt(std::span<const ChatMessage> messages, Missing missing = Missing::have_ids) const;
  // What fine-tuning takes, each slot by itself: what is given, and the answer to learn from.
  struct Turn {
    std::vector<TokenId> source, target;
  };
  std::vector<Turn> turns(std::span<const ChatMessage> messages) const;

  TokenId token(std::string_view text) const;  // the id of one of the template's tokens
  std::optional<TokenId> end() const;          // the template's end token, else the tokenizer's; fine-tuning pads with it
  std::vector<TokenId> stops() const;          // ids that end an answer
  // Tokens that the vocabulary lacks, with the ids after its last: fine-tuning appends them, a model without them was not trained so.
  const std::vector<SpecialToken>& missing() const { return missing_; }

 private:
  using Put = std::function<void(const std::string& slot, bool answer)>;
  void walk(std::span<const ChatMessage> messages, const Put& put) const;
  void walk_slots(const ChatSlots& slots, std::string_view content, bool answer, const Put& put) const;
  void encode_all_tokens(std::string_view text, std::vector<TokenId>& ids) const;  // with the missing ones

  ChatTemplate row_;
  const Tokenizer& tokenizer_;
  std::vector<SpecialToken> missing_;
};

}  // namespace bhyt
