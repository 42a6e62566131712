#include "cli/sft_preview.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/example_summary.h"
#include "io/format.h"
#include "io/hash.h"
#include "text/unicode.h"

namespace bhyt::cli {

namespace {

constexpr std::size_t kBar = 40, kShownBegin = 400, kShownEnd = 150;

// In eighths of a letter.
std::string bar(double share) {
  constexpr const char* kPart[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  auto eighths = static_cast<std::size_t>(share * static_cast<double>(8 * kBar) + 0.5);
  if (share > 0) eighths = std::max<std::size_t>(eighths, 1);
  std::string out;
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  return out + kPart[eighths % 8];
}

std::string histogram(std::span<const std::int32_t> lengths) {
  const std::vector<LengthBin> bins = length_bins(lengths);
  std::int64_t most = 1;
  for (const LengthBin& b : bins) most = std::max(most, b.count);
  std::string out = "    tokens         examples\n";
  for (const LengthBin& b : bins)
    out += fmt::format("  {:>7} – {:<7} {:>8}  {}\n", grouped(b.from), grouped(b.to), grouped(b.count),
                       bar(static_cast<double>(b.count) / static_cast<double>(most)));
  return out;
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return fmt::format("{:.1f} %", whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0);
}

// Safe for a terminal: control characters are spelled, broken UTF-8 becomes U+FFFD; the middle of what is long is left out.
std::string printable(std::string_view text) {
  std::string out;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const unicode::Char c = unicode::decode(p, end);
    const auto offset = static_cast<std::size_t>(p - text.data()), left = static_cast<std::size_t>(end - p);
    if (offset >= kShownBegin && left > kShownEnd && text.size() > kShownBegin + kShownEnd) {
      out += " … ";
      while (static_cast<std::size_t>(end - p) > kShownEnd || (p < end && (static_cast<unsigned char>(*p) & 0xC0) == 0x80)) ++p;
      continue;
    }
    if (c.code == unicode::kInvalid)
      out += "\uFFFD";
    else if ((c.code < 0x20 && c.code != '\n' && c.code != '\t') || (c.code >= 0x7F && c.code < 0xA0))
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c.code));
    else
      out.append(p, c.size);
    p += c.size;
  }
  return out;
}

// The example's text, what is scored marked.
std::string marked(const Example& e, const Tokenizer& tokenizer, bool color) {
  std::string out;
  for (std::size_t at = 0; at < e.ids.size();) {
    const bool scored = e.labels[at] != kNotScored;
    std::string run;
    for (; at < e.ids.size() && (e.labels[at] != kNotScored) == scored; ++at) run += tokenizer.piece(e.ids[at], true);
    const char *before = color ? "\x1b[1;32m" : "⟦", *after = color ? "\x1b[0m" : "⟧";
    out += scored ? before + printable(run) + after : printable(run);
  }
  return out;
}

std::string show_dropped(const ExampleSummary& s) {
  std::string out;
  for (const auto& d : s.dropped) {
    if (d.count == 0) continue;
    std::string places;
    for (const DroppedRecord& r : d.first) places += fmt::format("{}{}", places.empty() ? "" : ", ", r.index);
    out += fmt::format("    {:>7}  {} (record{} {}{})\n", grouped(d.count), drop_name(d.first[0].drop), d.count > 1 ? "s" : "", places,
                       d.count > std::ssize(d.first) ? ", …" : "");
  }
  return out;
}

}  // namespace

void Samples::offer(const Example& example) {
  const auto place = [](const Example& e) { return mix64(0x9E3779B97F4A7C15ull * static_cast<std::uint64_t>(e.index + 1)); };
  const auto less = [&](const Example& a, const Example& b) { return place(a) < place(b); };
  if (kept_.size() == kMost && !less(example, kept_.front())) return;
  kept_.push_back(example);
  std::push_heap(kept_.begin(), kept_.end(), less);
  if (kept_.size() <= kMost) return;
  std::pop_heap(kept_.begin(), kept_.end(), less);
  kept_.pop_back();
}

std::vector<Example> Samples::take() {
  std::ranges::sort(kept_, {}, &Example::index);
  return std::move(kept_);
}

std::string show_preview(const Preview& preview, const ExampleOptions& options, const Tokenizer& tokenizer, bool color) {
  const ExampleSummary& s = preview.summary;
  std::string out = fmt::format("{}: {} records, {} examples\n", s.file, grouped(s.records), grouped(s.kept));
  out += fmt::format("  scored   {} of {} tokens ({})\n", grouped(s.scored), grouped(s.tokens), percent(s.scored, s.tokens));
  out += fmt::format("  lengths  mean {}, median {}, longest {}\n", grouped(s.tokens / s.kept), grouped(median_length(s.lengths)),
                     grouped(*std::ranges::max_element(s.lengths)));
  out += fmt::format("  cut      {} ({}) to {} tokens\n", grouped(s.cut), percent(s.cut, s.kept), grouped(options.seq_len));
  if (s.unscored > 0) out += fmt::format("  unscored {} examples have no scored token: the cut took their answers\n", grouped(s.unscored));
  out += fmt::format("  dropped  {}\n{}\n{}", grouped(s.dropped_count()), show_dropped(s), histogram(s.lengths));
  for (const Example& e : preview.samples)
    out += fmt::format("\n— record {}, {} tokens, {} scored\n{}\n", e.index, e.ids.size(), scored_tokens(e), marked(e, tokenizer, color));
  return out;
}

}  // namespace bhyt::cli
