// Decoding one sequence, as the tests of whole models use it.
#pragma once

#include <algorithm>
#include <vector>

#include "model/decode_pass.h"

namespace bhyt::test {

// A sequence of its own with the passes that continue it.
class Decoder {
 public:
  Decoder(const Model& model, std::int64_t capacity)
      : model_(model), cache_(model.context(), model, 1, capacity), pass_(model.context(), model, cache_, capacity) {}

  // Logits behind the last of these tokens, on the host.
  std::vector<float> next(const std::vector<std::int32_t>& tokens) {
    const DecodePass::Piece piece{.sequence = 0, .tokens = tokens};
    std::vector<float> logits(static_cast<std::size_t>(model_.config().vocab));
    to_host(model_.context(), pass_.run({&piece, 1}), logits.data());
    return logits;
  }

 private:
  const Model& model_;
  KvCache cache_;
  DecodePass pass_;
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
