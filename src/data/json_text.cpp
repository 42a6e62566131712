#include "data/json_text.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "io/json.h"

namespace bhyt {

namespace {

// The first byte at or after p that a JSON string may not simply contain, or that starts a UTF-8 sequence: " \ controls, 0x80 and up.
const char* next_special(const char* p, const char* end) {
  constexpr std::uint64_t kOnes = 0x0101010101010101ull, kHigh = 0x8080808080808080ull;
  for (; end - p >= 8; p += 8) {
    std::uint64_t x;
    std::memcpy(&x, p, 8);
    const std::uint64_t quote = x ^ (kOnes * '"'), slash = x ^ (kOnes * '\\');
    // In each term the lowest marked byte is right; a false mark can only stand above a true one.
    const std::uint64_t mark = (x | ((x - kOnes * 0x20) & ~x) | ((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash)) & kHigh;
    if (mark) return p + std::countr_zero(mark) / 8;
  }
  for (; p < end; ++p) {
    const auto c = static_cast<unsigned char>(*p);
    if (c < 0x20 || c == '"' || c == '\\' || c >= 0x80) break;
  }
  return p;
}

void append_utf8(std::string& s, unsigned c) {
  if (c < 0x80) {
    s += static_cast<char>(c);
  } else if (c < 0x800) {
    s += static_cast<char>(0xC0 | c >> 6);
    s += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    s += static_cast<char>(0xE0 | c >> 12);
    s += static_cast<char>(0x80 | (c >> 6 & 63));
    s += static_cast<char>(0x80 | (c & 63));
  } else {
    s += static_cast<char>(0xF0 | c >> 18);
    s += static_cast<char>(0x80 | (c >> 12 & 63));
    s += static_cast<char>(0x80 | (c >> 6 & 63));
    s += static_cast<char>(0x80 | (c & 63));
  }
}

bool digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool JsonText::fail(const char* expected) {
  error_ = fmt::format("bad JSON at column {}: expected {}", p_ - begin_ + 1, expected);
  return false;
}

void JsonText::space() {
  while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\n' || *p_ == '\r')) ++p_;
}

bool JsonText::scan(std::string_view line, std::string_view& text) {
  begin_ = p_ = line.data();
  end_ = p_ + line.size();
  depth_ = 0;
  has_ = false;
  error_.clear();
  space();
  if (p_ == end_ || *p_ != '{') return fail("an object");
  if (!object(true)) return false;
  space();
  if (p_ != end_) return fail("the end of the line");
  if (!has_) {
    error_ = fmt::format("no string under \"{}\"", key_);
    return false;
  }
  text = found_;
  return true;
}

bool JsonText::closed() {
  ++p_;
  --depth_;
  return true;
}

bool JsonText::object(bool top) {
  if (++depth_ > kDeepestJson) return fail("less nesting");
  ++p_;
  space();
  if (p_ < end_ && *p_ == '}') return closed();
  for (;;) {
    std::string_view key;
    if (p_ == end_ || *p_ != '"') return fail("a key");
    if (!string(other_, key)) return false;
    const bool wanted = top && key == key_;
    space();
    if (p_ == end_ || *p_ != ':') return fail("':'");
    ++p_;
    space();
    if (wanted && p_ < end_ && *p_ == '"') {
      if (!string(scratch_, found_)) return false;
      has_ = true;
    } else {
      if (!value()) return false;
      if (wanted) has_ = false;
    }
    space();
    if (p_ < end_ && *p_ == ',') {
      ++p_;
      space();
    } else if (p_ < end_ && *p_ == '}') {
      return closed();
    } else {
      return fail("',' or '}'");
    }
  }
}

bool JsonText::array() {
  if (++depth_ > kDeepestJson) return fail("less nesting");
  ++p_;
  space();
  if (p_ < end_ && *p_ == ']') return closed();
  for (;;) {
    if (!value()) return false;
    space();
    if (p_ < end_ && *p_ == ',') {
      ++p_;
      space();
    } else if (p_ < end_ && *p_ == ']') {
      return closed();
    } else {
      return fail("',' or ']'");
    }
  }
}

bool JsonText::value() {
  std::string_view ignored;
  switch (p_ < end_ ? *p_ : '\0') {
    case '"': return string(other_, ignored);
    case '{': return object(false);
    case '[': return array();
    case 't': return literal("true");
    case 'f': return literal("false");
    case 'n': return literal("null");
    default: return number();
  }
}

bool JsonText::literal(std::string_view word) {
  if (!std::string_view(p_, static_cast<std::size_t>(end_ - p_)).starts_with(word)) return fail("a value");
  p_ += word.size();
  return true;
}

bool JsonText::number() {
  const auto digits = [&] {
    const char* from = p_;
    while (p_ < end_ && digit(*p_)) ++p_;
    return p_ > from;
  };
  if (p_ < end_ && *p_ == '-') ++p_;
  if (p_ < end_ && *p_ == '0')
    ++p_;
  else if (!digits())
    return fail("a value");
  if (p_ < end_ && *p_ == '.') {
    ++p_;
    if (!digits()) return fail("a digit");
  }
  if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
    ++p_;
    if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
    if (!digits()) return fail("a digit");
  }
  return true;
}

bool JsonText::string(std::string& scratch, std::string_view& out) {
  const char* run = ++p_;  // what is not yet copied; a string without escapes never is
  bool copied = false;
  for (;;) {
    p_ = next_special(p_, end_);
    if (p_ == end_) return fail("'\"'");
    if (*p_ == '"') break;
    if (static_cast<unsigned char>(*p_) >= 0x80) {
      if (!utf8()) return false;
    } else if (*p_ == '\\') {
      if (!copied) scratch.clear();
      copied = true;
      scratch.append(run, p_);
      if (!escape(scratch)) return false;
      run = p_;
    } else {
      return fail("no control character in a string");
    }
  }
  if (copied)
    out = scratch.append(run, p_);
  else
    out = {run, static_cast<std::size_t>(p_ - run)};
  ++p_;
  return true;
}

bool JsonText::escape(std::string& scratch) {
  if (++p_ == end_) return fail("an escape");
  switch (*p_++) {
    case '"': scratch += '"'; return true;
    case '\\': scratch += '\\'; return true;
    case '/': scratch += '/'; return true;
    case 'b': scratch += '\b'; return true;
    case 'f': scratch += '\f'; return true;
    case 'n': scratch += '\n'; return true;
    case 'r': scratch += '\r'; return true;
    case 't': scratch += '\t'; return true;
    case 'u': break;
    default: --p_; return fail("an escape");
  }
  unsigned c = 0, low = 0;
  if (!hex4(c)) return false;
  if (c >= 0xDC00 && c < 0xE000) return fail("a high surrogate before a low one");
  if (c >= 0xD800 && c < 0xDC00) {
    if (end_ - p_ < 6 || p_[0] != '\\' || p_[1] != 'u') return fail("a low surrogate");
    p_ += 2;
    if (!hex4(low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return fail("a low surrogate");
    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(scratch, c);
  return true;
}

bool JsonText::hex4(unsigned& out) {
  out = 0;
  for (int i = 0; i < 4; ++i, ++p_) {
    const char c = p_ < end_ ? *p_ : '\0';
    unsigned d;
    if (digit(c))
      d = static_cast<unsigned>(c - '0');
    else if ((c | 32) >= 'a' && (c | 32) <= 'f')
      d = static_cast<unsigned>((c | 32) - 'a' + 10);
    else
      return fail("four hexadecimal digits");
    out = out << 4 | d;
  }
  return true;
}

// Steps over a run of well-formed sequences: no overlong form, no surrogate, nothing above U+10FFFF.
bool JsonText::utf8() {
  const auto byte = [&](std::ptrdiff_t i) { return i < end_ - p_ ? static_cast<unsigned char>(p_[i]) : 0u; };
  const auto next = [&](std::ptrdiff_t i) { return (byte(i) & 0xC0) == 0x80; };
  while (p_ < end_ && byte(0) >= 0x80) {
    const unsigned a = byte(0), b = byte(1);
    if (a >= 0xC2 && a <= 0xDF && next(1))
      p_ += 2;
    else if (a >= 0xE0 && a <= 0xEF && next(1) && next(2) && !(a == 0xE0 && b < 0xA0) && !(a == 0xED && b >= 0xA0))
      p_ += 3;
    else if (a >= 0xF0 && a <= 0xF4 && next(1) && next(2) && next(3) && !(a == 0xF0 && b < 0x90) && !(a == 0xF4 && b >= 0x90))
      p_ += 4;
    else
      return fail("UTF-8");
  }
  return true;
}

std::string json_mistake(std::string_view text) {
  JsonText scanner("");
  std::string_view ignored;
  scanner.scan(text, ignored);
  return scanner.error().starts_with("bad JSON") ? scanner.error() : "bad JSON";
}

}  // namespace bhyt
