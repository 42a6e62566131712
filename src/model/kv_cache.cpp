#include "model/kv_cache.h"

#include "core/check.h"
#include "io/format.h"

namespace bhyt {

namespace {

OwnedTensor pages(Context& ctx, const Model& model, std::int64_t sequences, std::int64_t capacity) {
  check(sequences > 0 && capacity > 0, "[generate] expected at least one sequence of one token, got {} of {}", sequences, capacity);
  const ModelConfig& c = model.config();
  const double needed = 2.0 * static_cast<double>(c.layers * c.kv_width()) * static_cast<double>(sequences) *
                        static_cast<double>(capacity) * static_cast<double>(size_of(model.type()));
  try {
    return {ctx, model.type(), {c.layers, sequences, capacity, 2 * c.kv_width()}};
  } catch (const Error& e) {
    throw Error(fmt::format("[generate] room for {} tokens takes {}: {}", capacity, human_bytes(needed), e.what()));
  }
}

}  // namespace

KvCache::KvCache(Context& ctx, const Model& model, std::int64_t sequences, std::int64_t capacity)
    : memory_(pages(ctx, model, sequences, capacity)),
      lengths_(static_cast<std::size_t>(sequences)),
      capacity_(capacity),
      width_(2 * model.config().kv_width()) {}

Tensor KvCache::page(std::int64_t layer, std::int64_t sequence) const {
  const std::int64_t at = (layer * sequences() + sequence) * capacity_ * width_;
  return Tensor(static_cast<char*>(memory_.t.data) + static_cast<std::size_t>(at) * size_of(memory_.t.dtype), memory_.t.dtype,
                memory_.t.device, {capacity_, width_});
}

}  // namespace bhyt
