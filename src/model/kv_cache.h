// Keys and values of sequences that are being continued. Every sequence has its own length; its memory is one page of `capacity` tokens.
#pragma once

#include <vector>

#include "model/model.h"

namespace bhyt {

class KvCache {
 public:
  KvCache(Context& ctx, const Model& model, std::int64_t sequences, std::int64_t capacity);

  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length(std::int64_t sequence) const { return lengths_[static_cast<std::size_t>(sequence)]; }
  void forget(std::int64_t sequence) { lengths_[static_cast<std::size_t>(sequence)] = 0; }
  void grow(std::int64_t sequence, std::int64_t tokens) { lengths_[static_cast<std::size_t>(sequence)] += tokens; }

  // Keys and values side by side, [capacity, 2·K·D]; layer from 0.
  Tensor page(std::int64_t layer, std::int64_t sequence) const;

 private:
  OwnedTensor memory_;  // [L, sequences, capacity, 2·K·D]
  std::vector<std::int64_t> lengths_;
  std::int64_t capacity_, width_;
};

}  // namespace bhyt
