// Takes one string out of a line of JSONL without building a tree: strict JSON, at memory speed.
#pragma once

#include <string>
#include <string_view>

namespace bhyt {

class JsonText {
 public:
  explicit JsonText(std::string key) : key_(std::move(key)) {}

  // The string under the key of the object that `line` holds (the last one, if the key is repeated). The view lasts until the next
  // call and as long as the line. False, with what is wrong in error(), when the line is not JSON or has no such string.
  bool scan(std::string_view line, std::string_view& text);
  const std::string& error() const { return error_; }

 private:
  bool fail(const char* expected);
  void space();
  bool object(bool top);
  bool array();
  bool closed();  // an object or array whose end is next
  bool value();
  bool number();
  bool literal(std::string_view word);
  bool string(std::string& scratch, std::string_view& out);
  bool escape(std::string& scratch);
  bool hex4(unsigned& out);
  bool utf8();

  std::string key_, scratch_, other_, error_;
  std::string_view found_;
  bool has_ = false;
  const char *begin_ = nullptr, *p_ = nullptr, *end_ = nullptr;
  int depth_ = 0;
};

// What is wrong with a text that is not JSON, or not an object: "bad JSON: expected … at byte 7".
std::string json_mistake(std::string_view text);

}  // namespace bhyt
