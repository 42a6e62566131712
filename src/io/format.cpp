#include "io/format.h"

#include <fmt/format.h>

namespace bhyt {

std::string grouped(std::int64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string human_bytes(double bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int i = 0;
  for (; bytes >= 1000 && i < 4; ++i) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, i == 0 || bytes >= 100 ? 0 : 1, kUnits[i]);
}

}  // namespace bhyt
