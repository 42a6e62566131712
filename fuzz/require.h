// What all fuzz targets use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace bhyt::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// A property of what was read does not hold: as loud as a crash.
inline void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace bhyt::fuzz
