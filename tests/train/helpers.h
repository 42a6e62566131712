// What the trainer's tests share: a folder that goes away, a small language on disk, a small run, and the comparison of two runs.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/log.h"
#include "core/rng.h"
#include "data/batch.h"
#include "data/token_file.h"
#include "io/files.h"
#include "model/train_pass.h"
#include "tests/devices.h"
#include "tests/temporary_folder.h"
#include "train/trainer.h"

namespace bhyt::train {

struct Folder : test::TemporaryFolder {
  Folder() : TemporaryFolder(On::memory) {}  // these tests sync a lot
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

constexpr int kVocab = 61;

// Documents of a language in which most tokens follow from the one before: something to learn in a few steps.
inline void write_language(const std::string& file, std::int64_t tokens, std::uint64_t seed,
                           TokenMeta meta = {.vocab = kVocab, .end_of_text = 0}) {
  TokenFileWriter out(file, meta);
  Rng rng(seed);
  TokenId last = 1;
  for (std::int64_t i = 0; i < tokens; ++i) {
    const bool end = rng.below(40) == 0 && i > 0;
    const auto random = static_cast<TokenId>(1 + rng.below(kVocab - 1));
    last = end ? 0 : rng.below(8) == 0 ? random : 1 + (last * 7 + 3) % (kVocab - 1);
    out.append(&last, 1);
    if (end || i + 1 == tokens) out.end_document();
  }
  out.finish();
}

using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// For the same run on every device: what follows these words may still change the type.
inline Words on(Device device) { return {"device=" + name_of(device), "dtype=fp32"}; }

inline Words small_run(const Folder& tmp, const std::string& dir) {
  if (!fs::exists(tmp.path / "train.tok")) {
    write_language(tmp / "train.tok", 20000, 1);
    write_language(tmp / "valid.tok", 1500, 2);
  }
  return {"model.d=32",
          "model.layers=2",
          "model.heads=4",
          "model.kv_heads=2",
          "model.mlp=48",
          "data.seq_len=32",
          "train.batch=6",
          "train.steps=12",
          "train.lr=5e-3",
          "train.log_every=3",
          "train.eval_every=5",
          "train.save_every=4",
          "train.eval_batches=3",
          "threads=1",
          "device=cpu",
          "data.train=" + tmp / "train.tok",
          "data.valid=" + tmp / "valid.tok",
          "run.dir=" + tmp / dir};
}

inline RunConfig config_of(const Words& words) { return read_run_config(config_tree("", words)); }

inline Outcome train(const Words& words, TrainerOptions options = {}) {
  log::set_quiet(true);
  Trainer trainer(config_of(words), std::move(options));
  return trainer.run();
}

// The loss (a sum over the scored tokens) and the gradients of its mean, an arena, of a batch that is a whole step: the one place where
// these tests call the model's backward.
struct LossAndGradients {
  double loss = 0;
  std::vector<float> gradients;
};
inline LossAndGradients loss_and_gradients(const Model& model, const HostBatch& host, bool with_aux) {
  Context& ctx = model.context();
  const auto upload = [&](const std::vector<std::int32_t>& from) {
    OwnedTensor t(ctx, DType::i32, {host.batch, host.seq});
    from_host(ctx, from.data(), t);
    return t;
  };
  const OwnedTensor tokens = upload(host.tokens), targets = upload(host.targets), loss(ctx, DType::f32, {1});
  const Gradients gradients(ctx, model.parameters());
  const auto n = static_cast<double>(host.batch * host.seq);
  zero(ctx, loss);
  TrainPass pass(ctx, model, {.batch = host.batch, .seq = host.seq});
  pass.run({.batch = host.batch, .seq = host.seq, .tokens = tokens, .targets = targets}, {.gradients = gradients,
                                                                                          .loss = loss,
                                                                                          .scale = static_cast<float>(1 / n),
                                                                                          .tokens_in_step = n,
                                                                                          .with_aux = with_aux,
                                                                                          .accumulate = false});
  LossAndGradients out;
  float sum = 0;
  to_host(ctx, loss, &sum);
  out.loss = static_cast<double>(sum);
  out.gradients.resize(static_cast<std::size_t>(gradients.arena.t.size()));
  to_host(ctx, gradients.arena, out.gradients.data());
  return out;
}

struct Killed {};
// Stops as a crash does: nothing is saved, nothing is written any more.
inline TrainerOptions crash_before(std::int64_t at) {
  return {.before_step = [at](Model&, std::int64_t step) {
    if (step == at) throw Killed();
  }};
}

inline std::string error_of(const Words& words, TrainerOptions options = {}) {
  try {
    train(words, std::move(options));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline bool says(const std::string& message, const std::string& part) {
  if (message.find(part) != std::string::npos) return true;
  ADD_FAILURE() << "expected \"" << part << "\" in \"" << message << "\"";
  return false;
}

// metrics.jsonl without what only the clock decides.
inline std::vector<nlohmann::json> metrics_of(const fs::path& run) {
  std::vector<nlohmann::json> out;
  const std::string text = read_text(run / "metrics.jsonl");
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    out.push_back(nlohmann::json::parse(text.substr(at, end - at)));
    for (const char* key : {"time", "tok_s", "step_ms", "mfu"}) out.back().erase(key);
  }
  EXPECT_TRUE(text.empty() || text.back() == '\n');
  return out;
}

inline std::vector<std::string> files_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline void expect_same_files(const fs::path& a, const fs::path& b) {
  ASSERT_EQ(files_in(a), files_in(b));
  for (const std::string& name : files_in(a))
    EXPECT_TRUE(read_text(a / name) == read_text(b / name)) << a << " and " << b << " differ in " << name;
}

// Two runs of the same mathematics: the same checkpoints to the byte, the same metrics but for times.
inline void expect_same_runs(const fs::path& a, const fs::path& b) {
  const auto checkpoints = [](const fs::path& run) {
    std::vector<std::string> names;
    for (const std::string& n : files_in(run))
      if (n.starts_with("checkpoint-") || n.starts_with("tmp-")) names.push_back(n);
    return names;
  };
  ASSERT_EQ(checkpoints(a), checkpoints(b));
  for (const std::string& name : checkpoints(a)) expect_same_files(a / name, b / name);
  const auto ma = metrics_of(a), mb = metrics_of(b);
  ASSERT_EQ(ma.size(), mb.size());
  for (std::size_t i = 0; i < ma.size(); ++i) EXPECT_EQ(ma[i].dump(), mb[i].dump());
}

}  // namespace bhyt::train
