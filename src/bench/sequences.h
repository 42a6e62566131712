// Sequences side by side, through the model alone: no scheduling, nothing sampled.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "bench/bench.h"
#include "core/rng.h"
#include "model/decode_pass.h"

namespace bhyt::bench {

// The most tokens of a prompt that one call brings: what bounds the activations.
inline constexpr std::int64_t kMostTokens = 8192;

// Sequences side by side, whose next tokens are always the same: how long they take does not depend on them.
class Sequences {
 public:
  Sequences(const Settings& s, const Model& model, std::int64_t tokens)
      : s_(s),
        each_(KvPages::pages_for(s.seq + 1)),
        memory_(s.ctx, model, s.batch * each_),
        pass_(s.ctx, model, memory_, {.tokens = tokens, .sequences = s.batch, .length = s.seq + 1}),
        ids_(static_cast<std::size_t>(s.seq + 1)),
        pages_(static_cast<std::size_t>(memory_.count())) {
    Rng rng(1);
    for (auto& id : ids_) id = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(s.model.vocab)));
    std::iota(pages_.begin(), pages_.end(), 0);
  }
  // The prompts, all of them, in as many calls as they need.
  void prompt() {
    const std::int64_t at_once = std::max<std::int64_t>(1, kMostTokens / s_.seq);
    for (std::int64_t b = 0; b < s_.batch; b += at_once) {
      std::vector<DecodePass::Piece> pieces;
      for (std::int64_t i = b; i < std::min(s_.batch, b + at_once); ++i) pieces.push_back(piece(i, 0, s_.seq));
      pass_.run(pieces);
    }
  }
  // One token of each, behind the prompts; again and again at the same place.
  void token() {
    const Settled settled(s_.ctx, ++tokens_ > 2);
    std::vector<DecodePass::Piece> pieces;
    for (std::int64_t i = 0; i < s_.batch; ++i) pieces.push_back(piece(i, s_.seq, 1));
    pass_.run(pieces);
  }

 private:
  DecodePass::Piece piece(std::int64_t sequence, std::int64_t past, std::int64_t count) const {
    return {.tokens = std::span(ids_).subspan(static_cast<std::size_t>(past), static_cast<std::size_t>(count)),
            .past = past,
            .pages = std::span(pages_).subspan(static_cast<std::size_t>(sequence * each_), static_cast<std::size_t>(each_))};
  }

  const Settings& s_;
  std::int64_t each_;
  KvPages memory_;
  DecodePass pass_;
  std::vector<std::int32_t> ids_, pages_;
  std::int64_t tokens_ = 0;
};

// Tokens of a call that goes through the prompts of a batch.
inline std::int64_t prompt_rows(std::int64_t batch, std::int64_t seq) {
  return std::max(seq, std::min(batch * seq, kMostTokens / seq * seq));
}

}  // namespace bhyt::bench
