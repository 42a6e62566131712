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

std::string step_of(std::int64_t step, std::int64_t steps) {
  const std::string total = std::to_string(steps);
  return fmt::format("step {:>{}}/{}", step, std::max<std::size_t>(total.size(), 5), total);
}

std::string step_line(const StepLine& l) {
  std::string out = fmt::format("{}  loss {:.4f}  grad {:.2f}  lr {:.2e}  {} tok/s", step_of(l.step, l.steps), l.loss, l.grad_norm, l.lr,
                                log::human_count(l.tok_s));
  out += l.mfu ? fmt::format("  mfu {:.0f}%", *l.mfu * 100) : "  mfu n/a";
  return out + "  eta " + log::human_time(l.eta_s);
}

WorkLine::WorkLine(std::string what, std::string unit, double now)
    : what_(std::move(what)), unit_(std::move(unit)), started_(now), shown_(now) {}

std::string WorkLine::due(double now, std::int64_t done, std::int64_t all, bool terminal) {
  const double spent = now - started_;
  if (done >= all || spent < 3 || now - shown_ < (terminal ? 0.2 : 20)) return "";
  shown_ = now;
  const double left = spent * static_cast<double>(all - done) / static_cast<double>(std::max<std::int64_t>(done, 1));
  return fmt::format("{}  {} of {} {}  eta {}", what_, grouped(done), grouped(all), unit_, log::human_time(left));
}

void WorkLine::show(std::int64_t done, std::int64_t all) {
  if (const std::string line = due(seconds(), done, all, log::stderr_is_terminal()); !line.empty()) log::status(line);
}

std::string repetition(const TrainSection& t, std::int64_t rows) {
  constexpr double kMany = 4;  // passes; about as many are nearly as good as new data
  const double passes = static_cast<double>(t.steps) * static_cast<double>(t.batch) / static_cast<double>(rows);
  if (t.batch > rows)
    return fmt::format(
        "a batch of {} rows is larger than the data, {} rows: each step goes over it {:.3g} times; lower train.batch, or give more data",
        grouped(t.batch), grouped(rows), static_cast<double>(t.batch) / static_cast<double>(rows));
  if (passes <= kMany) return "";
  return fmt::format("the run goes over its data, {} rows, {:.3g} times; give more data, or fewer steps ({} are {:g} passes)",
                     grouped(rows), passes,
                     grouped(static_cast<std::int64_t>(kMany * static_cast<double>(rows) / static_cast<double>(t.batch))), kMany);
}

}  // namespace bhyt::train
