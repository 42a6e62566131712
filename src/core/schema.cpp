#include "core/schema.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace bhyt::schema {

namespace {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t old = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = old;
    }
  }
  return row[b.size()];
}

// Whether the letters of `part` stand in `whole` in this order, from its first letter on: wd in weight_decay.
bool abbreviates(const std::string& part, const std::string& whole) {
  std::size_t at = 0;
  for (const char c : whole)
    if (at < part.size() && c == part[at] && (at > 0 || c == whole[0])) ++at;
  return at == part.size() && part[0] == whole[0];
}

// As nearest, but something in any case: a key that holds the word or is held by it, that the word abbreviates, or the least far.
std::string closest(const std::string& word, const std::vector<std::string>& known) {
  std::string best = nearest(word, known);
  const auto first = [&](auto fits) {
    for (const auto& k : known)
      if (best.empty() && fits(k)) best = k;
  };
  first([&](const std::string& k) { return k.find(word) != std::string::npos || (k.size() > 2 && word.find(k) != std::string::npos); });
  first([&](const std::string& k) { return abbreviates(word, k); });
  std::size_t least = 100;  // a word that is nothing like a key is near none
  if (best.empty() && word.size() < least)
    for (const auto& k : known)
      if (const std::size_t d = edit_distance(word, k); d < least) {
        least = d;
        best = k;
      }
  return best;
}

std::string bound(double b) { return fmt::format("{}", b); }

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  if (word.size() > 200) return best;
  std::size_t distance = std::max<std::size_t>(word.size() < 3 ? 1 : 2, word.size() / 3) + 1;
  for (const auto& k : known)
    if (const std::size_t d = edit_distance(word, k); d < distance) {
      distance = d;
      best = k;
    }
  return best;
}

std::optional<double> parse_count(const std::string& text) {
  static constexpr std::string_view kUnits = "KMBT";
  if (text.empty()) return std::nullopt;
  const std::size_t unit = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
  if (unit == std::string_view::npos) return std::nullopt;
  // As a power of ten behind the digits, not as a product: 1.001K is 1001.
  const std::string number = fmt::format("{}e{}", text.substr(0, text.size() - 1), 3 * (unit + 1));
  const char* end = number.data() + number.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(number.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string show(const Json& value) {
  if (value.is_null()) return "nothing";
  std::string s = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return s.size() > 80 ? s.substr(0, 77) + "..." : s;
}

void wrong(const std::string& key, const std::string& expected, const Json& got) {
  throw UsageError(fmt::format("{} must be {}, got {}", key, expected, show(got)));
}

void check_range(const std::string& key, double v, const Range& r) {
  const auto no = [&](const std::string& what) { throw UsageError(fmt::format("{} must be {}, got {}", key, what, v)); };
  if (!std::isfinite(v)) no("a finite number");
  if (!std::isnan(r.above) && !(v > r.above)) no("greater than " + bound(r.above));
  if (!std::isnan(r.below) && !(v < r.below)) no("less than " + bound(r.below));
  if (!std::isnan(r.at_least) && !(v >= r.at_least)) no("at least " + bound(r.at_least));
  if (!std::isnan(r.at_most) && !(v <= r.at_most)) no("at most " + bound(r.at_most));
}

double Reader::as_number(const std::string& key, const Json& j, const Range& range) {
  if (!j.is_number()) wrong(key, "a number", j);
  const double v = j.get<double>();
  check_range(key, v, range);
  return v;
}

std::int64_t Reader::as_integer(const std::string& key, const Json& j, const Range& range) {
  const std::optional<double> count = j.is_string() ? parse_count(j.get<std::string>()) : std::nullopt;
  if (!j.is_number() && !count) wrong(key, "a whole number", j);
  const double v = count ? *count : j.get<double>();
  if (v != std::floor(v) || std::fabs(v) > 9.0e15) wrong(key, "a whole number", j);
  check_range(key, v, range);
  return j.is_number_integer() ? j.get<std::int64_t>() : static_cast<std::int64_t>(v);
}

std::int64_t Reader::as_integer_or_auto(const std::string& key, const Json& j, const Range& range) {
  if (j == "auto") return 0;
  if (!j.is_number() && !(j.is_string() && parse_count(j.get<std::string>()))) wrong(key, "auto or a number", j);
  return as_integer(key, j, range);
}

std::string Reader::as_text(const std::string& key, const Json& j) {
  if (j.is_string()) return j.get<std::string>();
  if (j.is_number()) return j.dump();  // run.dir=123
  wrong(key, "a text", j);
}

void Reader::finish() const {
  if (!tree_.is_object()) return;
  for (const auto& [key, value] : tree_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = closest(key, known_);
    throw UsageError(fmt::format("unknown key {}{}", full(key), near.empty() ? "" : fmt::format(" (did you mean {}?)", full(near))));
  }
}

}  // namespace bhyt::schema
