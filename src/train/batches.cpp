#include "train/batches.h"

#include <algorithm>

namespace bhyt::train {

namespace {

// Bytes of one batch: tokens and targets, positions and first.
double bytes_of(const Uploader::Shape& s) {
  return static_cast<double>(s.batch) * static_cast<double>(s.seq) * (s.documents ? 4 : 2) * sizeof(std::int32_t);
}

}  // namespace

Uploader::Uploader(Context& ctx, const Shape& shape)
    : device_(ctx.device()),
      shape_(shape),
      slots_{Slot{.memory = Mirror(ctx, static_cast<std::size_t>(bytes_of(shape)))},
             Slot{.memory = Mirror(ctx, static_cast<std::size_t>(bytes_of(shape)))}} {}

double Uploader::planned_bytes(const Shape& shape) { return 2 * bytes_of(shape); }

void Uploader::put(const HostBatch& host) {
  Slot& next = slots_[1 - now_];
  auto* to = static_cast<std::int32_t*>(next.memory.host_side());
  const std::int32_t* const begin = to;
  for (const auto* from : {&host.tokens, &host.targets, &host.positions, &host.first}) to = std::copy(from->begin(), from->end(), to);
  next.memory.send(static_cast<std::size_t>(to - begin) * sizeof *to);
  next.rows = host.batch;
  next.scored = std::count_if(host.targets.begin(), host.targets.end(), [](std::int32_t t) { return t >= 0; });
  next.documents = !host.positions.empty();
}

void Uploader::advance() {
  current().memory.release();
  now_ = 1 - now_;
  current().memory.receive();
}

Batch Uploader::piece(std::int64_t first) const {
  const Slot& s = current();
  const std::int64_t n = std::min(shape_.micro_batch, s.rows - first);
  const auto array = [&](std::int64_t i) {
    auto* data = static_cast<std::int32_t*>(s.memory.device_side()) + (i * s.rows + first) * shape_.seq;
    return Tensor(data, DType::i32, device_, {n, shape_.seq});
  };
  return {.batch = n,
          .seq = shape_.seq,
          .tokens = array(0),
          .targets = array(1),
          .weights = {},
          .positions = s.documents ? array(2) : Tensor{},
          .first = s.documents ? array(3) : Tensor{}};
}

std::optional<Evaluation> evaluate(Context& ctx, TrainPass& pass, BatchSource& source, Uploader& uploader, std::int64_t batches,
                                   const GoOn& go_on) {
  const std::int64_t all = source.batches(), n = batches > 0 ? std::min(batches, all) : all;
  Evaluation out;
  source.start(0);
  const auto put = [&](std::int64_t i) {
    if (i < n) uploader.put(source.next());
  };
  // A sum for each piece, read once at the end: the device is not waited for in between.
  std::int64_t pieces = 0, done = 0;
  const OwnedTensor sums(ctx, DType::f32, {n * uploader.most_pieces()});
  zero(ctx, sums);
  put(0);
  for (std::int64_t i = 0; i < n; ++i) {
    uploader.advance();
    out.tokens += uploader.scored();
    for (std::int64_t row = 0; row < uploader.rows(); row += uploader.micro_batch()) {
      const Batch piece = uploader.piece(row);
      pass.score(piece, {.loss = Tensor(sums.t.as<float>() + pieces++, DType::f32, ctx.device(), {1})});
      done += piece.batch;
      if (!go_on(done, std::min(n * uploader.batch(), source.rows()))) return std::nullopt;
    }
    put(i + 1);
  }
  std::vector<float> host_sums(static_cast<std::size_t>(pieces));
  ctx.copy(Device::cpu(), host_sums.data(), ctx.device(), sums.t.data, host_sums.size() * sizeof(float));
  double sum = 0;
  for (const float s : host_sums) sum += static_cast<double>(s);
  out.loss = out.tokens ? sum / static_cast<double>(out.tokens) : 0;
  return out;
}

}  // namespace bhyt::train
