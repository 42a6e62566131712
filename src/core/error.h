// What goes wrong, as exceptions. This header has no dependency, so CUDA files can include it.
#pragma once

#include <stdexcept>
#include <string>

namespace bhyt {

// The work failed; main prints the message and exits with 1.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The text of a library's exception without the name of its kind: nlohmann's "[json.exception.parse_error.101] parse error at …".
inline std::string plain_reason(const std::exception& e) {
  const std::string text = e.what();
  const auto end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return end == std::string::npos ? text : text.substr(end + 2);
}

// Wrong usage or configuration; main exits with 2.
struct UsageError : Error {
  using Error::Error;
};

[[noreturn]] inline void fail(const std::string& message) { throw Error(message); }

}  // namespace bhyt
