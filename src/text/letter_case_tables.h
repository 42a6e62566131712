// The tables that scripts/make_case_tables.py writes; text/letter_case.h is what others use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bhyt::unicode {

struct CaseRun {
  char32_t first, last;
  std::uint32_t step;
  std::int32_t by;
};
struct LongCase {
  char32_t code;
  char32_t to[3];  // 0 where it is shorter
};

extern const CaseRun kLower[], kTitle[];  // what is not here stays as it is
extern const std::size_t kLowerCount, kTitleCount;
extern const LongCase kLongTitle[];
extern const std::size_t kLongTitleCount;

}  // namespace bhyt::unicode
