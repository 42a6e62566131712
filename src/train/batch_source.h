// Where a run's batches come from: rows of packed texts, or conversations.
#pragma once

#include <cstdint>

#include "data/batch.h"

namespace bhyt::train {

// Batch n, from 0, is a pure function of the source and n: a resumed run starts where it stopped.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual std::int64_t rows() const = 0;     // in one pass over the data; of texts, or conversations
  virtual std::int64_t batches() const = 0;  // in one pass over the data
  virtual void start(std::int64_t n) = 0;    // next() then gives batches n, n + 1, …
  virtual HostBatch next() = 0;              // Error where the data is damaged
};

}  // namespace bhyt::train
