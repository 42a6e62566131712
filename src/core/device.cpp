// Devices and element types as people write them.
#include "core/device.h"

#include <charconv>

#include "core/check.h"
#include "core/dtype.h"
#include "core/log.h"

namespace bhyt {

namespace {

// A build with CUDA says once why it does without.
Device first_gpu_or_cpu() {
  static const std::string wrong = [] {
    const std::string why = cuda::why_unusable(0);
    if (cuda::built() && !why.empty()) log::info("using the CPU: {}", why);
    return why;
  }();
  return wrong.empty() ? Device::cuda(0) : Device::cpu();
}

}  // namespace

Device parse_device(const std::string& text, const std::string& key) {
  if (text == "cpu") return Device::cpu();
  if (text == "auto") return first_gpu_or_cpu();
  int index = 0;
  bool known = text == "cuda";
  if (text.starts_with("cuda:")) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 5, end, index);
    known = error == std::errc() && stop == end && index >= 0;
  }
  check_usage(known, "{} must be auto, cpu, cuda or cuda:N, got {}", key, text);
  check_usage(cuda::built(), "{} is {}, but this build has no CUDA backend; rebuild with make build CUDA=on, or use device=cpu", key, text);
  const std::string wrong = cuda::why_unusable(index);
  check_usage(wrong.empty(), "{} is {}, but {}", key, text, wrong);
  return Device::cuda(index);
}

DType parse_float_type(const std::string& text, const std::string& key) {
  if (text == "fp32") return DType::f32;
  check_usage(text == "bf16", "{} must be fp32 or bf16, got {}", key, text);
  return DType::bf16;
}

}  // namespace bhyt
