// Number types of safetensors files to and from fp32.
#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "model/safetensors.h"

namespace bhyt {

namespace {

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16, rest = h & 0x7FFFu;
  std::uint32_t u;
  if (rest >= 0x7C00u) {
    u = sign | 0x7F800000u | (rest & 0x3FFu) << 13;
  } else if (rest >= 0x400u) {
    u = sign | ((rest << 13) + 0x38000000u);
  } else {  // subnormal: rest · 2⁻²⁴ is exact
    const float f = static_cast<float>(rest) * 0x1p-24f;
    std::memcpy(&u, &f, 4);
    u |= sign;
  }
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

std::uint16_t float_to_half(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  const std::uint32_t sign = u >> 16 & 0x8000u, rest = u & 0x7FFFFFFFu;
  std::uint32_t h;
  if (rest > 0x7F800000u) {
    h = 0x7E00u | (rest >> 13 & 0x3FFu);  // NaN stays NaN
  } else if (rest >= 0x477FF000u) {
    h = 0x7C00u;  // 65520 and above round to infinity
  } else if (rest >= 0x38800000u) {
    h = (rest - 0x38000000u + 0xFFFu + (rest >> 13 & 1u)) >> 13;
  } else {  // subnormal: adding ½ leaves the value's multiples of 2⁻²⁴ in the last bits, rounded to nearest even
    float magnitude;
    std::memcpy(&magnitude, &rest, 4);
    magnitude += 0.5f;
    std::memcpy(&h, &magnitude, 4);
    h -= 0x3F000000u;
  }
  return static_cast<std::uint16_t>(sign | h);
}

// Through memcpy: a file's header may leave its data unaligned.
template <class T, class F>
void convert(const void* data, std::int64_t first, std::int64_t n, float* out, F&& value) {
  const auto* p = static_cast<const char*>(data) + static_cast<std::size_t>(first) * sizeof(T);
  for (std::int64_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, p + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    out[i] = value(x);
  }
}

}  // namespace

void SafeTensors::to_float(const SafeTensor& t, std::int64_t first, std::int64_t n, float* out) {
  check(first >= 0 && n >= 0 && first <= t.size() - n, "tensor {}: elements [{}, {}) of {} were asked for", t.name, first, first + n,
        t.size());
  const auto plain = [](auto x) { return static_cast<float>(x); };
  if (t.dtype == "F32" && n > 0)
    std::memcpy(out, static_cast<const char*>(t.data) + first * 4, static_cast<std::size_t>(n) * 4);
  else if (t.dtype == "F32")
    return;
  else if (t.dtype == "BF16")
    convert<bf16>(t.data, first, n, out, [](bf16 x) { return bhyt::to_float(x); });
  else if (t.dtype == "F16")
    convert<std::uint16_t>(t.data, first, n, out, half_to_float);
  else if (t.dtype == "F64")
    convert<double>(t.data, first, n, out, plain);
  else if (t.dtype == "I64")
    convert<std::int64_t>(t.data, first, n, out, plain);
  else if (t.dtype == "U64")
    convert<std::uint64_t>(t.data, first, n, out, plain);
  else if (t.dtype == "I32")
    convert<std::int32_t>(t.data, first, n, out, plain);
  else if (t.dtype == "U32")
    convert<std::uint32_t>(t.data, first, n, out, plain);
  else if (t.dtype == "I16")
    convert<std::int16_t>(t.data, first, n, out, plain);
  else if (t.dtype == "U16")
    convert<std::uint16_t>(t.data, first, n, out, plain);
  else if (t.dtype == "I8")
    convert<std::int8_t>(t.data, first, n, out, plain);
  else if (t.dtype == "U8" || t.dtype == "BOOL")
    convert<std::uint8_t>(t.data, first, n, out, plain);
  else
    throw Error(fmt::format("tensor {}: cannot read {} as numbers", t.name, t.dtype));
}

void encode_floats(const float* in, std::int64_t n, DType type, void* out) {
  const auto each = [&](auto* to, auto&& value) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = value(in[i]);
  };
  switch (type) {
    case DType::f32: std::copy(in, in + n, static_cast<float*>(out)); return;
    case DType::bf16: each(static_cast<bf16*>(out), [](float x) { return to_bf16(x); }); return;
    case DType::f16: each(static_cast<std::uint16_t*>(out), float_to_half); return;
    case DType::f64: each(static_cast<double*>(out), [](float x) { return static_cast<double>(x); }); return;
    default: throw Error(fmt::format("[encode_floats] expected a float type, got {}", name_of(type)));
  }
}

}  // namespace bhyt
