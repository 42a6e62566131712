// The rows of every batch that one of several ranks computes. Every rank reads whole batches and takes its rows, so that a batch is the
// same for any number of ranks.
#pragma once

#include <memory>

#include "train/batch_source.h"

namespace bhyt::train {

// Rows [first, first + count) of `rows` that are a rank's; others differ by one at most.
struct RowRange {
  std::int64_t first = 0, count = 0;
};
RowRange rows_of(std::int64_t rows, std::int64_t rank, std::int64_t ranks);

HostBatch take_rows(const HostBatch& all, std::int64_t rank, std::int64_t ranks);

std::unique_ptr<BatchSource> rank_rows(std::unique_ptr<BatchSource> source, std::int64_t rank, std::int64_t ranks);

}  // namespace bhyt::train
