// Batches on their way to the device, and the mean loss over a validation set.
#pragma once

#include <array>

#include "core/mirror.h"
#include "model/train_pass.h"
#include "train/batch_source.h"

namespace bhyt::train {

// Two batches on the device: one to compute with, and the next, which is copied meanwhile.
class Uploader {
 public:
  Uploader(Context& ctx, std::int64_t batch, std::int64_t micro_batch, std::int64_t seq);

  void put(const HostBatch& host);  // the next one; its copy runs beside what the device computes
  void advance();                   // what was put becomes the current one

  // Of the current batch.
  std::int64_t rows() const { return current().rows; }
  std::int64_t scored() const { return current().scored; }
  Batch piece(std::int64_t first) const;  // rows [first, first + micro_batch), fewer at its end
  std::int64_t micro_batch() const { return micro_batch_; }
  std::int64_t most_pieces() const { return (batch_ + micro_batch_ - 1) / micro_batch_; }

 private:
  struct Slot {
    Mirror memory;  // int32 [rows, seq]: tokens, targets and, where documents are told apart, positions and first
    std::int64_t rows = 0, scored = 0;
    bool documents = false;
  };
  const Slot& current() const { return slots_[now_]; }
  Device device_;
  std::int64_t batch_, micro_batch_, seq_;
  std::array<Slot, 2> slots_;
  std::size_t now_ = 0;
};

struct Evaluation {
  double loss = 0;  // mean over the tokens
  std::int64_t tokens = 0;
};

// Over the first `batches` batches (0 = one pass) of a source.
Evaluation evaluate(Context& ctx, TrainPass& pass, BatchSource& source, Uploader& uploader, std::int64_t batches);

}  // namespace bhyt::train
