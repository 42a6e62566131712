#include "train/batches.h"

#include <algorithm>
#include <exception>

#include "core/check.h"

namespace bhyt::train {

namespace {

constexpr std::int64_t kHeader = 64;  // elements before the arrays: two factors, and room so that they begin on a line of memory

// Bytes of one batch: tokens and targets, positions and first.
double bytes_of(const Uploader::Shape& s) {
  const double arrays = static_cast<double>(s.batch) * static_cast<double>(s.seq) * ((s.documents ? 4 : 2) + (s.lists ? 2 : 0));
  return (static_cast<double>(kHeader) + arrays) * sizeof(std::int32_t);
}

}  // namespace

Uploader::Uploader(Context& ctx, const Shape& shape)
    : device_(ctx.device()),
      shape_(shape),
      slots_{Slot{.memory = Mirror(ctx, static_cast<std::size_t>(bytes_of(shape)))},
             Slot{.memory = Mirror(ctx, static_cast<std::size_t>(bytes_of(shape)))}} {}

std::int64_t count_scored(const std::vector<std::int32_t>& targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t >= 0; });
}

double Uploader::planned_bytes(const Shape& shape) { return 2 * bytes_of(shape); }

void Uploader::put(const HostBatch& host) {
  check(host.batch <= shape_.batch && host.batch * host.seq <= shape_.batch * shape_.seq && host.seq <= shape_.seq,
        "[batches] expected at most {} rows of {} tokens, got {} of {}", shape_.batch, shape_.seq, host.batch, host.seq);
  Slot& next = slots_[1 - now_];
  const bool part = host.all_rows > 0;
  next.scored = part ? host.all_scored : count_scored(host.targets);
  next.all_rows = part ? host.all_rows : host.batch;
  next.first_row = host.first_row;
  auto* const begin = static_cast<std::int32_t*>(next.memory.host_side());
  *reinterpret_cast<float*>(begin) = static_cast<float>(1.0 / std::max(static_cast<double>(next.scored), 1.0));
  next.used = host.used > 0 ? host.used : host.batch * host.seq;
  reinterpret_cast<float*>(begin)[1] = static_cast<float>(1.0 / static_cast<double>(next.used));
  std::int32_t* to = begin + kHeader;
  for (const auto* from : {&host.tokens, &host.targets, &host.positions, &host.first}) to = std::copy(from->begin(), from->end(), to);
  next.rows = host.batch;
  next.seq = host.seq;
  to = list_scored(host, next, begin, to);
  next.memory.send(static_cast<std::size_t>(to - begin) * sizeof *to);
  next.examples = host.examples > 0 ? host.examples : host.batch;
  next.documents = !host.positions.empty();
}

// Where so many tokens are not scored that leaving them out is worth while: they never reach the LM head. Lists have few lengths, so that
// recorded steps are met again.
std::int32_t* Uploader::list_scored(const HostBatch& host, Slot& slot, std::int32_t* begin, std::int32_t* to) const {
  slot.lists.clear();
  if (!shape_.lists) return to;
  std::int32_t* const arrays_end = to;
  const std::int64_t rows = rows_in_piece(slot);
  for (std::int64_t first = 0; first < slot.rows; first += rows) {
    const std::int64_t tokens = std::min(rows, slot.rows - first) * slot.seq, step = std::max<std::int64_t>(tokens / 16, 1);
    const std::int32_t* const targets = host.targets.data() + first * slot.seq;
    const auto scored = std::count_if(targets, targets + tokens, [](std::int32_t t) { return t >= 0; });
    const std::int64_t count = std::max<std::int64_t>((scored + step - 1) / step, 1) * step;
    slot.lists.emplace_back();
    if (10 * count >= 9 * tokens) continue;
    std::int32_t *places = arrays_end + 2 * first * slot.seq, *ids = places + count;  // a piece has its place whatever those before it hold
    slot.lists.back() = {.at = places - begin, .count = count};
    to = places + 2 * count;
    std::fill(places, to, -1);
    for (std::int64_t i = 0; i < tokens; ++i)
      if (targets[i] >= 0) {
        *places++ = static_cast<std::int32_t>(i);
        *ids++ = targets[i];
      }
  }
  return to;
}

void Uploader::advance() {
  current().memory.release();
  now_ = 1 - now_;
  current().memory.receive();
}

Tensor Uploader::scale() const { return Tensor(current().memory.device_side(), DType::f32, device_, {1}); }
Tensor Uploader::per_token() const { return Tensor(static_cast<float*>(current().memory.device_side()) + 1, DType::f32, device_, {1}); }

Batch Uploader::piece(std::int64_t i) const {
  const Slot& s = current();
  const std::int64_t first = i * piece_rows(), n = std::min(piece_rows(), s.rows - first);
  const auto array = [&](std::int64_t which) {
    auto* data = static_cast<std::int32_t*>(s.memory.device_side()) + kHeader + (which * s.rows + first) * s.seq;
    return Tensor(data, DType::i32, device_, {n, s.seq});
  };
  const Slot::Scored list = s.lists.empty() ? Slot::Scored{} : s.lists[static_cast<std::size_t>(i)];
  const auto listed = [&](std::int64_t at) {
    return list.count == 0 ? Tensor{} : Tensor(static_cast<std::int32_t*>(s.memory.device_side()) + at, DType::i32, device_, {list.count});
  };
  return {.batch = n,
          .seq = s.seq,
          .tokens = array(0),
          .targets = array(1),
          .weights = {},
          .positions = s.documents ? array(2) : Tensor{},
          .first = s.documents ? array(3) : Tensor{},
          .scored = listed(list.at),
          .scored_targets = listed(list.at + list.count)};
}

std::optional<Evaluation> evaluate(Context& ctx, TrainPass& pass, BatchSource& source, Uploader& uploader, std::int64_t batches,
                                   const GoOn& go_on, const WithRanks& ranks) {
  const std::int64_t all = source.batches(), n = batches > 0 ? std::min(batches, all) : all;
  Evaluation out;
  source.start(0);
  // False where all ranks stop here. A rank that could not read throws once the others know.
  const auto put = [&] {
    std::exception_ptr wrong;
    try {
      uploader.put(source.next());
    } catch (const Error&) {
      wrong = std::current_exception();
    }
    const bool all_go_on = !ranks.go_on || ranks.go_on(!wrong);
    if (wrong) std::rethrow_exception(wrong);
    return all_go_on;
  };
  // A sum for each piece, read once at the end: the device is not waited for in between.
  struct Seen {
    std::int64_t pieces = 0, rows = 0, tokens = 0;
  };
  std::vector<Seen> seen;
  std::int64_t pieces = 0, done = 0;
  const OwnedTensor sums(ctx, DType::f32, {std::max<std::int64_t>(n * uploader.most_pieces(), 1)});
  zero(ctx, sums);
  if (n > 0 && !put()) return std::nullopt;
  for (std::int64_t i = 0; i < n; ++i) {
    uploader.advance();
    out.tokens += uploader.scored();
    seen.push_back({uploader.pieces(), uploader.examples(), uploader.scored()});
    for (std::int64_t p = 0; p < uploader.pieces(); ++p) {
      const Batch piece = uploader.piece(p);
      pass.score(piece, {.loss = Tensor(sums.t.as<float>() + pieces++, DType::f32, ctx.device(), {1})});
      if (p + 1 == uploader.pieces()) done += uploader.examples();
      if (!go_on(done, n == all ? source.rows() : std::max(done, n * uploader.examples()))) return std::nullopt;
    }
    if (i + 1 < n && !put()) return std::nullopt;
  }
  std::vector<float> host_sums(static_cast<std::size_t>(pieces));
  ctx.copy(Device::cpu(), host_sums.data(), ctx.device(), sums.t.data, host_sums.size() * sizeof(float));
  std::vector<double> of_batches;
  const float* at = host_sums.data();
  for (const Seen& batch : seen) {
    double own = 0;
    for (std::int64_t p = 0; p < batch.pieces; ++p) own += static_cast<double>(*at++);
    of_batches.push_back(own);
  }
  if (ranks.add_up) ranks.add_up(of_batches);
  double sum = 0, by_row = 0, rows = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    sum += of_batches[i];
    if (seen[i].tokens == 0) continue;
    by_row += of_batches[i] / static_cast<double>(seen[i].tokens) * static_cast<double>(seen[i].rows);
    rows += static_cast<double>(seen[i].rows);
  }
  out.loss = out.tokens ? sum / static_cast<double>(out.tokens) : 0;
  out.loss_by_row = rows > 0 ? by_row / rows : 0;
  return out;
}

}  // namespace bhyt::train
