#include "eval/detokenize.h"

#include "eval/python_text.h"

namespace bhyt {

namespace {

struct Replacement {
  std::string_view from, to;
};

// Left to right, without looking at what was put in: Python's str.replace.
std::string replace(std::string_view text, const Replacement& r) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(r.from, at)) != text.npos; at = found + r.from.size())
    out.append(text, at, found - at).append(r.to);
  return out.append(text, at);
}

// The harness's slip: its pattern has slashes as in another language, and its replacement is no pattern. /' 5/ becomes /'[0-9]/.
std::string replace_digits_in_slashes(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find("/' ", at)) != text.npos;) {
    const std::string_view rest = text.substr(found + 3);
    const bool matches = rest.size() >= 2 && rest[0] >= '0' && rest[0] <= '9' && rest[1] == '/';
    out.append(text, at, found - at).append(matches ? "/'[0-9]/" : "/' ");
    at = found + (matches ? 5 : 3);
  }
  return out.append(text, at);
}

// White space just inside a pair goes. A pair ends at the first `close` behind its `open`, whatever lies between, and the next begins
// behind.
std::string tighten(std::string_view text, char open, char close) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  for (;;) {
    const std::size_t begin = text.find(open, at);
    const std::size_t end = begin == text.npos ? begin : text.find(close, begin + 1);
    if (end == text.npos) break;
    out.append(text, at, begin + 1 - at).append(python_strip(text.substr(begin + 1, end - begin - 1))) += close;
    at = end + 1;
  }
  return out.append(text, at);
}

constexpr Replacement kPunctuation[] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "}, {" ; ", "; "},
                                        {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
constexpr char kPairs[][2] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
constexpr Replacement kRest[] = {{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \u00b0 ", "\u00b0"},
                                 {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"}};

}  // namespace

std::string detokenize(std::string_view page) {
  std::string text = replace_digits_in_slashes(replace(page, {"s '", "s'"}));
  for (const Replacement& r : kPunctuation) text = replace(text, r);
  for (const auto& pair : kPairs) text = tighten(text, pair[0], pair[1]);
  for (const Replacement& r : kRest) text = replace(text, r);
  return text;
}

std::int64_t count_words(std::string_view page) {
  std::int64_t words = 1;
  bool in_space = false;
  for (const char *p = page.data(), *end = p + page.size(); p < end;) {
    const unicode::Char c = unicode::decode(p, end);
    const bool space = python_space(c.code);
    words += space && !in_space;
    in_space = space;
    p += c.size;
  }
  return words;
}

}  // namespace bhyt
