#include "analysis/analyze.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "core/memory.h"
#include "io/format.h"
#include "model/score_pass.h"
#include "model/train_pass.h"

namespace bhyt::analysis {

namespace {

// Some rows on the device: each token and the one behind it.
struct Piece {
  OwnedTensor tokens, targets;
  Batch batch;

  Piece(Context& ctx, std::span<const std::int32_t> from, std::int64_t rows, std::int64_t seq)
      : tokens(ctx, DType::i32, {rows, seq}), targets(ctx, DType::i32, {rows, seq}) {
    from_host(ctx, from.data(), tokens);
    from_host(ctx, from.data() + 1, targets);
    batch = {.batch = rows, .seq = seq, .tokens = tokens, .targets = targets};
  }
};

class Loss {
 public:
  explicit Loss(Context& ctx) : ctx_(ctx), sum_(ctx, DType::f32, {1}) {}
  const Tensor& fresh() {
    zero(ctx_, sum_);
    return sum_;
  }
  double read() const {
    float value = 0;
    to_host(ctx_, sum_, &value);
    return static_cast<double>(value);
  }

 private:
  Context& ctx_;
  OwnedTensor sum_;
};

// Work on rows, some at a time.
template <class F>
void for_each_piece(Context& ctx, std::span<const std::int32_t> tokens, std::int64_t seq, std::int64_t at_a_time, F&& use) {
  const std::int64_t rows = (std::ssize(tokens) - 1) / seq;
  for (std::int64_t at = 0; at < rows; at += at_a_time) {
    const Piece piece(ctx, tokens.subspan(static_cast<std::size_t>(at * seq)), std::min(at_a_time, rows - at), seq);
    use(piece.batch);
  }
}

constexpr std::int64_t kTokensAtATime = 2048;
std::int64_t rows_at_a_time(std::int64_t seq) { return std::max<std::int64_t>(kTokensAtATime / seq, 1); }

void refuse_what_is_not_finite(const LayerWatch& watch, std::int64_t layers, double loss) {
  check(watch.embedding().finite(), "the model gives no numbers: the embedding's output is not finite");
  const bool all = std::ssize(watch.layers()) == layers;
  for (const auto& [number, layer] : watch.layers())
    check(layer.output.finite(), "the model gives no numbers: the output of block {} is not finite{}", number,
          all ? "" : ", nor perhaps that of one before it; without --layers the first is named");
  check(std::isfinite(loss), "the model gives no numbers: {}, the loss is not",
        all ? "the blocks' outputs are finite (last norm or head)" : "the outputs of the blocks of --layers are finite");
}

// By layer: 0 the embedding, L+1 what is behind the blocks.
std::map<std::int64_t, double> gradient_norms(Context& ctx, const Model& model, const Batch& batch) {
  const Gradients gradients(ctx, model.parameters());
  Loss loss(ctx);
  TrainPass pass(ctx, model, {.batch = batch.batch, .seq = batch.seq, .recompute = Recompute::block});
  pass.run(batch, {.gradients = gradients,
                   .loss = loss.fresh(),
                   .scale = 1.0f / static_cast<float>(batch.batch * batch.seq),
                   .with_aux = false,
                   .accumulate = false});
  std::map<std::int64_t, double> squares;
  std::vector<float> host;
  for (const Parameter& p : model.parameters().list()) {
    if (p.frozen) continue;
    host.resize(static_cast<std::size_t>(p.size));
    to_host(ctx, model.parameters().in_arena(gradients.arena, p), host.data());
    for (const float g : host) squares[p.layer] += static_cast<double>(g) * static_cast<double>(g);
  }
  for (auto& [layer, square] : squares) square = std::sqrt(square);
  return squares;
}

}  // namespace

std::vector<double> losses_without(Context& ctx, const Model& model, std::span<const std::int32_t> tokens, std::int64_t seq,
                                   const std::vector<std::int64_t>& layers) {
  std::vector<double> out(layers.size());
  ScorePass pass(ctx, model, rows_at_a_time(seq), seq);
  Loss loss(ctx);
  double scored = 0;
  for_each_piece(ctx, tokens, seq, rows_at_a_time(seq), [&](const Batch& batch) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      pass.score(batch, {.loss = loss.fresh(), .left_out = layers[i]});
      out[i] += loss.read();
    }
    scored += static_cast<double>(batch.batch * batch.seq);
  });
  for (double& sum : out) sum /= scored;
  return out;
}

Analysis analyze(Context& ctx, const Model& model, std::span<const std::int32_t> tokens, const AnalyzeOptions& o) {
  check_usage(o.seq >= 2, "a row must hold at least 2 tokens, got {}", o.seq);
  for (const std::int64_t l : o.layers)
    check_usage(l >= 1 && l <= model.config().layers, "no layer {}: the model has layers 1 to {}", l, model.config().layers);
  Analysis a{.rows = (std::ssize(tokens) - 1) / o.seq, .seq = o.seq};
  check(a.rows > 0, "expected text for at least one row of {} tokens and the one behind it, got {} tokens", grouped(o.seq),
        grouped(std::ssize(tokens)));
  a.tokens = a.rows * o.seq;
  const auto first_rows = std::clamp<std::int64_t>(o.batch_tokens / o.seq, 1, a.rows);
  a.batch_tokens = first_rows * o.seq;
  // Shares of the work, by the passes that it takes; a backward counts for two.
  const double each = static_cast<double>(a.batch_tokens), looking = static_cast<double>(a.tokens);
  const auto wanted = static_cast<double>(o.layers.empty() ? model.config().layers : std::ssize(o.layers));
  const double total = looking + each * (wanted + 4);
  double done = 0;
  const auto progress = [&](double more) {
    done += more;
    if (o.progress) o.progress(done / total);
  };

  ScorePass pass(ctx, model, rows_at_a_time(o.seq), o.seq);
  LayerWatch watch(model, pass.observers, {.layers = o.layers, .seq = o.seq});
  Loss loss(ctx);
  for_each_piece(ctx, tokens, o.seq, rows_at_a_time(o.seq), [&](const Batch& batch) {
    pass.score(batch, {.loss = loss.fresh()});
    const double sum = loss.read();
    refuse_what_is_not_finite(watch, model.config().layers, sum);
    a.loss += sum / static_cast<double>(a.tokens);
    progress(static_cast<double>(batch.batch * batch.seq));
  });
  a.embedding = watch.embedding();

  const auto some = tokens.first(static_cast<std::size_t>(a.batch_tokens + 1));
  const auto gradients = gradient_norms(ctx, model, Piece(ctx, some, first_rows, o.seq).batch);
  progress(3 * each);
  a.batch_loss = losses_without(ctx, model, some, o.seq, {0})[0];
  progress(each);
  double all = 0;
  for (const auto& [layer, norm] : gradients) all += norm * norm;
  const auto at = [&](std::int64_t layer) { return gradients.contains(layer) ? gradients.at(layer) : 0; };
  a.gradients = {.embedding = at(0), .end = at(model.config().layers + 1), .all = std::sqrt(all)};
  for (const auto& [number, seen] : watch.layers()) {
    a.layers.push_back(
        {.layer = number, .seen = seen, .gradient = at(number), .left_out = losses_without(ctx, model, some, o.seq, {number})[0]});
    progress(each);
  }
  return a;
}

}  // namespace bhyt::analysis
