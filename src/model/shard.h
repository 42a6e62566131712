// What one of several processes keeps beside the weights: all vectors and scalars, which every process keeps alike, and an equal piece of
// every section (parameters.h). Its arenas hold these one behind the other.
#pragma once

#include <unordered_map>
#include <vector>

#include "model/parameters.h"

namespace bhyt {

class Shard {
 public:
  // The parameters' sections must be cut into so many ranks, or `ranks` be 1: then a shard's arena has the order of a whole one.
  explicit Shard(const Parameters& parameters, std::int64_t rank = 0, std::int64_t ranks = 1);

  std::int64_t rank() const { return rank_; }
  std::int64_t ranks() const { return ranks_; }
  std::int64_t size() const { return size_; }  // elements of an arena

  // This process's part of a section.
  struct Piece {
    std::int64_t section = 0;  // in Parameters::sections()
    std::int64_t first = 0;    // elements from the section's beginning
    std::int64_t size = 0;
    std::int64_t at = 0;  // in an arena of the shard
  };
  const std::vector<Piece>& pieces() const { return pieces_; }  // one for each section
  Tensor vectors(const Tensor& arena) const;                    // the stretch of an arena that holds vectors and scalars
  Tensor in_arena(const Tensor& arena, const Piece& piece) const;

  // What is kept of a parameter that is trained: its elements [first, first + size).
  struct Part {
    const Parameter* parameter = nullptr;
    std::int64_t first = 0, size = 0;
    std::int64_t at = 0;  // in an arena of the shard
    bool shared = false;  // every process keeps it
    bool whole() const { return size == parameter->size; }
  };
  const std::vector<Part>& parts() const { return parts_; }  // in the order of the list
  const Part* find(const Parameter& p) const;                // null: nothing of it is kept here
  Tensor in_arena(const Tensor& arena, const Part& part) const;

 private:
  std::int64_t rank_, ranks_, size_ = 0, vectors_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Part> parts_;
  std::unordered_map<const Parameter*, std::size_t> index_;  // in parts_
};

}  // namespace bhyt
