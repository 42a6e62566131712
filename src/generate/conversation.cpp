#include "generate/conversation.h"

#include <algorithm>

#include "core/check.h"
#include "generate/stop_texts.h"
#include "generate/utf8_stream.h"

namespace bhyt {

Talk::Talk(const ChatFormat& format, Limits limits, Continue more) : format_(format), limits_(limits), more_(std::move(more)) {
  check_usage(limits.max_tokens >= 1, "max-tokens must be at least 1, got {}", limits.max_tokens);
  check_usage(limits.context >= 1, "context must be at least 1, got {}", limits.context);
}

void Talk::reset() {
  turns_.clear();
  first_ = 0;
}

std::vector<ChatMessage> Talk::seen_from(std::size_t first) const {
  std::vector<ChatMessage> all;
  if (system_) all.push_back({ChatRole::system, *system_});
  all.insert(all.end(), turns_.begin() + static_cast<std::ptrdiff_t>(first), turns_.end());
  return all;
}

std::vector<ChatMessage> Talk::messages() const { return seen_from(0); }

// The prompt that ends in the last message, with as many of the turns before it as leave room for an answer.
std::vector<TokenId> Talk::make_room(Answer& answer) {
  const std::int64_t room = std::min(limits_.max_tokens, std::max<std::int64_t>(1, limits_.context / 2));
  std::size_t first = first_;
  std::vector<TokenId> prompt = format_.prompt(seen_from(first), ChatFormat::Missing::are_text);
  for (; std::ssize(prompt) + room > limits_.context && first + 1 < turns_.size(); first += 2)
    prompt = format_.prompt(seen_from(first + 2), ChatFormat::Missing::are_text);
  if (std::ssize(prompt) >= limits_.context)
    throw TooLong(fmt::format("the message is too long: {} tokens with what stands around it, of {} that question and answer have together",
                              prompt.size(), limits_.context));
  answer.dropped = static_cast<std::int64_t>(first - first_) / 2;
  first_ = first;
  return prompt;
}

void Talk::listen(const std::vector<TokenId>& prompt, const Show& show, Answer& answer) {
  const Tokenizer& tokenizer = format_.tokenizer();
  StopTexts stops(format_.row().stops);
  Utf8Stream characters;
  bool wanted = true;
  const auto give = [&](const std::string& text) {
    answer.text += text;
    wanted = show(text) && wanted;
  };
  const auto take = [&](TokenId id) {
    ++answer.tokens;
    const bool has_text = id < tokenizer.vocab_size();  // not a row of a padded model
    give(characters.push(stops.push(has_text ? tokenizer.piece(id, false) : "")));
    return wanted && !stops.found();
  };
  const std::int64_t most = std::min(limits_.max_tokens, limits_.context - std::ssize(prompt));
  const bool stopped = more_(prompt, most, take) || stops.found();
  give(characters.push(stops.rest()) + characters.rest());
  answer.end = stopped ? End::stop : wanted ? End::length : End::interrupted;
}

Talk::Answer Talk::say(const std::string& message, const Show& show) {
  Answer answer;
  turns_.push_back({ChatRole::user, message});
  try {
    listen(make_room(answer), show, answer);
  } catch (...) {
    turns_.pop_back();
    throw;
  }
  // A turn that was stopped before a word was said did not happen: an empty answer would teach the model to give more of them.
  if (answer.end == End::interrupted && answer.text.empty())
    turns_.pop_back();
  else
    turns_.push_back({ChatRole::assistant, answer.text});
  return answer;
}

}  // namespace bhyt
