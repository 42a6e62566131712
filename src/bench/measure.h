// What the measurements share: memory with something in it, the limits, and the model's matrix products.
#pragma once

#include "bench/bench.h"
#include "core/memory.h"

namespace bhyt::bench {

constexpr std::size_t kBeyondCache = std::size_t{640} << 20;  // bytes: larger than any CPU's last cache

// Small random values: products of zeros or of denormals would be flattered or punished.
OwnedTensor filled(Context& ctx, DType type, std::initializer_list<std::int64_t> dims, float scale = 1);
// The values that a model begins with, its matrices from one block of normal numbers each: drawing a billion takes a quarter of a minute.
void initialize(const Parameters& parameters);

// Copies one tensor onto another of the same size with all threads.
void copy_all(Context& ctx, const Tensor& from, const Tensor& to);
// Reads all of `from`, in `places` at a time on and on: a core's prefetcher may follow several places quicker than one. On the CPU.
void read_all(Context& ctx, const Tensor& from, int places);

// A matrix product y [m,n] = x [m,k] · wᵀ of the model, forward and backward.
struct Product {
  std::string name;
  std::int64_t m, n, k;
  std::int64_t count;  // in one forward
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};
std::vector<Product> products(const ModelConfig& config, std::int64_t tokens);

// One product's operands: x, w, y in the run's type; the weight's gradient in fp32, as in training.
struct Operands {
  Context& ctx;
  OwnedTensor x, w, y, dw;
  Operands(Context& context, const Product& p, DType type, bool backward);
  void forward(bool by_row = false) const;  // y = x wᵀ
  void backward_x() const;                  // x = y w
  void backward_w() const;                  // dw += yᵀ x
};

// A large square product: the fastest this machine multiplies.
struct SquareProduct {
  Context& ctx;
  OwnedTensor a, b, c;
  double flops;
  SquareProduct(Context& context, DType type);
  void run() const;
};

}  // namespace bhyt::bench
