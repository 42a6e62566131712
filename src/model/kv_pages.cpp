#include "model/kv_pages.h"

#include "core/check.h"
#include "io/format.h"

namespace bhyt {

namespace {

OwnedTensor memory_of(Context& ctx, const Model& model, std::int64_t pages) {
  check(pages > 0, "[generate] expected at least one page of keys and values, got {}", pages);
  const ModelConfig& c = model.config();
  try {
    return {ctx, model.type(), {c.layers, pages * kPageTokens, 2 * c.kv_width()}};
  } catch (const Error& e) {
    const double bytes = static_cast<double>(pages) * static_cast<double>(KvPages::page_bytes(c, model.type()));
    throw Error(fmt::format("[generate] room for {} tokens takes {}: {}", pages * kPageTokens, human_bytes(bytes), e.what()));
  }
}

}  // namespace

KvPages::KvPages(Context& ctx, const Model& model, std::int64_t pages) : memory_(memory_of(ctx, model, pages)), count_(pages) {}

std::size_t KvPages::page_bytes(const ModelConfig& c, DType type) {
  return static_cast<std::size_t>(c.layers * kPageTokens * 2 * c.kv_width()) * size_of(type);
}

Tensor KvPages::layer(std::int64_t layer) const {
  const Tensor& all = memory_.t;
  return all.reshape({all.dim(0) * all.dim(1), all.dim(2)}).row_slice(layer * all.dim(1), all.dim(1));
}

}  // namespace bhyt
