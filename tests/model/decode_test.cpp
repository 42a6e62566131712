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
        EXPECT_TRUE(test::has(test::message_of([&] { decoder.next({ids[0]}); }), "expected a sequence of at most 9 tokens, got 10"));
      }
    }
}

// Which tokens of which sequence a call brings.
struct Share {
  std::int64_t sequence, count;
};
using Schedule = std::vector<std::vector<Share>>;

constexpr std::int64_t kLongest = 70;  // two pages and a bit

// Sequences of different lengths that join at different times, in an order that changes; prompts beside single tokens; pages are crossed
// in the middle of a piece, at its end and at its start.
Schedule mixed_schedule() {
  return {{{0, 31}}, {{0, 1}, {2, 5}}, {{2, 1}, {0, 1}, {1, 1}}, {{1, 40}, {3, 32}}, {{3, 1}, {2, 60}, {1, 1}, {0, 1}}, {{0, 2}, {3, 37}}};
}

// The logits behind each piece, call by call. `together`: all pieces of a call at once, else each in a call of its own.
std::vector<std::vector<float>> decode(Context& ctx, const Model& m, const std::vector<Ids>& ids, const Schedule& schedule, bool together) {
  test::Sequences sequences(ctx, m, std::ssize(ids), kLongest, 80);
  std::vector<std::vector<float>> out;
  for (const auto& call : schedule) {
    std::vector<std::pair<std::size_t, std::span<const std::int32_t>>> pieces;
    for (const Share& share : call) {
      const auto s = static_cast<std::size_t>(share.sequence);
      pieces.emplace_back(s,
                          std::span(ids[s]).subspan(static_cast<std::size_t>(sequences.length[s]), static_cast<std::size_t>(share.count)));
    }
    std::vector<float> logits;
    const auto run = [&](const auto& part) {
      const auto rows = on_host(ctx, sequences.run(part).logits);
      logits.insert(logits.end(), rows.begin(), rows.end());
    };
    if (together)
      run(pieces);
    else
      for (const auto& p : pieces) run(std::vector{p});
    out.push_back(logits);
  }
  return out;
}

void check_sequences(Context& ctx, const ModelConfig& c) {
  const auto m = make_model(ctx, c);
  std::vector<Ids> ids;
  std::vector<std::vector<float>> whole;
  for (std::uint64_t s = 0; s < 4; ++s) {
    ids.push_back(draw_ids(kLongest, 40 + s, c.vocab));
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

// How far logits are from others: at most, and over all of them.
struct Apart {
  double most = 0, squares = 0, count = 0;
  void add(std::span<const float> a, std::span<const float> b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double by = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      most = std::max(most, by);
      squares += by * by;
      ++count;
    }
  }
  double mean() const { return std::sqrt(squares / count); }
};

// Prompts whole, in pieces and one token at a time, alone and side by side: in bf16 all are as near to the model in fp32 as the forward is,
// but for a factor of two.
void check_bf16(Context& ctx, const ModelConfig& c) {
  const auto exact = make_model(ctx, c), m = make_model(ctx, c, DType::bf16);
  const auto vocab = static_cast<std::size_t>(c.vocab);
  std::vector<Ids> ids;
  std::vector<std::vector<float>> expected;
  Apart forward, decoded;
  for (std::uint64_t s = 0; s < 4; ++s) {
    ids.push_back(draw_ids(kLongest, 40 + s, c.vocab));
    expected.push_back(whole_logits(ctx, *exact, ids.back()));
    forward.add(whole_logits(ctx, *m, ids.back()), expected.back());
  }
  ASSERT_GT(forward.mean(), 0);
  for (const Schedule& schedule :
       {Schedule{{{0, kLongest}}}, Schedule{{{2, 32}}, {{2, 7}}, {{2, 31}}}, Schedule(kLongest, {{1, 1}}), mixed_schedule()})
    for (const bool together : {true, false}) {
      const auto calls = decode(ctx, *m, ids, schedule, together);
      std::vector<std::int64_t> lengths(4);
      for (std::size_t call = 0; call < schedule.size(); ++call)
        for (std::size_t i = 0; i < schedule[call].size(); ++i) {
          const auto s = static_cast<std::size_t>(schedule[call][i].sequence);
          const auto row = static_cast<std::size_t>((lengths[s] += schedule[call][i].count) - 1);
          decoded.add(std::span(calls[call]).subspan(i * vocab, vocab), std::span(expected[s]).subspan(row * vocab, vocab));
        }
    }
  constexpr double kFloor = 1e-4;  // of logits around 1
  EXPECT_LE(decoded.most, 2 * forward.most + kFloor);
  EXPECT_LE(decoded.mean(), 2 * forward.mean() + kFloor);
}

TEST(Decoding, InBf16AsNearToFp32AsTheForward) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) {
      SCOPED_TRACE(fmt::format("{} {}", method.name, name_of(ctx.device())));
      check_bf16(ctx, small_config(std::string(method.name), 2));
    }
}

// A result does not depend on what runs beside it: to the last bit on the CPU.
TEST(Decoding, NeighboursChangeNoBitOnTheCpu) {
  Context& ctx = test::context_on(Device::cpu());
  for (const Method& method : methods())
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", method.name, name_of(type)));
      const auto m = make_model(ctx, small_config(std::string(method.name), 2), type);
      std::vector<Ids> ids;
      for (std::uint64_t s = 0; s < 4; ++s) ids.push_back(draw_ids(kLongest, 40 + s));
      EXPECT_EQ(decode(ctx, *m, ids, mixed_schedule(), true), decode(ctx, *m, ids, mixed_schedule(), false));
    }
}

TEST(Decoding, NeighboursChangeNoScoreOnTheCpu) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("bhyt", 2), DType::bf16);
  const Ids a = draw_ids(40, 1), b = draw_ids(9, 2);
  test::Sequences sequences(ctx, *m, 2, 40, 60);
  auto first = sequences.piece(0, a), second = sequences.piece(1, b);
  const auto behind_a = test::targets_behind(a), behind_b = test::targets_behind(b);
  first.targets = behind_a, second.targets = behind_b;
  const auto losses = [&](std::vector<DecodePass::Piece> pieces) { return on_host(ctx, sequences.pass.run(pieces).losses); };
  std::vector<float> alone = losses({first});
  for (const float x : losses({second})) alone.push_back(x);
  EXPECT_EQ(losses({first, second}), alone);
}

// Pages hold what they were given until something else is written: a sequence begins anew over the pages of another.
TEST(Decoding, PagesServeAnotherSequence) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    const Ids a = draw_ids(6, 1), b = draw_ids(6, 2), c = draw_ids(5, 3);
    test::Sequences sequences(ctx, *m, 2, 8, 8);
    sequences.run({{0, {a.data(), 4}}, {1, {b.data(), 4}}});
    sequences.length[0] = 0;
    const auto got = on_host(ctx, sequences.run({{1, {b.data() + 4, 2}}, {0, c}}).logits);
    expect_row(got.data(), whole_logits(ctx, *m, b), 5, 23, "the one that went on");
    expect_row(got.data() + 23, whole_logits(ctx, *m, c), 4, 23, "the new one");
  }
}

// Two sequences that begin alike read the same pages.
TEST(Decoding, ABeginningIsShared) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    Ids a = draw_ids(40, 1), b = a;
    std::copy_n(draw_ids(8, 2).begin(), 8, b.begin() + 32);
    KvPages memory(ctx, *m, 3);
    DecodePass pass(ctx, *m, memory, {.tokens = 64, .sequences = 2, .length = 64});
    const std::vector<std::int32_t> pages_a{2, 0}, pages_b{2, 1};
    const DecodePass::Piece start{.tokens = {a.data(), 32}, .past = 0, .pages = pages_a, .logits = false};
    EXPECT_EQ(pass.run({&start, 1}).logits.rows(), 0);
    const std::vector<DecodePass::Piece> both{{.tokens = {a.data() + 32, 8}, .past = 32, .pages = pages_a},
                                              {.tokens = {b.data() + 32, 8}, .past = 32, .pages = pages_b}};
    const auto got = on_host(ctx, pass.run(both).logits);
    expect_row(got.data(), whole_logits(ctx, *m, a), 39, 23, "the first");
    expect_row(got.data() + 23, whole_logits(ctx, *m, b), 39, 23, "the second");
  }
}

// A page takes over what another holds of the same tokens, or gets in the same call, and a third one from it.
TEST(Decoding, APageIsBegunAsAnotherOne) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("bhyt", 2));
  const Ids a = draw_ids(45, 1);
  Ids b = a, c = a;
  b[40] = (a[40] + 1) % 23, c[38] = (a[38] + 1) % 23;
  const std::vector<std::int32_t> pages_a{2, 0}, pages_b{2, 1}, pages_c{2, 3};
  const auto last = [&](const Ids& ids, std::span<const std::int32_t> pages) {
    KvPages memory(ctx, *m, 4);
    DecodePass pass(ctx, *m, memory, {.tokens = 64, .sequences = 1, .length = 64});
    const DecodePass::Piece whole{.tokens = ids, .past = 0, .pages = pages};
    return on_host(ctx, pass.run({&whole, 1}).logits);
  };
  std::vector<float> expected = last(a, pages_a);
  for (const float x : last(b, pages_b)) expected.push_back(x);
  for (const float x : last(c, pages_c)) expected.push_back(x);
  for (const std::size_t before :
       {std::size_t{0}, std::size_t{36}, std::size_t{44}}) {  // tokens of the first that an earlier call computes
    KvPages memory(ctx, *m, 4);
    for (std::int64_t l = 0; l < 2; ++l) zero(ctx, memory.layer(l));  // it may be that of the passes before, with what is to be copied
    DecodePass pass(ctx, *m, memory, {.tokens = 64, .sequences = 3, .length = 64});
    const DecodePass::Piece start{.tokens = {a.data(), before}, .past = 0, .pages = pages_a, .logits = false};
    if (before > 0) pass.run({&start, 1});
    const std::vector<DecodePass::Piece> all{
        {.tokens = std::span(a).subspan(before), .past = static_cast<std::int64_t>(before), .pages = pages_a},
        {.tokens = {b.data() + 40, 5}, .past = 40, .pages = pages_b, .begun_by = 0},
        {.tokens = {c.data() + 38, 7}, .past = 38, .pages = pages_c, .begun_by = 1}};
    EXPECT_EQ(on_host(ctx, pass.run(all).logits), expected) << before;
  }
}

// Scores of some tokens beside logits of others, and tokens that only the device knows.
TEST(Decoding, ScoresWhatIsAskedFor) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    const Ids a = draw_ids(9, 1), b = draw_ids(7, 2), targets{-1, a[2], -1, a[4], 3, -1, -1, -1, 0};
    test::Sequences sequences(ctx, *m, 2, 16, 16);
    auto& pass = sequences.pass;
    const OwnedTensor feed(ctx, DType::i32, {2});
    from_host(ctx, std::vector<std::int32_t>{b[6], a[3]}.data(), feed);
    pass.feed = feed;
    Ids fed_a = a, fed_b = b;
    fed_a[3] = -2, fed_b[6] = -1;
    auto first = sequences.piece(0, fed_a);
    const auto behind = test::targets_behind(targets);
    first.targets = behind;
    first.logits = false;
    const std::vector<DecodePass::Piece> pieces{first, sequences.piece(1, fed_b)};
    const DecodePass::Result out = pass.run(pieces);
    expect_row(on_host(ctx, out.logits).data(), whole_logits(ctx, *m, b), 6, 23, "the second's last");
    const auto logits = whole_logits(ctx, *m, a);
    const auto losses = on_host(ctx, out.losses);
    std::vector<std::int32_t> greedy(4);
    ASSERT_EQ(out.greedy.size(), 4);
    to_host(ctx, out.greedy, greedy.data());
    std::size_t i = 0;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (targets[t] < 0) continue;
      const float* const row = logits.data() + 23 * t;
      double sum = 0;
      for (int v = 0; v < 23; ++v) sum += std::exp(static_cast<double>(row[v]));
      EXPECT_NEAR(losses[i], std::log(sum) - row[targets[t]], 1e-5) << "token " << t;
      EXPECT_EQ(greedy[i++], std::max_element(row, row + 23) - row) << "token " << t;
    }
    EXPECT_EQ(i, losses.size());
  }
}

TEST(Decoding, RefusesWhatDoesNotFit) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  KvPages memory(ctx, *m, 2);
  DecodePass pass(ctx, *m, memory, {.tokens = 50, .sequences = 1, .length = 40});
  const Ids ids = draw_ids(51, 1), pages{0, 1}, wrong{0, 2};
  const auto message = [&](std::vector<DecodePass::Piece> pieces) { return test::message_of([&] { pass.run(pieces); }); };
  const auto some = [&](std::size_t n) { return std::span(ids).first(n); };
  EXPECT_TRUE(test::has(message({}), "expected tokens of 1 to 1 sequences, got 0"));
  EXPECT_TRUE(test::has(message({{.tokens = some(1), .pages = pages}, {.tokens = some(1), .pages = pages}}), "sequences, got 2"));
  EXPECT_TRUE(test::has(message({{.tokens = some(41), .pages = pages}}), "expected a sequence of at most 40 tokens, got 41"));
  EXPECT_TRUE(test::has(message({{.tokens = some(1), .past = 40, .pages = pages}}), "at most 40 tokens, got 41"));
  EXPECT_TRUE(test::has(message({{.tokens = some(33), .pages = {pages.data(), 1}}}), "expected 2 pages for 33 tokens, got 1"));
  EXPECT_TRUE(test::has(message({{.tokens = some(33), .pages = wrong}}), "expected pages below 2, got 2"));
  EXPECT_TRUE(test::has(message({{.tokens = {}, .pages = pages}}), "expected at least one token of every piece, got none of piece 0"));
  const std::vector<Target> beyond{{2, 1}}, backwards{{1, 1}, {0, 1}}, many(51, {1, 1});
  EXPECT_TRUE(test::has(message({{.tokens = some(2), .pages = pages, .targets = beyond}}), "expected targets behind tokens 0 to 1"));
  EXPECT_TRUE(test::has(message({{.tokens = some(2), .pages = pages, .targets = backwards}}), "got one behind 0"));
  EXPECT_TRUE(test::has(message({{.tokens = some(2), .pages = pages, .targets = many}}), "targets at a time, got 51"));
}

}  // namespace
}  // namespace bhyt::testing
