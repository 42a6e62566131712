// A model that knows one sentence by heart, trained once for all tests of a suite: what it generates is known beforehand.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace bhyt::test {

class KnowsOneSentence : public ::testing::Test {
 public:
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

 protected:
  static void learn(const std::string& sentence, int seq_len) {
    folder_ = new TempFolder;
    std::ofstream out(folder_->path / "text.jsonl");
    for (int i = 0; i < 200; ++i) out << nlohmann::json{{"text", sentence}} << "\n";
    out.close();
    setenv("BHYT_CACHE", at("cache").c_str(), 1);
    const Outcome trained =
        bhyt({"pretrain", "model.d=32", "model.layers=2", "model.heads=2", "model.mlp=48", "model.tied=false", "data.attend=document",
              "data.seq_len=" + std::to_string(seq_len), "train.batch=8", "train.steps=400", "train.lr=6e-3", "train.save_every=0",
              "threads=1", "device=cpu", "data.train=" + at("text.jsonl"), "run.dir=" + at("run"), "--quiet"});
    unsetenv("BHYT_CACHE");
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static std::string at(const std::string& name) { return (folder_->path / name).string(); }
  static std::string checkpoint() { return at("run/checkpoint-400"); }

  static inline TempFolder* folder_ = nullptr;
};

}  // namespace bhyt::test
