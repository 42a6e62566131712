#include "data/loader.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "data/permutation.h"
#include "data/token_file.h"
#include "test_util.h"

namespace bhyt {
namespace {

using namespace test;

// Documents of random length whose tokens count up (mod vocab − 1), so that a token tells its place.
void make_file(const std::string& path, std::size_t tokens, TokenId vocab, unsigned seed, std::uint64_t fingerprint = 5) {
  std::mt19937 r(seed);
  TokenFileWriter w(path, {.vocab = static_cast<std::uint64_t>(vocab), .end_of_text = vocab - 1, .fingerprint = fingerprint, .kind = "x"});
  std::size_t left = tokens, at = 0;
  while (left > 0) {
    const std::size_t n = std::min<std::size_t>(left, 1 + r() % 40);
    std::vector<TokenId> ids(n);
    for (auto& id : ids) id = static_cast<TokenId>(at++ % static_cast<std::size_t>(vocab - 1));
    ids.back() = vocab - 1;
    w.append(ids.data(), n);
    w.end_document();
    left -= n;
  }
  w.finish();
}

std::vector<TokenId> all_tokens(const std::string& path) {
  const TokenFile f(path);
  std::vector<TokenId> ids(f.tokens());
  f.read(0, ids.size(), ids.data());
  return ids;
}

bool same(const HostBatch& a, const HostBatch& b) {
  return a.batch == b.batch && a.seq == b.seq && a.tokens == b.tokens && a.targets == b.targets && a.positions == b.positions &&
         a.first == b.first;
}

TEST(Permutation, IsABijection) {
  for (const std::uint64_t n : {1u, 2u, 3u, 4u, 5u, 15u, 16u, 17u, 100u, 1023u, 1024u, 1025u, 99991u})
    for (const std::uint64_t key : {0ull, 1ull, ~0ull}) {
      const Permutation p(n, key);
      std::vector<bool> seen(n);
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t j = p(i);
        ASSERT_LT(j, n);
        ASSERT_FALSE(seen[j]);
        seen[j] = true;
      }
    }
  const Permutation huge(1ull << 40, 9);  // no table
  EXPECT_LT(huge((1ull << 40) - 1), 1ull << 40);
}

TEST(Permutation, EveryPlaceIsAboutEquallyLikely) {
  constexpr std::uint64_t n = 12, keys = 24000;
  std::vector<double> count(n * n);
  for (std::uint64_t key = 0; key < keys; ++key) {
    const Permutation p(n, mix64(key));
    for (std::uint64_t i = 0; i < n; ++i) count[i * n + p(i)] += 1;
  }
  double chi = 0;
  const double expected = static_cast<double>(keys) / n;
  for (const double c : count) chi += (c - expected) * (c - expected) / expected;
  EXPECT_LT(chi, 121 + 5 * 15.6);  // (n−1)² degrees of freedom, five standard deviations
}

TEST(Loader, FileOrderPredictsEveryTokenOnce) {
  TempDir dir;
  make_file(dir / "a.tok", 1003, 600, 1);
  const Loader l({.parts = {{dir / "a.tok"}}, .seq_len = 10, .batch = 8, .shuffle = false});
  const auto ids = all_tokens(dir / "a.tok");
  EXPECT_EQ(l.rows(), 100);
  EXPECT_EQ(l.batches(), 13);
  EXPECT_EQ(l.vocab(), 600);
  EXPECT_EQ(l.tokenizer_fingerprint(), 5u);
  std::vector<TokenId> in, out;
  HostBatch b;
  for (std::int64_t n = 0; n < l.batches(); ++n) {
    l.batch(n, b);
    EXPECT_EQ(b.batch, n == 12 ? 4 : 8);
    EXPECT_TRUE(b.positions.empty() && b.first.empty());
    in.insert(in.end(), b.tokens.begin(), b.tokens.end());
    out.insert(out.end(), b.targets.begin(), b.targets.end());
  }
  EXPECT_EQ(in, std::vector<TokenId>(ids.begin(), ids.begin() + 1000));
  EXPECT_EQ(out, std::vector<TokenId>(ids.begin() + 1, ids.begin() + 1001));
  HostBatch again;
  l.batch(0, b);
  l.batch(13, again);
  EXPECT_TRUE(same(b, again));
}

// The first token of a row of these files tells the row.
std::vector<std::int64_t> order(const Loader& l, std::int64_t rows, std::int64_t batch, std::int64_t first_batch) {
  std::vector<std::int64_t> o;
  HostBatch b;
  for (std::int64_t n = first_batch; static_cast<std::int64_t>(o.size()) < rows; ++n) {
    l.batch(n, b);
    for (std::int64_t r = 0; r < batch; ++r) o.push_back(b.tokens[static_cast<std::size_t>(r * b.seq)]);
  }
  return o;
}

void make_counting(const std::string& path, TokenId from, std::size_t tokens, TokenId vocab = 60000) {
  TokenFileWriter w(path, {.vocab = static_cast<std::uint64_t>(vocab), .end_of_text = vocab - 1, .fingerprint = 5, .kind = "x"});
  std::vector<TokenId> ids(tokens);
  std::iota(ids.begin(), ids.end(), from);
  w.append(ids.data(), ids.size());
  w.end_document();
  w.finish();
}

TEST(Loader, EachEpochIsANewOrderOfAllRows) {
  TempDir dir;
  make_counting(dir / "a.tok", 0, 3001);
  make_counting(dir / "b.tok", 10000, 2001);
  const LoaderOptions o{.parts = {{dir / "a.tok"}, {dir / "b.tok"}}, .seq_len = 10, .batch = 5, .seed = 3};
  const Loader l(o);
  ASSERT_EQ(l.rows(), 500);
  ASSERT_EQ(l.batches(), 100);
  std::set<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 5; ++epoch) {
    std::vector<std::int64_t> seen = order(l, 500, 5, epoch * 100);
    orders.insert(seen);
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> want;
    for (std::int64_t i = 0; i < 300; ++i) want.push_back(i * 10);
    for (std::int64_t i = 0; i < 200; ++i) want.push_back(10000 + i * 10);
    EXPECT_EQ(seen, want);
  }
  EXPECT_EQ(orders.size(), 5u);
  LoaderOptions other = o;
  other.seed = 4;
  EXPECT_NE(order(Loader(other), 500, 5, 0), order(l, 500, 5, 0));
  // Rows that the batches cut differently are the same rows: the stream does not depend on the batch.
  other = o;
  other.batch = 20;
  EXPECT_EQ(order(Loader(other), 500, 20, 0), order(l, 500, 5, 0));
}

TEST(Loader, BatchIsAPureFunctionAndSeekIsCheap) {
  TempDir dir;
  make_file(dir / "a.tok", 5000, 300, 2);
  const LoaderOptions o{.parts = {{dir / "a.tok"}}, .seq_len = 33, .batch = 7, .seed = 11, .attend = Attend::document};
  const Loader a(o), b(o);
  HostBatch x, y;
  for (const std::int64_t n : {1000000000000ll, 5ll, 0ll, 77ll, 5ll}) {
    a.batch(n, x);
    b.batch(n, y);
    EXPECT_TRUE(same(x, y)) << n;
  }
  Loader c(o);
  for (const std::int64_t from : {0ll, 123456789ll, 3ll}) {
    c.start(from);
    for (std::int64_t n = from; n < from + 20; ++n) {
      const HostBatch got = c.next();
      a.batch(n, x);
      EXPECT_TRUE(same(got, x)) << n;
    }
  }
}

TEST(Loader, DocumentMasks) {
  TempDir dir;
  make_file(dir / "a.tok", 4000, 300, 3);
  convert_tokens(dir / "a.tok", dir / "a.bin", TokenFormat::llmc_gpt2);  // no index there: found by the end-of-text token
  for (const std::string& path : {dir / "a.tok", dir / "a.bin"}) {
    const Loader l({.parts = {{path}}, .seq_len = 64, .batch = 1, .shuffle = false, .attend = Attend::document});
    HostBatch b;
    bool cut = false;
    for (std::int64_t n = 0; n < l.batches(); ++n) {
      l.batch(n, b);
      std::int32_t first = 0;
      for (std::int32_t t = 0; t < 64; ++t) {
        const auto i = static_cast<std::size_t>(t);
        if (t > 0 && b.tokens[i - 1] == 299) first = t;
        ASSERT_EQ(b.first[i], first) << n << " " << t;
        ASSERT_EQ(b.positions[i], t - first);
      }
      cut = cut || first > 0;
    }
    EXPECT_TRUE(cut);
  }
}

// What attention relies on for every batch the host makes: within a row `first` never decreases and lies between 0 and its position.
TEST(Loader, FirstNeverDecreasesWithinARow) {
  TempDir dir;
  make_file(dir / "a.tok", 6000, 300, 3);
  make_counting(dir / "b.tok", 0, 3001, 4000);  // one document throughout
  const Loader l({.parts = {{dir / "a.tok", 0.8}, {dir / "b.tok", 0.2}}, .seq_len = 61, .batch = 5, .seed = 2, .attend = Attend::document});
  HostBatch b;
  std::set<std::int32_t> seen;
  for (std::int64_t n = 0; n < 40; ++n) {
    l.batch(n, b);
    ASSERT_EQ(b.first.size(), b.tokens.size());
    for (std::size_t i = 0; i < b.first.size(); ++i) {
      const auto t = static_cast<std::int32_t>(i % 61);
      ASSERT_LE(t == 0 ? 0 : b.first[i - 1], b.first[i]) << "batch " << n << ", position " << t;
      ASSERT_LE(b.first[i], t) << "batch " << n;
      ASSERT_EQ(b.positions[i], t - b.first[i]);
      seen.insert(b.first[i]);
    }
  }
  EXPECT_GT(seen.size(), 30u);  // documents began nearly everywhere
}

TEST(Loader, TheSeedDecidesTheOrder) {
  TempDir dir;
  make_counting(dir / "a.tok", 0, 3001);
  make_counting(dir / "b.tok", 10000, 2001);
  for (const double weight : {0.0, 0.5}) {
    const auto rows = [&](std::uint64_t seed) {
      return order(Loader({.parts = {{dir / "a.tok", weight}, {dir / "b.tok", weight}}, .seq_len = 10, .batch = 5, .seed = seed}), 500, 5,
                   0);
    };
    std::set<std::vector<std::int64_t>> orders;
    for (const std::uint64_t seed : {0ull, 1ull, 2ull, 1ull << 40, ~0ull}) {
      EXPECT_EQ(rows(seed), rows(seed)) << seed;
      orders.insert(rows(seed));
    }
    EXPECT_EQ(orders.size(), 5u) << (weight > 0 ? "weighted" : "by size");
  }
}

TEST(Loader, MixturesKeepTheirWeightsEverywhere) {
  TempDir dir;
  make_counting(dir / "a.tok", 0, 1001);
  make_counting(dir / "b.tok", 10000, 5001);
  make_counting(dir / "c.tok", 20000, 301);
  const LoaderOptions o{
      .parts = {{dir / "a.tok", 0.7}, {dir / "b.tok", 0.25}, {dir / "c.tok", 0.05}}, .seq_len = 10, .batch = 4, .seed = 1};
  const Loader l(o);
  const auto rows = order(l, 20000, 4, 0);
  double count[3] = {};
  std::vector<std::int64_t> of_part[3];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto part = static_cast<std::size_t>(rows[i] / 10000);
    ++count[part];
    of_part[part].push_back(rows[i]);
    const double n = static_cast<double>(i + 1);
    ASSERT_NEAR(count[0], 0.7 * n, 2) << i;
    ASSERT_NEAR(count[1], 0.25 * n, 2) << i;
    ASSERT_NEAR(count[2], 0.05 * n, 2) << i;
  }
  EXPECT_EQ(count[0], 14000);
  EXPECT_EQ(count[1], 5000);
  EXPECT_EQ(count[2], 1000);
  // Each part has its own epochs, each a new order of all its rows.
  for (std::size_t p = 0; p < 3; ++p) {
    const std::size_t n = p == 0 ? 100 : p == 1 ? 500 : 30;
    std::set<std::vector<std::int64_t>> orders;
    for (std::size_t at = 0; at + n <= of_part[p].size(); at += n) {
      std::vector<std::int64_t> epoch(of_part[p].begin() + static_cast<std::ptrdiff_t>(at),
                                      of_part[p].begin() + static_cast<std::ptrdiff_t>(at + n));
      orders.insert(epoch);
      std::sort(epoch.begin(), epoch.end());
      ASSERT_TRUE(std::adjacent_find(epoch.begin(), epoch.end()) == epoch.end());
    }
    EXPECT_EQ(orders.size(), of_part[p].size() / n);
  }
}

TEST(Loader, TinyWeightsStillGetRows) {
  TempDir dir;
  make_counting(dir / "a.tok", 0, 1001);
  make_counting(dir / "b.tok", 10000, 1001);
  const Loader l({.parts = {{dir / "a.tok", 1e9}, {dir / "b.tok", 1e-9}}, .seq_len = 10, .batch = 10});
  const auto rows = order(l, 10000, 10, 0);
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [](std::int64_t r) { return r >= 10000; }), 1);
  const Loader thirds({.parts = {{dir / "a.tok", 1}, {dir / "b.tok", 2}}, .seq_len = 10, .batch = 10});
  const auto t = order(thirds, 10000, 10, 0);
  EXPECT_EQ(std::count_if(t.begin(), t.end(), [](std::int64_t r) { return r >= 10000; }), 6667);
}

TEST(Loader, Errors) {
  TempDir dir;
  make_file(dir / "a.tok", 100, 300, 1, 5);
  make_file(dir / "b.tok", 100, 300, 1, 6);
  make_file(dir / "c.tok", 100, 400, 1, 0);
  EXPECT_HAS(message_of<UsageError>([&] { Loader l({}); }), "at least one token file");
  EXPECT_HAS(message_of([&] { Loader l({.parts = {{dir / "a.tok"}}, .seq_len = 100}); }), "100 tokens, a row of seq_len 100 needs 101");
  EXPECT_HAS(message_of([&] { Loader l({.parts = {{dir / "a.tok"}, {dir / "b.tok"}}, .seq_len = 10}); }), "another tokenizer");
  EXPECT_HAS(message_of<UsageError>([&] {
               Loader l({.parts = {{dir / "a.tok", 1}, {dir / "c.tok"}}, .seq_len = 10});
             }),
             "a weight above 0 for every part");
  EXPECT_HAS(message_of<UsageError>([&] { Loader l({.parts = {{dir / "a.tok", -1}}, .seq_len = 10}); }), "got -1");
  EXPECT_HAS(message_of([&] { Loader l({.parts = {{dir / "none.tok"}}, .seq_len = 10}); }), "cannot open");
  Loader l({.parts = {{dir / "a.tok"}, {dir / "c.tok"}}, .seq_len = 10});
  EXPECT_EQ(l.vocab(), 400);
  EXPECT_EQ(l.tokenizer_fingerprint(), 5u);
  EXPECT_HAS(message_of([&] { l.next(); }), "start()");
}

// Damage behind an intact header surfaces as an error of the step that meets it, also through the prefetching thread.
TEST(Loader, DamagedTokensSurface) {
  TempDir dir;
  make_file(dir / "a.tok", 500, 300, 1);
  std::string bytes = read_file(dir / "a.tok");
  for (std::size_t i = 128; i < 128 + 1000; ++i) bytes[i] = '\xff';
  write_file(dir / "a.tok", bytes);
  Loader l({.parts = {{dir / "a.tok"}}, .seq_len = 10, .batch = 2});
  HostBatch b;
  EXPECT_HAS(message_of([&] { l.batch(0, b); }), "not below the vocabulary of 300");
  l.start(0);
  EXPECT_HAS(message_of([&] { l.next(); }), "not below the vocabulary of 300");
}

}  // namespace
}  // namespace bhyt
