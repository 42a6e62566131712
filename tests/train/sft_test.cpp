// Fine-tuning runs: against the traces of the paper's stack, stopped and gone on with, selected, and refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "io/checkpoint_folders.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "tests/train/helpers.h"
#include "train/run_dir.h"

namespace bhyt::train {
namespace {

RunConfig tuning_config(const Words& words) { return read_run_config(config_tree("", words), Verify::yes, Work::fine_tuning); }

Outcome tune(const Words& words, TrainerOptions options = {}) {
  log::set_quiet(true);
  Trainer trainer(tuning_config(words), std::move(options));
  return trainer.run();
}

std::string tuning_error(const Words& words) {
  try {
    tune(words);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Conversations about letters, so that something is learned in a few steps.
std::string conversation(int i, int answer_length) {
  const char letter = static_cast<char>('a' + i % 7);
  return fmt::format(R"({{"messages": [{{"role": "user", "content": "say {}"}}, {{"role": "assistant", "content": "{}"}}]}})", letter,
                     std::string(static_cast<std::size_t>(answer_length), letter)) +
         "\n";
}

struct FineTuning {
  Folder tmp;
  std::string base;

  explicit FineTuning(const Words& model = {}) {
    std::string text, train_lines, valid_lines;
    for (int i = 0; i < 300; ++i) text += "some words to begin with, again and again. ";
    for (int i = 0; i < 22; ++i) train_lines += conversation(i, 3 + i * 5 % 17);
    for (int i = 0; i < 5; ++i) valid_lines += conversation(i + 3, 4 + i);
    write_synced(tmp.path / "text.txt", text);
    write_synced(tmp.path / "train.jsonl", train_lines);
    write_synced(tmp.path / "valid.jsonl", valid_lines);
    Words words = {"model.d=32",
                   "model.layers=2",
                   "model.heads=4",
                   "model.kv_heads=2",
                   "model.mlp=48",
                   "data.seq_len=32",
                   "train.batch=4",
                   "train.steps=2",
                   "threads=1",
                   "device=cpu",
                   "data.train=" + tmp / "text.txt",
                   "run.dir=" + tmp / "base"};
    ::setenv("XDG_CACHE_HOME", (tmp / "cache").c_str(), 1);
    log::set_quiet(true);
    Trainer(config_of(words + model), {}).run();
    base = tmp / "base/checkpoint-2";
  }
  // 22 conversations, 5 a step: epochs of 5 steps whose last one is short.
  Words run(const std::string& dir) const {
    return {"model.init=" + base,
            "data.train=" + tmp / "train.jsonl",
            "data.valid=" + tmp / "valid.jsonl",
            "data.template=default",
            "data.seq_len=48",
            "train.batch=5",
            "train.epochs=3",
            "train.lr=5e-3",
            "train.log_every=1",
            "threads=1",
            "device=cpu",
            "dtype=fp32",
            "run.dir=" + tmp / dir};
  }
};

std::vector<double> validations(const fs::path& run) {
  std::vector<double> out;
  for (const auto& line : metrics_of(run))
    if (line.contains("valid_loss")) out.push_back(line["valid_loss"]);
  return out;
}

TEST(FineTuning, LearnsByEpochsAndKeepsTheBest) {
  const FineTuning t;
  const Outcome out = tune(t.run("a"));
  EXPECT_EQ(out.step, 15);
  const fs::path run = t.tmp.path / "a";
  const auto losses = validations(run);
  ASSERT_EQ(losses.size(), 4u);  // before the first step, and after each epoch
  EXPECT_LT(losses.back(), losses.front() - 1);
  ASSERT_TRUE(out.best);
  EXPECT_DOUBLE_EQ(out.best->valid_loss, *std::min_element(losses.begin() + 1, losses.end()));
  EXPECT_EQ(fs::read_symlink(run / kBest).string(), fmt::format("checkpoint-{}", out.best->step));
  EXPECT_EQ(verify_manifest(run / kBest), "");
  for (const auto& line : metrics_of(run)) EXPECT_EQ(line.contains("eval_loss_hf"), line.contains("valid_loss"));
}

TEST(FineTuning, TheBestOutlivesTheNewest) {
  const FineTuning t;
  // A rate that ruins the model behind the first epoch: the first checkpoint stays the best.
  const Words words =
      t.run("a") + Words{"train.lr=2e-3", "train.schedule=constant", "train.warmup_ratio=0", "train.keep=1", "train.epochs=4"};
  tune(words, {.before_step = [](Model& model, std::int64_t step) {
         if (step != 6) return;
         const Parameter& p = model.parameters().at("model.embed_tokens.weight");
         std::vector<float> noise(static_cast<std::size_t>(p.size));
         for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = i / 3 % 2 ? 20.0f : -20.0f;
         model.parameters().write_value(p, noise.data());
       }});
  EXPECT_EQ(checkpoint_steps(t.tmp.path / "a"), (std::vector<std::int64_t>{20, 5}));
  EXPECT_EQ(fs::read_symlink(t.tmp.path / "a" / kBest).string(), "checkpoint-5");
}

TEST(FineTuning, EndsWhenItBecomesNoBetterForLong) {
  const FineTuning t;
  const Words words = t.run("a") + Words{"train.epochs=50", "train.lr=0.05", "train.schedule=constant", "train.patience=2"};
  const Outcome out = tune(words);
  EXPECT_LT(out.step, 250);
  EXPECT_EQ(out.step, out.best->step + 10);
  EXPECT_EQ(tune(words + Words{"resume=auto"}).step, out.step);  // there is nothing left to do
}

TEST(FineTuning, GoesOnAfterACrashWithTheSameBits) {
  for (const Words& variant : {Words{}, Words{"lora.rank=4", "lora.layers=0-1"},
                               Words{"lora.rank=2", "lora.targets=[q_proj,down_proj]", "lora.train=[norms]", "dtype=bf16"},
                               Words{"lora.rank=3", "lora.dropout=0.2"}, Words{"data.packing=documents", "train.batch=2"},
                               Words{"train.micro_batch=1", "data.shuffle=torch"}})
    for (const Device device : test::devices()) {
      SCOPED_TRACE(fmt::format("{} on {}", fmt::join(variant, " "), name_of(device)));
      const FineTuning t;
      const Words words = Words{"train.steps=12", "train.eval_every=5", "train.save_every=4", "device=" + name_of(device)} + variant;
      Words a = t.run("a"), b = t.run("b");
      std::erase(a, "train.epochs=3");
      std::erase(b, "train.epochs=3");
      tune(a + words);
      const Words again = b + words + Words{"resume=auto"};
      EXPECT_THROW(tune(again, crash_before(1)), Killed);   // after the validation of the model that is started from
      EXPECT_THROW(tune(again, crash_before(7)), Killed);   // in the middle of the second epoch, after checkpoint-4
      EXPECT_THROW(tune(again, crash_before(12)), Killed);  // after checkpoint-8
      EXPECT_EQ(tune(again).step, 12);
      expect_same_runs(t.tmp.path / "a", t.tmp.path / "b");
    }
}

// The run has the tokenizer and the weights: what it began with may be gone.
TEST(FineTuning, GoesOnWithoutTheModelThatItBeganWith) {
  for (const Words& variant : {Words{}, Words{"data.template=auto"}, Words{"data.template=chatml"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(variant, " ")));
    const FineTuning t;
    tune(t.run("a") + variant);
    EXPECT_THROW(tune(t.run("b") + variant, crash_before(8)), Killed);
    fs::remove_all(t.tmp.path / "base");
    EXPECT_EQ(tune(t.run("b") + variant + Words{"resume=auto"}).step, 15);
    expect_same_runs(t.tmp.path / "a", t.tmp.path / "b");
    says(tuning_error(t.run("c") + variant), "neither a checkpoint folder");
  }
  const FineTuning t;
  const Words adapters = t.run("a") + Words{"lora.rank=2"};
  EXPECT_THROW(tune(adapters, crash_before(8)), Killed);
  fs::remove_all(t.tmp.path / "base");
  says(tuning_error(adapters + Words{"resume=auto"}), "is gone, and adapters go on beside its weights alone");
}

TEST(FineTuning, BeginsWithCalibratedNorms) {
  const FineTuning t(Words{"norm.method=rmsnorm"});
  tune(t.run("source"));
  const double source = validations(t.tmp.path / "source").back();
  const Words words = {"model.init=" + t.tmp / "source/checkpoint-15", "norm.method=bhyt", "norm.from=calibrate", "train.save_every=4"};
  tune(t.run("a") + words);
  // "… loss of N other tokens: 1.9 under rmsnorm, 3.9 under bhyt as it comes, 2.0 fitted"
  const std::string log = read_text(t.tmp.path / "a/log.txt");
  const auto number_after = [&](const std::string& text) { return std::stod(log.substr(log.find(text) + text.size())); };
  ASSERT_NE(log.find(" other tokens: "), std::string::npos) << log;
  const double gap = number_after(" under rmsnorm, ") - number_after(" other tokens: ");
  EXPECT_GT(gap, 0.1);  // as it comes, the new norm is another model
  EXPECT_LT(validations(t.tmp.path / "a").front() - source, 0.5 * gap);
  EXPECT_LT(validations(t.tmp.path / "a").back(), validations(t.tmp.path / "a").front());
  const Words again = t.run("b") + words + Words{"resume=auto"};
  EXPECT_THROW(tune(again, crash_before(7)), Killed);  // in the second epoch, after checkpoint-5
  fs::remove_all(t.tmp.path / "source");               // a run that goes on does not calibrate again
  EXPECT_EQ(tune(again).step, 15);
  expect_same_runs(t.tmp.path / "a", t.tmp.path / "b");
}

// Rows are filled up to a multiple that grows with data.seq_len: the same conversations with more or less filling give the same gradients.
TEST(FineTuning, WhatFillsRowsUpCountsInNoLoss) {
  const FineTuning t;
  const auto first_step = [&](const std::string& dir, const char* length) {
    Words words = t.run(dir) + Words{"train.steps=1", "train.batch=3", "train.micro_batch=1", "norm.aux_loss=3", length};
    std::erase(words, "train.epochs=3");
    tune(words);
    for (const auto& line : metrics_of(t.tmp.path / dir))
      if (line.contains("grad_norm")) return line["grad_norm"].get<double>();
    return 0.0;
  };
  Words plain = t.run("plain") + Words{"train.steps=1", "train.batch=3"};
  std::erase(plain, "train.epochs=3");
  tune(plain);
  const double little = first_step("little", "data.seq_len=48"), much = first_step("much", "data.seq_len=1000");
  EXPECT_GT(little, 0);
  EXPECT_NEAR(little, much, 1e-5 * little);
  // Nor in what is said of the layers, nor in the work.
  const auto layers = [&](const std::string& dir) {
    for (const auto& line : metrics_of(t.tmp.path / dir))
      if (line.contains("layers")) return line["layers"];
    return nlohmann::json();
  };
  const auto work = [&](const std::string& dir) {
    return Json::parse(read_text(t.tmp.path / dir / "checkpoint-1" / "trainer_state.json"))["total_flos"].get<double>();
  };
  for (const char* key : {"norm", "abs", "variance"}) {
    const auto a = layers("little").at(key), b = layers("much").at(key);
    ASSERT_EQ(a.size(), 3u);
    for (std::size_t l = 0; l < a.size(); ++l) EXPECT_NEAR(a[l].get<double>(), b[l].get<double>(), 1e-5 * a[l].get<double>()) << key << l;
  }
  EXPECT_EQ(work("little"), work("much"));
  for (const auto& line : metrics_of(t.tmp.path / "plain"))
    if (line.contains("grad_norm")) {
      EXPECT_GT(std::abs(line["grad_norm"].get<double>() - little), 1e-3 * little);  // or nothing is shown
    }
}

TEST(FineTuning, AdaptersLeaveTheWeightsAsTheyWere) {
  const FineTuning t;
  for (const char* type : {"fp32", "bf16"}) {
    Trainer trainer(tuning_config(t.run(std::string("a-") + type) + Words{"lora.rank=4", "lora.merge=true", std::string("dtype=") + type}),
                    {});
    const auto values = [&] {
      std::map<std::string, std::vector<float>> out;
      for (const Parameter& p : trainer.model().parameters().list())
        if (p.frozen) out[p.name] = trainer.model().parameters().read_value(p);
      return out;
    };
    const auto before = values();
    EXPECT_GT(before.size(), 15u);
    log::set_quiet(true);
    trainer.run();
    EXPECT_TRUE(values() == before);
    const fs::path run = t.tmp.path / (std::string("a-") + type);
    EXPECT_TRUE(is_adapter(run / kBest));
    EXPECT_FALSE(fs::exists(run / "checkpoint-15" / "model.safetensors"));
    EXPECT_EQ(verify_manifest(run / kMerged), "");
    EXPECT_TRUE(weight_mismatches(run / kMerged, read_model_config(run / kMerged / "config.json")).empty());
  }
}

TEST(FineTuning, AdaptersKeepLessForTheBackwardUnlessTold) {
  const FineTuning t;
  EXPECT_EQ(tuning_config(t.run("a")).train.recompute, Recompute::none);
  EXPECT_EQ(tuning_config(t.run("a") + Words{"lora.rank=2"}).train.recompute, Recompute::swiglu);
  EXPECT_EQ(tuning_config(t.run("a") + Words{"lora.rank=2", "train.recompute=none"}).train.recompute, Recompute::none);
}

TEST(FineTuning, AdaptersGoOnBesideTheWeightsThatTheyBeganWithAlone) {
  const FineTuning t, other(Words{"run.seed=5"});
  const Words words = t.run("a") + Words{"lora.rank=2"};
  EXPECT_THROW(tune(words, crash_before(9)), Killed);
  says(tuning_error(words + Words{"resume=auto", "model.init=" + other.base}), "model.init was");
  EXPECT_EQ(tune(words + Words{"resume=auto"}).step, 15);
}

TEST(FineTuning, PackingChangesTheRowsButNoLoss) {
  const FineTuning t;
  const Words words = {"train.steps=1", "train.eval_every=1", "train.lr=1e-9"};
  Words none = t.run("none") + words, packed = t.run("packed") + words + Words{"data.packing=documents"};
  std::erase(none, "train.epochs=3");
  std::erase(packed, "train.epochs=3");
  // All conversations in one step, as rows of their own and together.
  tune(none + Words{"train.batch=22"});
  tune(packed + Words{"train.batch=22"});
  const auto a = metrics_of(t.tmp.path / "none"), b = metrics_of(t.tmp.path / "packed");
  ASSERT_EQ(a.size(), b.size());
  int compared = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (const char* key : {"loss", "grad_norm", "valid_loss"})
      if (a[i].contains(key)) {
        EXPECT_NEAR(a[i][key].get<double>(), b[i][key].get<double>(), 2e-6 * std::abs(a[i][key].get<double>())) << key;
        ++compared;
      }
  EXPECT_EQ(compared, 4);
}

TEST(FineTuning, TheVocabularyGrowsByWhatTheTemplateBrings) {
  for (const char* tied : {"model.tied=true", "model.tied=false"}) {
    const FineTuning t(Words{tied});
    Words words = t.run("a") + Words{"data.template=chatml", "train.steps=1", "train.lr=1e-9", "train.weight_decay=0"};
    std::erase(words, "train.epochs=3");
    tune(words);
    const fs::path grown = t.tmp.path / "a/checkpoint-1";
    const ModelConfig config = read_model_config(grown / "config.json");
    EXPECT_EQ(config.vocab, 320);  // 257 and two more, a multiple of 64
    const auto tokenizer = load_tokenizer(grown.string());
    EXPECT_EQ(tokenizer->vocab_size(), 259);
    EXPECT_EQ(tokenizer->piece(*tokenizer->eos(), true), "<|im_end|>");
    EXPECT_EQ(std::ranges::count(config.eos, *tokenizer->eos()), 1);
    const SafeTensors before(fs::path(t.base) / "model.safetensors"), after(grown / "model.safetensors");
    for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      const SafeTensor* old = before.find(name);
      if (!old) continue;
      std::vector<float> a(257 * 32), b(320 * 32);
      SafeTensors::to_float(*old, 0, 257 * 32, a.data());
      SafeTensors::to_float(after.at(name), 0, 320 * 32, b.data());
      double mean_error = 0, spread = 0;
      for (std::size_t c = 0; c < 32; ++c) {
        double mean = 0, new_mean = 0;
        for (std::size_t r = 0; r < 257; ++r) {
          EXPECT_NEAR(a[r * 32 + c], b[r * 32 + c], 1e-6) << name;
          mean += static_cast<double>(a[r * 32 + c]) / 257;
        }
        for (std::size_t r = 257; r < 320; ++r) {
          new_mean += static_cast<double>(b[r * 32 + c]) / 63;
          spread += std::pow(static_cast<double>(b[r * 32 + c]) - mean, 2) / (63 * 32);
        }
        mean_error += std::pow(new_mean - mean, 2) / 32;
      }
      EXPECT_LT(std::sqrt(mean_error), 3 / std::sqrt(32.0 * 63)) << name;
      EXPECT_NEAR(std::sqrt(spread), 1 / std::sqrt(32.0), 0.01) << name;
    }
  }
}

TEST(FineTuning, RefusesWhatMakesNoSense) {
  const FineTuning t;
  const Words run = t.run("a");
  says(tuning_error(run + Words{"lora.targets=[q_proj]"}), "lora.rank is 0");
  says(tuning_error(run + Words{"lora.rank=2", "lora.targets=[x_proj]"}), "q_proj");
  says(tuning_error(run + Words{"lora.rank=2", "lora.layers=1-2"}), "lora.layers");
  says(tuning_error(run + Words{"lora.rank=2", "data.template=chatml"}), "brings tokens that the model lacks");
  says(tuning_error(run + Words{"data.template=nonsense"}), "nonsense");
  Words no_validation = run + Words{"train.patience=2"};
  std::erase_if(no_validation, [](const std::string& w) { return w.starts_with("data.valid"); });
  says(tuning_error(no_validation), "there is no data.valid");
  says(tuning_error(run + Words{"data.train=" + t.tmp / "text.txt"}), "expected conversations");
  says(tuning_error(run + Words{"data.attend=row"}), "unknown key data.attend");
  Words no_model = run;
  std::erase_if(no_model, [](const std::string& w) { return w.starts_with("model.init"); });
  says(tuning_error(no_model), "model.init");
  write_synced(t.tmp.path / "empty.jsonl", R"({"messages": []})"
                                           "\n");
  says(tuning_error(run + Words{"data.train=" + t.tmp / "empty.jsonl"}), "1");
  EXPECT_FALSE(fs::exists(t.tmp.path / "a"));
}

struct Golden {
  std::string name;
  nlohmann::json about;
  fs::path folder;
};
std::vector<Golden> golden_cases() {
  std::vector<Golden> out;
  const char* data = std::getenv("BHYT_DATA");
  const fs::path root = data ? fs::path(data).parent_path() / "fixtures" / "sft" / "train" : fs::path();
  if (!data || !fs::exists(root)) return out;
  for (const auto& entry : fs::directory_iterator(root))
    if (fs::exists(entry.path() / "case.json"))
      out.push_back({entry.path().filename().string(), nlohmann::json::parse(read_text(entry.path() / "case.json")), entry.path()});
  return out;
}

// The paper's stack: losses, gradient norms and rates of every step.
TEST(FineTuning, GoldenTraces) {
  const auto cases = golden_cases();
  if (cases.empty()) GTEST_SKIP() << "BHYT_DATA is not set, or has no golden cases beside it";
  for (const Golden& g : cases)
    for (const Device device : test::devices()) {
      SCOPED_TRACE(fmt::format("{} on {}", g.name, name_of(device)));
      const Folder tmp;
      Words words = {"run.dir=" + tmp / "run", "data.seq_len=96",           "train.log_every=1",
                     "train.eval_every=0",     "device=" + name_of(device), "dtype=fp32"};
      for (const auto& [key, value] : g.about["keys"].items()) {
        const bool is_path = key == "data.train" || key == "data.valid" || key == "model.init" || key == "lora.init";
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        words.push_back(key + "=" + (is_path ? (g.folder.parent_path() / text).string() : text));
      }
      tune(words);
      std::size_t step = 0;
      for (const auto& line : metrics_of(tmp.path / "run")) {
        if (line.contains("valid_loss") && line["step"] != 0) {
          const double valid = g.about["valid"]["token_mean"];
          EXPECT_NEAR(line["valid_loss"].get<double>(), valid, 1e-4 * valid);
        }
        if (!line.contains("loss")) continue;
        const double loss = g.about["loss"][step], norm = g.about["grad_norm"][step], lr = g.about["lr"][step];
        EXPECT_NEAR(line["loss"].get<double>(), loss, 1e-4 * loss) << step;
        EXPECT_NEAR(line["grad_norm"].get<double>(), norm, 1e-3 * norm) << step;
        EXPECT_NEAR(line["lr"].get<double>(), lr, 1e-9) << step;
        ++step;
      }
      EXPECT_EQ(step, g.about["loss"].size());
    }
}

}  // namespace
}  // namespace bhyt::train
