#include "model/kv_cache.h"

#include "core/check.h"

namespace bhyt {

namespace {

std::int64_t checked(std::int64_t sequences, std::int64_t capacity) {
  check(sequences > 0 && capacity > 0, "[generate] expected at least one sequence of one token, got {} of {}", sequences, capacity);
  return sequences;
}

}  // namespace

KvCache::KvCache(Context& ctx, const Model& model, std::int64_t sequences, std::int64_t capacity)
    : memory_(ctx, model.type(), {model.config().layers, checked(sequences, capacity), capacity, 2 * model.config().kv_width()}),
      lengths_(static_cast<std::size_t>(sequences)),
      capacity_(capacity),
      width_(2 * model.config().kv_width()) {}

Tensor KvCache::page(std::int64_t layer, std::int64_t sequence) const {
  const std::int64_t at = (layer * sequences() + sequence) * capacity_ * width_;
  return Tensor(static_cast<char*>(memory_.t.data) + static_cast<std::size_t>(at) * size_of(memory_.t.dtype), memory_.t.dtype,
                memory_.t.device, {capacity_, width_});
}

}  // namespace bhyt
