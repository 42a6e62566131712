// Long texts in the windows that a model can read: which tokens are read together, and which of them are scored there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "eval/score.h"
#include "eval/share.h"
#include "text/tokenizer.h"

namespace bhyt {

// Tokens [first, end) of a sequence, each given all from `begin` on.
struct Window {
  std::int64_t begin = 0, first = 0, end = 0;

  std::int64_t scored() const { return end - first; }
  bool operator==(const Window&) const = default;
};

// Windows of `window` tokens that begin every `stride`: each scores what was not scored before, but for its own first token. Those with
// nothing to score are left out.
std::vector<Window> sliding_windows(std::int64_t tokens, std::int64_t window, std::int64_t stride);

// Every token but the first, `length` to a window, given the one before the window at least. The last window begins early enough to read
// `length` tokens like the others.
std::vector<Window> rolling_windows(std::int64_t tokens, std::int64_t length);

Passage passage_of(std::span<const TokenId> ids, const Window& window);

// Scores texts by their windows, in order. Windows are gathered until they are worth computing together, so that memory does not grow with
// the number of texts. Several ranks share them out; all add the same texts and hear of all.
class WindowScorer {
 public:
  using Done = std::function<void(const EndingScore&)>;                 // of a text: its windows together
  using Step = std::function<void(const Window&, const EndingScore&)>;  // of each window
  explicit WindowScorer(Engine& engine, const Sharing& ranks = {}, std::int64_t batch_tokens = kBatchTokens)
      : engine_(engine), ranks_(ranks), batch_tokens_(batch_tokens) {}

  // Both: false when the engine was interrupted; what was not scored by then never is.
  bool add(std::span<const TokenId> ids, const std::vector<Window>& windows, Done done, Step step = {});
  bool finish();

 private:
  static constexpr std::int64_t kBatchTokens = 1 << 20;  // little memory, and far more than is computed at a time
  struct Text {
    std::vector<Window> windows;
    Done done;
    Step step;
    std::size_t scored = 0;  // of the windows
    EndingScore sums = {};
  };
  bool score(std::span<const Passage> passages);
  void take(const EndingScore& score);
  void tell_finished();

  Engine& engine_;
  Sharing ranks_;
  std::deque<Text> texts_;  // that are not done, the oldest first
  std::int64_t batch_tokens_;
  std::vector<Passage> passages_;
  std::int64_t tokens_ = 0;  // of the passages
};

}  // namespace bhyt
