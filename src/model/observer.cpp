#include "model/observer.h"

#include <algorithm>
#include <utility>

namespace bhyt {

std::string_view name_of(Point point) {
  constexpr std::array<std::string_view, kPoints> names = {
      "embedding", "block_input", "statistic1",       "scale1",          "z1",           "q",      "k",
      "v",         "attention",   "attention_output", "after_attention", "statistic2",   "scale2", "z2",
      "gate",      "up",          "hidden",           "mlp_output",      "block_output", "last",   "logits"};
  return names[static_cast<std::size_t>(point)];
}

Observers::Subscription::Subscription(Subscription&& o) noexcept : from_(std::exchange(o.from_, nullptr)), id_(o.id_) {}

Observers::Subscription& Observers::Subscription::operator=(Subscription&& o) noexcept {
  std::swap(from_, o.from_);
  std::swap(id_, o.id_);
  return *this;
}

Observers::Subscription::~Subscription() {
  if (from_) from_->end(id_);
}

Observers::Subscription Observers::subscribe(std::vector<Point> points, Callback callback, std::vector<std::int64_t> layers) {
  for (const Point p : points) mask_ |= 1u << static_cast<unsigned>(p);
  entries_.push_back({++last_id_, std::move(points), std::move(layers), std::move(callback)});
  return {this, last_id_};
}

bool Observers::Entry::wants(Point p, std::int64_t layer) const {
  return std::find(points.begin(), points.end(), p) != points.end() &&
         (layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end());
}

bool Observers::subscribed(Point p, std::int64_t layer) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.wants(p, layer); });
}

void Observers::call(Context& ctx, const Seen& seen) const {
  for (const Entry& e : entries_)
    if (e.wants(seen.point, seen.layer)) e.callback(ctx, seen);
}

void Observers::end(std::int64_t id) {
  std::erase_if(entries_, [&](const Entry& e) { return e.id == id; });
  mask_ = 0;
  for (const Entry& e : entries_)
    for (const Point p : e.points) mask_ |= 1u << static_cast<unsigned>(p);
}

}  // namespace bhyt
