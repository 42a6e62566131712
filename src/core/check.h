// Checks with formatted messages. Not for .cu files (fmt): those use core/error.h.
#pragma once

#include <fmt/format.h>

#include "core/error.h"
#include "core/tensor.h"

template <>
struct fmt::formatter<bhyt::ShapeText> : fmt::formatter<std::string> {
  auto format(const bhyt::ShapeText& s, fmt::format_context& out) const { return fmt::formatter<std::string>::format(s.text(), out); }
};
template <>
struct fmt::formatter<bhyt::Device> : fmt::formatter<std::string> {
  auto format(bhyt::Device d, fmt::format_context& out) const { return fmt::formatter<std::string>::format(name_of(d), out); }
};

namespace bhyt {

// Throws Error unless `ok`; the message is made only then, so its parts must be cheap to hand over. Messages read "[op] expected …, got …".
template <class... Args>
void check(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    throw Error(fmt::format(message, std::forward<Args>(args)...));
}

// The same for what the user asked for: exit code 2.
template <class... Args>
void check_usage(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    throw UsageError(fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace bhyt
