// Work that is given to a GPU again and again as it was the first time: recorded once as a CUDA graph, then started as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "core/context.h"

namespace bhyt {

namespace cuda {
struct Graph;
struct CloseGraph {
  void operator()(Graph* graph) const noexcept;
};
Graph* record(Context& ctx, const std::function<void()>& work);
void start(Context& ctx, Graph& graph);
}  // namespace cuda

// Graphs by everything that the recorded work depends on beside the contents of memory: pointers, shapes, numbers.
class GraphCache {
 public:
  using Key = std::vector<std::uint64_t>;

  // The environment variable BHYT_GRAPHS=off leaves graphs out, for comparison.
  // Runs work, by its graph where the key came before. Only in a settled context on a GPU that nobody profiles: elsewhere work runs as it
  // is.
  void run(Context& ctx, const Key& key, const std::function<void()>& work) {
    if (!ctx.device().is_cuda() || !ctx.is_settled() || ctx.profile().recording() || !enabled_) return work();
    auto it = graphs_.find(key);
    if (it == graphs_.end()) {
      if (graphs_.size() >= kMost) graphs_.clear();
      it = graphs_.emplace(key, std::unique_ptr<cuda::Graph, cuda::CloseGraph>(cuda::record(ctx, work))).first;
    }
    cuda::start(ctx, *it->second);
  }
  std::size_t size() const { return graphs_.size(); }

 private:
  static constexpr std::size_t kMost = 256;  // where keys never repeat, recording must not pile up
  static bool wanted() {
    const char* text = std::getenv("BHYT_GRAPHS");
    return text == nullptr || std::string_view(text) != "off";
  }
  bool enabled_ = wanted();
  std::map<Key, std::unique_ptr<cuda::Graph, cuda::CloseGraph>> graphs_;
};

}  // namespace bhyt
