#include "tests/ops/case.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/devices.h"

namespace bhyt::testing {

namespace {

double identity(double x) { return x; }
double round_bf16(double x) { return to_float(to_bf16(static_cast<float>(x))); }

std::int64_t count(const Shape& shape) { return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()); }

DType type_of(const Input& in, DType run) {
  if (in.role == Role::integer) return DType::i32;
  return in.role == Role::parameter || in.role == Role::constant32 ? DType::f32 : run;
}
DType type_of(const Output& out, DType run) {
  return out.type == Output::Type::integer ? DType::i32 : out.type == Output::Type::fp32 ? DType::f32 : run;
}
bool has_grad(const Input& in) { return in.role == Role::activation || in.role == Role::weight || in.role == Role::parameter; }
bool accumulates(const Input& in) { return in.role == Role::weight || in.role == Role::parameter; }

double rounded(double x, DType type) {
  return type == DType::f32 ? static_cast<float>(x) : type == DType::bf16 ? round_bf16(x) : std::round(x);
}

void poison(Context& ctx, const Tensor& t) {
  const std::vector<char> ones(t.bytes(), static_cast<char>(0xFF));  // NaN in fp32 and bf16, -1 in int32
  from_host(ctx, ones.data(), t);
}

std::vector<char> bytes_of(Context& ctx, const Tensor& t) {
  std::vector<char> b(t.bytes());
  to_host(ctx, t, b.data());
  return b;
}

}  // namespace

OwnedTensor make_tensor(Context& ctx, DType type, const Shape& shape) {
  OwnedTensor o(ctx, type, {count(shape)});
  o.t.rank = static_cast<int>(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) o.t.shape[i] = shape[i];
  o.t.ld = o.t.cols();
  return o;
}

OwnedTensor make_tensor(Context& ctx, DType type, const Shape& shape, const std::vector<double>& values) {
  OwnedTensor o = make_tensor(ctx, type, shape), host = make_tensor(on_cpu(), type, shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == DType::f32) host.t.as<float>()[i] = static_cast<float>(values[i]);
    if (type == DType::bf16) host.t.as<bf16>()[i] = to_bf16(static_cast<float>(values[i]));
    if (type == DType::i32) host.t.as<std::int32_t>()[i] = static_cast<std::int32_t>(values[i]);
  }
  from_host(ctx, host.t.data, o);
  return o;
}

std::vector<double> to_doubles(Context& ctx, const Tensor& t) {
  const std::vector<char> b = bytes_of(ctx, t);
  std::vector<double> v(static_cast<std::size_t>(t.size()));
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (t.dtype == DType::f32) v[i] = reinterpret_cast<const float*>(b.data())[i];
    if (t.dtype == DType::bf16) v[i] = to_float(reinterpret_cast<const bf16*>(b.data())[i]);
    if (t.dtype == DType::i32) v[i] = reinterpret_cast<const std::int32_t*>(b.data())[i];
  }
  return v;
}

Arrays draw(const std::vector<Input>& inputs, DType dtype, std::uint64_t seed) {
  Arrays a;
  std::uint64_t stream = 0;
  for (const Input& in : inputs) {
    Rng rng(seed, ++stream);
    auto& v = a[in.name];
    v.resize(static_cast<std::size_t>(count(in.shape)));
    const std::int64_t cols = in.shape.empty() ? 1 : in.shape.back();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(v.size()); ++i) {
      const std::int64_t row = i / cols, col = i % cols;
      double x = 0;
      if (in.make)
        x = in.make(rng, i);
      else if (in.fill == Fill::uniform)
        x = in.offset + in.scale * (2 * rng.uniform() - 1);
      else if (in.fill == Fill::integers)
        x = in.offset + static_cast<double>(rng.below(static_cast<std::uint64_t>(in.scale)));
      else if (in.fill != Fill::zero_rows || row % 3 != 1)
        x = in.offset + in.scale * rng.normal() * (in.fill == Fill::outlier && col == (row * 7 + 3) % cols ? 1e4 : 1);
      v[static_cast<std::size_t>(i)] = rounded(x, type_of(in, dtype));
    }
  }
  return a;
}

Context& on_cpu() { return test::context_on(Device::cpu()); }

std::vector<Suite>& suites() {
  static std::vector<Suite> all;
  return all;
}

CaseTensors::CaseTensors(const Case& c, Context& ctx, DType dtype) : case_(c), ctx_(ctx), dtype_(dtype) {
  for (const Input& in : c.inputs) {
    values_[in.name] = make_tensor(ctx, type_of(in, dtype), in.shape);
    if (has_grad(in)) grads_[in.name] = make_tensor(ctx, accumulates(in) ? DType::f32 : dtype, in.shape);
  }
  for (const Output& out : c.outputs) {
    values_[out.name] = make_tensor(ctx, type_of(out, dtype), out.shape);
    if (out.grad && out.type != Output::Type::integer) grads_[out.name] = make_tensor(ctx, type_of(out, dtype), out.shape);
  }
}

const Tensor& CaseTensors::at(const std::map<std::string, OwnedTensor>& from, const std::string& name) const {
  const auto it = from.find(name);
  if (it == from.end()) throw std::logic_error("case " + case_.name + " has no tensor (or gradient) " + name);
  return it->second;
}

const Tensor& CaseTensors::scratch(const std::string& name, DType type, Shape shape) {
  auto& t = scratch_[name];
  if (!t.t) t = make_tensor(ctx_, type, shape);
  return t;
}

void CaseTensors::load(const Arrays& values, const Arrays& cotangents) {
  for (const Input& in : case_.inputs) {
    copy(ctx_, make_tensor(ctx_, type_of(in, dtype_), in.shape, values.at(in.name)), values_.at(in.name));
    if (!has_grad(in)) continue;
    if (accumulates(in))
      zero(ctx_, grads_.at(in.name));
    else
      poison(ctx_, grads_.at(in.name));
  }
  for (const Output& out : case_.outputs) {
    poison(ctx_, values_.at(out.name));
    if (wants_grad(out.name)) copy(ctx_, make_tensor(ctx_, type_of(out, dtype_), out.shape, cotangents.at(out.name)), grads_.at(out.name));
  }
}

std::map<std::string, std::vector<char>> CaseTensors::bytes() const {
  std::map<std::string, std::vector<char>> b;
  for (const Output& out : case_.outputs) b[out.name] = bytes_of(ctx_, values_.at(out.name));
  for (const Input& in : case_.inputs)
    if (has_grad(in)) b["d" + in.name] = bytes_of(ctx_, grads_.at(in.name));
  return b;
}

double CaseTensors::forward_bytes() const {
  if (case_.bytes > 0) return case_.bytes;
  double n = 0;
  for (const auto& [name, t] : values_) n += static_cast<double>(t.t.bytes());
  return n;
}

double CaseTensors::backward_bytes() const {
  if (case_.backward_bytes > 0) return case_.backward_bytes;
  double n = 0;
  for (const Input& in : case_.inputs) n += static_cast<double>(values_.at(in.name).t.bytes());
  for (const auto& [name, t] : grads_) n += static_cast<double>(t.t.bytes());
  return n;
}

namespace {

// The tolerance of each element: `relative` of the largest magnitude of the tensor or of its row.
std::vector<double> scaled(const std::vector<double>& reference, const Shape& shape, bool by_row, double relative, double floor = 0) {
  const std::size_t n = reference.size(), cols = by_row && shape.size() > 1 ? static_cast<std::size_t>(shape.back()) : n;
  std::vector<double> t(n);
  for (std::size_t r = 0; cols > 0 && r < n; r += cols) {
    double top = 0;
    for (std::size_t i = r; i < r + cols; ++i) top = std::max(top, std::fabs(reference[i]));
    for (std::size_t i = r; i < r + cols; ++i) t[i] = relative * top + floor + 1e-30;
  }
  return t;
}

void compare(const std::string& what, const std::vector<double>& expected, const std::vector<double>& got,
             const std::vector<double>& tolerance) {
  std::size_t worst = 0, bad = 0;
  double most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double ratio = std::fabs(got[i] - expected[i]) / tolerance[i];
    if (ratio <= 1) continue;  // false for NaN
    if (bad++ == 0 || ratio > most) worst = i, most = ratio;
  }
  if (bad)
    ADD_FAILURE() << fmt::format("{}: {} of {} elements are off; worst at {}: expected {:.9g}, got {:.9g}, tolerance {:.3g}", what, bad,
                                 expected.size(), worst, expected[worst], got[worst], tolerance[worst]);
}

void check_forward(const Case& c, const CaseTensors& tensors, const Arrays& exact, const Arrays& low) {
  for (const Output& out : c.outputs) {
    const auto& e = exact.at(out.name);
    auto tolerance = scaled(e, out.shape, c.by_row, c.ulps * 0x1p-24, c.floor);
    if (out.type == Output::Type::integer) tolerance.assign(e.size(), 0.25);
    // bf16: twice the error of the low-precision reference, itself taken per tensor or row.
    if (tensors.dtype() == DType::bf16 && out.type != Output::Type::integer) {
      auto error = low.at(out.name);
      for (std::size_t i = 0; i < e.size(); ++i) error[i] = (out.type == Output::Type::run ? round_bf16(error[i]) : error[i]) - e[i];
      const auto twice = scaled(error, out.shape, c.by_row, 2.0);
      for (std::size_t i = 0; i < e.size(); ++i) tolerance[i] += twice[i];
    }
    compare(out.name, e, to_doubles(tensors.ctx(), tensors[out.name]), tolerance);
  }
}

// d/dt of Σ cotangent · output along `direction` of one input at t = 0, by a five-point difference of the reference; and the root of the
// sum of its terms' squares, which is what rounding errors scale with where the terms cancel.
struct Slope {
  double value = 0, terms = 0;
};
Slope slope(const Case& c, const Arrays& values, const Arrays& cotangents, const std::string& input, const std::vector<double>& direction,
            double h) {
  Arrays a[4];
  const double at[4] = {-2, -1, 1, 2};
  for (int k = 0; k < 4; ++k) {
    a[k] = values;
    auto& x = a[k].at(input);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += at[k] * h * direction[i];
    c.reference(a[k], identity);
  }
  // Differences first, element by element: the sum's own size does not cost digits then.
  Slope s;
  for (const auto& [name, cotangent] : cotangents)
    for (std::size_t i = 0; i < cotangent.size(); ++i) {
      const double d = 8 * (a[2].at(name)[i] - a[1].at(name)[i]) - (a[3].at(name)[i] - a[0].at(name)[i]);
      const double term = cotangent[i] * d / (12 * h);
      s.value += term;
      s.terms += term * term;
    }
  s.terms = std::sqrt(s.terms);
  return s;
}

// Single coordinates (all of a small input, a sample of a large one or in bf16) and random directions through all of them.
void check_gradient(const Case& c, const CaseTensors& tensors, const Arrays& values, const Arrays& cotangents, const Input& in) {
  const auto got = to_doubles(tensors.ctx(), tensors.grad(in.name));
  const auto& x = values.at(in.name);
  const std::size_t n = x.size();
  double relative = c.grad_ulps * 0x1p-24;
  if (tensors.dtype() == DType::bf16) relative += c.bf16_grad_ulps * 0x1p-9;
  const auto tolerance = scaled(got, in.shape, c.by_row && in.role == Role::activation, relative, c.floor);
  for (double g : got)
    if (!std::isfinite(g)) {
      ADD_FAILURE() << "d" << in.name << " holds " << g;
      return;
    }
  Rng rng(7, n);
  const std::size_t most = tensors.dtype() == DType::bf16 ? 6 : 16, samples = std::min(n, most);
  for (std::size_t k = 0; k < samples + 2; ++k) {
    std::vector<double> direction(n, 0.0);
    std::size_t i = n <= most ? k : static_cast<std::size_t>(rng.below(n));
    const bool single = k < samples;
    for (std::size_t j = 0; j < n; ++j)
      if (single ? j == i : true) direction[j] = std::max(1.0, std::fabs(x[j])) * (!single && rng.uniform() < 0.5 ? -1 : 1);
    const Slope expected = slope(c, values, cotangents, in.name, direction, c.step);
    double along = 0, allowed = 0;
    for (std::size_t j = 0; j < n; ++j) along += got[j] * direction[j], allowed += std::pow(tolerance[j] * direction[j], 2);
    allowed = std::sqrt(allowed) * (single ? 1 : 2) + relative * expected.terms;
    if (!(std::fabs(along - expected.value) <= allowed))
      ADD_FAILURE() << fmt::format("d{}{}: differences say {:.9g}, got {:.9g}, tolerance {:.3g}", in.name,
                                   single ? fmt::format("[{}] (times the step's scale)", i) : " along a random direction", expected.value,
                                   along, allowed);
  }
}

void check_second_backward(const Case& c, CaseTensors& tensors, const Arrays& first) {
  c.backward(tensors);
  for (const Input& in : c.inputs) {
    if (!accumulates(in)) continue;
    auto twice = first.at(in.name);
    for (double& g : twice) g *= 2;
    compare("d" + in.name + " after a second backward", twice, to_doubles(tensors.ctx(), tensors.grad(in.name)),
            scaled(twice, in.shape, false, 0x1p-20));
  }
}

void check_run(const Case& c, Device device, DType dtype) {
  SCOPED_TRACE(fmt::format("case {}, {}, {}", c.name, name_of(dtype), name_of(device)));
  const Arrays inputs = draw(c.inputs, dtype);
  Arrays exact = inputs;
  for (const Output& out : c.outputs) exact[out.name].resize(static_cast<std::size_t>(count(out.shape)));
  Arrays low = exact, values = exact, cotangents;
  c.reference(exact, identity);
  if (dtype == DType::bf16) c.reference(low, round_bf16);

  CaseTensors tensors(c, test::context_on(device, 1), dtype), on_three(c, test::context_on(device, 3), dtype);
  std::uint64_t stream = 100;
  for (const Output& out : c.outputs) {
    if (!tensors.wants_grad(out.name)) continue;
    Rng rng(3, ++stream);
    auto& v = cotangents[out.name];
    for (std::int64_t i = 0; i < count(out.shape); ++i) v.push_back(rounded(rng.normal(), tensors[out.name].dtype));
  }
  const auto run = [&](CaseTensors& on) {
    on.load(inputs, cotangents);
    c.forward(on);
    if (c.backward) c.backward(on);
    return on.bytes();
  };
  const auto one = run(tensors), three = run(on_three);
  for (const auto& [name, b] : one) EXPECT_TRUE(b == three.at(name)) << name << " differs between 1 and 3 threads";
  check_forward(c, tensors, exact, low);
  if (!c.backward) return;
  Arrays gradients;
  for (const Input& in : c.inputs) {
    if (!has_grad(in)) continue;
    check_gradient(c, tensors, values, cotangents, in);
    gradients[in.name] = to_doubles(tensors.ctx(), tensors.grad(in.name));
  }
  check_second_backward(c, tensors, gradients);
}

}  // namespace

void check_case(const Case& c) {
  for (const Device device : test::devices())
    for (const DType dtype : {DType::f32, DType::bf16}) check_run(c, device, dtype);
}

}  // namespace bhyt::testing
