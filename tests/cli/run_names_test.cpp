// A run directory where a checkpoint is asked for, and checkpoints whose files are not as they were saved.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// A run of twelve steps with three checkpoints, trained once.
class RunNames : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::ofstream out(folder_->path / "text.txt");
    for (int i = 0; i < 400; ++i) out << i << " sheep jump over " << i % 13 << " fences\n";
    out.close();
    setenv("BHYT_CACHE", at("cache").c_str(), 1);
    const Outcome trained = bhyt({"pretrain", "model.d=16", "model.layers=2", "model.heads=2", "model.mlp=24", "data.seq_len=16",
                                  "train.batch=2", "train.steps=12", "train.save_every=4", "threads=1", "device=cpu",
                                  "data.train=" + at("text.txt"), "run.dir=" + at("trained"), "--quiet"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() {
    unsetenv("BHYT_CACHE");
    delete folder_;
    folder_ = nullptr;
  }

 protected:
  void SetUp() override {
    fs::remove_all(at("run"));
    fs::copy(at("trained"), at("run"), fs::copy_options::recursive);
  }
  static std::string at(const std::string& name) { return (folder_->path / name).string(); }
  static void damage(const std::string& file) {
    std::fstream f(at(file), std::ios::binary | std::ios::in | std::ios::out);
    f.seekp(-1, std::ios::end);
    f.put('\x3e');
  }
  // What reads a checkpoint, each given `model`.
  static std::vector<Words> readers(const std::string& model) {
    return {{"generate", "--model", model, "--prompt", "1", "--max-tokens", "1", "device=cpu"},
            {"convert", model, "--out", at("converted")},
            {"forward", "--model", model, "--tokens", at("tokens.safetensors"), "--out", at("out.safetensors")},
            {"pretrain", "model.init=" + model, "data.train=" + at("text.txt"), "data.seq_len=16", "train.batch=2", "train.steps=1",
             "device=cpu", "run.dir=" + at("other")}};
  }
  static void write_tokens() {
    const std::string header = R"({"tokens":{"dtype":"I64","shape":[1,3],"data_offsets":[0,24]}})";
    const std::uint64_t length = header.size();
    const std::int64_t ids[3] = {1, 2, 3};
    std::ofstream out(at("tokens.safetensors"), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8) << header;
    out.write(reinterpret_cast<const char*>(ids), sizeof ids);
  }
  static void clear_outputs() {
    fs::remove_all(at("converted"));
    fs::remove_all(at("other"));
  }

 private:
  static inline TempFolder* folder_ = nullptr;
};

TEST_F(RunNames, StandForTheirNewestGoodCheckpoint) {
  write_tokens();
  for (const bool damaged : {false, true}) {
    if (damaged) damage("run/checkpoint-12/model.safetensors");
    const std::string which = damaged ? "checkpoint-8" : "checkpoint-12";
    for (const Words& words : readers(at("run"))) {
      clear_outputs();
      const Outcome out = bhyt(words);
      EXPECT_EQ(out.code, 0) << words[0] << ": " << out.err;
      EXPECT_NE(out.err.find("taking its newest checkpoint, " + which), std::string::npos) << words[0] << ": " << out.err;
    }
    EXPECT_NE(read_text(at("other/resolved.yaml")).find("init: " + at("run/" + which)), std::string::npos);
  }
  fs::create_directory_symlink("checkpoint-4", at("run/best"));
  const Outcome best = bhyt(readers(at("run"))[0]);
  EXPECT_EQ(best.code, 0) << best.err;
  EXPECT_NE(best.err.find("taking its best checkpoint, checkpoint-4"), std::string::npos) << best.err;
}

TEST_F(RunNames, ADamagedCheckpointIsRefusedByAllThatRead) {
  write_tokens();
  damage("run/checkpoint-12/model.safetensors");
  for (Words words : readers(at("run/checkpoint-12"))) {
    clear_outputs();
    const Outcome out = bhyt(words);
    EXPECT_EQ(out.code, 1) << words[0];
    EXPECT_NE(out.err.find("model.safetensors is damaged"), std::string::npos) << words[0] << ": " << out.err;
    EXPECT_FALSE(fs::exists(at("converted")) || fs::exists(at("other")));
    words.emplace_back("--no-verify");
    const Outcome all_the_same = bhyt(words);
    EXPECT_EQ(all_the_same.code, 0) << words[0] << ": " << all_the_same.err;
  }
  Words itself = readers(at("run/checkpoint-8"))[2];
  itself.back() = at("tokens.safetensors");
  const Outcome refused = bhyt(itself);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("is the file that --tokens names"), std::string::npos) << refused.err;
  // The optimizer's state is not what a model is read from.
  damage("run/checkpoint-8/optimizer.safetensors");
  EXPECT_EQ(bhyt(readers(at("run/checkpoint-8"))[0]).code, 0);
}

// Until a run has a checkpoint of its own, what it starts from must be whole each time.
TEST_F(RunNames, ADamagedInitIsRefusedWhileARunHasNoWeightsOfItsOwn) {
  clear_outputs();
  ASSERT_EQ(bhyt(readers(at("run/checkpoint-12"))[3]).code, 0);
  damage("run/checkpoint-12/model.safetensors");
  const Words on{"pretrain", "run.dir=" + at("other"), "resume=auto", "train.steps=2"};
  const Outcome own = bhyt(on);
  EXPECT_EQ(own.code, 0) << own.err;
  for (const char* left : {"checkpoint-1", "checkpoint-2", "metrics.jsonl"}) fs::remove_all(at("other/") + left);
  const Outcome none = bhyt(on);
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("model.safetensors is damaged"), std::string::npos) << none.err;
  EXPECT_FALSE(fs::exists(at("other/metrics.jsonl")));
}

TEST_F(RunNames, InfoVerifiesEveryCheckpoint) {
  EXPECT_EQ(bhyt({"info", at("run"), "--verify"}).code, 0);
  damage("run/checkpoint-4/model.safetensors");
  fs::remove(at("run/checkpoint-8/optimizer.safetensors"));
  fs::remove(at("run/checkpoint-12/config.json"));
  const Outcome out = bhyt({"info", at("run"), "--verify", "--json"});
  EXPECT_EQ(out.code, 1);
  const std::string problems = Json::parse(out.out)["integrity"].dump();
  fs::copy(at("run/checkpoint-4"), at("run/best"));
  EXPECT_NE(bhyt({"info", at("run"), "--verify"}).out.find("best: model.safetensors is damaged"), std::string::npos);
  const Outcome newest = bhyt({"convert", at("run"), "--out", at("from_newest")});
  EXPECT_NE(newest.err.find("passing over " + at("run/best")), std::string::npos) << newest.err;
  EXPECT_NE(newest.err.find("taking its newest checkpoint, checkpoint-8"), std::string::npos) << newest.err;
  for (const char* what :
       {"checkpoint-4: model.safetensors is damaged", "checkpoint-8: optimizer.safetensors is missing", "checkpoint-12: "})
    EXPECT_NE(problems.find(what), std::string::npos) << what << " in " << problems;
}

TEST_F(RunNames, InfoNeedsNoMetrics) {
  fs::remove(at("run/metrics.jsonl"));
  const Outcome out = bhyt({"info", at("run"), "--verify", "--json"});
  EXPECT_EQ(out.code, 0) << out.err;
  const Json run = Json::parse(out.out);
  EXPECT_EQ(run["kind"], "run");
  EXPECT_EQ(run["step"], 12);
  EXPECT_EQ(run["checkpoints"].size(), 3u);
  EXPECT_NE(run["notes"].dump().find("metrics.jsonl is missing"), std::string::npos) << run["notes"];
  damage("run/checkpoint-4/model.safetensors");
  EXPECT_EQ(bhyt({"info", at("run"), "--verify"}).code, 1);
}

// Sizes are compared without reading; the manifest speaks before what it lists is parsed.
TEST_F(RunNames, InfoComparesWithTheManifestFirst) {
  const auto problems = [](const std::string& path, const Words& more = {}) {
    Words words{"info", path, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome out = bhyt(words);
    const Json integrity = Json::parse(out.out)["integrity"];
    EXPECT_EQ(out.code, integrity == "ok" ? 0 : 1) << out.err;
    return integrity;
  };
  EXPECT_EQ(problems(at("run")), "ok");
  EXPECT_EQ(problems(at("run/checkpoint-8")), "ok");
  const auto bytes = std::to_string(fs::file_size(at("run/checkpoint-8/optimizer.safetensors")));
  fs::resize_file(at("run/checkpoint-8/optimizer.safetensors"), 0);
  const std::string wrong = "optimizer.safetensors has 0 bytes instead of " + bytes;
  EXPECT_EQ(problems(at("run")), Json{"checkpoint-8: " + wrong});
  EXPECT_EQ(problems(at("run/checkpoint-8")), Json{wrong});
  for (const char* file : {"config.json", "tokenizer.json"}) {
    damage(std::string("run/checkpoint-12/") + file);  // its last byte: no JSON any more
    const std::string damaged = std::string(file) + " is damaged (its checksum differs)";
    EXPECT_EQ(problems(at("run/checkpoint-12"), {"--verify"}), Json{damaged});
    fs::remove_all(at("run/checkpoint-12"));
    fs::copy(at("trained/checkpoint-12"), at("run/checkpoint-12"));
  }
}

TEST_F(RunNames, WhereEveryCheckpointIsDamagedTheWayOutIsNamed) {
  for (const char* step : {"4", "8", "12"}) damage(std::string("run/checkpoint-") + step + "/model.safetensors");
  const Outcome none = bhyt(readers(at("run"))[0]);
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("no checkpoint of this run can be used (--no-verify takes a damaged one all the same):"), std::string::npos)
      << none.err;
}

TEST_F(RunNames, StandForTheirTokenizer) {
  const auto encode = [](const std::string& tokenizer) { return bhyt({"tokenizer", "encode", "--tokenizer", tokenizer}, "sheep"); };
  const std::string ids = encode("bytes").out;
  EXPECT_EQ(encode(at("run/checkpoint-12")).out, ids);
  EXPECT_EQ(encode(at("run")).out, ids);
  damage("run/checkpoint-12/tokenizer.json");
  const Outcome of_run = encode(at("run"));
  EXPECT_EQ(of_run.out, ids);
  EXPECT_NE(of_run.err.find("taking the tokenizer of its newest checkpoint, checkpoint-8"), std::string::npos) << of_run.err;
  for (const char* named : {"run/checkpoint-12", "run/checkpoint-12/tokenizer.json"}) {
    const Outcome damaged = encode(at(named));
    EXPECT_EQ(damaged.code, 1);
    EXPECT_EQ(damaged.err,
              "error: [tokenizer] " + at("run/checkpoint-12") +
                  ": tokenizer.json is damaged (its checksum differs). After a change that was meant, remove its manifest.json\n");
  }
  const Outcome packed = bhyt({"data", "pack", "--force", "--out", at("a.tok"), "--tokenizer", at("run"), at("text.txt")});
  EXPECT_EQ(packed.code, 0) << packed.err;
  Words start = readers(at("run/checkpoint-8"))[3];
  start.push_back("data.tokenizer=" + at("run"));
  clear_outputs();
  const Outcome started = bhyt(start);
  EXPECT_EQ(started.code, 0) << started.err;
  // A run that goes on passes over the same checkpoint.
  const Outcome on = bhyt({"pretrain", "run.dir=" + at("run"), "resume=auto", "data.tokenizer=auto", "train.steps=13"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_NE(on.err.find("going on after step 8"), std::string::npos) << on.err;
  for (const char* step : {"4", "8"}) fs::remove(at("run/checkpoint-") + step + "/tokenizer.json");
  fs::remove_all(at("run/checkpoint-13"));
  damage("run/checkpoint-12/tokenizer.json");
  const Outcome none = encode(at("run"));
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("no checkpoint of this run has a tokenizer that can be used"), std::string::npos) << none.err;
}

// An outcome of forward is written again without a word; anything else is a user's.
TEST_F(RunNames, ForwardReplacesItsOwnOutcomeOnly) {
  write_tokens();
  Words words = readers(at("run"))[2];
  for (int i = 0; i < 2; ++i) EXPECT_EQ(bhyt(words).code, 0);
  const std::string weights = at("run/checkpoint-4/model.safetensors"), before = read_text(weights);
  words.back() = weights;
  const Outcome refused = bhyt(words);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find(weights + " already exists; --force replaces it"), std::string::npos) << refused.err;
  EXPECT_EQ(read_text(weights), before);
  words.emplace_back("--force");
  EXPECT_EQ(bhyt(words).code, 0);
}

TEST_F(RunNames, ARunGoesOnByItsOwnConfig) {
  const auto pretrain = [](Words words) {
    words.insert(words.begin(), "pretrain");
    return bhyt(words);
  };
  const std::string run = "run.dir=" + at("run");
  fs::remove_all(at("run/checkpoint-12"));
  const Outcome on = pretrain({run, "resume=auto"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_NE(on.err.find("going on after step 8"), std::string::npos) << on.err;
  EXPECT_EQ(read_text(at("run/checkpoint-12/model.safetensors")), read_text(at("trained/checkpoint-12/model.safetensors")));
  const Outcome longer = pretrain({run, "resume=auto", "train.steps=13"});
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_TRUE(fs::exists(at("run/checkpoint-13")));

  for (const auto& [words, message] : std::vector<std::pair<Words, std::string>>{
           {{run}, "already holds a run; resume=auto goes on with it"},
           {{run, "resume=auto", "model.preset=tiny"}, "model.preset cannot change"},
           {{run, "resume=auto", "model.d=32"}, "model.d was 16, now is 32"},
           {{at("run")}, "is a folder; run.dir=" + at("run") + " resume=auto goes on"},
           {{"run.dir=" + at("nothing"), "resume=auto"}, "holds no run to go on with (no resolved.yaml there)"},
           {{"run.dir=" + at("run/checkpoint-8"), "resume=auto"}, "it is a checkpoint: run.dir=" + at("run") + " is its run"}}) {
    const Outcome out = pretrain(words);
    EXPECT_EQ(out.code, 2) << out.err;
    EXPECT_NE(out.err.find(message), std::string::npos) << message << " in " << out.err;
  }
  EXPECT_FALSE(fs::exists(at("nothing")));
}

}  // namespace
}  // namespace bhyt::test
