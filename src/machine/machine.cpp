#include "machine/machine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>

#include "bhyt_version.h"
#include "core/memory.h"
#include "io/format.h"
#include "ops/gemm/gemm.h"

namespace bhyt {

namespace {

// A number behind a key of a /proc or cgroup file; 0 when it is not there.
double number_in(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string word; in >> word;)
    if (key.empty() || word == key) {
      double value = 0;
      if (key.empty()) return std::atof(word.c_str());
      in >> value;
      return value;
    }
  return 0;
}

}  // namespace

std::string program_version() { return BHYT_VERSION; }
std::string program_commit() { return BHYT_COMMIT; }

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "";
}

std::string describe_device(Context& ctx) {
  if (ctx.device().is_cuda()) return fmt::format("cuda: {}", cuda::describe(ctx.device().index));
  const std::string name = processor_name();
  const int n = ctx.threads().count();
  return fmt::format("cpu: {}{} thread{}", name.empty() ? "" : name + ", ", n, n == 1 ? "" : "s");
}

std::size_t total_memory(Device device) {
  if (device.is_cuda()) return cuda::total_bytes(device.index);
  const auto physical = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  const double allowed = number_in("/sys/fs/cgroup/memory.max", "");  // "max" reads as 0
  return static_cast<std::size_t>(allowed > 0 ? std::min(physical, allowed) : physical);
}

std::size_t free_memory(Device device) {
  if (device.is_cuda()) return cuda::free_bytes(device.index);
  const double available = number_in("/proc/meminfo", "MemAvailable:") * 1024;
  const double allowed = number_in("/sys/fs/cgroup/memory.max", "");
  if (allowed <= 0) return static_cast<std::size_t>(available);
  // What the container has taken, without what the system would give back: files it has read or written.
  double taken = number_in("/sys/fs/cgroup/memory.current", "");
  for (const char* cached : {"inactive_file", "active_file", "slab_reclaimable"}) taken -= number_in("/sys/fs/cgroup/memory.stat", cached);
  return static_cast<std::size_t>(std::max(std::min(available, allowed - taken), 0.0));
}

double peak_flops(Context& ctx, DType type) {
  if (ctx.device().is_cuda()) {
    const std::string name = cuda::describe(ctx.device().index);
    const bool hopper = name.find("H100") != std::string::npos || name.find("H200") != std::string::npos;
    return hopper && type == DType::bf16 ? 989e12 : 0;  // dense; the figure with sparsity is twice that
  }
  double best = 0;
  // Larger products until a fifth of a second is spent: small enough for a slow machine, large enough for a fast one.
  const double start = seconds();
  for (std::int64_t n = 128; seconds() - start < 0.2; n = std::min<std::int64_t>(n * 2, 1024)) {
    const OwnedTensor a(ctx, type, {n, n}), b(ctx, type, {n, n}), c(ctx, DType::f32, {n, n});
    zero(ctx, a);
    zero(ctx, b);
    gemm(ctx, a, b, c, {.trans_b = true});
    const double before = seconds();
    gemm(ctx, a, b, c, {.trans_b = true});
    best = std::max(best, 2.0 * static_cast<double>(n * n * n) / (seconds() - before));
  }
  return best;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double unix_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

schema::Json machine_facts(Context& ctx, DType type) {
  schema::Json facts = {{"version", program_version()},    {"commit", program_commit()}, {"machine", describe_device(ctx)},
                        {"device", name_of(ctx.device())}, {"dtype", name_of(type)},     {"threads", ctx.threads().count()}};
  if (const std::string name = processor_name(); !name.empty()) facts["processor"] = name;
  facts["memory"] = human_bytes(static_cast<double>(total_memory(ctx.device())));
  return facts;
}

}  // namespace bhyt
