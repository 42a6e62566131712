#include "plan/gpus.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include "core/check.h"

namespace bhyt::plan {

namespace {

constexpr double kMiB = 1 << 20;

// Speeds: NVIDIA's data sheets of H200, H100 (SXM), A100 (SXM), B200 (DGX B200) and L40S. Figures for bf16 are without sparsity, half of
// what is printed with it; NVLink's and PCIe's are half of what is printed, which counts both directions. Memory: the total that nvidia-smi
// shows.
constexpr Gpu kGpus[] = {
    {"h200", "H200", 143771 * kMiB, 989e12, 4.8e12, 450e9, "NVLink"},
    {"h100-80g", "H100 SXM 80 GB", 81559 * kMiB, 989e12, 3.35e12, 450e9, "NVLink"},
    {"a100-80g", "A100 SXM 80 GB", 81920 * kMiB, 312e12, 2.039e12, 300e9, "NVLink"},
    {"a100-40g", "A100 SXM 40 GB", 40960 * kMiB, 312e12, 1.555e12, 300e9, "NVLink"},
    {"b200", "B200", 183359 * kMiB, 2250e12, 8e12, 900e9, "NVLink"},
    {"l40s", "L40S", 46068 * kMiB, 362e12, 864e9, 32e9, "PCIe"},
};

}  // namespace

const Gpu& find_gpu(const std::string& name) {
  std::string names;
  for (const Gpu& g : kGpus) {
    if (name == g.name) return g;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", g.name);
  }
  throw UsageError(fmt::format("unknown GPU {}; expected one of {}", name, names));
}

double parse_network(const std::string& text) {
  const char* end = text.data() + text.size();
  double rate = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, rate);
  const std::string_view unit(stop, end);
  const bool known = error == std::errc() && std::isfinite(rate) && rate > 0 && (unit == "G" || unit == "T");
  check_usage(known, "--network: expected the bits a second of a node, such as 400G or 3.2T, got {}", text);
  return rate * (unit == "T" ? 1e12 : 1e9) / 8;
}

}  // namespace bhyt::plan
