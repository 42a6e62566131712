// Decoding sequences, as the tests of whole models use it.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "model/decode_pass.h"

namespace bhyt::test {

// Each id behind the token of its place; negative: none.
inline std::vector<Target> targets_behind(std::span<const std::int32_t> ids) {
  std::vector<Target> targets;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= 0) targets.push_back({static_cast<std::int32_t>(i), ids[i]});
  return targets;
}

// Sequences that are continued side by side; their pages lie in turns, so that none has two in a row.
class Sequences {
 public:
  Sequences(Context& ctx, const Model& model, std::int64_t count, std::int64_t capacity, std::int64_t tokens)
      : memory(ctx, model, count * KvPages::pages_for(capacity)),
        pass(ctx, model, memory, {.tokens = tokens, .sequences = count, .length = capacity}),
        length(static_cast<std::size_t>(count)),
        pages_(static_cast<std::size_t>(count)) {
    for (std::int64_t page = memory.count(); page-- > 0;)
      pages_[static_cast<std::size_t>(page % count)].push_back(static_cast<std::int32_t>(page));
  }

  DecodePass::Piece piece(std::size_t sequence, std::span<const std::int32_t> tokens) const {
    return {.tokens = tokens, .past = length[sequence], .pages = pages_[sequence]};
  }
  // These tokens of these sequences in one call.
  DecodePass::Result run(const std::vector<std::pair<std::size_t, std::span<const std::int32_t>>>& call) {
    std::vector<DecodePass::Piece> pieces;
    for (const auto& [sequence, tokens] : call) pieces.push_back(piece(sequence, tokens));
    const DecodePass::Result out = pass.run(pieces);
    for (const auto& [sequence, tokens] : call) length[sequence] += std::ssize(tokens);
    return out;
  }

  KvPages memory;
  DecodePass pass;
  std::vector<std::int64_t> length;

 private:
  std::vector<std::vector<std::int32_t>> pages_;
};

// One sequence.
class Decoder {
 public:
  Decoder(const Model& model, std::int64_t capacity) : model_(model), sequence_(model.context(), model, 1, capacity, capacity) {}

  // Logits behind the last of these tokens, on the host.
  std::vector<float> next(const std::vector<std::int32_t>& tokens) {
    std::vector<float> logits(static_cast<std::size_t>(model_.config().vocab));
    to_host(model_.context(), sequence_.run({{0, tokens}}).logits, logits.data());
    return logits;
  }

 private:
  const Model& model_;
  Sequences sequence_;
};

// The prompt and what a model takes for the likeliest behind it, `total` ids in all.
inline std::vector<std::int32_t> continue_greedily(const Model& model, std::vector<std::int32_t> prompt, std::size_t total) {
  Decoder decoder(model, static_cast<std::int64_t>(total));
  std::vector<std::int32_t> ids = std::move(prompt);
  std::vector<float> logits = decoder.next(ids);
  while (ids.size() < total) {
    ids.push_back(static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (ids.size() < total) logits = decoder.next({ids.back()});
  }
  return ids;
}

}  // namespace bhyt::test
