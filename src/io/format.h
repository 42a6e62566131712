// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace bhyt {

std::string grouped(std::int64_t n);    // 1,235,814,400
std::string human_bytes(double bytes);  // 2.3 GiB

}  // namespace bhyt
