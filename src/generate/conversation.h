// A conversation with a model: its history becomes a prompt, the answer becomes history. How tokens are made is for others.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/chat_template.h"

namespace bhyt {

class Talk {
 public:
  // Continues a prompt by at most max_tokens ids, each given to emit until that returns false. Ids that end an answer are not given:
  // returns whether one came.
  using Continue =
      std::function<bool(const std::vector<TokenId>& prompt, std::int64_t max_tokens, const std::function<bool(TokenId)>& emit)>;
  // Called for every token with the characters that became whole by it, possibly none; false stops the answer.
  using Show = std::function<bool(std::string_view text)>;

  struct Limits {
    std::int64_t context = 0;     // of prompt and answer together
    std::int64_t max_tokens = 0;  // of an answer
  };
  enum class End { stop, length, interrupted };
  struct Answer {
    std::string text;
    End end = End::stop;
    std::int64_t tokens = 0;
    std::int64_t dropped = 0;  // turns that the model sees no more from this answer on
  };
  // A message that leaves no room for an answer, whatever is dropped. The conversation is as it was.
  struct TooLong : UsageError {
    using UsageError::UsageError;
  };

  Talk(const ChatFormat& format, Limits limits, Continue more);
  const ChatFormat& format() const { return format_; }
  Answer say(const std::string& message, const Show& show);
  void set_system(std::optional<std::string> text) { system_ = std::move(text); }
  void reset();                               // all but the system message
  std::vector<ChatMessage> messages() const;  // the whole of it, dropped turns too

 private:
  std::vector<ChatMessage> seen_from(std::size_t first) const;
  std::vector<TokenId> make_room(Answer& answer);
  void listen(const std::vector<TokenId>& prompt, const Show& show, Answer& answer);

  const ChatFormat& format_;
  Limits limits_;
  Continue more_;
  std::optional<std::string> system_;
  std::vector<ChatMessage> turns_;  // user, assistant, user, …
  std::size_t first_ = 0;           // the first of them that the model still sees
};

}  // namespace bhyt
