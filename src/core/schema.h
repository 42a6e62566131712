// One declaration per config key gives reading, checking, writing and help. A struct S declares its keys in
//     template <class V> void fields(S& s, V& v) { v.number("lr", s.lr, "peak learning rate", {.above = 0}); … }
// and Reader, Writer and Lister walk that declaration. Trees are JSON; YAML is turned into JSON before (train/config).
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace bhyt::schema {

using Json = nlohmann::ordered_json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What a number may be. Unset bounds are NaN.
struct Range {
  double above = kNone, below = kNone;       // exclusive
  double at_least = kNone, at_most = kNone;  // inclusive
};

template <class E>
using Names = std::vector<std::pair<const char*, E>>;

std::string nearest(const std::string& word, const std::vector<std::string>& known);  // "" when nothing is near
std::optional<double> parse_count(const std::string& text);                           // 300K, 1.5M, 20B, 1T; nothing where it is none
std::string show(const Json& value);                                                  // as an error message quotes it
void check_range(const std::string& key, double value, const Range& range);           // "train.lr must be greater than 0, got -1"
[[noreturn]] void wrong(const std::string& key, const std::string& expected, const Json& got);

// Reads a tree into a struct; throws UsageError that names key, value and what is allowed. finish() refuses keys nobody asked for.
class Reader {
 public:
  Reader(const Json& tree, std::string path) : tree_(tree), path_(std::move(path)) {
    if (!tree_.is_object() && !tree_.is_null()) wrong(path_.empty() ? "config" : path_, "a map of keys", tree_);
  }
  std::string full(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  // The value under a key, or nullptr; marks it as known.
  const Json* take(const std::string& key) {
    known_.push_back(key);
    if (!tree_.is_object()) return nullptr;
    const auto it = tree_.find(key);
    return it == tree_.end() ? nullptr : &*it;
  }

  void number(const char* key, double& value, const char*, Range range = {}) {
    if (const Json* j = take(key)) value = as_number(full(key), *j, range);
  }
  template <class I>
    requires std::is_integral_v<I>
  void integer(const char* key, I& value, const char*, Range range = {}) {
    if (const Json* j = take(key)) value = static_cast<I>(as_integer(full(key), *j, range));
  }
  void boolean(const char* key, bool& value, const char*) {
    if (const Json* j = take(key)) {
      if (!j->is_boolean()) wrong(full(key), "true or false", *j);
      value = j->get<bool>();
    }
  }
  void text(const char* key, std::string& value, const char*) {
    if (const Json* j = take(key)) value = as_text(full(key), *j);
  }
  template <class E>
  void choice(const char* key, E& value, const Names<E>& names, const char*) {
    const Json* j = take(key);
    if (!j) return;
    std::string all;
    for (const auto& [name, e] : names) {
      if (*j == name) {
        value = e;
        return;
      }
      all += std::string(all.empty() ? "" : ", ") + name;
    }
    wrong(full(key), "one of " + all, *j);
  }
  // Anything else: read(tree, full key) is called when the key is there.
  template <class R, class W>
  void custom(const char* key, const char*, R&& read, W&&) {
    if (const Json* j = take(key)) read(*j, full(key));
  }
  template <class S>
  void section(const char* key, S& s, const char*) {
    static const Json nothing = nullptr;
    const Json* j = take(key);
    Reader inner(j ? *j : nothing, full(key));
    fields(s, inner);
    inner.finish();
  }

  void finish() const;

  static double as_number(const std::string& key, const Json& j, const Range& range);
  static std::int64_t as_integer(const std::string& key, const Json& j, const Range& range);          // 2K is 2000
  static std::int64_t as_integer_or_auto(const std::string& key, const Json& j, const Range& range);  // auto is 0
  static std::string as_text(const std::string& key, const Json& j);

 private:
  const Json& tree_;
  std::string path_;
  std::vector<std::string> known_;
};

// Writes a struct as a tree, every key included.
class Writer {
 public:
  Json tree = Json::object();
  void number(const char* key, double& value, const char*, Range = {}) { tree[key] = value; }
  template <class I>
    requires std::is_integral_v<I>
  void integer(const char* key, I& value, const char*, Range = {}) {
    tree[key] = value;
  }
  void boolean(const char* key, bool& value, const char*) { tree[key] = value; }
  void text(const char* key, std::string& value, const char*) { tree[key] = value; }
  template <class E>
  void choice(const char* key, E& value, const Names<E>& names, const char*) {
    for (const auto& [name, e] : names)
      if (e == value) tree[key] = name;
  }
  template <class R, class W>
  void custom(const char* key, const char*, R&&, W&& write) {
    Json j = write();
    if (!j.is_discarded()) tree[key] = std::move(j);  // Json(Json::value_t::discarded): leave the key out
  }
  template <class S>
  void section(const char* key, S& s, const char*) {
    Writer inner;
    fields(s, inner);
    tree[key] = std::move(inner.tree);
  }
};

// Lists every key with its help and default: for `bhyt help pretrain` and the docs.
class Lister {
 public:
  struct Entry {
    std::string key, help, value;
  };
  std::vector<Entry> entries;
  explicit Lister(std::string path = "") : path_(std::move(path)) {}
  void number(const char* key, double& value, const char* help, Range = {}) { add(key, help, fmt::format("{}", value)); }
  template <class I>
    requires std::is_integral_v<I>
  void integer(const char* key, I& value, const char* help, Range = {}) {
    add(key, help, fmt::format("{}", value));
  }
  void boolean(const char* key, bool& value, const char* help) { add(key, help, value ? "true" : "false"); }
  void text(const char* key, std::string& value, const char* help) { add(key, help, value); }
  template <class E>
  void choice(const char* key, E& value, const Names<E>& names, const char* help) {
    std::string all, now;
    for (const auto& [name, e] : names) {
      all += std::string(all.empty() ? "" : " | ") + name;
      if (e == value) now = name;
    }
    add(key, std::string(help) + " (" + all + ")", now);
  }
  template <class R, class W>
  void custom(const char* key, const char* help, R&&, W&& write) {
    const Json j = write();
    add(key, help, j.is_discarded() ? "" : j.is_string() ? j.template get<std::string>() : j.dump());
  }
  template <class S>
  void section(const char* key, S& s, const char*) {
    Lister inner(path_.empty() ? key : path_ + "." + key);
    fields(s, inner);
    entries.insert(entries.end(), inner.entries.begin(), inner.entries.end());
  }

 private:
  void add(const char* key, std::string help, std::string value) {
    entries.push_back({path_.empty() ? key : path_ + "." + key, std::move(help), std::move(value)});
  }
  std::string path_;
};

template <class S>
void read(S& s, const Json& tree, const std::string& path = "") {
  Reader r(tree, path);
  fields(s, r);
  r.finish();
}
template <class S>
Json write(S s) {
  Writer w;
  fields(s, w);
  return std::move(w.tree);
}

}  // namespace bhyt::schema
