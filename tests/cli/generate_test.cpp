// bhyt generate with text: where it stops, and what a long prompt gives, on a model that knows one sentence by heart.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/safetensors.h"
#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

constexpr const char* kSentence = "mary had a little lamb";
constexpr int kEndOfText = 256;  // of the byte tokenizer

class GenerateText : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::ofstream out(folder_->path / "text.jsonl");
    for (int i = 0; i < 200; ++i) out << "{\"text\": \"" << kSentence << "\"}\n";
    out.close();
    setenv("BHYT_CACHE", at("cache").c_str(), 1);
    const Outcome trained = bhyt({"pretrain", "model.d=32", "model.layers=2", "model.heads=2", "model.mlp=48", "data.attend=document",
                                  "data.seq_len=32", "train.batch=8", "train.steps=400", "train.lr=6e-3", "train.save_every=0", "threads=1",
                                  "device=cpu", "data.train=" + at("text.jsonl"), "run.dir=" + at("run"), "--quiet"});
    unsetenv("BHYT_CACHE");
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

 protected:
  static std::string at(const std::string& name) { return (folder_->path / name).string(); }
  static std::string checkpoint() { return at("run/checkpoint-400"); }
  static Json generate(const Words& more, const std::string& model = checkpoint()) {
    Words args = {"generate", "--model", model, "--json", "device=cpu", "threads=1"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome out = bhyt(args);
    EXPECT_EQ(out.code, 0) << out.err;
    return Json::parse(out.out, nullptr, false);
  }

 private:
  static inline TempFolder* folder_ = nullptr;
};

TEST_F(GenerateText, StopsAtTheEndOfTheText) {
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "40"});
  EXPECT_EQ(j["text"], " a little lamb");
  EXPECT_EQ(j["finish_reason"], "stop");
  EXPECT_EQ(j["ids"].size(), 14u);
  EXPECT_EQ(j["prompt_tokens"], 8);
  const Outcome plain =
      bhyt({"generate", "--model", checkpoint(), "--prompt", "mary had", "--max-tokens", "40", "device=cpu", "threads=1"});
  EXPECT_EQ(plain.out, " a little lamb\n");
}

TEST_F(GenerateText, GoesOnWhereItIsToldTo) {
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "40", "--ignore-eos"});
  EXPECT_EQ(j["finish_reason"], "length");
  ASSERT_EQ(j["ids"].size(), 40u);
  EXPECT_EQ(j["ids"][14], kEndOfText);
  const Json ids = generate({"--ids", "--prompt", "109 97 114 121 32 104 97 100", "--max-tokens", "40"});  // ids have no end of text
  EXPECT_EQ(ids["ids"], j["ids"]);
}

TEST_F(GenerateText, StopsAtTheLengthThatIsAsked) {
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "4"});
  EXPECT_EQ(j["text"], " a l");
  EXPECT_EQ(j["finish_reason"], "length");
}

TEST_F(GenerateText, StopsAtTheIdsThatTheCheckpointNames) {
  fs::copy(checkpoint(), at("stops"));
  Json config = Json::parse(read_text(at("stops/config.json")));
  config["eos_token_id"] = {static_cast<int>('b'), static_cast<int>('l')};
  std::ofstream(at("stops/config.json")) << config.dump();
  fs::remove(at("stops/manifest.json"));  // the change was meant
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "40"}, at("stops"));
  EXPECT_EQ(j["text"], " a ");
  EXPECT_EQ(j["finish_reason"], "stop");
}

TEST_F(GenerateText, WithoutATokenizerSaysWhatNamesOne) {
  fs::copy(checkpoint(), at("bare"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "manifest.json"})
    fs::remove(at("bare/") + name);
  const Words words{"generate", "--model", at("bare"), "--prompt", "mary had", "device=cpu", "threads=1"};
  const Outcome none = bhyt(words);
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err,
            "error: " + at("bare") + " holds no tokenizer: --tokenizer PATH names one, and --ids takes and gives token ids without\n");
  EXPECT_EQ(generate({"--tokenizer", "bytes", "--prompt", "mary had"}, at("bare"))["text"], " a little lamb");
  EXPECT_EQ(generate({"--ids", "--prompt", "109", "--max-tokens", "3"}, at("bare"))["ids"].size(), 3u);
}

TEST_F(GenerateText, APromptFileIsAFile) {
  const Words words{"generate", "--model", checkpoint(), "device=cpu", "threads=1", "--max-tokens", "40", "--prompt-file"};
  const auto with = [&](const std::string& file) {
    Words args = words;
    args.push_back(file);
    return bhyt(args);
  };
  std::ofstream(at("prompt.txt")) << "mary had";
  EXPECT_EQ(with(at("prompt.txt")).out, " a little lamb\n");
  for (const std::string& file : {at("run"), at("nowhere")}) {
    const Outcome out = with(file);
    EXPECT_EQ(out.code, 1);
    EXPECT_EQ(out.out, "");
    EXPECT_NE(out.err.find(file + ": expected a file with the text to continue"), std::string::npos) << out.err;
  }
}

// Of the right size, but not the one that the checkpoint holds: it may be meant, so it is said.
TEST_F(GenerateText, ATokenizerFromElsewhereIsNamed) {
  fs::create_directory(at("foreign"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) fs::copy(fs::path(checkpoint()) / name, at("foreign/") + name);
  const auto said = [&] {
    const Outcome out = bhyt({"generate", "--model", checkpoint(), "--tokenizer", at("foreign"), "--prompt", "mary had", "--max-tokens",
                              "3", "device=cpu", "threads=1"});
    EXPECT_EQ(out.code, 0) << out.err;
    return out.err.find("is not the tokenizer that " + checkpoint() + " was trained with") != std::string::npos;
  };
  EXPECT_FALSE(said());
  Json tokenizer = Json::parse(read_text(at("foreign/tokenizer.json")));
  auto& vocab = tokenizer["model"]["vocab"];
  const Json a = vocab["a"];
  vocab["a"] = vocab["b"];
  vocab["b"] = a;
  std::ofstream(at("foreign/tokenizer.json")) << tokenizer.dump();
  EXPECT_TRUE(said());
}

// Rows that no token of the tokenizer uses: drawn, they have no text. A tokenizer of another size is refused before anything is computed.
TEST_F(GenerateText, AModelMayBePaddedAndATokenizerMustFit) {
  const auto train = [&](const std::string& vocab) {
    const std::string run = at("padded" + vocab);
    const Outcome trained =
        bhyt({"pretrain", "model.d=16", "model.layers=1", "model.heads=2", "model.mlp=16", "model.vocab=" + vocab, "data.seq_len=16",
              "train.batch=2", "train.steps=1", "threads=1", "device=cpu", "data.train=" + at("text.jsonl"), "run.dir=" + run, "--quiet"});
    EXPECT_EQ(trained.code, 0) << trained.err;
    return run + "/checkpoint-1";
  };
  setenv("BHYT_CACHE", at("cache").c_str(), 1);
  const std::string model = train("2000");
  unsetenv("BHYT_CACHE");
  const Words words{"generate", "--model",      model, "--prompt",   "mary",     "--temperature",
                    "2",        "--max-tokens", "30",  "device=cpu", "threads=1"};
  for (const Words& more : {Words{}, Words{"--json"}, Words{"--tokenizer", "bytes"}}) {
    Words args = words;
    args.insert(args.end(), more.begin(), more.end());
    const Outcome out = bhyt(args);
    EXPECT_EQ(out.code, 0) << out.err;
    EXPECT_NE(out.err.find("new tokens have no text: their ids are not below 257"), std::string::npos) << out.err;
  }
  const auto refused = [&](const std::string& checkpoint, const std::string& tokenizer, const std::string& sizes) {
    const Outcome out = bhyt({"generate", "--model", checkpoint, "--tokenizer", tokenizer, "--prompt", "mary", "device=cpu", "threads=1"});
    EXPECT_EQ(out.code, 1);
    EXPECT_EQ(out.out, "");
    EXPECT_EQ(out.err, "error: the tokenizer " + tokenizer + " has " + sizes + ": they do not belong together\n");
  };
  ASSERT_EQ(bhyt({"tokenizer", "train", "--vocab", "266", "--out", at("266"), at("text.jsonl")}).code, 0);
  refused(model, at("266"), "266 ids, the model 2000");        // of a smaller model
  refused(checkpoint(), at("266"), "266 ids, the model 257");  // of a larger one
}

// Prompts are computed in pieces of 256: the continuation is the one that the whole row through forward gives.
TEST_F(GenerateText, ALongPromptContinuesAsTheWholeRowDoes) {
  constexpr std::int64_t kNew = 6;
  std::set<int> first;
  for (const std::int64_t length : {255, 256, 257, 700}) {
    std::vector<std::int64_t> ids;
    std::string prompt;
    for (std::int64_t i = 0; i < length; ++i) {
      ids.push_back(kSentence[i % static_cast<std::int64_t>(std::string(kSentence).size())]);
      prompt += std::to_string(ids.back()) + " ";
    }
    const Json made = generate({"--ids", "--prompt", prompt, "--max-tokens", std::to_string(kNew)})["ids"];
    ASSERT_EQ(made.size(), static_cast<std::size_t>(kNew));
    for (const auto& id : made) ids.push_back(id);
    first.insert(made[0].get<int>());
    const auto bytes = ids.size() * sizeof ids[0];
    write_safetensors(at("row.safetensors"), {{"tokens", "I64", {1, length + kNew}, [&](const auto& put) { put(ids.data(), bytes); }}});
    const Outcome run = bhyt(
        {"forward", "--model", checkpoint(), "--tokens", at("row.safetensors"), "--out", at("out.safetensors"), "device=cpu", "threads=1"});
    ASSERT_EQ(run.code, 0) << run.err;
    const SafeTensors file(at("out.safetensors"));
    const SafeTensor& logits = file.at("logits");  // [1, T, V]
    std::vector<float> row(static_cast<std::size_t>(logits.shape[2]));
    for (std::int64_t i = 0; i < kNew; ++i) {
      SafeTensors::to_float(logits, (length - 1 + i) * logits.shape[2], logits.shape[2], row.data());
      EXPECT_EQ(made[static_cast<std::size_t>(i)], std::max_element(row.begin(), row.end()) - row.begin()) << length << " " << i;
    }
  }
  EXPECT_GT(first.size(), 1u);  // where the prompt ends decides
}

}  // namespace
}  // namespace bhyt::test
