// bhyt pretrain as a user meets it.
#include "tests/cli/training.h"

namespace bhyt::test {
namespace {

TEST(Pretrain, WhatAPersonShouldKnowIsSaidBeforeTheFirstStep) {
  const Place place;
  const Outcome out =
      bhyt(place.run("a", {"train.steps=2", "train.batch=2K", "norm.method=dyt", "norm.lambda=[3, 1]", "train.micro_batch=100"}));
  ASSERT_EQ(out.code, 0) << out.err;
  says(out.err, "warning: a batch of 2,000 rows is larger than the data, ");
  says(out.err, "warning: norm.lambda, norm.refresh: of no use to the method dyt\n");
  const Outcome large = bhyt(place.run("b", {"train.batch=1T"}));
  EXPECT_EQ(large.code, 2);
  says(large.err, "error: this run needs ");
  says(large.err, " free; lower train.batch or train.micro_batch (now 1000000000000 and auto)");
  const Outcome wide = bhyt(place.run("b", {"train.batch=1M", "train.micro_batch=1M", "data.seq_len=1K"}));
  EXPECT_EQ(wide.code, 2);
  says(wide.err, "lower train.batch or train.micro_batch (now 1000000 and 1000000)");
  EXPECT_FALSE(fs::exists(place.path / "b" / "log.txt"));
}

// Packed once, it is spoken of by every run that trains on it: in its messages and in its log.
TEST(Pretrain, WhatThereIsToSayOfATextIsSaidByEveryRun) {
  const Place place;
  write_text(place.path / "text.txt", std::string(19000, 'a') + std::string(1000, '\0'));
  const std::string about = (place.path / "text.txt").string() + ": 5.0 % of its bytes are NUL or not UTF-8; is it text?";
  for (const char* run : {"a", "b"}) {
    const Outcome out = bhyt(place.run(run, {"train.steps=1"}));
    ASSERT_EQ(out.code, 0) << out.err;
    EXPECT_EQ(out.err.find("packing ") != std::string::npos, std::string(run) == "a");
    says(out.err, "warning: " + about);
    says(read_text(place.path / run / "log.txt"), about);
  }
  // A text that is in order now has nothing said of it.
  write_text(place.path / "text.txt", std::string(30000, 'a'));
  EXPECT_EQ(bhyt(place.run("c", {"train.steps=1"})).err.find("is it text?"), std::string::npos);
}

TEST(Pretrain, OneProcessPerDirectory) {
  const Place place;
  Process first(place.run("a", {"train.steps=90000"}));
  ASSERT_TRUE(first.read_until_step(3, 90000)) << first.messages();
  const Outcome second = bhyt(place.run("a", {"resume=auto"}));
  EXPECT_EQ(second.code, 1);
  says(second.err, "is being written by another process");
}

TEST(Pretrain, ALossThatExplodesStopsTheRun) {
  const Place place;
  const Outcome out = bhyt(place.run("a", {"train.lr=1e30", "train.warmup_ratio=0", "train.max_skipped=4", "train.save_every=0"}));
  EXPECT_EQ(out.code, 1);
  says(out.err, "4 steps in a row were skipped");
  const auto lines = metrics_of(place.path / "a");
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const Json& j) { return j.contains("event") && j["event"] == "skipped_step"; }),
            4);
}

// A number that is not known is none.
TEST(Pretrain, TheOutcomeSaysWhatIsKnown) {
  const Place place;
  const Words words = place.run("a", {"train.steps=2", "train.save_every=0", "--json"});
  const Json first = Json::parse(bhyt(words).out), again = Json::parse(bhyt(words + Words{"resume=auto"}).out);
  EXPECT_GT(first["loss"], 1.0);
  for (const char* key : {"step", "loss", "valid_loss", "checkpoint"}) EXPECT_EQ(again[key], first[key]) << key;
  EXPECT_GT(first["tok_s"], 0.0);
  EXPECT_EQ(again["tok_s"], nullptr);
  const Outcome skipped = bhyt(place.run("b", {"train.steps=2", "norm.aux_loss=1e300", "--json"}));
  ASSERT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_EQ(Json::parse(skipped.out)["loss"], nullptr);
  says(skipped.err, "done    2 steps  no loss: all were skipped  valid ");
}

TEST(Pretrain, WrongConfigsExitWithTwoAndSayWhy) {
  const Place place;
  const auto error = [&](const Words& words) {
    const Outcome out = bhyt(place.run("never", words));
    EXPECT_EQ(out.code, 2) << out.err;
    EXPECT_EQ(out.out, "");
    return out.err;
  };
  EXPECT_EQ(error({"train.lrr=1"}), "error: unknown key train.lrr (did you mean train.lr?)\n");
  EXPECT_EQ(error({"norm.lambda=[-1, 2]"}), "error: norm.lambda[0] must be greater than 0, got -1\n");
  EXPECT_EQ(error({"norm.p=0.9", "norm.kappa=2"}), "error: norm.p and norm.kappa say the same thing: give one of them\n");
  EXPECT_EQ(error({"data.seq_len=9000000000"}), "error: data.seq_len must be at most 1073741824, got 9000000000\n");
  EXPECT_EQ(error({"train.select=best", "data.valid=null"}),
            "error: train.select=best takes the checkpoint with the lowest validation loss, and there is no data.valid\n");
  EXPECT_EQ(error({"parallel.trace=1"}),
            "error: parallel.trace=1 draws how several processes work together, and this run has one; leave it out\n");
  EXPECT_EQ(error({"threads=4097"}), "error: run.threads must be at most 4096, got 4097\n");
  EXPECT_EQ(error({"model.vocab=100"}), "error: model.vocab must be at least 257, the tokenizer's, got 100\n");
  EXPECT_EQ(error({"--forse"}), "error: unknown flag --forse (did you mean --force?); see bhyt help pretrain\n");
  EXPECT_EQ(error({"a.yaml", "b.yaml"}), "error: expected one config, got a.yaml and b.yaml (overrides are written key=value)\n");
  EXPECT_EQ(error({"train.lr="}), "error: train.lr= has no value: write train.lr=VALUE, or train.lr=null for the default\n");
  EXPECT_EQ(error({"train.lr", "5e-4"}), "error: train.lr has no value: write train.lr=VALUE\n");
  EXPECT_EQ(error({"seed"}), "error: seed has no value: write seed=VALUE\n");
  EXPECT_EQ(error({"--train.lr=1"}), "error: unknown flag --train.lr=1 (keys have no dashes: train.lr=1); see bhyt help pretrain\n");
  EXPECT_EQ(error({"--lr", "3"}), "error: unknown flag --lr (keys have no dashes: train.lr=3); see bhyt help pretrain\n");
  EXPECT_EQ(error({"--steps=3"}), "error: unknown flag --steps=3 (keys have no dashes: train.steps=3); see bhyt help pretrain\n");
  EXPECT_EQ(error({"--seq-len"}), "error: unknown flag --seq-len (keys have no dashes: data.seq_len=VALUE); see bhyt help pretrain\n");
  EXPECT_EQ(error({"--hel"}), "error: unknown flag --hel; see bhyt help pretrain\n");
  EXPECT_EQ(error({"nowhere.yaml"}), "error: config nowhere.yaml is not a file\n");
  EXPECT_EQ(error({"nowhere.txt"}), "error: config nowhere.txt is not a file\n");
  EXPECT_EQ(error({"data.train=c4/train-*.tok"}),
            "error: data.train: no file matches c4/train-*.tok; docs/data.md says how data is made, that of the recipes too\n");
  EXPECT_EQ(error({"data.valid=c4/valid.tok"}),
            "error: data.valid: c4/valid.tok does not exist; docs/data.md says how data is made, that of the recipes too\n");
  // Data where a config belongs.
  const std::string text = (place.path / "text.txt").string(), tokens = (place.path / "text.tok").string();
  ASSERT_EQ(bhyt({"data", "pack", "--out", tokens, "--tokenizer", "bytes", text}).code, 0);
  for (const std::string& file : {text, tokens})
    EXPECT_EQ(error({file}), "error: config " + file + " is data, not a config: data.train=" + file + " trains on it\n");
  says(error({"norm.method=bhyd"}), "bhyt");
  says(error({"device=tpu"}), "run.device must be auto, cpu, cuda or cuda:N, got tpu");
  const Outcome none = bhyt({"pretrain"});
  EXPECT_EQ(none.code, 2);
}

// `bhyt pretrain … | head`: the run goes on without a reader of its messages.
TEST(Pretrain, MessagesWithoutAReaderDoNotEndARun) {
  const Place place;
  std::string command = quoted(BHYT_PROGRAM);
  for (const std::string& word : place.run("run", {"train.steps=6"})) command += " " + quoted(word);
  (void)std::system((command + " 2>&1 | head -n 1 >/dev/null").c_str());
  EXPECT_TRUE(fs::exists(place.path / "run" / "checkpoint-6"));
}

TEST(Pretrain, UnwritableDirectories) {
  const Place place;
  const Outcome proc = bhyt(place.run("x", {"run.dir=/proc/none/run"}));
  EXPECT_EQ(proc.code, 1);
  says(proc.err, "could not make the run directory /proc/none/run: ");
  const Outcome file = bhyt(place.run("text.txt"));
  EXPECT_EQ(file.code, 1);
  says(file.err, "could not make the run directory");
}

TEST(Pretrain, ConfigFilesOutcomesAndRefusals) {
  const Place place;
  write_text(place.path / "c.yaml", fmt::format("model: {{preset: tiny, d: 32, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, mlp: 40}}\n"
                                                "norm: {{method: rmsnorm}}\n"
                                                "data: {{train: [{0}], seq_len: 16}}\n"
                                                "train: {{tokens: 1K, batch: 4, lr: 1e-3}}\n"
                                                "run: {{dir: {1}}}\n",
                                                (place.path / "text.txt").string(), (place.path / "a").string()));
  const std::string config = (place.path / "c.yaml").string();
  const Outcome first = bhyt({"pretrain", config, "threads=1", "--json"});
  ASSERT_EQ(first.code, 0) << first.err;
  const Json result = Json::parse(first.out);
  EXPECT_EQ(result["step"], 16);
  EXPECT_EQ(result["checkpoint"], (place.path / "a" / "checkpoint-16").string());
  says(first.err, " parameters | norm rmsnorm");
  says(first.err, "memory  weights ");
  says(first.err, "step    16/16  loss ");
  const Json model = Json::parse(read_text(place.path / "a" / "checkpoint-16" / "config.json"));
  EXPECT_EQ(model["model_type"], "llama");
  EXPECT_EQ(model["vocab_size"], 257);

  const Outcome second = bhyt({"pretrain", config, "threads=1"});
  EXPECT_EQ(second.code, 2);
  says(second.err, "already holds a run; resume=auto goes on with it, resume=restart puts it aside, another run.dir starts a new one");

  const Outcome changed = bhyt({"pretrain", config, "resume=auto", "train.lr=2e-3"});
  EXPECT_EQ(changed.code, 2);
  says(changed.err, "train.lr was 0.001, now is 0.002");

  const Outcome repeated =
      bhyt({"pretrain", (place.path / "a" / "resolved.yaml").string(), "run.dir=" + (place.path / "b").string(), "--quiet"});
  EXPECT_EQ(repeated.code, 0);
  EXPECT_EQ(repeated.err, "");
  expect_same_runs(place.path / "a", place.path / "b");
}

TEST(Pretrain, HelpListsEveryKey) {
  const Outcome help = bhyt({"help", "pretrain"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* key : {"model.preset", "norm.lambda", "data.attend", "train.max_skipped", "run.resume", "--force"}) says(help.out, key);
  says(help.out, "what makes new weights out of gradients (adamw");
}

}  // namespace
}  // namespace bhyt::test
