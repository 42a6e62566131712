#include "eval/encode.h"

#include <algorithm>

#include "core/check.h"
#include "eval/python_text.h"

namespace bhyt {

namespace {

using Ids = std::vector<TokenId>;

// Python's str.rstrip: the length of what is left.
std::size_t stripped_length(std::string_view text) {
  std::size_t length = 0;
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Char c = unicode::decode(text.data() + at, text.data() + text.size());
    at += c.size;
    if (!python_space(c.code)) length = at;
  }
  return length;
}

// Contexts come again with every choice: the last one is kept.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const Reading& reading) : tokenizer_(tokenizer), reading_(reading) {}

  struct Pair {
    Ids context, ending;
  };
  Pair encode(const std::string& context, const std::string& continuation) {
    if (context != text_ || ids_.empty()) take_context(context);
    const std::string moved = text_.substr(kept_) + continuation;
    if (ids_.empty()) return behind_nothing(moved);
    const Ids whole = ids(text_.substr(0, kept_) + moved, reading_.bos);
    return {ids_, Ids(whole.begin() + std::min(std::ssize(whole), std::ssize(ids_)), whole.end())};
  }

 private:
  void take_context(const std::string& context) {
    text_ = context;
    kept_ = stripped_length(context);
    ids_ = ids(context.substr(0, kept_), reading_.bos);
  }
  // A text without anything before it follows the token that starts texts.
  Pair behind_nothing(const std::string& continuation) const {
    const auto start = tokenizer_.bos() ? tokenizer_.bos() : tokenizer_.eos();
    check_usage(start.has_value(), "a context is empty and the tokenizer has no token that starts a text");
    Ids ending = ids(continuation, false);
    if (ending.size() > 1 && ending.front() == *start) ending.erase(ending.begin());
    return {{*start}, ending};
  }
  Ids ids(const std::string& text, bool adds) const {
    Ids out;
    tokenizer_.encode(text, out, EncodeOptions{.special = true, .adds = adds});
    return out;
  }

  const Tokenizer& tokenizer_;
  const Reading& reading_;
  std::string text_;
  std::size_t kept_ = 0;  // of the context, without the white space at its end
  Ids ids_;
};

}  // namespace

std::vector<Passage> passages_of(const Tokenizer& tokenizer, const Question& question, const Reading& reading) {
  Encoder encoder(tokenizer, reading);
  std::vector<Passage> passages;
  for (std::size_t i = 0; i < question.continuations.size(); ++i) {
    auto [context, ending] = encoder.encode(question.context(i), question.continuations[i]);
    const auto where = [&] { return fmt::format("{}, document {}, choice {}", question.task, question.document, i); };
    check(!ending.empty(), "{}: expected tokens to score behind the context, but \"{}\" has none of its own", where(),
          question.continuations[i]);
    check(std::ssize(ending) <= reading.length, "{}: the {} tokens to score are more than the {} that the model reads", where(),
          ending.size(), reading.length);
    const std::int64_t room = reading.length + 1 - std::ssize(ending);
    if (std::ssize(context) > room) context.erase(context.begin(), context.end() - room);
    if (passages.empty() || passages.back().context != context) passages.push_back({.context = std::move(context), .endings = {}});
    passages.back().endings.push_back(std::move(ending));
  }
  return passages;
}

}  // namespace bhyt
