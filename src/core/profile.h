// Where the time of a step goes, by kind of operation. Operations open a Scope where they dispatch; without a recording that costs one
// branch. Times are exclusive (a product inside the cross entropy counts as a product), so that the kinds sum to the whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/device.h"

namespace bhyt::profile {

enum class Kind : std::uint8_t { other, matrix, attention, norm, rope, swiglu, embedding, cross_entropy, optimizer };
constexpr std::size_t kKinds = 9;
const char* name_of(Kind kind);

using Seconds = std::array<double, kKinds>;

// Records what this thread does until stop(). On a GPU the device is waited for at every boundary.
void start();
Seconds stop();

namespace detail {
extern thread_local bool recording;
Kind enter(Kind kind, Device device);
void leave(Kind before, Device device);
}  // namespace detail

class Scope {
 public:
  Scope(Kind kind, Device device) : device_(device), on_(detail::recording) {
    if (on_) [[unlikely]]
      before_ = detail::enter(kind, device);
  }
  ~Scope() {
    if (on_) [[unlikely]]
      detail::leave(before_, device_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Device device_;
  bool on_;
  Kind before_ = Kind::other;
};

}  // namespace bhyt::profile
