// Batches on their way to the device, and the mean loss over a validation set.
#pragma once

#include <array>
#include <functional>
#include <optional>

#include "core/mirror.h"
#include "model/train_pass.h"
#include "train/batch_source.h"

namespace bhyt::train {

// Two batches on the device: one to compute with, and the next, which is copied meanwhile.
class Uploader {
 public:
  // The most that a batch brings; its rows may be shorter, and then more of them make a micro-batch. documents: batches bring positions
  // and first, too.
  struct Shape {
    std::int64_t batch = 1, micro_batch = 1, seq = 1;
    bool documents = false;
    bool lists = false;  // those of which few tokens are scored come with a list of these
  };
  Uploader(Context& ctx, const Shape& shape);
  static double planned_bytes(const Shape& shape);  // on the device, and beside a GPU as many again on the host

  void put(const HostBatch& host);  // the next one; its copy runs beside what the device computes
  void advance();                   // what was put becomes the current one

  // Of the current batch.
  std::int64_t rows() const { return current().rows; }
  std::int64_t examples() const { return current().examples; }  // rows of the data
  std::int64_t tokens() const { return current().rows * current().seq; }
  // Of the batch of all ranks, where there are several; of this one's rows the first there. examples, used and scored are of all, too.
  std::int64_t all_rows() const { return current().all_rows; }
  std::int64_t first_row() const { return current().first_row; }
  std::int64_t seq() const { return current().seq; }    // of a row
  std::int64_t used() const { return current().used; }  // those of the data
  std::int64_t scored() const { return current().scored; }
  Tensor scale() const;               // fp32 [1] on the device: 1 / scored()
  Tensor per_token() const;           // the same: 1 / used()
  Batch piece(std::int64_t i) const;  // the i-th micro-batch
  std::int64_t pieces() const { return pieces_of(rows()); }
  std::int64_t pieces_of(std::int64_t rows) const { return (rows + piece_rows() - 1) / piece_rows(); }
  std::int64_t batch() const { return shape_.batch; }  // the most rows
  std::int64_t most_pieces() const { return (shape_.batch + shape_.micro_batch - 1) / shape_.micro_batch; }

 private:
  struct Slot {
    // Two factors; then int32 [rows, seq]: tokens, targets and, where documents are told apart, positions and first; then for each piece of
    // which few tokens are scored their places and targets.
    Mirror memory;
    struct Scored {
      std::int64_t at = 0, count = 0;  // elements from the beginning
    };
    std::vector<Scored> lists = {};
    std::int64_t rows = 0, seq = 1, examples = 0, used = 0, scored = 0, all_rows = 0, first_row = 0;
    bool documents = false;
  };
  const Slot& current() const { return slots_[now_]; }
  std::int64_t piece_rows() const { return rows_in_piece(current()); }
  std::int64_t rows_in_piece(const Slot& s) const { return shape_.micro_batch * shape_.seq / s.seq; }
  std::int32_t* list_scored(const HostBatch& host, Slot& slot, std::int32_t* begin, std::int32_t* to) const;
  Device device_;
  Shape shape_;
  std::array<Slot, 2> slots_;
  std::size_t now_ = 0;
};

std::int64_t count_scored(const std::vector<std::int32_t>& targets);

struct Evaluation {
  double loss = 0;         // mean over the tokens
  double loss_by_row = 0;  // mean over the batches of their means, each weighing as much as it has rows: transformers' eval_loss
  std::int64_t tokens = 0;
};

// Asked after each micro-batch, with the rows done and the rows in all; false: stop here.
using GoOn = std::function<bool(std::int64_t done, std::int64_t all)>;

// Where each of several ranks has some of the rows: asked by all of them at the same time.
struct WithRanks {
  std::function<void(std::vector<double>&)> add_up;  // over the ranks
  // Before each batch. ready: this rank could read it; false, on all ranks: stop here.
  std::function<bool(bool ready)> go_on;
};

// Over the first `batches` batches (0 = one pass) of a source; nothing where it was stopped.
std::optional<Evaluation> evaluate(Context& ctx, TrainPass& pass, BatchSource& source, Uploader& uploader, std::int64_t batches,
                                   const GoOn& go_on, const WithRanks& ranks = {});

}  // namespace bhyt::train
