#include "data/text_check.h"

#include <algorithm>

#include "core/check.h"
#include "core/log.h"

namespace bhyt {

namespace {

constexpr std::size_t kBlock = 240;  // a count of a block fits a byte, so that the loop over it runs many bytes at a time

bool plain(const unsigned char* p, std::size_t n) {
  unsigned char high = 0, nul = 0;
  for (std::size_t i = 0; i < n; ++i) {
    high |= p[i];
    nul |= p[i] == 0;
  }
  return high < 0x80 && !nul;
}

// Of the n bytes at p. The three before and the one after can be read.
unsigned strange_in_block(const unsigned char* p, std::size_t n) {
  unsigned char count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto goes_on = [b = p + i](int at) -> unsigned char { return static_cast<signed char>(b[at]) < -64; };  // 0x80 to 0xBF
    const auto from = [b = p + i](int at, unsigned char least) -> unsigned char { return b[at] >= least; };
    const unsigned char led = from(-1, 0xC0) | from(-2, 0xE0) | from(-3, 0xF0);
    const unsigned char lone = goes_on(0) > led, torn = from(0, 0xC0) > goes_on(1), nul = p[i] == 0;
    count = static_cast<unsigned char>(count + (lone | torn | nul));
  }
  return count;
}

}  // namespace

std::uint64_t strange_bytes(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, text.size() - at);
    if (plain(p + at, n)) continue;
    if (at >= 3 && at + n < text.size()) {
      count += strange_in_block(p + at, n);
      continue;
    }
    unsigned char edge[kBlock + 4] = {};  // nothing stands before and after a text
    const std::size_t before = std::min<std::size_t>(at, 3), after = at + n < text.size() ? 1 : 0;
    std::copy_n(p + at - before, before + n + after, edge + 3 - before);
    count += strange_in_block(edge + 3, n);
  }
  return count;
}

void TextFacts::add(std::string_view text) {
  bytes += text.size();
  strange += strange_bytes(text);
  written = written || text.find_first_not_of(" \t\r\n\v\f") != text.npos;
}

void TextCheck::add(std::size_t file, const TextFacts& facts) {
  facts_[file].bytes += facts.bytes;
  facts_[file].strange += facts.strange;
  facts_[file].written |= facts.written;
}

std::vector<std::string> TextCheck::tell(const char* what_to_do) const {
  constexpr std::size_t kNamed = 5;
  std::vector<std::size_t> blank, strange;
  std::vector<std::string> warnings;
  for (std::size_t i = 0; i < facts_.size(); ++i) {
    if (!facts_[i].written) blank.push_back(i);
    if (static_cast<double>(facts_[i].strange) > kStrange * static_cast<double>(facts_[i].bytes)) strange.push_back(i);
  }
  const std::string first = blank.empty() ? "" : files_[blank.front()].path;
  check(blank.size() < files_.size(), "nothing to {}: no document has any text in {}{}", what_to_do, first,
        files_.size() > 1 ? fmt::format(" and {} more", files_.size() - 1) : "");
  if (blank.size() == 1) warnings.push_back(fmt::format("{} holds no text", first));
  if (blank.size() > 1) warnings.push_back(fmt::format("{} of {} files hold no text, the first: {}", blank.size(), files_.size(), first));
  for (std::size_t i = 0; i < std::min(strange.size(), kNamed); ++i) {
    const TextFacts& f = facts_[strange[i]];
    warnings.push_back(fmt::format("{}: {:.1f} % of its bytes are NUL or not UTF-8; is it text?", files_[strange[i]].path,
                                   100 * static_cast<double>(f.strange) / static_cast<double>(f.bytes)));
  }
  if (strange.size() > kNamed)
    warnings.push_back(fmt::format("{} more files hold bytes that are NUL or not UTF-8", strange.size() - kNamed));
  for (const std::string& w : warnings) log::warning("{}", w);
  return warnings;
}

}  // namespace bhyt
