#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/check.h"
#include "core/log.h"
#include "model/decode_pass.h"

namespace bhyt {

namespace {

constexpr std::int64_t kPromptPiece = 256;  // bounds the activations of a long prompt

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Says it once, when the last `fresh` of `n` tokens are the first beyond the length that the model was trained at.
void warn_if_beyond(const ModelConfig& config, std::int64_t n, std::int64_t fresh) {
  const std::int64_t trained = trained_length(config);
  if (n > trained && n - fresh <= trained)
    log::warning("the text is now {} tokens long, the model was trained at {}: what follows may be worse", n, trained);
}

// Bytes of the sequence that a lead byte opens; 1 for whatever cannot open one.
std::size_t sequence_length(unsigned char lead) {
  return lead >= 0xF0 && lead < 0xF5 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xC2 && lead < 0xE0 ? 2 : 1;
}

}  // namespace

Generated generate(Context& ctx, const Model& model, const std::vector<std::int32_t>& prompt, const GenerateOptions& options,
                   const std::function<bool(std::int32_t)>& emit) {
  check_usage(!prompt.empty(), "the prompt is empty: give at least one token");
  check_usage(options.max_tokens >= 0, "max-tokens must be at least 0, got {}", options.max_tokens);
  const std::int64_t vocab = model.config().vocab;
  for (std::int32_t id : prompt)
    check_usage(id >= 0 && id < vocab, "token id {} of the prompt is not below the model's vocabulary of {}", id, vocab);

  Generated out;
  if (options.max_tokens == 0) return out;
  Sampler sampler(options.sampler);
  const auto length = static_cast<std::int64_t>(prompt.size());
  warn_if_beyond(model.config(), length, length);
  const std::int64_t most = length + options.max_tokens;
  KvPages memory(ctx, model, KvPages::pages_for(most));
  std::vector<std::int32_t> pages(static_cast<std::size_t>(memory.count()));
  std::iota(pages.begin(), pages.end(), 0);
  DecodePass pass(ctx, model, memory, {.tokens = std::min(kPromptPiece, length), .sequences = 1, .length = most});
  std::int64_t past = 0;
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  const auto decode = [&](std::span<const std::int32_t> tokens) {
    const Settled settled(ctx, out.ids.size() > 2);  // one token at a time: everything is there
    const DecodePass::Piece piece{.tokens = tokens, .past = past, .pages = pages};
    to_host(ctx, pass.run({&piece, 1}).logits, logits.data());
    past += std::ssize(tokens);
  };
  const double start = now();
  for (std::int64_t at = 0; at < length; at += kPromptPiece)
    decode(std::span(prompt).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(kPromptPiece, length - at))));
  const double prompted = now();
  out.prompt_seconds = prompted - start;
  for (;;) {
    const std::int32_t id = sampler.next(logits);
    if (std::find(options.stops.begin(), options.stops.end(), id) != options.stops.end()) {
      out.stopped = true;
      break;
    }
    out.ids.push_back(id);
    warn_if_beyond(model.config(), length + static_cast<std::int64_t>(out.ids.size()), 1);
    if ((emit && !emit(id)) || static_cast<std::int64_t>(out.ids.size()) == options.max_tokens) break;
    decode({&id, 1});
  }
  out.decode_seconds = now() - prompted;
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  // Only the last three bytes can belong to an unfinished sequence: find its lead byte and see whether enough follows.
  std::size_t whole = held_.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, held_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    if (sequence_length(byte) > back) whole = held_.size() - back;
    break;
  }
  std::string ready = held_.substr(0, whole);
  held_.erase(0, whole);
  return ready;
}

std::string Utf8Stream::rest() { return std::exchange(held_, {}); }

}  // namespace bhyt
