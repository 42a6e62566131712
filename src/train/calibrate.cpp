#include "train/calibrate.h"

#include <algorithm>

#include "core/check.h"
#include "io/checkpoint_folders.h"
#include "io/format.h"
#include "model/activations.h"
#include "model/checkpoint.h"
#include "model/score_pass.h"

namespace bhyt::train {

namespace {

constexpr std::int64_t kTokens = 20480;  // looked at in all
constexpr std::int64_t kTokensAtATime = 2048;
constexpr std::int64_t kHeldOut = 5;  // every so many batches one is held out

// A batch on the device.
struct Piece {
  OwnedTensor memory;
  Batch batch;
  std::vector<std::int64_t> rows;  // those of its tokens that belong to the data
  std::int64_t scored = 0;
};

Piece upload(Context& ctx, const HostBatch& host) {
  Piece p;
  const std::int64_t n = host.batch * host.seq;
  const bool documents = !host.positions.empty();
  p.memory = OwnedTensor(ctx, DType::i32, {4, n});
  const auto put = [&](std::int64_t at, const std::vector<std::int32_t>& from) {
    const Tensor to = p.memory.t.row_slice(at, 1).reshape({host.batch, host.seq});
    from_host(ctx, from.data(), to);
    return to;
  };
  p.batch = {.batch = host.batch, .seq = host.seq, .tokens = put(0, host.tokens), .targets = put(1, host.targets)};
  if (documents) {
    p.batch.positions = put(2, host.positions);
    p.batch.first = put(3, host.first);
  }
  for (std::int64_t i = 0; i < n; ++i)
    if (host.targets[static_cast<std::size_t>(i)] != kFilling) p.rows.push_back(i);
  p.scored = std::ranges::count_if(host.targets, [](std::int32_t t) { return t >= 0; });
  return p;
}

// Rows of several pieces, one behind the other, in fp32 on the host.
struct Rows {
  std::vector<float> values;

  void add(Context& ctx, const Tensor& t, const std::vector<std::int64_t>& rows) {
    const auto cols = static_cast<std::size_t>(t.cols());
    std::vector<char> raw(t.bytes());
    to_host(ctx, t, raw.data());
    for (const std::int64_t r : rows)
      for (std::size_t c = 0; c < cols; ++c) {
        const std::size_t at = static_cast<std::size_t>(r) * cols + c;
        values.push_back(t.dtype == DType::bf16 ? to_float(reinterpret_cast<const bf16*>(raw.data())[at])
                                                : reinterpret_cast<const float*>(raw.data())[at]);
      }
  }
  OwnedTensor on_device(Context& ctx, std::int64_t cols) const {
    OwnedTensor t(ctx, DType::f32, {static_cast<std::int64_t>(values.size()) / cols, cols});
    from_host(ctx, values.data(), t);
    return t;
  }
};

// One model's residual stream over all pieces, block by block.
class Walk {
 public:
  Walk(Context& ctx, const Model& model, const std::vector<Piece>& pieces)
      : ctx_(ctx), model_(model), pieces_(pieces), act_(ctx, model, {.batch = pieces[0].batch.batch, .seq = pieces[0].batch.seq}) {
    for (const Piece& p : pieces) {
      const OwnedTensor& x =
          stream_.emplace_back(ctx, model.type(), std::initializer_list<std::int64_t>{p.batch.batch * p.batch.seq, model.config().d});
      embedding(ctx, p.batch.tokens, model.weights().embedding, x, model.embedding_scale());
    }
  }

  const Model& model() const { return model_; }

  // What the next norm sees, and what the site makes of it.
  Rows inputs() {
    Rows out;
    for (std::size_t i = 0; i < pieces_.size(); ++i) out.add(ctx_, stream_[i], pieces_[i].rows);
    return out;
  }
  Rows outputs(const NormSite& site) {
    Rows out;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      act_.fit(pieces_[i].batch.batch, pieces_[i].batch.seq);
      norm(ctx_, site, {.x = stream_[i], .z = act_.z});
      out.add(ctx_, act_.z, pieces_[i].rows);
    }
    return out;
  }

  struct Inside {
    Rows seen;        // of the point that was asked for
    Rows ms;          // mean squares of the block's input
    Tensor constant;  // C
  };
  // Through one block, looking at a point inside. go_on: the stream is what comes out from then on.
  Inside through(std::size_t layer, std::optional<Point> point, bool go_on) {
    const Block& block = model_.blocks()[layer];
    Inside out;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& p = pieces_[i];
      act_.fit(p.batch.batch, p.batch.seq);
      const Kept& keep = act_.kept[layer];
      Observers see;
      Observers::Subscription looks;
      if (point) looks = see.subscribe({*point}, [&](Context& ctx, const Seen& s) { out.seen.add(ctx, s.value, p.rows); });
      copy(ctx_, stream_[i], keep.x);
      Stream stream{keep.x, {}};
      block.forward(ctx_, stream, keep, act_.scratch, act_.positions(p.batch), {}, see);
      if (block.site2().stat == Stat::given)
        out.ms.add(ctx_, Tensor(keep.stats1.data, DType::f32, ctx_.device(), {p.batch.batch * p.batch.seq, 1}), p.rows);
      if (go_on) norm(ctx_, {.gamma = {}}, {.x = stream.x, .add = stream.pending, .sum = stream_[i], .z = act_.z});
      out.constant = keep.constant;
    }
    return out;
  }

 private:
  Context& ctx_;
  const Model& model_;
  const std::vector<Piece>& pieces_;
  Activations act_;
  std::vector<OwnedTensor> stream_;
};

class Fitter {
 public:
  Fitter(Context& ctx, const Model& source, const Model& target, const std::vector<Piece>& pieces)
      : ctx_(ctx), source_(ctx, source, pieces), target_(ctx, target, pieces) {}

  std::vector<Calibration::Fitted> all() {
    const std::size_t layers = target_.model().blocks().size();
    for (std::size_t l = 0; l < layers; ++l) block(l);
    fit(static_cast<std::int64_t>(layers) + 1, Site::last, target_.model().last(), target_.model().norms().last, target_.inputs(), nullptr,
        source_.outputs(source_.model().last()));
    return std::move(sites_);
  }

 private:
  void block(std::size_t l) {
    const auto layer = static_cast<std::int64_t>(l) + 1;
    const Block& target = target_.model().blocks()[l];
    fit(layer, Site::site1, target.site1(), target.plan().site1, target_.inputs(), nullptr,
        source_.outputs(source_.model().blocks()[l].site1()));
    const Walk::Inside wanted = source_.through(l, Point::z2, true), seen = target_.through(l, Point::after_attention, false);
    const bool is_given = target.site2().stat == Stat::given;
    const OwnedTensor ms = is_given ? seen.ms.on_device(ctx_, 1) : OwnedTensor();
    const Given given = is_given ? target.given(ms.t.reshape({ms.t.rows()}), seen.constant) : Given{};
    fit(layer, Site::site2, target.site2(), target.plan().site2, seen.seen, is_given ? &given : nullptr, wanted.seen);
    target_.through(l, {}, true);
  }

  void fit(std::int64_t layer, Site which, const NormSite& site, const SitePlan& plan, const Rows& x, const Given* given,
           const Rows& wanted) {
    const OwnedTensor inputs = x.on_device(ctx_, target_.model().config().d);
    const SiteFit found = fit_site(ctx_, site, inputs, given, wanted.values, {.search = !plan.scale_frozen});
    write_fit(ctx_, found, site);
    sites_.push_back({.layer = layer, .site = which, .error = found.error, .scale = found.scale});
  }

  Context& ctx_;
  Walk source_, target_;
  std::vector<Calibration::Fitted> sites_;
};

double loss_of(Context& ctx, const Model& model, const std::vector<Piece>& pieces) {
  ScorePass pass(ctx, model, pieces[0].batch.batch, pieces[0].batch.seq);
  const OwnedTensor sum(ctx, DType::f32, {1});
  double total = 0;
  std::int64_t scored = 0;
  for (const Piece& p : pieces) {
    zero(ctx, sum);
    pass.score(p.batch, {.loss = sum});
    float own = 0;
    to_host(ctx, sum, &own);
    total += static_cast<double>(own);
    scored += p.scored;
  }
  return scored > 0 ? total / static_cast<double>(scored) : 0;
}

bool has_output_norms(const NormPlan& plan) {
  return std::ranges::any_of(plan.blocks, [](const BlockPlan& b) { return b.out1 || b.out2; });
}

NormPlan plan_of(const ModelConfig& c) { return plan_norms(c.norm, c.layers, c.d, c.eps); }

}  // namespace

bool calibrates(const RunConfig& config) {
  return config.norm_from == NormFrom::calibrate && !(goes_on(config.run.resume) && !checkpoint_steps(config.run.dir).empty());
}

void check_calibration(const RunConfig& config) {
  check_usage(config.norm_from == NormFrom::calibrate || config.data.calibrate.empty(),
              "data.calibrate is for norm.from=calibrate, which fits the norms of model.init to another method");
  if (!calibrates(config)) return;
  check_usage(!config.model.init.empty(), "norm.from=calibrate: model.init must name the checkpoint whose norms are to be replaced");
  check_usage(
      !config.lora.config.active(),
      "norm.from=calibrate: adapters belong to a checkpoint as it is; convert its norms in a run without lora, and adapt the result");
  const ModelConfig source = read_model_config(std::filesystem::path(config.model.init) / "config.json");
  RunConfig stored = config;
  stored.model.config = source;
  stored.model.config.norm = config.model.config.norm;
  stored.model.config.vocab = config.model.config.vocab;
  stored.model.config.max_positions = config.model.config.max_positions;
  const auto changed = differences(mathematics(resolved_tree(stored)), mathematics(resolved_tree(config)));
  check_usage(changed.empty(), "norm.from=calibrate replaces norms alone, and {} has another model: {}", config.model.init,
              fmt::join(changed, "; "));
  for (const ModelConfig* c : {&source, &config.model.config})
    check_usage(!has_output_norms(plan_of(*c)),
                "norm.from=calibrate: {} normalizes the outputs of attention and MLP too, which has no counterpart: expected methods that "
                "stand before them alone",
                c->norm.method);
}

std::unique_ptr<Model> load_source(const RunConfig& config, const Model& target, Masters& masters, std::optional<std::uint64_t> grow) {
  ModelConfig own = read_model_config(std::filesystem::path(config.model.init) / "config.json");
  own.vocab = target.config().vocab;
  for (const Parameter& p : target.parameters().list())
    if (of_norm(p)) {
      const std::vector<float> initial(static_cast<std::size_t>(p.size), static_cast<float>(p.init_value));
      target.parameters().write_value(p, initial.data());
    }
  auto source = std::make_unique<Model>(target.context(), own, target.type());
  load_weights(
      config.model.init, source->parameters(),
      [&](const Parameter& p, std::int64_t first, std::int64_t n, const float* values) {
        if (const Parameter* same = target.parameters().find(p.name); same && same->shape == p.shape)
          masters.write(*same, first, n, values);
      },
      grow);
  source->refresh_constants();
  return source;
}

double planned_calibration_bytes(const RunConfig& c) {
  if (!calibrates(c)) return 0;
  ModelConfig source = read_model_config(std::filesystem::path(c.model.init) / "config.json");
  source.vocab = c.model.config.vocab;
  const std::int64_t seq = c.data.seq_len, rows = std::max<std::int64_t>(kTokensAtATime / seq, 1);
  double bytes = static_cast<double>(Parameters::planned(source, *c.run.dtype, {}).value_bytes);
  for (const ModelConfig* model : {&std::as_const(source), &c.model.config})
    bytes += static_cast<double>(Activations::bytes(*model, *c.run.dtype, c.device, {.batch = rows, .seq = seq}, {}));
  // Both streams over all tokens that are fitted to, at least a row; a site's inputs and outputs in fp32, and on a CPU what is made of
  // them.
  const double fitted = static_cast<double>(std::max(kTokens - kTokens / kHeldOut, seq)) * static_cast<double>(source.d);
  return bytes + fitted * static_cast<double>(2 * size_of(*c.run.dtype) + (c.device.is_cuda() ? 2 : 5) * sizeof(float));
}

std::int64_t calibration_batch(std::int64_t rows, std::int64_t seq_len) {
  return std::max<std::int64_t>(std::min(kTokensAtATime / seq_len, rows / kHeldOut), 1);
}

Calibration calibrate(Context& ctx, const Model& source, const Model& target, BatchSource& data) {
  check_usage(data.batches() >= 2, "norm.from=calibrate: expected data for at least two batches, one of them to be held out, got {} rows",
              data.rows());
  std::vector<Piece> fitted, held_out;
  Calibration out;
  data.start(0);
  for (std::int64_t i = 0; i < data.batches() && (i < 2 || out.tokens + out.held_out < kTokens); ++i) {
    const bool held = i % kHeldOut == 1;
    Piece p = upload(ctx, data.next());
    (held ? out.held_out : out.tokens) += std::ssize(p.rows);
    (held ? held_out : fitted).push_back(std::move(p));
  }
  out.source_loss = loss_of(ctx, source, held_out);
  out.naive = loss_of(ctx, target, held_out);
  out.sites = Fitter(ctx, source, target, fitted).all();
  out.loss = loss_of(ctx, target, held_out);
  return out;
}

std::vector<std::string> describe(const Calibration& c, const std::string& from, const std::string& to) {
  std::vector<std::string> lines{
      fmt::format("norms   {} becomes {}, fitted to {} tokens: the error of each output", from, to, grouped(c.tokens))};
  const auto one = [](const Calibration::Fitted& f) {
    return fmt::format("{:.4f}{}", f.error, f.scale ? fmt::format(" (scale {:.3g})", *f.scale) : "");
  };
  for (const Calibration::Fitted& f : c.sites) {
    if (f.site == Site::site1) lines.push_back(fmt::format("        layer {:<3} attention {}", f.layer, one(f)));
    if (f.site == Site::site2) lines.back() += fmt::format(", MLP {}", one(f));
    if (f.site == Site::last) lines.push_back(fmt::format("        last      {}", one(f)));
  }
  lines.push_back(fmt::format("        loss of {} other tokens: {:.4f} under {}, {:.4f} under {} as it comes, {:.4f} fitted",
                              grouped(c.held_out), c.source_loss, from, c.naive, to, c.loss));
  return lines;
}

}  // namespace bhyt::train
