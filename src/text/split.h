// Cuts text into pre-tokens as the regular expressions of well-known tokenizers do, hand-written over text/unicode.h.
// A byte that is not UTF-8 counts as a character that is neither letter, number nor space.
#pragma once

#include <optional>
#include <string_view>

#include "text/unicode.h"

namespace bhyt {

enum class Pattern : std::uint8_t { whole, gpt2, llama3, qwen2 };

// The regular expression a pattern stands for ("" for whole), and back; nothing for one we do not know.
std::string_view pattern_regex(Pattern pattern);
const char* pattern_name(Pattern pattern);
std::optional<Pattern> find_pattern(std::string_view regex);

class Splitter {
 public:
  // isolate_digits: every number character is a pre-token of its own before the pattern is applied to what lies between.
  explicit Splitter(Pattern pattern, bool isolate_digits = false)
      : pattern_(pattern), isolate_digits_(isolate_digits), classes_(&unicode::ClassTable::get()) {}

  // Calls emit(std::string_view) for each pre-token in order; together they are the text.
  template <class Emit>
  void operator()(std::string_view text, Emit&& emit) const {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p < end) {
      const char* const stop = isolate_digits_ ? before_number(p, end) : end;
      while (p < stop) {
        const char* const q = next(p, stop);
        emit(std::string_view(p, static_cast<std::size_t>(q - p)));
        p = q;
      }
      if (p < end) {
        const std::size_t size = unicode::decode(p, end).size;
        emit(std::string_view(p, size));
        p += size;
      }
    }
  }

 private:
  struct Look {
    unicode::Class kind;
    std::size_t size;
  };
  Look look(const char* p, const char* end) const;
  const char* skip(unicode::Class kind, const char* p, const char* end) const;
  const char* spaces(const char* p, const char* end, bool newlines_apart) const;
  const char* before_number(const char* p, const char* end) const;
  const char* next_gpt2(const char* p, const char* end) const;
  const char* next_llama3(const char* p, const char* end, int digits) const;
  // The end of the pre-token that begins at p < end.
  const char* next(const char* p, const char* end) const {
    switch (pattern_) {
      case Pattern::gpt2: return next_gpt2(p, end);
      case Pattern::llama3: return next_llama3(p, end, 3);
      case Pattern::qwen2: return next_llama3(p, end, 1);
      case Pattern::whole: break;
    }
    return end;
  }

  Pattern pattern_;
  bool isolate_digits_;
  const unicode::ClassTable* classes_;
};

}  // namespace bhyt
