#include "io/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "io/files.h"

namespace bhyt {

namespace {

using schema::Json;

constexpr int kMaxDepth = 32;               // an alias may contain itself
constexpr std::size_t kMaxNodes = 1 << 20;  // and may multiply

bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <class N>
bool parse_all(const std::string& s, std::size_t from, N& out) {
  const char* end = s.data() + s.size();
  const auto [stop, error] = std::from_chars(s.data() + from, end, out);
  return error == std::errc() && stop == end;
}

Json plain_scalar(const std::string& s) {
  if (s.empty() || s == "~" || s == "null" || s == "Null" || s == "NULL") return nullptr;
  if (s == "true" || s == "True" || s == "TRUE") return true;
  if (s == "false" || s == "False" || s == "FALSE") return false;
  const std::size_t sign = s[0] == '+' || s[0] == '-';
  const bool numeric = sign < s.size() && (is_digit(s[sign]) || (s[sign] == '.' && sign + 1 < s.size() && is_digit(s[sign + 1])));
  if (!numeric) return s;
  const std::size_t from = s[0] == '+';
  if (std::int64_t whole = 0; parse_all(s, from, whole)) return whole;
  if (double number = 0; parse_all(s, from, number) && std::isfinite(number)) return number;
  return s;
}

struct Converter {
  const std::string& where;
  std::size_t nodes = 0;

  Json convert(const YAML::Node& node, int depth) {
    check_usage(depth < kMaxDepth && ++nodes < kMaxNodes, "{}: nested too deeply or too large", where);
    switch (node.Type()) {
      case YAML::NodeType::Scalar: return node.Tag() == "!" ? Json(node.Scalar()) : plain_scalar(node.Scalar());
      case YAML::NodeType::Sequence: {
        Json list = Json::array();
        for (const auto& item : node) list.push_back(convert(item, depth + 1));
        return list;
      }
      case YAML::NodeType::Map: {
        Json map = Json::object();
        for (const auto& item : node) {
          check_usage(item.first.IsScalar(), "{}: line {}: a key must be a word", where, item.first.Mark().line + 1);
          const std::string& key = item.first.Scalar();
          check_usage(!map.contains(key), "{}: line {}: {} is given twice", where, item.first.Mark().line + 1, key);
          map[key] = convert(item.second, depth + 1);
        }
        return map;
      }
      default: return nullptr;
    }
  }
};

Json from_yaml(const YAML::Node& node, const std::string& where) {
  Converter converter{where};
  return converter.convert(node, 0);
}

std::string number_text(const Json& value) {
  std::string s = value.dump();
  // YAML 1.1 readers take 1e-08 for text: a number has a point.
  if (const auto e = s.find('e'); value.is_number_float() && e != std::string::npos && s.find('.') == std::string::npos) s.insert(e, ".0");
  return s;
}

bool needs_quotes(const std::string& s) {
  if (s.empty() || !plain_scalar(s).is_string()) return true;
  static constexpr std::array<const char*, 12> kWords = {"yes", "no", "on", "off", "y", "n", "Yes", "No", "On", "Off", "Y", "N"};
  if (std::find(kWords.begin(), kWords.end(), s) != kWords.end()) return true;
  const auto tame = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' || c == '/';
  };
  return !tame(s[0]) || !std::all_of(s.begin(), s.end(), [&](char c) { return tame(c) || c == '-' || c == '+'; });
}

std::string inline_text(const Json& value) {
  std::string out;
  if (value.is_array()) {
    for (const Json& item : value) out += (out.empty() ? "" : ", ") + inline_text(item);
    return "[" + out + "]";
  }
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) out += (out.empty() ? "" : ", ") + key + ": " + inline_text(item);
    return "{" + out + "}";
  }
  if (value.is_number()) return number_text(value);
  if (value.is_string() && !needs_quotes(value.get<std::string>())) return value.get<std::string>();
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);  // a JSON text is a YAML text
}

void write_map(const Json& map, const std::string& indent, std::string& out) {
  for (const auto& [key, value] : map.items()) {
    out += indent + key + ":";
    if (value.is_object() && !value.empty()) {
      out += "\n";
      write_map(value, indent + "  ", out);
    } else {
      out += fmt::format(" {}\n", inline_text(value));
    }
  }
}

}  // namespace

schema::Json parse_yaml(const std::string& text, const std::string& where) {
  try {
    return from_yaml(YAML::Load(text), where);
  } catch (const YAML::Exception& e) {
    throw UsageError(fmt::format("{}: line {}: {}", where, e.mark.line + 1, e.msg));
  }
}

schema::Json read_yaml(const std::filesystem::path& file) {
  std::error_code ignored;
  check_usage(std::filesystem::is_regular_file(file, ignored), "config {} is not a file", file.string());
  return parse_yaml(read_text(file), file.string());
}

std::string write_yaml(const schema::Json& tree) {
  std::string out;
  write_map(tree, "", out);
  return out;
}

bool is_short_for_run(const std::string& key) {
  static constexpr std::array<const char*, 5> kBare = {"device", "dtype", "seed", "threads", "resume"};
  return std::find(kBare.begin(), kBare.end(), key) != kBare.end();
}

void apply_override(schema::Json& tree, const std::string& word) {
  const auto equals = word.find('=');
  check_usage(equals != std::string::npos && equals > 0, "expected key=value, got {}", word);
  std::string key = word.substr(0, equals);
  const std::string text = word.substr(equals + 1);
  check_usage(!text.empty(), "{}= has no value: write {}=VALUE, or {}=null for the default", key, key, key);
  if (is_short_for_run(key)) key = "run." + key;
  // A path is what was typed: 007, 1e-3 and #1 are good names of folders.
  const bool path = key == "run.dir" || key == "model.init" || key == "data.tokenizer";
  Json value = text;
  if (!path || text == "null" || text.front() == '"' || text.front() == '\'') try {
      value = from_yaml(YAML::Load(text), key);
    } catch (const YAML::Exception&) {
    }

  if (!tree.is_object()) tree = Json::object();
  Json* at = &tree;
  std::size_t from = 0;
  for (std::size_t dot; (dot = key.find('.', from)) != std::string::npos; from = dot + 1) {
    Json& next = (*at)[key.substr(from, dot - from)];
    if (next.is_null()) next = Json::object();
    check_usage(next.is_object(), "{} cannot be set: {} is {}", key, key.substr(0, dot), schema::show(next));
    at = &next;
  }
  const std::string last = key.substr(from);
  check_usage(!last.empty(), "expected key=value, got {}", word);
  if (value.is_null())
    at->erase(last);
  else
    (*at)[last] = std::move(value);
}

}  // namespace bhyt
