// Continuing a text: prompt in, tokens out, one at a time, with the keys and values kept.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "generate/sampler.h"
#include "model/model.h"

namespace bhyt {

struct GenerateOptions {
  std::int64_t max_tokens = 128;
  SamplerOptions sampler;
  std::vector<std::int32_t> stops;  // ids that end it; they are not emitted
};

struct Generated {
  std::vector<std::int32_t> ids;
  bool stopped = false;  // by one of the stops, not by max_tokens
  double prompt_seconds = 0, decode_seconds = 0;
};

// prompt: at least one id, all below the vocabulary. emit is called with each new id as it is known; returning false ends it.
Generated generate(Context& ctx, const Model& model, const std::vector<std::int32_t>& prompt, const GenerateOptions& options,
                   const std::function<bool(std::int32_t)>& emit = {});

// Cuts a stream of bytes so that no UTF-8 sequence is torn: push() gives what is whole so far, rest() what is left at the end.
// Bytes that cannot belong to a sequence pass through as they are.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string rest();

 private:
  std::string held_;
};

}  // namespace bhyt
