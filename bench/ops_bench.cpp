// Every operation case's benchmark, forward and backward, fp32 and bf16, on every device; and a plain copy to compare GB/s with.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "ops/gemm/tuning.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

// The tensors of a case in one type: made when its first benchmark runs, and dropped when another case's does.
CaseTensors& tensors_of(const Case& c, Device device, DType dtype) {
  static std::unique_ptr<CaseTensors> tensors;
  static const Case* current = nullptr;
  if (current != &c || tensors->dtype() != dtype || !(tensors->device() == device)) {
    tensors = std::make_unique<CaseTensors>(c, test::context_on(device), dtype);
    current = &c;
    Arrays cotangents;
    for (const Output& out : c.outputs)
      if (tensors->wants_grad(out.name)) cotangents[out.name].assign(static_cast<std::size_t>((*tensors)[out.name].size()), 0.01);
    std::vector<Input> inputs = c.inputs;
    for (Input& in : inputs)
      if (in.fill == Fill::normal) in.fill = Fill::uniform;  // quicker to draw
    tensors->load(draw(inputs, dtype), cotangents);
    c.forward(*tensors);
    if (c.backward) c.backward(*tensors);
    cuda::tune_products(tensors->ctx());
  }
  return *tensors;
}

void run(benchmark::State& state, const Case& c, Device device, DType dtype, bool backward) {
  CaseTensors& tensors = tensors_of(c, device, dtype);
  const auto& work = backward ? c.backward : c.forward;
  for (auto _ : state) {
    work(tensors);
    tensors.ctx().synchronize();
  }
  const double flops = backward ? c.backward_flops : c.flops;
  const double amount = flops > 0 ? flops : backward ? tensors.backward_bytes() : tensors.forward_bytes();
  state.counters[flops > 0 ? "FLOP/s" : "B/s"] = benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
}

void copy_memory(benchmark::State& state) {
  const std::int64_t n = 64 << 20, piece = 1 << 20;
  Context& ctx = on_cpu();
  const OwnedTensor from = make_tensor(ctx, DType::u8, {n}), to = make_tensor(ctx, DType::u8, {n});
  zero(ctx, from);
  for (auto _ : state)
    parallel_for(ctx.threads(), n, piece, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.t.as<char>() + begin, from.t.as<char>() + begin, static_cast<std::size_t>(end - begin));
    });
  state.counters["B/s"] = benchmark::Counter(2.0 * static_cast<double>(n), benchmark::Counter::kIsIterationInvariantRate);
}

void register_all(const std::vector<std::vector<Case>>& cases) {
  benchmark::RegisterBenchmark("Copy/64 MB", copy_memory)->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (std::size_t s = 0; s < cases.size(); ++s)
    for (const Case& c : cases[s])
      for (const Device device : test::devices())
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
