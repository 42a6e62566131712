// Every target over its corpus and over some thousand mutations of it, the same in every run: what CI can afford of fuzzing.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "fuzz/targets.h"

namespace bhyt::fuzz {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

std::vector<Bytes> corpus_of(const std::string& name) {
  std::vector<fs::path> files;
  for (const auto& e : fs::directory_iterator(fs::path(BHYT_FUZZ_CORPUS) / name)) files.push_back(e.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> out;
  for (const auto& f : files) {
    std::ifstream in(f, std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return out;
}

// One to four small changes: a bit, a byte, a number at its limits, a stretch taken out, doubled, or brought from another seed.
Bytes mutated(Bytes b, const Bytes& other, Rng& rng) {
  static const char* const words[] = {"null", "-1",   "1e999", "18446744073709551615", "9223372036854775807", "[]", "{}",
                                      "\"\"", "true", "0"};
  for (auto changes = rng.below(4) + 1; changes > 0; --changes) {
    const std::size_t at = rng.below(b.size() + 1), n = rng.below(std::min<std::size_t>(b.size() - std::min(at, b.size()), 16) + 1);
    const auto here = b.begin() + static_cast<std::ptrdiff_t>(at);
    switch (rng.below(6)) {
      case 0:
        if (at < b.size()) b[at] ^= static_cast<std::uint8_t>(1u << rng.below(8));
        break;
      case 1:
        if (at < b.size()) b[at] = static_cast<std::uint8_t>(rng.next());
        break;
      case 2: b.erase(here, here + static_cast<std::ptrdiff_t>(n)); break;
      case 3: {
        const Bytes piece(here, here + static_cast<std::ptrdiff_t>(n));
        b.insert(here, piece.begin(), piece.end());
        break;
      }
      case 4: {
        const std::string_view word = words[rng.below(std::size(words))];
        b.insert(here, word.begin(), word.end());
        break;
      }
      default: {
        const std::size_t from = rng.below(other.size() + 1), end = std::min(other.size(), from + rng.below(64));
        b.insert(here, other.begin() + static_cast<std::ptrdiff_t>(from), other.begin() + static_cast<std::ptrdiff_t>(end));
      }
    }
  }
  return b;
}

// Keeps warnings about what was read to itself.
struct Quiet {
  Quiet() { ::testing::internal::CaptureStderr(); }
  ~Quiet() { ::testing::internal::GetCapturedStderr(); }
};

class Smoke : public ::testing::TestWithParam<Target> {};

TEST_P(Smoke, TakesOrRefusesEveryInput) {
  const Target target = GetParam();
  const std::vector<Bytes> seeds = corpus_of(target.name);
  ASSERT_FALSE(seeds.empty());
  const Quiet quiet;
  int taken = 0;
  const auto run = [&](const Bytes& b) {
    const Bytes exact(b);  // an allocation of its own size: reading past its end is seen
    try {
      target.run(exact.data(), exact.size());
      ++taken;
    } catch (const Error&) {
    }
  };
  for (const Bytes& b : seeds) run(b);
  EXPECT_GT(taken, 0) << "no seed is valid";
  Rng rng(1);
  for (int i = 0; i < 1500; ++i) run(mutated(seeds[rng.below(seeds.size())], seeds[rng.below(seeds.size())], rng));
}

INSTANTIATE_TEST_SUITE_P(All, Smoke, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace bhyt::fuzz
