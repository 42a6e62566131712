// Looking inside: every named intermediate of any pass, for whoever subscribed to it. What nobody asked for costs one look at a mask.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// In the order in which a pass comes by. N tokens; layers count from 1, and what comes before the blocks has layer 0, behind them L+1.
enum class Point : std::uint8_t {
  embedding,         // [N,C]
  block_input,       // [N,C] the residual stream at a block's entrance
  statistic1,        // [N] fp32: mean square or variance at site 1; nothing where the method has none
  scale1,            // [N] fp32: a of site 1
  z1,                // [N,C] site 1's output
  q,                 // [N,H·D], rotated
  k,                 // [N,K·D], rotated
  v,                 // [N,K·D]
  attention,         // [N,H·D]
  attention_output,  // [N,C] o_proj's output
  after_attention,   // [N,C] x'
  statistic2,        // [N] fp32: the same at site 2, approximated (s̃²) where the method approximates it
  scale2,            // [N] fp32
  z2,                // [N,C]
  gate,              // [N,F]
  up,                // [N,F]
  hidden,            // [N,F] silu(gate)·up
  mlp_output,        // [N,C] down_proj's output
  block_output,      // [N,C]
  last,              // [N,C] the final norm's output
  logits,            // [N,V] fp32; for decoding the rows that were asked for
};
constexpr std::size_t kPoints = 21;
std::string_view name_of(Point point);  // "after_attention"

struct Seen {
  Point point;
  std::int64_t layer;
  Tensor value;  // good during the call; a column slice where it lies beside others
};

class Observers {
 public:
  using Callback = std::function<void(Context&, const Seen&)>;

  // Ends with its owner; the Observers must still be there.
  class Subscription {
   public:
    Subscription() = default;
    Subscription(Subscription&& o) noexcept;
    Subscription& operator=(Subscription&& o) noexcept;
    ~Subscription();

   private:
    friend class Observers;
    Subscription(Observers* from, std::int64_t id) : from_(from), id_(id) {}
    Observers* from_ = nullptr;
    std::int64_t id_ = 0;
  };

  // layers empty: all of them.
  [[nodiscard]] Subscription subscribe(std::vector<Point> points, Callback callback, std::vector<std::int64_t> layers = {});

  bool any() const { return !entries_.empty(); }
  bool want(Point p, std::int64_t layer) const { return (mask_ >> static_cast<unsigned>(p) & 1u) != 0 && subscribed(p, layer); }
  void show(Context& ctx, Point point, std::int64_t layer, const Tensor& value) const {
    if ((mask_ >> static_cast<unsigned>(point) & 1u) != 0) [[unlikely]]
      call(ctx, {point, layer, value});
  }

 private:
  struct Entry {
    std::int64_t id;
    std::vector<Point> points;
    std::vector<std::int64_t> layers;
    Callback callback;
    bool wants(Point p, std::int64_t layer) const;
  };
  bool subscribed(Point p, std::int64_t layer) const;
  void call(Context& ctx, const Seen& seen) const;
  void end(std::int64_t id);

  std::vector<Entry> entries_;
  std::uint32_t mask_ = 0;
  std::int64_t last_id_ = 0;
};

}  // namespace bhyt
