#include "text/letter_case.h"

#include <algorithm>
#include <span>

#include "text/letter_case_tables.h"
#include "text/unicode.h"

namespace bhyt::unicode {

namespace {

constexpr char32_t kDottedI = 0x130, kSigma = 0x3A3, kFinalSigma = 0x3C2;
constexpr const char* kSmallDottedI = "i\u0307";

char32_t changed(std::span<const CaseRun> runs, char32_t code) {
  const auto run = std::ranges::lower_bound(runs, code, {}, &CaseRun::last);
  if (run == runs.end() || code < run->first || (code - run->first) % run->step != 0) return code;
  return static_cast<char32_t>(static_cast<std::int64_t>(code) + run->by);
}

void append_title(std::string& out, char32_t code) {
  const std::span all(kLongTitle, kLongTitleCount);
  const auto found = std::ranges::lower_bound(all, code, {}, &LongCase::code);
  if (found == all.end() || found->code != code) return append(out, changed({kTitle, kTitleCount}, code));
  for (const char32_t c : found->to)
    if (c) append(out, c);
}

bool letter_at(const char* p, const char* end) { return p < end && ClassTable::get()(decode(p, end).code) == Class::letter; }

}  // namespace

std::string capitalize(std::string_view text) {
  std::string out;
  const char* const end = text.data() + text.size();
  bool after_letter = false;
  for (const char* p = text.data(); p < end;) {
    const Char c = decode(p, end);
    if (c.code == kInvalid)
      out.append(p, c.size);
    else if (p == text.data())
      append_title(out, c.code);
    else if (c.code == kSigma && after_letter && !letter_at(p + c.size, end))
      append(out, kFinalSigma);  // a sigma that ends a word has a form of its own
    else if (c.code == kDottedI)
      out += kSmallDottedI;
    else
      append(out, changed({kLower, kLowerCount}, c.code));
    after_letter = letter_at(p, end);
    p += c.size;
  }
  return out;
}

}  // namespace bhyt::unicode
