// Choosing the next token of each row from its logits.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// How a row chooses, in this order: penalty, temperature, top-k, top-p, min-p, then a draw among what is left. Equally likely tokens go by
// id, the lower first. The draw depends on seed and number alone, and on a device as on any other.
struct SampleRow {
  float temperature = 0;    // 0: the largest logit
  float top_p = 1;          // the fewest likeliest tokens whose probabilities reach p
  float min_p = 0;          // those that are at least this many times as likely as the likeliest
  float penalty = 1;        // of tokens that were seen: their positive logits are divided by it, negative ones multiplied
  std::int32_t top_k = 0;   // the k likeliest tokens; 0: all
  std::int32_t seen = -1;   // row of the seen tokens, to which the chosen one is added; −1: none
  std::int32_t fresh = -1;  // row of `fresh` that takes the place of the seen tokens before anything else; −1: they stay
  std::int32_t number = 0;  // of the draw
  std::uint64_t seed = 0;
};

struct Sample {
  Tensor logits;       // fp32 [R,V]
  Tensor rows;         // bytes [R, sizeof(SampleRow)]
  Tensor seen, fresh;  // uint32 [·, seen_words(V)], a bit for each token; may be empty where no row refers to them
  Tensor tokens;       // int32 [R]: the choice, or −1 where a logit is NaN or the largest is not finite
  Tensor logprobs;     // fp32 [R]: log of the choice's probability under the softmax of the logits as they came; may be empty
};

constexpr std::int64_t seen_words(std::int64_t vocab) { return (vocab + 31) / 32; }

void sample(Context& ctx, const Sample& job);

namespace cpu {
void sample(Context& ctx, const Sample& job);
}
namespace cuda {
void sample(Context& ctx, const Sample& job);
}

}  // namespace bhyt
