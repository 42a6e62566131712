#include "core/profile.h"

#include <chrono>

namespace bhyt::profile {

namespace detail {
thread_local bool recording = false;
}

namespace {

thread_local Seconds spent{};
thread_local Kind current = Kind::other;
thread_local double mark = 0;

// Books the time since the last boundary on the kind that was running.
void boundary(Kind next) {
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  spent[static_cast<std::size_t>(current)] += now - mark;
  mark = now;
  current = next;
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr std::array<const char*, kKinds> names = {"other",  "matrix products", "attention",     "norm",     "rope",
                                                     "swiglu", "embedding",       "cross entropy", "optimizer"};
  return names[static_cast<std::size_t>(kind)];
}

void start() {
  boundary(Kind::other);
  spent = {};
  detail::recording = true;
}

Seconds stop() {
  boundary(Kind::other);
  detail::recording = false;
  return spent;
}

namespace detail {

Kind enter(Kind kind, Device device) {
  device_synchronize(device);
  const Kind before = current;
  boundary(kind);
  return before;
}

void leave(Kind before, Device device) {
  device_synchronize(device);
  boundary(before);
}

}  // namespace detail

}  // namespace bhyt::profile
