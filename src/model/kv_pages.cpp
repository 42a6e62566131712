#include "model/kv_pages.h"

#include "core/check.h"

namespace bhyt {

namespace {

std::int64_t checked(std::int64_t pages) {
  check(pages > 0, "[generate] expected at least one page of keys and values, got {}", pages);
  return pages;
}

}  // namespace

KvPages::KvPages(Context& ctx, const Model& model, std::int64_t pages)
    : memory_(ctx, model.type(), {model.config().layers, checked(pages) * kPageTokens, 2 * model.config().kv_width()}), count_(pages) {}

std::size_t KvPages::page_bytes(const ModelConfig& c, DType type) {
  return static_cast<std::size_t>(c.layers * kPageTokens * 2 * c.kv_width()) * size_of(type);
}

Tensor KvPages::layer(std::int64_t layer) const {
  const Tensor& all = memory_.t;
  return all.reshape({all.dim(0) * all.dim(1), all.dim(2)}).row_slice(layer * all.dim(1), all.dim(1));
}

}  // namespace bhyt
