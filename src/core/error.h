// What goes wrong, as exceptions. This header has no dependency, so CUDA files can include it.
#pragma once

#include <stdexcept>
#include <string>

namespace bhyt {

// The work failed; main prints the message and exits with 1.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Wrong usage or configuration; main exits with 2.
struct UsageError : Error {
  using Error::Error;
};

[[noreturn]] inline void fail(const std::string& message) { throw Error(message); }

}  // namespace bhyt
