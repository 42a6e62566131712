// The devices that a test can run on, and contexts on them.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "core/context.h"

namespace bhyt::test {

// The CPU, and a GPU where there is one.
inline std::vector<Device> devices() {
  std::vector<Device> d{Device::cpu()};
  if (cuda::why_unusable(0).empty()) d.push_back(Device::cuda(0));
  return d;
}

// One for each device and number of threads (0 = all cores), made when first asked for and shared by all tests of a program: on a GPU
// opening libraries for every case would take longer than the cases.
inline Context& context_on(Device device, int threads = 0) {
  static std::map<std::pair<std::string, int>, Context> all;
  return all.try_emplace({name_of(device), threads}, device, threads).first->second;
}

// That of the CPU, and of a GPU where there is one.
inline std::vector<std::reference_wrapper<Context>> contexts() {
  std::vector<std::reference_wrapper<Context>> all;
  for (const Device device : devices()) all.emplace_back(context_on(device));
  return all;
}

}  // namespace bhyt::test

#define BHYT_SKIP_WITHOUT_GPU() \
  if (!bhyt::cuda::why_unusable(0).empty()) GTEST_SKIP() << "no GPU: " << bhyt::cuda::why_unusable(0)
