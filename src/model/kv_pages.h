// Keys and values of sequences that are being continued, in pages of kPageTokens positions. A page holds its positions in every layer.
// Which pages a sequence has is known to whoever continues it.
#pragma once

#include "model/model.h"
#include "ops/attention/paged.h"

namespace bhyt {

class KvPages {
 public:
  KvPages(Context& ctx, const Model& model, std::int64_t pages);

  static std::size_t page_bytes(const ModelConfig& config, DType type);
  static std::int64_t pages_for(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  std::int64_t count() const { return count_; }
  Tensor layer(std::int64_t layer) const;  // from 0: [pages·kPageTokens, 2·K·D], keys and values side by side

 private:
  OwnedTensor memory_;
  std::int64_t count_;
};

}  // namespace bhyt
