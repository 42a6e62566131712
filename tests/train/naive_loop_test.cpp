// The trainer against a loop written out here: batch, gradients, clip, AdamW in double, schedule, skipped step, λ in the metrics.
#include <cmath>
#include <limits>
#include <map>

#include "data/loader.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "tests/train/helpers.h"
#include "train/trainer.h"

namespace bhyt::train {
namespace {

constexpr std::int64_t kSteps = 5, kBad = 3, kBatch = 6, kSeq = 32, kRefresh = 2, kSeed = 7;
constexpr double kLr = 5e-3, kMinLr = 0.2, kWarmup = 0.4, kDecay = 0.3, kBeta1 = 0.6, kBeta2 = 0.85, kEps = 1e-4, kClip = 0.05;

Words naive_words(const Folder& tmp, const std::string& dir, const char* type) {
  return small_run(tmp, dir) + Words{fmt::format("train.steps={}", kSteps),
                                     fmt::format("train.batch={}", kBatch),
                                     fmt::format("data.seq_len={}", kSeq),
                                     fmt::format("seed={}", kSeed),
                                     fmt::format("train.lr={}", kLr),
                                     fmt::format("train.min_lr_ratio={}", kMinLr),
                                     fmt::format("train.warmup_ratio={}", kWarmup),
                                     fmt::format("train.weight_decay={}", kDecay),
                                     fmt::format("train.betas=[{}, {}]", kBeta1, kBeta2),
                                     fmt::format("train.adam_eps={}", kEps),
                                     fmt::format("train.clip={}", kClip),
                                     fmt::format("norm.refresh={}", kRefresh),
                                     "norm.aux_loss=2",
                                     "norm.aux_every=2",
                                     "train.micro_batch=6",
                                     "train.log_every=1",
                                     "train.eval_every=0",
                                     std::string("dtype=") + type};
}

double naive_lr(std::int64_t step) {
  const double warm = std::ceil(kWarmup * kSteps), s = static_cast<double>(step);
  if (s <= warm) return kLr * s / warm;
  return kLr * (kMinLr + (1 - kMinLr) * 0.5 * (1 + std::cos(M_PI * (s - warm) / (kSteps - warm))));
}

// One parameter as AdamW sees it.
struct Naive {
  std::vector<double> w, m, v;
};

struct NaiveStep {
  double loss = 0, grad_norm = 0, lr = 0;
  std::vector<double> lambda_attn, lambda_mlp;  // before the update
};

class NaiveRun {
 public:
  NaiveRun(const RunConfig& config, const std::string& tokens, DType type)
      : model_(ctx_, config.model.config, type), loader_({.parts = {{tokens, 0}}, .seq_len = kSeq, .batch = kBatch, .seed = kSeed}) {
    const Model exact(ctx_, config.model.config, DType::f32);
    exact.parameters().initialize(kSeed);
    for (const Parameter& p : exact.parameters().list()) {
      const std::vector<float> values = exact.parameters().read_value(p);
      state[p.name] = {
          .w = {values.begin(), values.end()}, .m = std::vector<double>(values.size()), .v = std::vector<double>(values.size())};
    }
    give_weights();
    model_.refresh_constants();
  }

  NaiveStep step(std::int64_t n) {
    NaiveStep out{.lr = naive_lr(n)};
    for (std::int64_t l = 0; l < model_.config().layers; ++l) {
      out.lambda_attn.push_back(state.at(fmt::format("model.layers.{}.input_layernorm.lam", l)).w[0]);
      out.lambda_mlp.push_back(state.at(fmt::format("model.layers.{}.post_attention_layernorm.lam", l)).w[0]);
    }
    if (n != kBad) {
      HostBatch batch;
      loader_.batch(n - 1, batch);
      const LossAndGradients g = loss_and_gradients(model_, batch, n % 2 == 1);
      out.loss = g.loss / (kBatch * kSeq);
      for (const Parameter& p : model_.parameters().list())
        for (std::int64_t i = 0; i < p.size && !p.frozen; ++i)
          out.grad_norm += std::pow(g.gradients[static_cast<std::size_t>(p.offset + i)], 2);
      out.grad_norm = std::sqrt(out.grad_norm);
      ++updates_;
      for (const Parameter& p : model_.parameters().list())
        if (!p.frozen) update(p, g.gradients.data() + p.offset, std::min(1.0, kClip / out.grad_norm), out.lr);
      give_weights();
    }
    if (n % kRefresh == 0) model_.refresh_constants();
    return out;
  }

  std::map<std::string, Naive> state;

 private:
  void update(const Parameter& p, const float* gradient, double scale, double lr) {
    Naive& n = state.at(p.name);
    const auto t = static_cast<double>(updates_);
    for (std::size_t i = 0; i < n.w.size(); ++i) {
      const double g = scale * static_cast<double>(gradient[i]);
      n.m[i] = kBeta1 * n.m[i] + (1 - kBeta1) * g;
      n.v[i] = kBeta2 * n.v[i] + (1 - kBeta2) * g * g;
      const double m = n.m[i] / (1 - std::pow(kBeta1, t)), v = n.v[i] / (1 - std::pow(kBeta2, t));
      n.w[i] -= lr * (m / (std::sqrt(v) + kEps) + (p.shape.size() == 2 ? kDecay : 0) * n.w[i]);
    }
  }
  void give_weights() {
    for (const Parameter& p : model_.parameters().list()) {
      std::vector<float> values(state.at(p.name).w.begin(), state.at(p.name).w.end());
      if (p.value.dtype == DType::bf16)
        for (float& v : values) v = to_float(split(v).value);
      model_.parameters().write_value(p, values.data());
    }
  }
  Context ctx_;
  Model model_;
  Loader loader_;
  std::int64_t updates_ = 0;
};

// Not a number in one weight, for one step.
TrainerOptions one_bad_step() {
  auto saved = std::make_shared<std::vector<float>>();
  return {.before_step = [=](Model& model, std::int64_t step) {
    const Parameter& p = model.parameters().at("model.layers.0.mlp.down_proj.weight");
    if (step == kBad) {
      *saved = model.parameters().read_value(p);
      std::vector<float> bad = *saved;
      bad[3] = std::numeric_limits<float>::quiet_NaN();
      model.parameters().write_value(p, bad.data());
    }
    if (step == kBad + 1) model.parameters().write_value(p, saved->data());
  }};
}

void expect_near(const nlohmann::json& got, const std::vector<double>& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i].get<double>(), expected[i], tolerance) << what << " " << i;
}

void expect_line(const nlohmann::json& line, const NaiveStep& expected, double tolerance) {
  const std::string what = fmt::format("step {}", line["step"].dump());
  if (line.contains("layers")) {
    expect_near(line["layers"]["lambda_attn"], expected.lambda_attn, tolerance, what + " lambda_attn");
    expect_near(line["layers"]["lambda_mlp"], expected.lambda_mlp, tolerance, what + " lambda_mlp");
  } else if (line.contains("loss")) {
    EXPECT_NEAR(line["lr"].get<double>(), expected.lr, 1e-12) << what;
    EXPECT_NEAR(line["loss"].get<double>(), expected.loss, 100 * tolerance) << what;
    EXPECT_NEAR(line["grad_norm"].get<double>() / expected.grad_norm, 1, 100 * tolerance) << what;
    EXPECT_GT(expected.grad_norm, 2 * kClip) << what << ": the clip must bite";
  }
}

class NaiveLoop : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(In, NaiveLoop, ::testing::Values("fp32", "bf16"), [](const auto& info) { return std::string(info.param); });

TEST_P(NaiveLoop, GivesTheSameWeightsAndMetrics) {
  const Folder tmp;
  const DType type = parse_float_type(GetParam());
  const double tolerance = type == DType::f32 ? 2e-6 : 1e-4;
  log::set_quiet(true);
  Trainer trainer(config_of(naive_words(tmp, "a", GetParam())), one_bad_step());
  NaiveRun naive(trainer.config(), tmp / "train.tok", type);
  trainer.run();

  std::vector<NaiveStep> steps;
  for (std::int64_t n = 1; n <= kSteps; ++n) steps.push_back(naive.step(n));
  std::int64_t training = 0, layers = 0, skipped = 0;
  for (const auto& line : metrics_of(tmp.path / "a")) {
    const std::int64_t n = line["step"];
    layers += line.contains("layers");
    training += line.contains("loss");
    skipped += line.contains("event") && n == kBad;
    expect_line(line, steps.at(static_cast<std::size_t>(n - 1)), tolerance);
  }
  EXPECT_EQ(layers, kSteps);
  EXPECT_EQ(training, kSteps - 1);
  EXPECT_EQ(skipped, 1);

  const fs::path checkpoint = tmp.path / "a" / fmt::format("checkpoint-{}", kSteps);
  const SafeTensors file(checkpoint / (type == DType::f32 ? "model.safetensors" : "optimizer.safetensors"));
  for (const auto& [name, expected] : naive.state) {
    const SafeTensor& t = file.at((type == DType::f32 ? "" : "master.") + name);
    std::vector<float> got(expected.w.size());
    ASSERT_EQ(t.size(), static_cast<std::int64_t>(got.size()));
    SafeTensors::to_float(t, 0, t.size(), got.data());
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - expected.w[i]));
    EXPECT_LT(worst, tolerance) << name;
  }
}

}  // namespace
}  // namespace bhyt::train
