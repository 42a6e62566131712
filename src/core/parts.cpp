#include "core/parts.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace bhyt::profile {

namespace {

// A context's recording of parts; without one, a train step that is profiled by kinds passes by.
struct Parts {
  explicit Parts(Context&) {}
  bool on = false;
  std::vector<Part> all;
  std::size_t current = 0;
  std::chrono::steady_clock::time_point since;

  // What the device was given belongs to the part that gave it.
  void book(Context& ctx) {
    if (ctx.device().is_cuda()) cuda::synchronize(ctx.queue());
    const auto now = std::chrono::steady_clock::now();
    all[current].seconds += std::chrono::duration<double>(now - std::exchange(since, now)).count();
  }
};

}  // namespace

void switch_part(Context& ctx, std::initializer_list<const char*> name, const Tensor& weights) {
  auto& parts = ctx.keep<Parts>();
  if (!parts.on) return;
  parts.book(ctx);
  std::string whole;
  for (const char* piece : name) whole += piece;
  const auto at = std::ranges::find(parts.all, whole, &Part::name);
  parts.current = static_cast<std::size_t>(at - parts.all.begin());
  if (at == parts.all.end()) parts.all.push_back({.name = std::move(whole)});
  if (weights)
    parts.all[parts.current].bytes += static_cast<double>(weights.rows() * weights.ld) * static_cast<double>(size_of(weights.dtype));
}

std::vector<Part> parts_of(Context& ctx, const std::function<void()>& job) {
  auto& parts = ctx.keep<Parts>();
  struct Recording {  // ends where the job throws, too
    Context& ctx;
    Parts& parts;
    Recording(Context& context, Parts& of) : ctx(context), parts(of) {
      parts.on = true;
      ctx.profile().start();
    }
    ~Recording() {
      ctx.profile().stop();
      parts.on = false;
    }
  };
  parts.all = {{.name = "other"}};
  parts.current = 0;
  parts.since = std::chrono::steady_clock::now();
  {
    const Recording recording(ctx, parts);
    job();
    parts.book(ctx);
  }
  std::rotate(parts.all.begin(), parts.all.begin() + 1, parts.all.end());  // "other" last
  return std::exchange(parts.all, {});
}

}  // namespace bhyt::profile
