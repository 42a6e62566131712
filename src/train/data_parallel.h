// Training shared out over the ranks of a group: every rank computes the gradients of its rows, and what is kept beside the weights is
// cut into shards as far as parallel.zero says (ZeRO):
//   0  every rank keeps everything; gradients are added up over the ranks (all-reduce)
//   1  a rank keeps the optimizer's state of its shard; gradients accumulate over micro-batches where they were made and are added up once
//      (reduce-scatter), new weights are handed round (all-gather)
//   2  gradients are kept of the shard alone, too: each micro-batch's are added up when its layer is done
// A process on its own is the case of one rank without collectives.
#pragma once

#include <memory>
#include <vector>

#include "model/shard.h"
#include "model/train_pass.h"
#include "parallel/collectives.h"
#include "train/config.h"
#include "train/optimizer.h"

namespace bhyt::train {

// Of several ranks, or of one that was launched and told what to share out (parallel.zero).
bool works_as_ranks(const RunConfig& config, const parallel::Group* group);

class DataParallel {
 public:
  DataParallel(Context& ctx, const Model& model, const RunConfig& config, parallel::Group* group);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Bytes that gradients will take on this rank.
  static double planned_bytes(const RunConfig& config);

  bool several() const { return collectives_ != nullptr; }
  std::int64_t shard_rank() const { return zero_ > 0 ? rank_ : 0; }  // what the optimizer keeps
  std::int64_t shard_ranks() const { return zero_ > 0 ? ranks_ : 1; }
  const Gradients& gradients() const { return gradients_; }
  std::size_t gradient_bytes() const;

  // Of a step of several ranks, in this order: prepare() for each micro-batch, then run the pass with it; idle() in the place of those that
  // other ranks have more of; finish() and norm(), the update, publish().
  // pieces: of this rank; most: of the rank that has most.
  void prepare(TrainPass::Step& step, std::int64_t piece, std::int64_t pieces);
  void idle(std::int64_t pieces, std::int64_t most);
  // Adds up the loss and the wish to stop, fp32 [2], and whatever else is not yet.
  void finish(const Tensor& loss_and_stop);
  void norm(const Optimizer& optimizer, const Tensor& norm);
  Tensor summed() const;    // the gradients that the optimizer takes, an arena of its shard
  void publish();           // hands the new weights round; a pass waits for them layer by layer
  void wait_for_weights();  // before anything else reads them

  bool first_says(bool own);               // on every rank what the first one says
  std::int64_t largest(std::int64_t own);  // on every rank the largest of what they say
  // Σ over the ranks, in place, on the host.
  void add_up(std::vector<double>& values);
  // Every rank's masters of a parameter, joined; all ranks ask for the same parameters in the same order.
  std::vector<float> master(const Optimizer& optimizer, const Parameter& p);

  // From here on what this rank does is written down, layer by layer; timeline() ends that and gives it in Chrome's trace format.
  void trace();
  std::string timeline();

 private:
  void lay_gradients();
  void layer_done(std::int64_t layer, bool add);
  void needed(std::int64_t layer);
  Tensor section_gradients(std::size_t section) const;

  Context& ctx_;
  const Model& model_;
  parallel::Group* group_;
  std::int64_t rank_ = 0, ranks_ = 1, zero_ = 0;
  Shard shard_;
  Gradients gradients_;
  OwnedTensor matrices_;       // zero 1: gradients of all matrices; zero 2: of as many layers as are under way at a time
  OwnedTensor summed_;         // an arena of the shard
  OwnedTensor squares_;        // fp64 [1]
  std::vector<float*> where_;  // of a section's gradients
  std::vector<parallel::Collectives::Ticket> reduced_, gathered_;  // the last of each section
  void wait(parallel::Collectives::Ticket ticket);
  bool tracing_ = false;
  std::unique_ptr<parallel::Collectives> collectives_;
};

}  // namespace bhyt::train
