// Every operation case's benchmark, forward and backward, fp32 and bf16, on every device; and a plain copy to compare GB/s with.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>

#include "core/parallel.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

// The inputs of a case in one type: made when its first benchmark runs, and dropped when another case's does.
Context& context_of(const Case& c, Device device, DType dtype) {
  static std::unique_ptr<Context> context;
  static const Case* current = nullptr;
  if (current != &c || context->dtype() != dtype || !(context->device() == device)) {
    context = std::make_unique<Context>(c, device, dtype);
    current = &c;
    Arrays cotangents;
    for (const Output& out : c.outputs)
      if (context->wants_grad(out.name)) cotangents[out.name].assign(static_cast<std::size_t>((*context)[out.name].size()), 0.01);
    std::vector<Input> inputs = c.inputs;
    for (Input& in : inputs)
      if (in.fill == Fill::normal) in.fill = Fill::uniform;  // quicker to draw
    context->load(draw(inputs, dtype), cotangents);
    c.forward(*context);
  }
  return *context;
}

void run(benchmark::State& state, const Case& c, Device device, DType dtype, bool backward) {
  Context& context = context_of(c, device, dtype);
  for (auto _ : state) {
    backward ? c.backward(context) : c.forward(context);
    device_synchronize(device);
  }
  const double flops = backward ? c.backward_flops : c.flops;
  const double amount = flops > 0 ? flops : backward ? context.backward_bytes() : context.forward_bytes();
  state.counters[flops > 0 ? "FLOP/s" : "B/s"] = benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
}

void copy_memory(benchmark::State& state) {
  const std::int64_t n = 64 << 20, piece = 1 << 20;
  const OwnedTensor from = make_tensor(Device::cpu(), DType::u8, {n}), to = make_tensor(Device::cpu(), DType::u8, {n});
  zero(from);
  for (auto _ : state)
    parallel_for(n, piece, [&](std::int64_t begin, std::int64_t end) {
      device_copy(Device::cpu(), to.t.as<char>() + begin, Device::cpu(), from.t.as<char>() + begin, static_cast<std::size_t>(end - begin));
    });
  state.counters["B/s"] = benchmark::Counter(2.0 * static_cast<double>(n), benchmark::Counter::kIsIterationInvariantRate);
}

void register_all(const std::vector<std::vector<Case>>& cases) {
  benchmark::RegisterBenchmark("Copy/64 MB", copy_memory)->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (std::size_t s = 0; s < cases.size(); ++s)
    for (const Case& c : cases[s])
      for (const Device device : devices())
        for (const DType dtype : {DType::f32, DType::bf16})
          for (const bool backward : {false, true}) {
            if (backward && !c.backward) continue;
            const auto name =
                fmt::format("{}/{}/{}/{}/{}", suites()[s].name, c.name, name_of(device), name_of(dtype), backward ? "backward" : "forward");
            benchmark::RegisterBenchmark(name.c_str(),
                                         [&c, device, dtype, backward](benchmark::State& state) { run(state, c, device, dtype, backward); })
                ->UseRealTime()
                ->Unit(benchmark::kMicrosecond);
          }
}

}  // namespace
}  // namespace bhyt::testing

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::vector<std::vector<bhyt::testing::Case>> cases;
  for (const auto& suite : bhyt::testing::suites()) cases.push_back(suite.benchmarks());
  bhyt::testing::register_all(cases);
  benchmark::RunSpecifiedBenchmarks();
}
