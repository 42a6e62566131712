#include "train/console.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>

#include "bhyt_version.h"
#include "core/log.h"
#include "core/parallel.h"
#include "ops/gemm/gemm.h"

namespace bhyt::train {

namespace {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "";
}

std::string describe(Device device) {
  if (device.is_cuda()) return fmt::format("cuda: {}", cuda::describe(device.index));
  const std::string name = processor_name();
  const int n = num_threads();
  return fmt::format("cpu: {}{} thread{}", name.empty() ? "" : name + ", ", n, n == 1 ? "" : "s");
}

std::string norm_text(const NormConfig& c) {
  if (method(c.method).scale != ScaleKind::lambda) return c.method;
  return fmt::format("{} κ={:.6g} λ=({:g},{:g})", c.method, c.kappa, c.lambda[0], c.lambda[1]);
}

std::string model_name(const ModelConfig& c) {
  if (c.preset.empty()) return fmt::format("{} layers of {}", c.layers, c.d);
  return c.preset;
}

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

std::string headline(const Model& model) {
  const ModelConfig& c = model.config();
  return fmt::format("bhyt {} ({}) | {} | {} | {}, {} parameters | norm {}", BHYT_VERSION, BHYT_COMMIT, describe(model.device()),
                     name_of(model.type()), model_name(c), grouped(model.parameters().count()), norm_text(c.norm));
}

std::string memory_line(const Model& model, const OptimizerState& state) {
  const MemoryUse use = model.memory();
  const auto bytes = [](std::size_t n) { return human_bytes(static_cast<double>(n)); };
  return fmt::format("memory  weights {} | {} {} | gradients {} | activations {} | workspace {} | free {}", bytes(use.weights),
                     state.rests.t ? "master+moments" : "moments", bytes(state.master_and_moment_bytes()),
                     bytes(state.gradients.memory.bytes()), bytes(use.activations), bytes(use.workspace),
                     bytes(free_memory(model.device())));
}

std::string step_line(const StepLine& l) {
  const std::string total = std::to_string(l.steps);
  std::string out = fmt::format("step {:>{}}/{}  loss {:.4f}  grad {:.2f}  lr {:.2e}  {} tok/s", l.step,
                                std::max<std::size_t>(total.size(), 5), total, l.loss, l.grad_norm, l.lr, log::human_count(l.tok_s));
  out += l.mfu ? fmt::format("  mfu {:.0f}%", *l.mfu * 100) : "  mfu n/a";
  return out + "  eta " + log::human_time(l.eta_s);
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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
  while (bytes >= 1000 && i < 4) bytes /= 1024, ++i;
  return fmt::format("{:.{}f} {}", bytes, i == 0 || bytes >= 100 ? 0 : 1, kUnits[i]);
}

std::size_t total_memory(Device device) {
  if (device.is_cuda()) return cuda::total_bytes(device.index);
  const auto physical = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  const double allowed = number_in("/sys/fs/cgroup/memory.max", "");  // "max" reads as 0
  return static_cast<std::size_t>(allowed > 0 ? std::min(physical, allowed) : physical);
}

std::size_t free_memory(Device device) {
  if (device.is_cuda()) return cuda::free_bytes(device.index);
  return static_cast<std::size_t>(number_in("/proc/meminfo", "MemAvailable:") * 1024);
}

double peak_flops(Device device, DType type) {
  if (device.is_cuda()) {
    const std::string name = cuda::describe(device.index);
    const bool hopper = name.find("H100") != std::string::npos || name.find("H200") != std::string::npos;
    return hopper && type == DType::bf16 ? 989e12 : 0;  // dense; the figure with sparsity is twice that
  }
  static std::map<std::pair<DType, int>, double> known;  // by type and threads: a program that trains twice measures once
  double& best = known[{type, num_threads()}];
  if (best > 0) return best;
  // Larger products until a fifth of a second is spent: small enough for a slow machine, large enough for a fast one.
  const double start = seconds();
  for (std::int64_t n = 128; seconds() - start < 0.2; n = std::min<std::int64_t>(n * 2, 1024)) {
    const OwnedTensor a(device, type, {n, n}), b(device, type, {n, n}), c(device, DType::f32, {n, n});
    zero(a);
    zero(b);
    gemm(a, b, c, {.trans_b = true});
    const double before = seconds();
    gemm(a, b, c, {.trans_b = true});
    best = std::max(best, 2.0 * static_cast<double>(n * n * n) / (seconds() - before));
  }
  return best;
}

}  // namespace bhyt::train
