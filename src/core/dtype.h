// Element types. bf16 is a plain struct shared by the host, the device and the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/error.h"

#if defined(__CUDACC__)
#define BHYT_BOTH __host__ __device__ __forceinline__
#else
#define BHYT_BOTH inline __attribute__((always_inline))
#endif

namespace bhyt {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i64, i32, u32, u16, u8, i8, f8 };  // f8: e4m3

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16: return 2;
    case DType::u8:
    case DType::i8:
    case DType::f8: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::f64: return "fp64";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::u32: return "uint32";
    case DType::u16: return "uint16";
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
    case DType::f8: return "fp8";
  }
  return "?";
}

// "fp32" or "bf16", the types models compute in. UsageError that names `key` otherwise (core/device.cpp).
DType parse_float_type(const std::string& text, const std::string& key = "run.dtype");

// The upper half of an fp32, rounded to nearest even. NaN stays NaN.
struct bf16 {
  std::uint16_t bits;
};

BHYT_BOTH float to_float(bf16 x) {
  std::uint32_t u = static_cast<std::uint32_t>(x.bits) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
BHYT_BOTH float to_float(float x) { return x; }
BHYT_BOTH double to_float(double x) { return x; }

BHYT_BOTH bf16 to_bf16(float f) {
  std::uint32_t u;
  memcpy(&u, &f, 4);
  // Branch-free so that loops vectorise: a NaN keeps its top bits and gets the quiet bit. Chosen before the shift, so that vectors are
  // narrowed once.
  const std::uint32_t rounded = u + 0x7FFFu + ((u >> 16) & 1u);
  return bf16{static_cast<std::uint16_t>((f == f ? rounded : u | 0x400000u) >> 16)};
}

// An fp32 in two halves: the bf16 that models compute with, here rounded half away from zero, and what is missing from it, so that both
// together give every bit back (of a NaN, that it is one).
struct SplitFloat {
  bf16 value;
  std::uint16_t low;  // two's complement
};
BHYT_BOTH SplitFloat split(float f) {
  std::uint32_t u;
  memcpy(&u, &f, 4);
  u = f == f ? u : 0x7FC00000u;
  return {bf16{static_cast<std::uint16_t>((u + 0x8000u) >> 16)}, static_cast<std::uint16_t>(u)};
}
BHYT_BOTH float join(bf16 value, std::uint16_t low) {
  const std::uint32_t u = (static_cast<std::uint32_t>(value.bits) << 16) + static_cast<std::uint32_t>(static_cast<std::int16_t>(low));
  float f;
  memcpy(&f, &u, 4);
  return f;
}

template <class T>
BHYT_BOTH T from_float(float f);
template <>
BHYT_BOTH float from_float<float>(float f) {
  return f;
}
template <>
BHYT_BOTH bf16 from_float<bf16>(float f) {
  return to_bf16(f);
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}

// Runs f(T{}) with T the element type of a float tensor: one place for the fp32/bf16 switch. Throws for every other type.
template <class F>
decltype(auto) dispatch_float(DType t, F&& f) {
  if (t == DType::bf16) return f(bf16{});
  if (t == DType::f32) return f(float{});
  fail(std::string("[dispatch_float] expected fp32 or bf16, got ") + name_of(t));
}

}  // namespace bhyt
