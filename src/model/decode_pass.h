// Continuing sequences: the tokens of several at once, each behind what its pages hold.
#pragma once

#include <span>
#include <vector>

#include <optional>

#include "core/graph.h"
#include "core/mirror.h"
#include "model/activations.h"
#include "model/few_rows_pass.h"
#include "model/kv_pages.h"
#include "model/target.h"

namespace bhyt {

class DecodePass {
 public:
  // The most of one call (tokens over all its sequences, and sequences), and the longest sequence.
  struct Limits {
    std::int64_t tokens = 1, sequences = 1, length = 1;
    std::int64_t scored = 0;  // targets; 0: as many as tokens
  };
  DecodePass(Context& ctx, const Model& model, KvPages& pages, const Limits& limits);
  DecodePass(const DecodePass&) = delete;
  DecodePass& operator=(const DecodePass&) = delete;

  // Tokens that follow `past` others of one sequence, whose keys and values its pages already hold; the new ones go behind them.
  struct Piece {
    std::span<const std::int32_t> tokens;  // at least one; −1−i stands for feed[i], known to the device alone
    std::int64_t past = 0;
    std::span<const std::int32_t> pages;   // of the sequence from its start; enough for past + tokens
    std::int32_t begun_by = -1;            // on a CPU: the page that holds, or gets in this call, what its own holds of the past
    bool logits = true;                    // of its last token are wanted
    std::span<const Target> targets = {};  // to be scored behind these tokens, in their order; places are the sequence's
  };
  // On the device, good until the next call.
  struct Result {
    Tensor logits;          // fp32 [R, V]: of the pieces that want them, in order
    Tensor losses, greedy;  // fp32 and int32 [M]: −log p(target) and the likeliest token, of the M targets in order
  };
  Result run(std::span<const Piece> pieces);

  Tensor feed;  // int32 on the device; only where pieces refer to it
  Observers observers;

 private:
  struct Inputs;
  Inputs counted(std::span<const Piece> pieces);
  Inputs put(std::span<const Piece> pieces);
  void look(Inputs& in, std::int64_t sequences) const;
  void needed_rows(std::span<const Piece> pieces);
  void finish_needed(const Inputs& in, const Stream& stream, const ForwardOptions& how);
  void blocks(const Inputs& in);
  void heads(const Inputs& in, const Result& out);
  void compute(const Inputs& in, const Result& out);

  Context& ctx_;
  const Model& model_;
  KvPages& pages_;
  Limits limits_;
  std::int64_t table_width_;
  Activations act_;
  OwnedTensor rope_;
  Mirror input_;  // everything that a call brings
  std::vector<PagedPiece> where_, needed_where_;
  std::vector<std::int32_t> needed_;  // the rows that the head sees, in order
  std::vector<PageCopy> copies_;
  OwnedTensor rows_, logits_, losses_, greedy_;
  OwnedTensor needed_q_, needed_stats_;  // of the last block's rows that go on to the head
  std::optional<FewRowsPass> few_rows_;  // where its kernels are made for the model
  GraphCache graphs_;
};

}  // namespace bhyt
