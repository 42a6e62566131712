// The devices that a test can run on.
#pragma once

#include <vector>

#include "core/device.h"

namespace bhyt::test {

// The CPU, and a GPU where there is one.
inline std::vector<Device> devices() {
  std::vector<Device> d{Device::cpu()};
  if (cuda::why_unusable(0).empty()) d.push_back(Device::cuda(0));
  return d;
}

}  // namespace bhyt::test

#define BHYT_SKIP_WITHOUT_GPU() \
  if (!bhyt::cuda::why_unusable(0).empty()) GTEST_SKIP() << "no GPU: " << bhyt::cuda::why_unusable(0)
