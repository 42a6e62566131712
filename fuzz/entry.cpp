// libFuzzer's way in: one program per target, chosen at compile time.
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "core/log.h"
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bhyt::fuzz::Target* target = [] {
    bhyt::log::set_quiet(true);
    for (const auto& t : bhyt::fuzz::targets())
      if (std::string_view(t.name) == FUZZ_TARGET) return &t;
    std::abort();
  }();
  try {
    target->run(data, size);
  } catch (const bhyt::Error&) {
  }
  return 0;
}
