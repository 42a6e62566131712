// The one way to tokens and log-likelihoods: requests are submitted from any thread, computed side by side in a thread of the engine's own,
// and read as they come. Between steps requests join and leave; keys and values lie in pages, and beginnings that several requests have in
// common are computed once. A request's answer does not depend on what else is computed (docs/generation.md says what holds where).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "generate/answer.h"
#include "generate/request.h"
#include "model/model.h"

namespace bhyt {

struct EngineOptions {
  // Of keys and values; 0: for `sequences` of the trained length, at least for 131,072 tokens, as far as there is memory.
  std::int64_t pages = 0;
  std::int64_t tokens = 0;                 // of a step; 0: 2048 on a GPU, 384 on a CPU
  std::int64_t sequences = 0;              // of a step; 0: 256 on a GPU, 32 on a CPU
  std::int64_t length = 0;                 // of a prompt and its answer; 0: what the pages hold
  std::optional<bool> ahead;               // a step is given to the device before the last one's tokens are here; default: on a GPU
  std::function<bool()> interrupted = {};  // asked before each step: true ends all answers with what there is
};

struct EngineCounters {
  std::int64_t pages_used = 0, pages_cached = 0, pages_free = 0;
  std::int64_t running = 0, waiting = 0;  // requests
  std::int64_t steps = 0, computed_tokens = 0, shared_tokens = 0, evictions = 0;
};

// Pages that the free memory of the model's device has room for, with some left for everything else.
std::int64_t affordable_pages(const Model& model);

class Engine {
 public:
  // The context is the engine's alone as long as it lives; the model must outlive it and not change.
  Engine(Context& ctx, const Model& model, const EngineOptions& options = {});
  ~Engine();  // cancels what is left
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // UsageError for a request that can never be answered: see check().
  [[nodiscard]] Answer submit(Request request);
  // All of them, or none when one is refused; they begin in this order.
  [[nodiscard]] std::vector<Answer> submit_all(std::vector<Request> requests);
  // UsageError for no prompt, ids that the model does not have, options that make no sense, and what is longer than the limit.
  void check(const Request& request) const;

  std::int64_t longest() const;  // tokens of a prompt and its answer at most
  EngineCounters counters() const;
  void wait_until_idle();  // until every request is answered or cancelled, and has given its pages back

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace bhyt
