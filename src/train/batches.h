// Batches on their way to the device, and the mean loss over a validation set.
#pragma once

#include "data/loader.h"
#include "model/model.h"

namespace bhyt::train {

// Device memory for one micro-batch, filled again and again.
class Uploader {
 public:
  Uploader(Device device, std::int64_t micro_batch, std::int64_t seq);
  // Rows [first, first + micro_batch) of a host batch, fewer at its end. Valid until the next call.
  Batch upload(const HostBatch& host, std::int64_t first);
  std::int64_t rows() const { return rows_; }

 private:
  Tensor put(OwnedTensor& to, const std::vector<std::int32_t>& from, std::int64_t first, std::int64_t rows, std::int64_t seq);
  Device device_;
  std::int64_t rows_;
  OwnedTensor tokens_, targets_, positions_, first_;
};

struct Evaluation {
  double loss = 0;  // mean over the tokens
  std::int64_t tokens = 0;
};

// Over the first `batches` batches (0 = all) of a loader without shuffling.
Evaluation evaluate(Model& model, const Loader& loader, Uploader& uploader, std::int64_t batches);

std::int64_t scored_tokens(const HostBatch& batch);

}  // namespace bhyt::train
