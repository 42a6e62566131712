// Devices and element types as people write them.
#include "core/device.h"

#include <charconv>

#include "core/check.h"
#include "core/dtype.h"

namespace bhyt {

Device parse_device(const std::string& text, const std::string& key) {
  if (text == "cpu") return Device::cpu();
  if (text == "auto") return cuda::device_count() > 0 ? Device::cuda(0) : Device::cpu();
  int index = 0;
  bool known = text == "cuda";
  if (text.starts_with("cuda:")) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 5, end, index);
    known = error == std::errc() && stop == end && index >= 0;
  }
  check_usage(known, "{} must be auto, cpu, cuda or cuda:N, got {}", key, text);
  check_usage(cuda::built(), "{} is {}, but this build has no CUDA backend; rebuild with make build CUDA=on, or use device=cpu", key, text);
  check_usage(index < cuda::device_count(), "{} is {}, but {} GPU(s) were found", key, text, cuda::device_count());
  return Device::cuda(index);
}

DType parse_float_type(const std::string& text, const std::string& key) {
  if (text == "fp32") return DType::f32;
  check_usage(text == "bf16", "{} must be fp32 or bf16, got {}", key, text);
  return DType::bf16;
}

}  // namespace bhyt
