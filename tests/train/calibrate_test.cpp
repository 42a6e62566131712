// A trained model under another norm: the fit of one site, of whole models, and runs that begin with it.
#include "train/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"
#include "model/checkpoint.h"
#include "tests/train/helpers.h"
#include "train/token_rows.h"

namespace bhyt::train {
namespace {

constexpr std::int64_t kRows = 700, kCols = 24;

OwnedTensor on_device(Context& ctx, const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  OwnedTensor t(ctx, DType::f32, {rows, cols});
  from_host(ctx, values.data(), t);
  return t;
}

// Rows of very different sizes.
std::vector<float> some_inputs() {
  std::vector<float> x;
  for (std::int64_t i = 0; i < kRows * kCols; ++i)
    x.push_back(static_cast<float>(normal(5, 1, static_cast<std::uint64_t>(i)) * (1 + static_cast<double>(i / kCols % 7))));
  return x;
}

double gain_of(std::int64_t column) { return 0.5 + 0.1 * static_cast<double>(column) * (column % 2 ? 1 : -1); }

TEST(Calibration, ASiteFindsTheLambdaAndGammaThatMadeItsOutput) {
  Context ctx(Device::cpu(), 1);
  const std::vector<float> x = some_inputs();
  std::vector<float> wanted;
  for (std::int64_t r = 0; r < kRows; ++r) {
    double squares = 0;
    for (std::int64_t c = 0; c < kCols; ++c) squares += std::pow(static_cast<double>(x[static_cast<std::size_t>(r * kCols + c)]), 2);
    const double s = std::sqrt(squares / kCols + 1e-6);
    for (std::int64_t c = 0; c < kCols; ++c)
      wanted.push_back(
          static_cast<float>(gain_of(c) * std::tanh(7.0 / 10 * static_cast<double>(x[static_cast<std::size_t>(r * kCols + c)]) / s)));
  }
  const OwnedTensor input = on_device(ctx, x, kRows, kCols), scale = on_device(ctx, {2.0f}, 1, 1);
  const OwnedTensor gamma = on_device(ctx, std::vector<float>(kCols, 1.0f), 1, kCols);
  const NormSite site{.stat = Stat::rms, .map = Map::tanh, .factor = 0.1f, .eps = 1e-6f, .out_factor = 2, .gamma = gamma, .scale = scale};
  const SiteFit fit = fit_site(ctx, site, input, nullptr, wanted, {.slack = 0});
  ASSERT_TRUE(fit.scale.has_value());
  EXPECT_NEAR(*fit.scale, 7, 0.02);
  EXPECT_LT(fit.error, 1e-3);
  for (std::int64_t c = 0; c < kCols; ++c) EXPECT_NEAR(fit.gamma[static_cast<std::size_t>(c)], gain_of(c) / 2, 2e-3) << c;

  const SiteFit larger = fit_site(ctx, site, input, nullptr, wanted, {.slack = 0.02});
  EXPECT_GT(*larger.scale, 7.1);
  EXPECT_LT(larger.error, 0.021);
  EXPECT_FALSE(fit_site(ctx, site, input, nullptr, wanted, {.search = false}).scale.has_value());
}

TEST(Calibration, ABetaTakesWhatIsConstant) {
  Context ctx(Device::cpu(), 1);
  const std::vector<float> x = some_inputs();
  std::vector<float> wanted;
  for (std::int64_t r = 0; r < kRows; ++r) {
    double mean = 0, squares = 0;
    for (std::int64_t c = 0; c < kCols; ++c) mean += static_cast<double>(x[static_cast<std::size_t>(r * kCols + c)]) / kCols;
    for (std::int64_t c = 0; c < kCols; ++c)
      squares += std::pow(static_cast<double>(x[static_cast<std::size_t>(r * kCols + c)]) - mean, 2) / kCols;
    for (std::int64_t c = 0; c < kCols; ++c)
      wanted.push_back(static_cast<float>(gain_of(c) * (static_cast<double>(x[static_cast<std::size_t>(r * kCols + c)]) - mean) /
                                              std::sqrt(squares + 1e-5) +
                                          0.3 * static_cast<double>(c)));
  }
  const OwnedTensor input = on_device(ctx, x, kRows, kCols), gamma = on_device(ctx, std::vector<float>(kCols, 1.0f), 1, kCols);
  const OwnedTensor beta = on_device(ctx, std::vector<float>(kCols, 0.0f), 1, kCols);
  const NormSite site{.stat = Stat::mean_var, .eps = 1e-5f, .gamma = gamma, .beta = beta};
  write_fit(ctx, fit_site(ctx, site, input, nullptr, wanted), site);
  for (std::int64_t c = 0; c < kCols; ++c) {
    EXPECT_NEAR(gamma.t.as<float>()[c], gain_of(c), 1e-4);
    EXPECT_NEAR(beta.t.as<float>()[c], 0.3 * static_cast<double>(c), 1e-4);
  }
}

// A small model trained under RMSNorm, and the words of a run that starts from it.
struct Trained {
  Folder tmp;
  Trained() { train(small_run(tmp, "source") + Words{"norm.method=rmsnorm", "train.steps=150", "train.save_every=0", "train.lr=1e-2"}); }
  Words start(const std::string& dir, const std::string& method) const {
    return small_run(tmp, dir) + Words{"norm.method=" + method, "norm.from=calibrate"};
  }
  Words from(const Words& words) const {
    Words out{"model.init=" + tmp / "source"};
    for (const std::string& w : words)
      if (!w.starts_with("model.")) out.push_back(w);
    return out;
  }
  Words run(const std::string& dir, const std::string& method) const { return from(start(dir, method)); }
};

// The calibration of a run, without the run; the target stays in `model`.
Calibration calibration_of(const RunConfig& given, Context& ctx, std::unique_ptr<Model>& source, std::unique_ptr<Model>& model) {
  RunConfig config = given;
  model = std::make_unique<Model>(ctx, config.model.config, *config.run.dtype);
  const Shard shard(model->parameters());
  Masters masters(model->parameters(), shard);
  source = load_source(config, *model, masters, {});
  model->refresh_constants();
  config.train.batch = 16;
  const auto rows = training_rows({{.path = config.data.train.front().path}}, config);
  return calibrate(ctx, *source, *model, *rows);
}

TEST(Calibration, TheSameNormFindsItself) {
  const Trained trained;
  for (const Device device : test::devices())
    for (const char* method : {"rmsnorm", "lns", "layernorm"}) {
      SCOPED_TRACE(fmt::format("{} {}", method, name_of(device)));
      Context ctx(device, 1);
      std::unique_ptr<Model> source, model;
      const Calibration c = calibration_of(config_of(trained.run("x", method) + on(device)), ctx, source, model);
      ASSERT_EQ(c.sites.size(), 5u);
      EXPECT_NEAR(c.loss, c.source_loss, method == std::string("layernorm") ? 0.3 : 1e-4);
      if (method == std::string("layernorm")) continue;  // not the same function, only near it
      for (const Parameter& p : source->parameters().list()) {
        if (!of_norm(p)) continue;
        const std::vector<float> was = source->parameters().read_value(p),
                                 is = model->parameters().read_value(model->parameters().at(p.name));
        const double depth = method == std::string("lns") && p.site != Site::last ? std::sqrt(static_cast<double>(p.layer)) : 1;
        for (std::size_t i = 0; i < was.size(); ++i) EXPECT_NEAR(is[i], depth * static_cast<double>(was[i]), 1e-4 * depth) << p.name;
      }
    }
}

TEST(Calibration, ABoundedNormStartsFarBelowTheNaiveOne) {
  const Trained trained;
  for (const Device device : test::devices())
    for (const char* type : {"fp32", "bf16"}) {
      Context ctx(device, 1);
      std::unique_ptr<Model> source, model;
      const Calibration c =
          calibration_of(config_of(trained.run("x", "bhyt") + on(device) + Words{fmt::format("dtype={}", type)}), ctx, source, model);
      EXPECT_LT(c.loss, c.naive);
      EXPECT_LT(c.loss - c.source_loss, 0.5 * (c.naive - c.source_loss))
          << fmt::format("{}", fmt::join(describe(c, "rmsnorm", "bhyt"), "\n"));
      EXPECT_GT(c.held_out, 0);
      ASSERT_EQ(c.sites.size(), 5u);
      for (const auto& f : c.sites) {
        EXPECT_LT(f.error, f.site == Site::site2 ? 0.9 : 0.5) << f.layer;
        EXPECT_EQ(f.scale.has_value(), f.site != Site::last);
      }
      EXPECT_LT(c.sites[0].error, 0.02);  // the first input is the source's own, and λ can make the map as straight as it takes
      // What is no norm's is the checkpoint's.
      for (const Parameter& p : source->parameters().list()) {
        if (of_norm(p)) continue;
        const auto theirs = source->parameters().read_value(p), own = model->parameters().read_value(model->parameters().at(p.name));
        std::size_t differ = 0;  // masters round what lies between two bf16 values their own way
        for (std::size_t i = 0; i < own.size(); ++i) {
          ASSERT_NEAR(own[i], theirs[i], std::abs(theirs[i]) / 128) << p.name;
          differ += own[i] != theirs[i];
        }
        EXPECT_LE(differ, type == std::string("fp32") ? 0 : own.size() / 1000 + 1) << p.name;
      }
    }
}

TEST(Calibration, AFrozenLambdaStays) {
  const Trained trained;
  Context ctx(Device::cpu(), 1);
  std::unique_ptr<Model> source, model;
  const Calibration c =
      calibration_of(config_of(trained.run("x", "bhyt_exact") + on(Device::cpu()) + Words{"norm.learn_lambda=false"}), ctx, source, model);
  for (const auto& f : c.sites) EXPECT_FALSE(f.scale.has_value());
  EXPECT_EQ(model->parameters().read_value(model->parameters().at("model.layers.0.input_layernorm.lam")), std::vector<float>{2.0f});
  EXPECT_LT(c.loss, c.naive);
}

TEST(Calibration, ARunBeginsWithItOnce) {
  const Trained trained;
  const Folder& tmp = trained.tmp;
  write_language(tmp / "fit.tok", 4000, 3);
  fs::copy(tmp / "fit.tok", tmp / "other.tok");
  train(trained.run("a", "bhyt") + Words{"data.calibrate=" + tmp / "fit.tok"});
  const Words b = trained.run("b", "bhyt") + Words{"data.calibrate=" + tmp / "other.tok", "resume=auto"};
  EXPECT_THROW(train(b, crash_before(7)), Killed);  // after checkpoint-4
  fs::remove(tmp / "other.tok");
  EXPECT_EQ(train(b).step, 12);  // what is not there any more is not asked for
  expect_same_runs(tmp.path / "a", tmp.path / "b");
  EXPECT_EQ(read_text(tmp.path / "a" / "checkpoint-12" / "config.json").find("calibrate"), std::string::npos);
  train(trained.run("c", "bhyt"));  // the run's own data
  EXPECT_NE(read_text(tmp.path / "c" / "log.txt").find("rmsnorm becomes bhyt"), std::string::npos);
}

TEST(Calibration, RefusesWhatMakesNoSense) {
  const Trained trained;
  const Folder& tmp = trained.tmp;
  const auto refused = [&](const std::string& method, const Words& words) { return error_of(trained.run("no", method) + words); };
  says(refused("bhyt", {"data.calibrate=" + tmp / "absent.tok"}), "absent.tok does not exist");
  says(refused("bhyt", {"norm.from=checkpoint"}), "norm.from=calibrate fits the new norm");
  says(refused("bhyt", {"norm.from=checkpoint", "data.calibrate=" + tmp / "train.tok"}), "data.calibrate is for norm.from=calibrate");
  says(refused("peri", {}), "peri normalizes the outputs");
  says(refused("bhyt", {"model.mlp=64"}), "model.mlp was 48, now is 64");
  says(error_of(small_run(tmp, "no") + Words{"norm.from=calibrate"}), "model.init must name");
  write_synced(tmp.path / "fit.txt", "some text");
  says(refused("bhyt", {"data.calibrate=" + tmp / "fit.txt"}), "there is no tokenizer");
  write_language(tmp / "wide.tok", 4000, 3, {.vocab = 99, .end_of_text = 0});
  says(refused("bhyt", {"data.calibrate=" + tmp / "wide.tok"}), "vocabulary of 99 tokens, the model one of 61");
  write_language(tmp / "short.tok", 40, 3);
  says(refused("bhyt", {"data.calibrate=" + tmp / "short.tok"}), "at least two batches");
  EXPECT_FALSE(fs::exists(tmp.path / "no" / "resolved.yaml"));
}

}  // namespace
}  // namespace bhyt::train
