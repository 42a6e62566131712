// The message of the Error that f throws, or "no error".
#pragma once

#include <string>

#include "core/error.h"

namespace bhyt::test {

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace bhyt::test
