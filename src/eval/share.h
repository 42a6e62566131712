// Scoring that the ranks of a group share out: each scores pieces of its own, and all hear of every result, in order. What is scored does
// not depend on its neighbours, so the numbers are those of one process.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/group.h"

namespace bhyt {

struct Sharing {
  parallel::Group* group = nullptr;  // null: this process scores everything
  // About what a rank computes between two gatherings. Much: ranks wait seldom, and beginnings that documents share are computed by few of
  // them. Little: little is lost with a process that is killed.
  double tokens = 1 << 14;

  static Sharing over(parallel::Group* group, Device device) { return {group, device.is_cuda() ? double{1 << 18} : double{1 << 14}}; }

  bool several() const { return group && group->size() > 1; }
  // On every rank; where it fails on one, all throw its Error. What throws is no part of a collective.
  void together(const std::function<void()>& work) const;
  // How many the first rank counts.
  std::size_t first_counts(const std::function<std::size_t()>& count) const;
};

// Where things of these costs are cut into pieces of about the same cost, in order: pieces + 1 places. A piece may be empty.
std::vector<std::size_t> cut(std::span<const double> costs, std::size_t pieces);

// Things [first, last), in order: gives the bytes of each one's result. Ends before the last one where it is interrupted.
using ScorePiece = std::function<void(std::size_t first, std::size_t last, const std::function<void(std::string)>& give)>;

// All things, by several ranks: every rank has the same ones, with costs in tokens, and hears of their results. False where one was
// interrupted: then all have heard of the same ones, those before the first that is missing. Error where a rank has another number of them,
// or another checksum.
bool share_out(const Sharing& ranks, std::span<const double> costs, const ScorePiece& score,
               const std::function<void(std::size_t, const std::string&)>& take, std::uint64_t checksum = 0);

template <class T>
std::string as_bytes(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}
template <class T>
std::vector<T> from_bytes(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace bhyt
