// Generation: prompts, and single tokens of several sequences at a time.
#include <numeric>

#include "bench/products.h"
#include "core/profile.h"
#include "core/rng.h"
#include "model/decode_pass.h"

namespace bhyt::bench {

namespace {

// The most tokens of a prompt that one call brings: what bounds the activations.
constexpr std::int64_t kMostTokens = 8192;

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

std::vector<std::pair<std::string, double>> breakdown(Context& ctx, const std::function<void()>& job) {
  ctx.profile().start();
  job();
  const profile::Seconds spent = ctx.profile().stop();
  std::vector<std::pair<std::string, double>> parts;
  for (std::size_t i = 1; i <= profile::kKinds; ++i) {
    const auto kind = static_cast<profile::Kind>(i % profile::kKinds);  // "other" last
    parts.emplace_back(fmt::format("{} ms", profile::name_of(kind)), spent[static_cast<std::size_t>(kind)] * 1e3);
  }
  return parts;
}

}  // namespace

std::vector<Result> bench_prompt(const Settings& s) {
  const auto model = make_model(s);
  model->repack(s.repack);
  const std::int64_t tokens = s.batch * s.seq, rows = std::max(s.seq, std::min(tokens, kMostTokens / s.seq * s.seq));
  Sequences sequences(s, *model, rows);
  const Products alone(s, rows, std::max<std::int64_t>(1, rows / s.seq), false);
  const std::vector<double> t = take_turns(s.ctx, {[&] { sequences.prompt(); }, [&] { alone.run(); }}, s.reps);
  const auto n = static_cast<double>(tokens);
  Result r{.test = fmt::format("prompt {} {}×{} {}{}", model_name(s), s.batch, s.seq, s.model.norm.method, s.repack.int8 ? " int8" : ""),
           .tok_s = n / t[0],
           .ms = t[0] * 1e3,
           .limit = static_cast<double>(rows) / t[1],
           .limit_name = "its matrix products",
           .parts = breakdown(s.ctx, [&] { sequences.prompt(); })};
  // A third of a training step, less the head, of which only last positions are counted.
  const double head = 2.0 * static_cast<double>(s.model.vocab * s.model.d);
  const double flops = (flops_per_token(s.model, s.seq) / 3 - head) * n + head * static_cast<double>(s.batch);
  r.parts.emplace_back("tflops", flops / t[0] * 1e-12);
  return {r};
}

std::vector<Result> bench_decode(const Settings& s) {
  const auto model = make_model(s);
  model->repack(s.repack);
  Sequences sequences(s, *model, std::max(s.batch, std::min(s.batch * s.seq, std::max(s.seq, kMostTokens / s.seq * s.seq))));
  sequences.prompt();
  // A step has to read every weight once (the embedding is the head's, or a few rows), and the keys and values of every sequence.
  const double rows_of_embedding =
      s.model.tied ? 0 : static_cast<double>(s.model.vocab * s.model.d) * static_cast<double>(size_of(s.dtype));
  const double weights = (static_cast<double>(model->parameters().value_bytes()) - rows_of_embedding) /
                         (s.repack.int8 ? static_cast<double>(size_of(s.dtype)) : 1.0);
  const double cache = static_cast<double>(s.batch * s.seq) * static_cast<double>(KvPages::page_bytes(s.model, s.dtype)) / kPageTokens;
  const OwnedTensor from = filled(s.ctx, s.dtype, {model->parameters().count()}), to(s.ctx, s.dtype, {model->parameters().count()});
  const std::vector<double> t = take_turns(s.ctx, {[&] { sequences.token(); }, [&] { copy_all(s.ctx, from, to); }}, s.reps);
  const double bandwidth = 2 * static_cast<double>(from.t.bytes()) / t[1], n = static_cast<double>(s.batch);
  Result r{
      .test = fmt::format("decode {} {} after {} {}{}", model_name(s), s.batch, s.seq, s.model.norm.method, s.repack.int8 ? " int8" : ""),
      .tok_s = n / t[0],
      .ms = t[0] * 1e3,
      .limit = n * bandwidth / (weights + cache),
      .limit_name = "reading weights and cache at copy speed",
      .parts = breakdown(s.ctx, [&] { sequences.token(); })};
  r.parts.emplace_back("weight_bytes", weights);
  r.parts.emplace_back("cache_bytes", cache);
  r.parts.emplace_back("copy_gb_s", bandwidth * 1e-9);
  return {r};
}

}  // namespace bhyt::bench
