// Long texts in the windows that a model can read: which tokens are read together, and which of them are scored there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "eval/score.h"
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

// Passages are gathered until they are worth computing together, so that memory does not grow with the text.
class PassageBatch {
 public:
  using Done = std::function<void(const EndingScore&)>;  // of a passage's one ending; called in the order of add
  explicit PassageBatch(Engine& engine) : engine_(engine) {}

  // Both: false when the engine was interrupted; what was not scored by then never is.
  bool add(Passage passage, Done done);
  bool finish();

 private:
  Engine& engine_;
  std::vector<Passage> passages_;
  std::vector<Done> done_;
  std::size_t tokens_ = 0;
};

}  // namespace bhyt
