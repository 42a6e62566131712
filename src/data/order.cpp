#include "data/order.h"

#include <numeric>
#include <random>

#include "data/permutation.h"

namespace bhyt {

std::vector<std::int64_t> torch_randperm(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 draw(static_cast<std::uint32_t>(seed));  // PyTorch takes the low half, too
  for (std::size_t i = 0; i + 1 < order.size(); ++i) std::swap(order[i], order[i + draw() % (order.size() - i)]);
  return order;
}

std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
  const Permutation place(static_cast<std::uint64_t>(n), mix64(mix64(seed) + epoch));
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(place(i));
  return order;
}

}  // namespace bhyt
