// What is fuzzed: a reader and some use of what it read. A target throws nothing but Error for bad input; anything else is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bhyt::fuzz {

struct Target {
  const char* name;
  void (*run)(const std::uint8_t* data, std::size_t size);
};

std::span<const Target> targets();

}  // namespace bhyt::fuzz
