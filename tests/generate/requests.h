// Ids for requests, and the logits of a whole sequence, as the tests of the engine use them.
#pragma once

#include <vector>

#include "core/rng.h"
#include "model/score_pass.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {

using Ids = std::vector<std::int32_t>;

inline Ids draw_ids(std::int64_t n, std::uint64_t seed, std::int64_t vocab) {
  Rng rng(seed);
  Ids ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return ids;
}

// The logits of every position of a sequence, by one forward.
inline std::vector<float> whole_logits(Context& ctx, const Model& m, const Ids& ids) {
  const OwnedTensor tokens(ctx, DType::i32, {1, std::ssize(ids)}), out(ctx, DType::f32, {std::ssize(ids), m.config().vocab});
  from_host(ctx, ids.data(), tokens);
  ScorePass pass(ctx, m, 1, std::ssize(ids));
  Batch batch;
  batch.batch = 1, batch.seq = std::ssize(ids), batch.tokens = tokens;
  pass.forward(batch);
  pass.logits(0, std::ssize(ids), out);
  return on_host(ctx, out);
}

}  // namespace bhyt::testing
