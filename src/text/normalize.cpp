#include "text/normalize.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "text/unicode.h"
#include "text/unicode_tables.h"

namespace bhyt::unicode {

namespace {

// Hangul syllables are composed by arithmetic, not by table.
constexpr char32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

struct Tables {
  std::unordered_map<char32_t, const Decomposition*> parts;
  std::unordered_map<std::uint64_t, char32_t> whole;
  std::unordered_map<char32_t, std::uint8_t> combining;

  Tables() {
    for (std::size_t i = 0; i < kCompositionsCount; ++i) {
      const Decomposition& d = kCompositions[i];
      parts[d.whole] = &d;
      whole[key(d.first, d.second)] = d.whole;
    }
    for (std::size_t i = 0; i < kOneWayCount; ++i) parts[kOneWay[i].whole] = &kOneWay[i];
    for (std::size_t i = 0; i < kCombiningClassesCount; ++i)
      for (char32_t c = kCombiningClasses[i].first; c <= kCombiningClasses[i].last; ++c) combining[c] = kCombiningClasses[i].combining;
  }
  static std::uint64_t key(char32_t a, char32_t b) { return static_cast<std::uint64_t>(a) << 32 | b; }
  std::uint8_t combining_class(char32_t c) const {
    const auto it = combining.find(c);
    return it == combining.end() ? 0 : it->second;
  }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

// A code point, or an invalid byte kept as kInvalidByte + byte.
constexpr char32_t kInvalidByte = 0x200000;

struct Item {
  char32_t code;
  std::uint8_t combining;
};

void decompose(char32_t c, std::vector<Item>& out) {
  if (c - kSyllable < kSyllables) {
    const char32_t s = c - kSyllable, tail = s % kTails;
    out.push_back({kLead + s / (kVowels * kTails), 0});
    out.push_back({kVowel + s % (kVowels * kTails) / kTails, 0});
    if (tail) out.push_back({kTail + tail, 0});
    return;
  }
  const auto it = tables().parts.find(c);
  if (it == tables().parts.end()) {
    out.push_back({c, tables().combining_class(c)});
    return;
  }
  decompose(it->second->first, out);
  if (it->second->second) out.push_back({it->second->second, tables().combining_class(it->second->second)});
}

// The composition of two code points, or 0.
char32_t compose(char32_t a, char32_t b) {
  if (a - kLead < kLeads && b - kVowel < kVowels) return kSyllable + ((a - kLead) * kVowels + (b - kVowel)) * kTails;
  if (a - kSyllable < kSyllables && (a - kSyllable) % kTails == 0 && b > kTail && b < kTail + kTails) return a + (b - kTail);
  const auto it = tables().whole.find(Tables::key(a, b));
  return it == tables().whole.end() ? 0 : it->second;
}

}  // namespace

std::string nfc(std::string_view text) {
  // Nothing below U+0300 changes, alone or together: most texts pass untouched.
  const char* p = text.data();
  const char* const end = p + text.size();
  if (std::all_of(p, end, [](char c) { return static_cast<unsigned char>(c) < 0xCC; })) return std::string(text);

  std::vector<Item> items;
  while (p < end) {
    const Char c = decode(p, end);
    if (c.code == kInvalid)
      items.push_back({kInvalidByte + static_cast<unsigned char>(*p), 0});
    else
      decompose(c.code, items);
    p += c.size;
  }
  for (auto it = items.begin(); it != items.end();) {  // canonical order within each run of combining marks
    const auto stop = std::find_if(it, items.end(), [](const Item& i) { return i.combining == 0; });
    std::stable_sort(it, stop, [](const Item& a, const Item& b) { return a.combining < b.combining; });
    it = stop == items.end() ? stop : stop + 1;
  }
  std::vector<Item> out;
  std::ptrdiff_t starter = -1;
  for (const Item& item : items) {
    const bool adjacent = starter == std::ssize(out) - 1;
    if (starter >= 0 && (adjacent || out.back().combining < item.combining)) {
      Item& s = out[static_cast<std::size_t>(starter)];
      if (const char32_t whole = compose(s.code, item.code)) {
        s.code = whole;
        continue;
      }
    }
    if (item.combining == 0) starter = std::ssize(out);
    out.push_back(item);
  }
  std::string result;
  result.reserve(text.size());
  for (const Item& item : out) {
    if (item.code >= kInvalidByte)
      result.push_back(static_cast<char>(item.code - kInvalidByte));
    else
      append(result, item.code);
  }
  return result;
}

}  // namespace bhyt::unicode
