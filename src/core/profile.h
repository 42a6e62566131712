// Where the time of a step goes, by kind of operation. A context has one recorder; operations book themselves when they open (Operation in
// core/context.h), which costs one branch without a recording. Times are exclusive (a product inside the cross entropy counts as a
// product), so that the kinds sum to the whole.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace bhyt::profile {

enum class Kind : std::uint8_t { other, matrix, attention, norm, rope, swiglu, embedding, cross_entropy, optimizer };
constexpr std::size_t kKinds = 9;

inline const char* name_of(Kind kind) {
  constexpr std::array<const char*, kKinds> names = {"other",  "matrix products", "attention",     "norm",     "rope",
                                                     "swiglu", "embedding",       "cross entropy", "optimizer"};
  return names[static_cast<std::size_t>(kind)];
}

using Seconds = std::array<double, kKinds>;

class Recorder {
 public:
  bool recording() const { return recording_; }
  void start() {
    switch_to(Kind::other);
    spent_ = {};
    recording_ = true;
  }
  Seconds stop() {
    switch_to(Kind::other);
    recording_ = false;
    return spent_;
  }
  // Books the time since the last switch on the kind that was running, which is returned.
  Kind switch_to(Kind next) {
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    spent_[static_cast<std::size_t>(current_)] += now - since_;
    since_ = now;
    const Kind before = current_;
    current_ = next;
    return before;
  }

 private:
  bool recording_ = false;
  Seconds spent_{};
  Kind current_ = Kind::other;
  double since_ = 0;
};

}  // namespace bhyt::profile
