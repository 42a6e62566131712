// One declaration per operation case, four uses: the forward against a naive double reference, the gradient against differences of that
// reference, the same on every device there is, and a benchmark. In a *_test.cpp:
//
//   Case swiglu_case(std::int64_t n, std::int64_t f) {
//     return {.name = fmt::format("{}x{}", n, f),
//             .inputs = {{"gate_up", {n, 2 * f}, Role::activation}},
//             .outputs = {{"h", {n, f}}},
//             .reference = [=](Arrays& a, Round round) { … a["h"][i] = silu(a["gate_up"][…]) * …; },
//             .forward = [](CaseTensors& c) { swiglu(c.ctx(), c["gate_up"], c["h"]); },
//             .backward = [](CaseTensors& c) { swiglu_backward(c.ctx(), c["gate_up"], c.grad("h"), c.grad("gate_up")); }};
//   }
//   OP_CASES(Swiglu, test_cases, benchmark_cases);  // two functions that return std::vector<Case>
//
// Outputs and the gradients of activations hold NaN before the call (all of them must be written); the gradients of weights and
// parameters hold zero before the first backward and are expected doubled after a second one (they are +=). The call is repeated with
// another number of threads and must give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/rng.h"

namespace bhyt::testing {

using Shape = std::vector<std::int64_t>;
using Arrays = std::map<std::string, std::vector<double>>;  // inputs and outputs by name, row major
using Round = double (*)(double);                           // the identity, or rounding to bf16

enum class Role {
  activation,  // of the run's type; its gradient is written, in the run's type
  weight,      // of the run's type; its gradient is += in fp32
  parameter,   // fp32; its gradient is += in fp32
  constant,    // of the run's type, no gradient
  constant32,  // fp32, no gradient
  integer,     // int32, no gradient
};

struct Input {
  std::string name;
  Shape shape;
  Role role = Role::activation;
  // normal: times scale; uniform: in ±scale; outlier: normal with one element per row 1e4 times larger; zero_rows: normal, every third row
  // zero; integers: below `scale`.
  enum class Fill { normal, uniform, outlier, zero_rows, integers } fill = Fill::normal;
  double scale = 1;
  double offset = 0;
  std::function<double(Rng&, std::int64_t)> make = nullptr;  // element i, instead of fill
};
using Fill = Input::Fill;

struct Output {
  std::string name;
  Shape shape;
  enum class Type { run, fp32, integer } type = Type::run;
  bool grad = true;  // false: compared, but nothing flows back through it
};

class CaseTensors;

struct Case {
  std::string name;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  // Fills the outputs from the inputs, in double. `round` belongs around what the operation keeps in the run's type on the way: with it the
  // same function is also the low-precision reference that sets the tolerance for bf16.
  std::function<void(Arrays&, Round)> reference;
  std::function<void(CaseTensors&)> forward;
  std::function<void(CaseTensors&)> backward = nullptr;  // called after forward, on the same tensors
  // How far fp32 may be off, in units of 2^-24 of the largest magnitude of the tensor (of the row, with by_row).
  double ulps = 64, grad_ulps = 256;
  // How far bf16 gradients may be off, in units of 2^-9 of that magnitude; raise it where the backward keeps intermediates in bf16.
  double bf16_grad_ulps = 3;
  double floor = 0;     // an error that is always allowed: where large terms cancel to little, or to nothing
  bool by_row = false;  // rows are independent: scale the tolerance to each
  double step = 2e-5;   // of the differences, relative to max(1, |x|)
  // For the benchmark: GFLOP/s where given, else GB/s of what the call reads and writes (0 = every tensor once).
  double flops = 0, backward_flops = 0, bytes = 0, backward_bytes = 0;
};

// What a case's forward and backward work on: tensors of one context in one type.
class CaseTensors {
 public:
  CaseTensors(const Case& c, Context& ctx, DType dtype);
  const Tensor& operator[](const std::string& name) const { return at(values_, name); }
  const Tensor& grad(const std::string& name) const { return at(grads_, name); }  // of an input: to write; of an output: given
  // Memory that lives as long as this; the same name gives the same memory.
  const Tensor& scratch(const std::string& name, DType type, Shape shape);
  Context& ctx() const { return ctx_; }
  Device device() const { return ctx_.device(); }
  DType dtype() const { return dtype_; }
  bool wants_grad(const std::string& name) const { return grads_.count(name) > 0; }

  void load(const Arrays& values, const Arrays& cotangents);  // inputs and gradients of the outputs; poisons what has to be written
  std::map<std::string, std::vector<char>> bytes() const;     // of all outputs and gradients of inputs
  double forward_bytes() const;
  double backward_bytes() const;

 private:
  const Tensor& at(const std::map<std::string, OwnedTensor>& from, const std::string& name) const;
  const Case& case_;
  Context& ctx_;
  DType dtype_;
  std::map<std::string, OwnedTensor> values_, grads_, scratch_;
};

OwnedTensor make_tensor(Context& ctx, DType type, const Shape& shape);
OwnedTensor make_tensor(Context& ctx, DType type, const Shape& shape, const std::vector<double>& values);
std::vector<double> to_doubles(Context& ctx, const Tensor& t);  // any device, contiguous

Arrays draw(const std::vector<Input>& inputs, DType dtype, std::uint64_t seed = 1);  // rounded to the type they will have
Context& on_cpu();                                                                   // for what needs no other device
void check_case(const Case& c);                                                      // every device, fp32 and bf16

struct Suite {
  std::string name;
  std::vector<Case> (*tests)();
  std::vector<Case> (*benchmarks)();
};
std::vector<Suite>& suites();

#define OP_CASES(Name, tests, benchmarks)                                                                                       \
  [[maybe_unused]] static const bool registered_##Name = (bhyt::testing::suites().push_back({#Name, tests, benchmarks}), true); \
  TEST(Name, Cases) {                                                                                                           \
    for (const auto& one : tests()) bhyt::testing::check_case(one);                                                             \
  }

}  // namespace bhyt::testing
