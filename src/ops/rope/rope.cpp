// The table, checks and dispatch of rotary positions.
#include "ops/rope/rope.h"

#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/threads.h"

namespace bhyt {

namespace {

// Frequency j of D/2, with llama3's stretching of the long wavelengths.
double frequency(std::int64_t j, std::int64_t head_dim, double theta, const RopeScaling& s) {
  const double f = std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
  if (s.kind == RopeScaling::Kind::none) return f;
  const double wavelength = 2 * M_PI / f;
  if (wavelength > s.original / s.low) return f / s.factor;
  if (wavelength < s.original / s.high) return f;
  const double smooth = (s.original / wavelength - s.low) / (s.high - s.low);
  return (1 - smooth) * f / s.factor + smooth * f;
}

}  // namespace

OwnedTensor rope_table(Context& ctx, std::int64_t positions, std::int64_t head_dim, double theta, const RopeScaling& scaling) {
  check(positions >= 0, "[rope] expected a number of positions, got {}", positions);
  check(head_dim > 0 && head_dim % 2 == 0, "[rope] expected an even head width, got {}", head_dim);
  check(theta > 0 && std::isfinite(theta), "[rope] expected theta greater than 0, got {}", theta);
  std::vector<float> host(static_cast<std::size_t>(positions * head_dim));
  const std::int64_t half = head_dim / 2;
  std::vector<double> frequencies;
  for (std::int64_t j = 0; j < half; ++j) frequencies.push_back(frequency(j, head_dim, theta, scaling));
  parallel_for(ctx.threads(), positions, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p)
      for (std::int64_t j = 0; j < half; ++j) {
        const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(j)];
        float* row = host.data() + p * head_dim;
        row[j] = static_cast<float>(std::cos(angle));
        row[half + j] = static_cast<float>(std::sin(angle));
      }
  });
  OwnedTensor table(ctx, DType::f32, {positions, head_dim});
  from_host(ctx, host.data(), table);
  return table;
}

void rope(Context& ctx, const Tensor& x, const Tensor& table, const RopeOptions& o) {
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, "[rope] expected x fp32 or bf16, got {}", name_of(x.dtype));
  check(o.head_dim > 0 && o.head_dim % 2 == 0, "[rope] expected an even head width, got {}", o.head_dim);
  check(o.heads >= 0 && x.cols() >= o.heads * o.head_dim, "[rope] expected x [N, at least {}], got {}", o.heads * o.head_dim,
        shape_string(x));
  check(table.dtype == DType::f32 && table.cols() == o.head_dim && table.contiguous(),
        "[rope] expected a table fp32 [positions, {}], got {} {}", o.head_dim, name_of(table.dtype), shape_string(table));
  check(table.device == x.device, "[rope] expected the table on {}, got {}", x.device, table.device);
  if (o.positions) {
    check(o.positions.dtype == DType::i32 && o.positions.size() == x.rows(), "[rope] expected positions int32 [{}], got {} {}", x.rows(),
          name_of(o.positions.dtype), shape_string(o.positions));
    check(o.positions.device == x.device, "[rope] expected positions on {}, got {}", x.device, o.positions.device);
  } else {
    const std::int64_t last = o.start + std::min(x.rows(), o.seq);
    check(o.seq > 0 && o.start >= 0 && last <= table.rows(), "[rope] expected positions below {}, got {}…{}", table.rows(), o.start,
          last - 1);
  }
  const Operation operation(ctx, "rope", profile::Kind::rope, x.device);
  if (ctx.device().is_cuda())
    cuda::rope(ctx, x, table, o);
  else
    cpu::rope(ctx, x, table, o);
}

}  // namespace bhyt
