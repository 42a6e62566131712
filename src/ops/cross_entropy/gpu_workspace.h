// How the loss lays out its workspace on a GPU. Apart from the kernels: a program without CUDA plans for GPUs, too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace bhyt::cuda {

// The chunk that is worked on: logits, then a weighted loss per token of the whole batch.
struct Workspace {
  static constexpr std::size_t kLogitBytes = 256u << 20;  // bytes of logits that exist at a time, at most (and at least 128 rows)
  static std::int64_t padded(std::int64_t vocab) { return (vocab + 7) / 8 * 8; }  // rows of logits start on 16 bytes

  std::int64_t rows;
  std::size_t losses, bytes;  // losses: offset
  Workspace(std::int64_t tokens, std::int64_t vocab, DType logits) {
    const std::size_t row = static_cast<std::size_t>(padded(vocab)) * size_of(logits);
    rows = std::min(tokens, std::max<std::int64_t>(static_cast<std::int64_t>(kLogitBytes / row) / 128 * 128, 128));
    losses = static_cast<std::size_t>(rows) * row;
    bytes = losses + static_cast<std::size_t>(tokens) * sizeof(float) + 256;
  }
};

}  // namespace bhyt::cuda
