#include "model/shard.h"

#include <algorithm>

#include "core/check.h"

namespace bhyt {

namespace {

Tensor stretch(const Tensor& arena, std::int64_t at, std::int64_t size) {
  return Tensor(static_cast<char*>(arena.data) + static_cast<std::size_t>(at) * size_of(arena.dtype), arena.dtype, arena.device, {size});
}

}  // namespace

Shard::Shard(const Parameters& parameters, std::int64_t rank, std::int64_t ranks)
    : rank_(rank), ranks_(ranks), vectors_(parameters.vectors_size()) {
  check(rank >= 0 && rank < ranks, "[shard] expected a rank below {}, got {}", ranks, rank);
  check(ranks == 1 || parameters.shards() == ranks, "[shard] expected parameters for {} shards, got {}", ranks, parameters.shards());
  size_ = vectors_;
  const auto& sections = parameters.sections();
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const std::int64_t size = sections[i].size / ranks;
    pieces_.push_back({.section = static_cast<std::int64_t>(i), .first = rank * size, .size = size, .at = size_});
    size_ += size;
  }
  auto piece = pieces_.begin();
  for (const Parameter& p : parameters.list()) {
    if (p.frozen) continue;
    if (p.offset < vectors_) {
      parts_.push_back({.parameter = &p, .size = p.size, .at = p.offset, .shared = true});
      continue;
    }
    while (sections[static_cast<std::size_t>(piece->section)].layer != p.layer) ++piece;
    const std::int64_t begin = sections[static_cast<std::size_t>(piece->section)].offset + piece->first;  // of the piece, in a whole arena
    const std::int64_t from = std::max(p.offset, begin), to = std::min(p.offset + p.size, begin + piece->size);
    if (from < to) parts_.push_back({.parameter = &p, .first = from - p.offset, .size = to - from, .at = piece->at + from - begin});
  }
  size_ = (size_ + 1023) / 1024 * 1024;
  for (std::size_t i = 0; i < parts_.size(); ++i) index_[parts_[i].parameter] = i;
}

const Shard::Part* Shard::find(const Parameter& p) const {
  const auto found = index_.find(&p);
  return found == index_.end() ? nullptr : &parts_[found->second];
}

Tensor Shard::vectors(const Tensor& arena) const { return stretch(arena, 0, vectors_); }
Tensor Shard::in_arena(const Tensor& arena, const Piece& piece) const { return stretch(arena, piece.at, piece.size); }
Tensor Shard::in_arena(const Tensor& arena, const Part& part) const { return stretch(arena, part.at, part.size); }

}  // namespace bhyt
