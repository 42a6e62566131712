// Batches from token files: memory-mapped, shuffled by a seeded bijection over rows, batch n a pure function of (seed, n).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/batch.h"

namespace bhyt {

// How packed documents see each other: across the row (the paper), or only themselves, with positions that restart.
enum class Attend : std::uint8_t { row, document };

struct DataPart {
  std::string path;   // a token file
  double weight = 0;  // of a mixture; 0 = by its size
  std::string name;   // what errors call it: the text that it was packed from; "" = the path
};

struct LoaderOptions {
  std::vector<DataPart> parts;
  std::int64_t seq_len = 1024;
  std::int64_t batch = 1;  // rows per batch
  std::uint64_t seed = 0;
  bool shuffle = true;  // false: file order (validation)
  Attend attend = Attend::row;
};

class Loader {
 public:
  explicit Loader(const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  std::int64_t rows() const;                    // rows of T+1 tokens in one pass over the data
  std::int64_t batches() const;                 // whole batches in one pass, for validation (the last may be short with shuffle off)
  std::int64_t vocab() const;                   // the largest vocabulary any part was packed with
  std::uint64_t tokenizer_fingerprint() const;  // of the parts (all must agree)

  // Batch n, from 0, forever: the data is repeated in a new order when it runs out. Thread-safe, O(1) in n.
  void batch(std::int64_t n, HostBatch& out) const;

  // Starts a background thread that keeps the next batches ready; next() then returns batches n, n+1, … in order.
  void start(std::int64_t n, int ahead = 2);
  HostBatch next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bhyt
