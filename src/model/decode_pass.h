// Continuing sequences: the tokens of several at once, each behind what its cache holds.
#pragma once

#include <span>

#include "core/mirror.h"
#include "model/activations.h"
#include "model/kv_cache.h"

namespace bhyt {

class DecodePass {
 public:
  // tokens: the most that one call brings, over all its sequences.
  DecodePass(Context& ctx, const Model& model, KvCache& cache, std::int64_t tokens);
  DecodePass(const DecodePass&) = delete;
  DecodePass& operator=(const DecodePass&) = delete;

  struct Piece {
    std::int64_t sequence = 0;
    std::span<const std::int32_t> tokens;  // at least one; a sequence comes once in a call
  };
  // Logits fp32 [pieces, V] behind each piece's last token, on the device; good until the next call.
  Tensor run(std::span<const Piece> pieces);

  Observers observers;

 private:
  void put(std::span<const Piece> pieces);
  void attend(std::size_t layer, std::span<const Piece> pieces, const Kept& keep);

  Context& ctx_;
  const Model& model_;
  KvCache& cache_;
  std::int64_t most_;
  Activations act_;
  OwnedTensor rope_;
  Mirror input_;  // int32 [2, most]: tokens, positions
  OwnedTensor rows_, logits_;
};

}  // namespace bhyt
