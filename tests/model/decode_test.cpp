// Continuing sequences: one or several at a time, whole or token by token, against whole forwards and against each other.
#include "model/decode_pass.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "model/score_pass.h"
#include "tests/devices.h"
#include "tests/model/decoding.h"
#include "tests/model/helpers.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

using Ids = std::vector<std::int32_t>;

// The logits of every position of a sequence, by one forward.
std::vector<float> whole_logits(Context& ctx, const Model& m, const Ids& ids) {
  const OwnedTensor tokens(ctx, DType::i32, {1, std::ssize(ids)}), out(ctx, DType::f32, {std::ssize(ids), m.config().vocab});
  from_host(ctx, ids.data(), tokens);
  ScorePass pass(ctx, m, 1, std::ssize(ids));
  Batch batch;
  batch.batch = 1, batch.seq = std::ssize(ids), batch.tokens = tokens;
  pass.forward(batch);
  pass.logits(0, std::ssize(ids), out);
  return on_host(ctx, out);
}

void expect_row(const float* got, const std::vector<float>& whole, std::int64_t row, std::int64_t vocab, const std::string& what) {
  for (std::int64_t v = 0; v < vocab; ++v) {
    const float expected = whole[static_cast<std::size_t>(row * vocab + v)];
    ASSERT_NEAR(got[v], expected, 1e-5 * std::max(1.0f, std::fabs(expected))) << what << ", id " << v;
  }
}

Ids draw_ids(std::int64_t n, std::uint64_t seed, std::int64_t vocab = 23) {
  Rng rng(seed);
  Ids ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return ids;
}

TEST(Decoding, OneSequenceEqualsTheForward) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) {
      SCOPED_TRACE(fmt::format("{} {}", method.name, name_of(ctx.device())));
      const auto m = make_model(ctx, small_config(std::string(method.name), 2));
      const Ids ids = draw_ids(kSeq, 3);
      const auto whole = whole_logits(ctx, *m, ids);
      for (const std::int64_t prompt : {1, 4}) {
        test::Decoder decoder(*m, kSeq);
        for (std::int64_t at = 0; at < kSeq;) {
          const std::int64_t n = at == 0 ? prompt : 1;
          const auto logits = decoder.next({ids.begin() + at, ids.begin() + at + n});
          at += n;
          expect_row(logits.data(), whole, at - 1, 23, fmt::format("position {}", at - 1));
        }
        EXPECT_TRUE(test::has(test::message_of([&] { decoder.next({ids[0]}); }), "expected at most 9 tokens, got 10"));
      }
    }
}

// Which tokens of which sequence a call brings.
struct Share {
  std::int64_t sequence, count;
};
using Schedule = std::vector<std::vector<Share>>;

// Sequences of different lengths that join at different times, in an order that changes; prompts beside single tokens.
Schedule mixed_schedule() {
  return {{{0, 3}}, {{0, 1}, {2, 5}}, {{2, 1}, {0, 1}, {1, 1}}, {{1, 4}, {3, 7}}, {{3, 1}, {2, 2}, {1, 1}, {0, 1}}, {{0, 2}, {3, 1}}};
}

// The logits behind each piece, call by call. `together`: all pieces of a call at once, else each in a call of its own.
std::vector<std::vector<float>> decode(Context& ctx, const Model& m, const std::vector<Ids>& ids, const Schedule& schedule, bool together) {
  KvCache cache(ctx, m, std::ssize(ids), 12);
  DecodePass pass(ctx, m, cache, 16);
  std::vector<std::vector<float>> out;
  for (const auto& call : schedule) {
    std::vector<DecodePass::Piece> pieces;
    for (const Share& s : call) {
      const Ids& all = ids[static_cast<std::size_t>(s.sequence)];
      pieces.push_back(
          {s.sequence, std::span(all).subspan(static_cast<std::size_t>(cache.length(s.sequence)), static_cast<std::size_t>(s.count))});
    }
    std::vector<float> logits;
    const auto run = [&](std::span<const DecodePass::Piece> part) {
      const auto rows = on_host(ctx, pass.run(part));
      logits.insert(logits.end(), rows.begin(), rows.end());
    };
    if (together)
      run(pieces);
    else
      for (const DecodePass::Piece& p : pieces) run({&p, 1});
    out.push_back(logits);
  }
  return out;
}

void check_sequences(Context& ctx, const ModelConfig& c) {
  const auto m = make_model(ctx, c);
  std::vector<Ids> ids;
  std::vector<std::vector<float>> whole;
  for (std::uint64_t s = 0; s < 4; ++s) {
    ids.push_back(draw_ids(12, 40 + s, c.vocab));
    whole.push_back(whole_logits(ctx, *m, ids.back()));
  }
  const Schedule schedule = mixed_schedule();
  const auto together = decode(ctx, *m, ids, schedule, true), alone = decode(ctx, *m, ids, schedule, false);
  std::vector<std::int64_t> lengths(4);
  for (std::size_t call = 0; call < schedule.size(); ++call)
    for (std::size_t i = 0; i < schedule[call].size(); ++i) {
      const auto [sequence, count] = schedule[call][i];
      const auto s = static_cast<std::size_t>(sequence);
      const std::string what = fmt::format("call {}, sequence {}", call, sequence);
      const float* got = together[call].data() + i * static_cast<std::size_t>(c.vocab);
      expect_row(got, alone[call], static_cast<std::int64_t>(i), c.vocab, what + " against alone");
      expect_row(got, whole[s], (lengths[s] += count) - 1, c.vocab, what + " against the forward");
    }
}

TEST(Decoding, SeveralSequencesInOneCallAreEachTheirOwn) {
  for (Context& ctx : test::contexts()) {
    for (const Method& method : methods()) {
      SCOPED_TRACE(fmt::format("{} {}", method.name, name_of(ctx.device())));
      check_sequences(ctx, small_config(std::string(method.name), 2));
    }
    ModelConfig wide = small_config("bhyt", 2);
    wide.head_dim = 64;
    check_sequences(ctx, wide);
  }
}

// A place that was forgotten begins anew, and its neighbours do not notice.
TEST(Decoding, AForgottenSequenceBeginsAnew) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    const Ids a = draw_ids(6, 1), b = draw_ids(6, 2), c = draw_ids(5, 3);
    KvCache cache(ctx, *m, 2, 8);
    DecodePass pass(ctx, *m, cache, 8);
    const std::vector<DecodePass::Piece> start{{0, {a.data(), 4}}, {1, {b.data(), 4}}};
    pass.run(start);
    EXPECT_EQ(cache.length(0), 4);
    cache.forget(0);
    EXPECT_EQ(cache.length(0), 0);
    const std::vector<DecodePass::Piece> next{{1, {b.data() + 4, 2}}, {0, c}};
    const auto got = on_host(ctx, pass.run(next));
    EXPECT_EQ(cache.length(0), 5);
    EXPECT_EQ(cache.length(1), 6);
    expect_row(got.data(), whole_logits(ctx, *m, b), 5, 23, "the one that went on");
    expect_row(got.data() + 23, whole_logits(ctx, *m, c), 4, 23, "the new one");
  }
}

TEST(Decoding, RefusesWhatDoesNotFit) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  KvCache cache(ctx, *m, 2, 6);
  DecodePass pass(ctx, *m, cache, 8);
  const Ids ids = draw_ids(9, 1);
  const auto message = [&](std::vector<DecodePass::Piece> pieces) { return test::message_of([&] { pass.run(pieces); }); };
  EXPECT_TRUE(test::has(message({{0, ids}}), "expected at most 8 tokens at a time, got 9"));
  EXPECT_TRUE(test::has(message({{0, {ids.data(), 7}}}), "expected at most 6 tokens, got 7"));
  EXPECT_TRUE(test::has(message({{2, {ids.data(), 1}}}), "expected tokens for a sequence below 2, got 1 for sequence 2"));
  EXPECT_TRUE(test::has(message({{0, {}}}), "got 0 for sequence 0"));
  EXPECT_EQ(cache.length(0), 0) << "what was refused left nothing behind";
}

}  // namespace
}  // namespace bhyt::testing
