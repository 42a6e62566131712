#include "eval/windows.h"

#include <algorithm>
#include <utility>

#include "io/hash.h"

namespace bhyt {

namespace {

std::uint64_t checksum_of(std::span<const Passage> passages) {
  Hash64 hash;
  const auto add = [&](const std::vector<TokenId>& ids) {
    hash.add(ids.size());
    hash.update(ids.data(), ids.size() * sizeof(TokenId));
  };
  for (const Passage& p : passages) {
    add(p.context);
    for (const std::vector<TokenId>& ending : p.endings) add(ending);
  }
  return hash.digest();
}

}  // namespace

std::vector<Window> sliding_windows(std::int64_t tokens, std::int64_t window, std::int64_t stride) {
  std::vector<Window> all;
  for (std::int64_t begin = 0, scored = 0; scored < tokens; begin += stride) {
    const Window w{.begin = begin, .first = std::max(scored, begin + 1), .end = std::min(begin + window, tokens)};
    if (w.scored() > 0) all.push_back(w);
    scored = w.end;
  }
  return all;
}

std::vector<Window> rolling_windows(std::int64_t tokens, std::int64_t length) {
  std::vector<Window> all;
  for (std::int64_t first = 1; first < tokens; first = all.back().end) {
    const std::int64_t end = std::min(first + length, tokens);
    all.push_back({.begin = first == 1 ? 0 : end - 1 - length, .first = first, .end = end});
  }
  return all;
}

Passage passage_of(std::span<const TokenId> ids, const Window& w) {
  const auto at = [&](std::int64_t i) { return ids.begin() + i; };
  return {.context = {at(w.begin), at(w.first)}, .endings = {{at(w.first), at(w.end)}}};
}

bool WindowScorer::add(std::span<const TokenId> ids, const std::vector<Window>& windows, Done done, Step step) {
  texts_.push_back({.windows = windows, .done = std::move(done), .step = std::move(step)});
  tell_finished();  // a text without windows is done when those before it are
  for (const Window& window : windows) {
    passages_.push_back(passage_of(ids, window));
    tokens_ += window.end - window.begin;
    if (tokens_ >= batch_tokens_ && !finish()) return false;
  }
  return true;
}

bool WindowScorer::finish() {
  const std::vector<Passage> passages = std::exchange(passages_, {});
  tokens_ = 0;
  return passages.empty() || score(passages);
}

bool WindowScorer::score(std::span<const Passage> passages) {
  if (!ranks_.several())
    return score_passages(engine_, passages, [&](std::size_t, std::span<const EndingScore> scores) { take(scores.front()); });
  std::vector<double> costs;
  for (const Passage& p : passages) costs.push_back(static_cast<double>(p.context.size() + p.endings.front().size()));
  return share_out(
      ranks_, costs,
      [&](std::size_t first, std::size_t last, const auto& give) {
        score_passages(engine_, passages.subspan(first, last - first),
                       [&](std::size_t, std::span<const EndingScore> scores) { give(as_bytes(scores)); });
      },
      [&](std::size_t, const std::string& bytes) { take(from_bytes<EndingScore>(bytes).front()); }, checksum_of(passages));
}

void WindowScorer::take(const EndingScore& score) {
  Text& text = texts_.front();
  text.sums.sum += score.sum;
  text.sums.squares += score.squares;
  text.sums.greedy &= score.greedy;
  if (text.step) text.step(text.windows[text.scored], score);
  ++text.scored;
  tell_finished();
}

void WindowScorer::tell_finished() {
  for (; !texts_.empty() && texts_.front().scored == texts_.front().windows.size(); texts_.pop_front())
    texts_.front().done(texts_.front().sums);
}

}  // namespace bhyt
