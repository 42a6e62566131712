#pragma once

#include <cstdint>

namespace bhyt {

// An id to be scored as what follows a token of a sequence. Several may follow the same one.
struct Target {
  std::int32_t behind = 0;  // that token's place, from 0
  std::int32_t id = 0;
};
constexpr std::int64_t kTargetsOfAToken = 16;  // at most

}  // namespace bhyt
