// A step of the engine on the device: the tokens that a plan names go through the model, new ones are chosen, and what came out is read
// when it is there, on a GPU a step later.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/mirror.h"
#include "generate/scheduler.h"
#include "model/decode_pass.h"

namespace bhyt {

class Stepper {
 public:
  struct Limits {
    std::int64_t tokens = 1, sequences = 1, pages = 1, length = 1;
  };
  Stepper(Context& ctx, const Model& model, const Limits& limits);

  void give(const std::vector<Scheduler::Part>& plan);
  std::int64_t in_flight() const { return std::ssize(flying_); }

  // What came of the oldest step that was given.
  struct Outcome {
    std::shared_ptr<Sequence> sequence;
    std::vector<TokenScore> scores;
    bool chose = false;
    AnswerToken token;  // id −1: there was nothing to choose
    bool last = false;  // the prompt has been gone through
  };
  std::vector<Outcome> collect();

  std::int64_t steps = 0, tokens = 0;  // given so far

 private:
  // A part of a step that is on its way.
  struct Flying {
    std::shared_ptr<Sequence> sequence;
    std::int64_t row = -1;            // of the tokens chosen; −1: none
    std::span<const Target> targets;  // those that are scored
    bool last = false;
  };
  struct Step {
    std::vector<Flying> parts;
    Mirror* results;
    std::int64_t scored = 0;
  };
  // Where a step's results lie in a mirror.
  struct Results {
    Tensor tokens, logprobs, losses, greedy;
  };
  Results results_in(void* memory, Device device, std::int64_t rows, std::int64_t scored) const;
  void fit_pass(const std::vector<Scheduler::Part>& plan);
  std::int64_t send_rows(const std::vector<Scheduler::Part>& plan);
  void choose(const Tensor& logits, const Results& to, bool logprobs);
  bool seen_before(const std::vector<Scheduler::Part>& plan);

  Context& ctx_;
  const Model& model_;
  Limits limits_;
  KvPages pages_;
  std::unique_ptr<DecodePass> pass_;
  std::int64_t pass_length_ = 0;
  Mirror rows_;       // SampleRow [sequences], then the tokens of sequences that begin, a bit each
  OwnedTensor seen_;  // the same of those that run
  Mirror results_[2];
  std::vector<int> decoded_;  // how often as many sequences were continued, with everything that takes memory done
  std::deque<Step> flying_;
};

}  // namespace bhyt
