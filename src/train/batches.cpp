#include "train/batches.h"

#include <algorithm>

namespace bhyt::train {

Uploader::Uploader(Device device, std::int64_t micro_batch, std::int64_t seq)
    : device_(device),
      rows_(micro_batch),
      tokens_(device, DType::i32, {micro_batch, seq}),
      targets_(device, DType::i32, {micro_batch, seq}),
      positions_(device, DType::i32, {micro_batch, seq}),
      first_(device, DType::i32, {micro_batch, seq}) {}

Tensor Uploader::put(OwnedTensor& to, const std::vector<std::int32_t>& from, std::int64_t first, std::int64_t rows, std::int64_t seq) {
  if (from.empty()) return {};
  const Tensor t(to.t.data, DType::i32, device_, {rows, seq});
  device_copy(device_, t.data, Device::cpu(), from.data() + first * seq, t.bytes());
  return t;
}

Batch Uploader::upload(const HostBatch& host, std::int64_t first) {
  const std::int64_t rows = std::min(rows_, host.batch - first), seq = host.seq;
  return {.batch = rows,
          .seq = seq,
          .tokens = put(tokens_, host.tokens, first, rows, seq),
          .targets = put(targets_, host.targets, first, rows, seq),
          .positions = put(positions_, host.positions, first, rows, seq),
          .first = put(first_, host.first, first, rows, seq)};
}

std::int64_t scored_tokens(const HostBatch& batch) {
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t t) { return t >= 0; });
}

Evaluation evaluate(Model& model, const Loader& loader, Uploader& uploader, std::int64_t batches) {
  const std::int64_t all = loader.batches(), n = batches > 0 ? std::min(batches, all) : all;
  const OwnedTensor loss(model.device(), DType::f32, {1});
  Evaluation out;
  double sum = 0;
  HostBatch host;
  for (std::int64_t i = 0; i < n; ++i) {
    loader.batch(i, host);
    out.tokens += scored_tokens(host);
    for (std::int64_t row = 0; row < host.batch; row += uploader.rows()) {
      zero(loss);
      model.score(uploader.upload(host, row), {.loss = loss});
      float value = 0;
      device_copy(Device::cpu(), &value, model.device(), loss.t.data, sizeof value);
      sum += static_cast<double>(value);
    }
  }
  out.loss = out.tokens ? sum / static_cast<double>(out.tokens) : 0;
  return out;
}

}  // namespace bhyt::train
