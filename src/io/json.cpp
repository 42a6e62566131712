#include "io/json.h"

namespace bhyt {

namespace {

bool is_shallow(std::string_view text) {
  int depth = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size() && depth <= kDeepestJson; ++i) {
    const char c = text[i];
    if (inside) {
      i += c == '\\';
      inside = c != '"';
    } else if (c == '"') {
      inside = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return depth <= kDeepestJson;
}

// The parser takes a zero byte for the end of its input.
bool holds_zero(std::string_view text) { return text.find('\0') != std::string_view::npos; }

}  // namespace

template <class J>
J parse_json(std::string_view text, const std::string& name) {
  check(!holds_zero(text), "{}: not JSON (it holds a zero byte)", name);
  check(is_shallow(text), "{}: nested more than {} deep", name, kDeepestJson);
  try {
    return J::parse(text);
  } catch (const typename J::exception& e) {
    throw Error(fmt::format("{}: not JSON ({})", name, plain_reason(e)));
  }
}

template <class J>
J json_or_discarded(std::string_view text) {
  if (holds_zero(text) || !is_shallow(text)) return typename J::value_t(J::value_t::discarded);
  return J::parse(text, nullptr, false);
}

template schema::Json parse_json(std::string_view, const std::string&);
template nlohmann::json parse_json(std::string_view, const std::string&);
template schema::Json json_or_discarded(std::string_view);
template nlohmann::json json_or_discarded(std::string_view);

}  // namespace bhyt
