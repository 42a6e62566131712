#include "train/rank_rows.h"

#include <algorithm>

#include "train/batches.h"

namespace bhyt::train {

RowRange rows_of(std::int64_t rows, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t each = rows / ranks, more = rows % ranks;  // the first ranks have one more
  return {.first = rank * each + std::min(rank, more), .count = each + (rank < more ? 1 : 0)};
}

HostBatch take_rows(const HostBatch& all, std::int64_t rank, std::int64_t ranks) {
  const RowRange r = rows_of(all.batch, rank, ranks);
  const auto part = [&](const std::vector<std::int32_t>& from) {
    if (from.empty()) return from;
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(r.first * all.seq);
    return std::vector<std::int32_t>(begin, begin + static_cast<std::ptrdiff_t>(r.count * all.seq));
  };
  return {.batch = r.count,
          .seq = all.seq,
          .all_rows = all.batch,
          .all_scored = count_scored(all.targets),
          .first_row = r.first,
          .used = all.used > 0 ? all.used : all.batch * all.seq,
          .examples = all.examples > 0 ? all.examples : all.batch,
          .tokens = part(all.tokens),
          .targets = part(all.targets),
          .positions = part(all.positions),
          .first = part(all.first)};
}

namespace {

class RankRows : public BatchSource {
 public:
  RankRows(std::unique_ptr<BatchSource> source, std::int64_t rank, std::int64_t ranks)
      : source_(std::move(source)), rank_(rank), ranks_(ranks) {}
  std::int64_t rows() const override { return source_->rows(); }
  std::int64_t batches() const override { return source_->batches(); }
  void start(std::int64_t n) override { source_->start(n); }
  HostBatch next() override { return take_rows(source_->next(), rank_, ranks_); }

 private:
  std::unique_ptr<BatchSource> source_;
  std::int64_t rank_, ranks_;
};

}  // namespace

std::unique_ptr<BatchSource> rank_rows(std::unique_ptr<BatchSource> source, std::int64_t rank, std::int64_t ranks) {
  if (ranks == 1) return source;
  return std::make_unique<RankRows>(std::move(source), rank, ranks);
}

}  // namespace bhyt::train
