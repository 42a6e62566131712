#include "train/console.h"

#include <algorithm>

#include "core/log.h"
#include "io/format.h"
#include "machine/machine.h"

namespace bhyt::train {

std::string norm_line(const NormConfig& c) {
  if (method(c.method).scale != ScaleKind::lambda) return c.method;
  return fmt::format("{} κ={:.6g} λ=({:g},{:g})", c.method, c.kappa, c.lambda[0], c.lambda[1]);
}

std::string model_line(const Model& model) {
  const ModelConfig& c = model.config();
  const std::string name = c.preset.empty() ? fmt::format("{} layers of {}", c.layers, c.d) : c.preset;
  return fmt::format("{}, {} parameters", name, grouped(model.parameters().count()));
}

std::string headline(const Model& model) {
  return fmt::format("bhyt {} ({}) | {} | {} | {} | norm {}", program_version(), program_commit(), describe_device(model.context()),
                     name_of(model.type()), model_line(model), norm_line(model.config().norm));
}

std::string memory_line(const TrainPass& pass, const Model& model, const Optimizer& optimizer, std::size_t gradient_bytes) {
  const MemoryUse use = pass.memory();
  const auto bytes = [](std::size_t n) { return human_bytes(static_cast<double>(n)); };
  return fmt::format("memory  weights {} | {} {} | gradients {} | activations {} | workspace {} | free {}", bytes(use.weights),
                     optimizer.masters().low_bits() ? "master+moments" : "moments", bytes(optimizer.bytes()), bytes(gradient_bytes),
                     bytes(use.activations), bytes(use.workspace), bytes(free_memory(model.device())));
}

std::string step_line(const StepLine& l) {
  const std::string total = std::to_string(l.steps);
  std::string out = fmt::format("step {:>{}}/{}  loss {:.4f}  grad {:.2f}  lr {:.2e}  {} tok/s", l.step,
                                std::max<std::size_t>(total.size(), 5), total, l.loss, l.grad_norm, l.lr, log::human_count(l.tok_s));
  out += l.mfu ? fmt::format("  mfu {:.0f}%", *l.mfu * 100) : "  mfu n/a";
  return out + "  eta " + log::human_time(l.eta_s);
}

}  // namespace bhyt::train
