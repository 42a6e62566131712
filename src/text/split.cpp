#include "text/split.h"

namespace bhyt {

using unicode::Class;

namespace {

struct Known {
  Pattern pattern;
  const char* name;
  std::string_view regex;
};

constexpr Known kKnown[] = {
    {Pattern::whole, "none", ""},
    {Pattern::gpt2, "gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Pattern::llama3, "llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::qwen2, "qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

bool is_newline(char c) { return c == '\n' || c == '\r'; }

// The end of 's 't 'm 'd 're 've 'll at p, which holds an apostrophe; p where there is none.
const char* contraction(const char* p, const char* end, bool any_case) {
  const auto letter = [&](std::ptrdiff_t i) -> char {
    if (end - p <= i) return 0;
    return static_cast<char>(any_case && p[i] >= 'A' && p[i] <= 'Z' ? p[i] | 0x20 : p[i]);
  };
  const char a = letter(1), b = letter(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  if (any_case && a == '\xC5' && b == '\xBF') return p + 3;  // ſ is an s when case does not count
  return p;
}

}  // namespace

std::string_view pattern_regex(Pattern pattern) { return kKnown[static_cast<std::size_t>(pattern)].regex; }
const char* pattern_name(Pattern pattern) { return kKnown[static_cast<std::size_t>(pattern)].name; }

std::optional<Pattern> find_pattern(std::string_view regex) {
  for (const Known& k : kKnown)
    if (k.pattern != Pattern::whole && k.regex == regex) return k.pattern;
  return std::nullopt;
}

inline Splitter::Look Splitter::look(const char* p, const char* end) const {
  const auto c = static_cast<unsigned char>(*p);
  if (c < 0x80) return {classes_->ascii(c), 1};
  const unicode::Char u = unicode::decode(p, end);
  return {(*classes_)(u.code), u.size};
}

// Past the run of characters of one class.
inline const char* Splitter::skip(Class kind, const char* p, const char* end) const {
  while (p < end) {
    const Look l = look(p, end);
    if (l.kind != kind) break;
    p += l.size;
  }
  return p;
}

// \s*[\r\n]+ (with newlines_apart), else \s+(?!\S)|\s+: a run that something follows leaves its last space to it.
const char* Splitter::spaces(const char* p, const char* end, bool newlines_apart) const {
  const char *q = p, *last = p, *after_newline = nullptr;
  while (q < end) {
    const Look l = look(q, end);
    if (l.kind != Class::space) break;
    last = q;
    q += l.size;
    if (newlines_apart && is_newline(*last)) after_newline = q;
  }
  if (after_newline) return after_newline;
  return q == end || last == p ? q : last;
}

const char* Splitter::before_number(const char* p, const char* end) const {
  while (p < end) {
    const Look l = look(p, end);
    if (l.kind == Class::number) break;
    p += l.size;
  }
  return p;
}

const char* Splitter::next_gpt2(const char* p, const char* end) const {
  if (*p == '\'') {
    if (const char* q = contraction(p, end, false); q != p) return q;
  }
  const char* const q = *p == ' ' && p + 1 < end ? p + 1 : p;
  const Look l = look(q, end);
  return l.kind == Class::space ? spaces(p, end, false) : skip(l.kind, q + l.size, end);
}

const char* Splitter::next_llama3(const char* p, const char* end, int digits) const {
  const Look first = look(p, end);
  if (first.kind == Class::letter) return skip(Class::letter, p + first.size, end);
  if (first.kind == Class::number) {
    const char* q = p + first.size;
    for (int i = 1; i < digits && q < end; ++i) {
      const Look l = look(q, end);
      if (l.kind != Class::number) break;
      q += l.size;
    }
    return q;
  }
  if (*p == '\'') {
    if (const char* q = contraction(p, end, true); q != p) return q;
  }
  const char* const rest = p + first.size;
  const Class follows = rest < end ? look(rest, end).kind : Class::space;
  if (follows == Class::letter && !is_newline(*p)) return skip(Class::letter, rest, end);  // one character may lead a word
  if (first.kind == Class::space && !(*p == ' ' && follows == Class::other)) return spaces(p, end, true);
  const char* q = skip(Class::other, rest, end);
  while (q < end && is_newline(*q)) ++q;
  return q;
}

}  // namespace bhyt
