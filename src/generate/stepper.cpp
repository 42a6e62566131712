#include "generate/stepper.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ops/sample/sample.h"

namespace bhyt {

namespace {

std::size_t rows_bytes(std::int64_t sequences, std::int64_t vocab) {
  return static_cast<std::size_t>(sequences) * (sizeof(SampleRow) + static_cast<std::size_t>(seen_words(vocab)) * sizeof(std::uint32_t));
}

// Tokens and log-probabilities of those that choose, losses and greedy tokens of those that are scored: four bytes each.
std::size_t results_bytes(std::int64_t sequences, std::int64_t scored) { return static_cast<std::size_t>(2 * sequences + 2 * scored) * 4; }

SampleRow row_of(const Sequence& s) {
  const Sampling& o = s.request.sampling;
  return {.temperature = static_cast<float>(o.temperature),
          .top_p = static_cast<float>(o.top_p),
          .min_p = static_cast<float>(o.min_p),
          .penalty = static_cast<float>(o.repetition_penalty),
          .top_k = static_cast<std::int32_t>(std::min<std::int64_t>(o.top_k, INT32_MAX)),
          .number = static_cast<std::int32_t>(s.made()),
          .seed = o.seed};
}

}  // namespace

Stepper::Stepper(Context& ctx, const Model& model, const Limits& limits)
    : ctx_(ctx),
      model_(model),
      limits_(limits),
      pages_(ctx, model, limits.pages),
      rows_(ctx, rows_bytes(limits.sequences, model.config().vocab)),
      seen_(ctx, DType::u32, {limits.sequences, seen_words(model.config().vocab)}),
      results_{{ctx, results_bytes(limits.sequences, limits.tokens * kTargetsOfAToken)},
               {ctx, results_bytes(limits.sequences, limits.tokens * kTargetsOfAToken)}},
      decoded_(static_cast<std::size_t>(limits.sequences) + 1) {}

Stepper::Results Stepper::results_in(void* memory, Device device, std::int64_t rows, std::int64_t scored) const {
  auto* at = static_cast<std::int32_t*>(memory);
  return {.tokens = Tensor(at, DType::i32, device, {rows}),
          .logprobs = Tensor(at + limits_.sequences, DType::f32, device, {rows}),
          .losses = Tensor(at + 2 * limits_.sequences, DType::f32, device, {scored}),
          .greedy = Tensor(at + 2 * limits_.sequences + scored, DType::i32, device, {scored})};
}

// The pass is made for the longest sequence there was, with room: its tables grow with the length.
void Stepper::fit_pass(const std::vector<Scheduler::Part>& plan) {
  std::int64_t longest = 1;
  for (const auto& part : plan) longest = std::max(longest, part.sequence->most());
  if (longest <= pass_length_) return;
  if (pass_) ctx_.synchronize();
  pass_.reset();
  pass_length_ = std::min(limits_.length, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(longest))));
  pass_ = std::make_unique<DecodePass>(
      ctx_, model_, pages_,
      DecodePass::Limits{
          .tokens = limits_.tokens, .sequences = limits_.sequences, .length = pass_length_, .scored = limits_.tokens * kTargetsOfAToken});
  std::fill(decoded_.begin(), decoded_.end(), 0);
}

namespace {

// What is to be scored behind the tokens of a part and has not been.
std::span<const Target> targets_of(const Scheduler::Part& part) {
  const Sequence& s = *part.sequence;
  const std::int64_t from = std::max(s.targets_before(part.first), s.scored), end = s.targets_before(part.first + part.count);
  if (from >= end) return {};
  return std::span(s.request.targets).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(end - from));
}

}  // namespace

// How each row chooses, in the order of the parts that do.
std::int64_t Stepper::send_rows(const std::vector<Scheduler::Part>& plan) {
  const std::int64_t words = seen_words(model_.config().vocab);
  auto* const rows = static_cast<SampleRow*>(rows_.host_side());
  auto* const fresh = reinterpret_cast<std::uint32_t*>(rows + limits_.sequences);
  std::int64_t count = 0, fresh_rows = 0;
  for (const auto& part : plan) {
    if (!part.chooses) continue;
    Sequence& s = *part.sequence;
    SampleRow& row = rows[count++] = row_of(s);
    if (row.penalty == 1) continue;
    row.seen = s.slot;
    if (!std::exchange(s.seen_is_fresh, false)) continue;
    row.fresh = static_cast<std::int32_t>(fresh_rows);
    std::uint32_t* const bits = fresh + fresh_rows++ * words;
    std::fill_n(bits, words, 0u);
    for (const std::int32_t id : s.tokens) bits[id / 32] |= 1u << (id % 32);
  }
  const std::size_t all =
      static_cast<std::size_t>(limits_.sequences) * sizeof(SampleRow) + static_cast<std::size_t>(fresh_rows * words) * 4;
  rows_.release();
  if (count > 0) rows_.send(fresh_rows > 0 ? all : static_cast<std::size_t>(count) * sizeof(SampleRow));
  return count;
}

void Stepper::choose(const Tensor& logits, const Results& to, bool logprobs) {
  rows_.receive();
  auto* const memory = static_cast<SampleRow*>(rows_.device_side());
  sample(ctx_, {.logits = logits,
                .rows = Tensor(memory, DType::u8, ctx_.device(), {logits.rows(), sizeof(SampleRow)}),
                .seen = seen_,
                .fresh = Tensor(memory + limits_.sequences, DType::u32, ctx_.device(), {limits_.sequences, seen_.t.cols()}),
                .tokens = to.tokens,
                .logprobs = logprobs ? to.logprobs : Tensor{}});
}

// Whether a step is the continuing of as many sequences as were continued before, so that everything it takes is there.
bool Stepper::seen_before(const std::vector<Scheduler::Part>& plan) {
  const bool decodes =
      std::all_of(plan.begin(), plan.end(), [](const auto& p) { return p.count == 1 && p.chooses && p.sequence->request.targets.empty(); });
  return decodes && (decoded_[plan.size()] > 1 || decoded_[plan.size()]++ > 1);
}

void Stepper::give(const std::vector<Scheduler::Part>& plan) {
  fit_pass(plan);
  const Settled settled(ctx_, seen_before(plan));
  Mirror& results = results_[steps % 2];
  Step step{.parts = {}, .results = &results, .scored = 0};
  std::vector<DecodePass::Piece> pieces;
  std::vector<std::int32_t> fed(plan.size());
  bool logprobs = false;
  std::int64_t row = 0;
  const std::int64_t rows = send_rows(plan);
  for (const auto& part : plan) {
    Sequence& s = *part.sequence;
    std::span<const std::int32_t> ids(s.tokens.data() + part.first, static_cast<std::size_t>(part.count));
    if (s.flying > 0) {
      fed[pieces.size()] = -1 - s.feed;
      ids = {&fed[pieces.size()], 1};
    }
    const std::span<const Target> follow = targets_of(part);
    pieces.push_back(
        {.tokens = ids, .past = part.first, .pages = s.pages, .begun_by = part.begun_by, .logits = part.chooses, .targets = follow});
    step.parts.push_back({.sequence = part.sequence,
                          .row = part.chooses ? row++ : -1,
                          .targets = follow,
                          .last = part.first + part.count == std::ssize(s.request.prompt)});
    step.scored += std::ssize(follow);
    tokens += part.count;
    logprobs |= part.chooses && s.request.logprobs;
  }
  if (steps > 0) pass_->feed = results_in(results_[(steps + 1) % 2].device_side(), ctx_.device(), limits_.sequences, 0).tokens;
  const DecodePass::Result out = pass_->run(pieces);
  const Results to = results_in(results.device_side(), ctx_.device(), rows, step.scored);
  if (rows > 0) choose(out.logits, to, logprobs);
  if (step.scored > 0) {
    copy(ctx_, out.losses, to.losses);
    copy(ctx_, out.greedy, to.greedy);
  }
  results.fetch(results_bytes(limits_.sequences, step.scored));
  for (const Flying& f : step.parts)
    if (f.row >= 0) {
      f.sequence->feed = static_cast<std::int32_t>(f.row);
      ++f.sequence->flying;
    }
  ++steps;
  flying_.push_back(std::move(step));
}

std::vector<Stepper::Outcome> Stepper::collect() {
  const Step step = std::move(flying_.front());
  flying_.pop_front();
  const Results from = results_in(step.results->host_side(), Device::cpu(), limits_.sequences, step.scored);
  std::vector<Outcome> outcomes;
  std::int64_t score = 0;
  for (const Flying& f : step.parts) {
    Outcome o{.sequence = f.sequence, .scores = {}, .chose = f.row >= 0, .token = {}, .last = f.last};
    for (const Target& target : f.targets) {
      o.scores.push_back({.logprob = -from.losses.as<float>()[score], .greedy = from.greedy.as<std::int32_t>()[score] == target.id});
      ++score;
    }
    if (o.chose) {
      --f.sequence->flying;
      o.token = {from.tokens.as<std::int32_t>()[f.row], from.logprobs.as<float>()[f.row]};
    }
    outcomes.push_back(std::move(o));
  }
  return outcomes;
}

}  // namespace bhyt
