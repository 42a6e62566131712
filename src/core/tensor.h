// A tensor is a view: pointer, element type, device, shape. It owns nothing; Buffer does (core/memory.h).
// Letters used throughout: B sequences, T positions, N = B·T tokens, C model width, H query heads, K key/value heads,
// D head width, F MLP width, V vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/device.h"
#include "core/dtype.h"

namespace bhyt {

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  std::int64_t ld = 0;  // elements between rows (all but the last dimension flattened); equals cols() unless a column slice

  Tensor() = default;
  Tensor(void* p, DType t, Device d, std::initializer_list<std::int64_t> dims) : data(p), dtype(t), device(d) {
    for (auto n : dims) shape[static_cast<std::size_t>(rank++)] = n;
    ld = cols();
  }

  explicit operator bool() const { return data != nullptr; }
  std::int64_t dim(int i) const { return shape[static_cast<std::size_t>(i)]; }
  std::int64_t cols() const { return rank == 0 ? 1 : shape[static_cast<std::size_t>(rank - 1)]; }
  std::int64_t rows() const {
    std::int64_t n = 1;
    for (int i = 0; i + 1 < rank; ++i) n *= shape[static_cast<std::size_t>(i)];
    return n;
  }
  std::int64_t size() const { return rows() * cols(); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
  bool contiguous() const { return ld == cols(); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  // The same elements in another shape (contiguous tensors only).
  Tensor reshape(std::initializer_list<std::int64_t> dims) const { return Tensor(data, dtype, device, dims); }
  // Rows [first, first + n), as a matrix.
  Tensor row_slice(std::int64_t first, std::int64_t n) const {
    Tensor t(static_cast<char*>(data) + static_cast<std::size_t>(first * ld) * size_of(dtype), dtype, device, {n, cols()});
    t.ld = ld;
    return t;
  }
  // Columns [first, first + n) of every row, as a matrix with the same row distance.
  Tensor col_slice(std::int64_t first, std::int64_t n) const {
    Tensor t(static_cast<char*>(data) + static_cast<std::size_t>(first) * size_of(dtype), dtype, device, {rows(), n});
    t.ld = ld;
    return t;
  }
};

// A shape as messages show it, made into text only when somebody reads it.
struct ShapeText {
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  std::string text() const {
    std::string s = "[";
    for (int i = 0; i < rank; ++i) s += (i ? ", " : "") + std::to_string(shape[static_cast<std::size_t>(i)]);
    return s + "]";
  }
};
inline ShapeText shape_string(const Tensor& t) { return {t.rank, t.shape}; }

}  // namespace bhyt
