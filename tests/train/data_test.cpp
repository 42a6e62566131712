// The data of a run: token files and texts, whose tokenizer is whose, the cache of packed texts, what is damaged, mixtures.
#include "data/pack.h"
#include "tests/train/helpers.h"
#include "text/train.h"
#include "train/run_dir.h"

namespace bhyt::train {
namespace {

TEST(Data, TokenizerVocabularyAndFilesMustAgree) {
  const Folder tmp;
  const Words a = small_run(tmp, "a");
  says(error_of(a + Words{"data.train=null"}), "data.train must name what to train on");
  says(error_of(a + Words{"data.train=" + tmp / "none*.tok"}), "none*.tok");
  says(error_of(a + Words{"model.vocab=60"}), "model.vocab must be at least 61, the vocabulary of the token files, got 60");
  says(error_of(a + Words{"data.tokenizer=bytes", "model.vocab=256"}), "model.vocab must be at least 257, the tokenizer's, got 256");
  write_language(tmp / "foreign.tok", 3000, 3, {.vocab = kVocab, .end_of_text = 0, .fingerprint = 77, .kind = "bpe"});
  says(error_of(a + Words{"data.tokenizer=bytes", "data.train=" + tmp / "foreign.tok"}),
       "foreign.tok was packed with another tokenizer (bpe, ");
  write_language(tmp / "foreign2.tok", 3000, 3, {.vocab = kVocab, .end_of_text = 0, .fingerprint = 78, .kind = "bpe"});
  says(error_of(a + Words{"data.valid=" + tmp / "foreign2.tok", "data.train=" + tmp / "foreign.tok"}),
       "were packed with different tokenizers");
  says(error_of(a + Words{"data.tokenizer=" + tmp / "none"}), "data.tokenizer must be");
  EXPECT_FALSE(fs::exists(tmp.path / "a"));

  log::set_quiet(true);
  EXPECT_EQ(Trainer(config_of(a), {}).config().model.config.vocab, kVocab);
  fs::remove_all(tmp.path / "a");
  const Trainer larger(config_of(a + Words{"model.vocab=100"}), {});
  EXPECT_EQ(larger.config().model.config.vocab, 100);
}

// A byte-level BPE of 300 ids or fewer, learned from the text of these tests.
std::unique_ptr<Tokenizer> small_bpe(const std::string& text) {
  BpeTrainer trainer({.vocab = 300});
  trainer.count(text);
  return trainer.train();
}

std::string repeating_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("line {} of a text that repeats itself\n", i % 37);
  return text;
}

TEST(Data, TokenFilesBringTheirTokenizer) {
  const Folder tmp;
  setenv("BHYT_CACHE", (tmp / "cache").c_str(), 1);
  write_synced(tmp / "a.txt", repeating_text());
  const auto bpe = small_bpe(repeating_text());
  pack(*bpe, {.out = tmp / "d/a.tok", .inputs = {tmp / "a.txt"}, .progress = false});
  const Words words = small_run(tmp, "a") + Words{"train.steps=1", "train.save_every=0"};
  const auto fingerprint = [&](const char* run) { return load_tokenizer((tmp.path / run / "checkpoint-1").string())->fingerprint(); };
  train(words + Words{"data.train=" + tmp / "d/a.tok", "data.valid=null"});
  EXPECT_EQ(fingerprint("a"), bpe->fingerprint());
  EXPECT_FALSE(fs::exists(tmp.path / "cache" / "tokenizer.json"));
  // Texts beside them are packed with the same one, whichever is trained on.
  train(words + Words{"data.train=" + tmp / "d/a.tok", "data.valid=" + tmp / "a.txt", "run.dir=" + tmp / "b"});
  train(words + Words{"data.train=" + tmp / "a.txt", "data.valid=" + tmp / "d/a.tok", "run.dir=" + tmp / "c"});
  EXPECT_EQ(fingerprint("b"), bpe->fingerprint());
  EXPECT_EQ(fingerprint("c"), bpe->fingerprint());
  EXPECT_EQ(metrics_of(tmp.path / "b").front()["loss"], metrics_of(tmp.path / "c").front()["loss"]);
  // A run that starts from a checkpoint reads texts as that does.
  Words on = {"model.init=" + tmp / "a/checkpoint-1",
              "data.train=" + tmp / "a.txt",
              "data.seq_len=16",
              "train.batch=2",
              "train.steps=1",
              "run.dir=" + tmp / "e",
              "threads=1"};
  train(on);
  EXPECT_EQ(fingerprint("e"), bpe->fingerprint());
  // Nor does it need that checkpoint, or the tokenizer beside a token file, to go on: its own hold the tokenizer.
  fs::remove_all(tmp.path / "a");
  fs::remove_all(tmp.path / "cache");
  for (const auto& e : fs::directory_iterator(tmp.path / "d"))
    if (e.is_directory()) fs::remove_all(e.path());
  train(on + Words{"resume=auto", "train.steps=2"});
  train(words + Words{"data.train=" + tmp / "d/a.tok", "data.valid=null", "run.dir=" + tmp / "b", "resume=auto", "train.steps=2"});
  for (const char* run : {"e", "b"})
    EXPECT_EQ(load_tokenizer((tmp.path / run / "checkpoint-2").string())->fingerprint(), bpe->fingerprint()) << run;
  unsetenv("BHYT_CACHE");
}

TEST(Data, WithoutTheTokenizerOfTheTokenFilesTextsAreRefused) {
  const Folder tmp;
  setenv("BHYT_CACHE", (tmp / "cache").c_str(), 1);
  write_synced(tmp / "a.txt", repeating_text());
  write_language(tmp / "far.tok", 3000, 3, {.vocab = kVocab, .end_of_text = 0, .fingerprint = 77, .kind = "bpe"});
  write_language(tmp / "synth.tok", 3000, 3, {.vocab = kVocab, .end_of_text = 0, .fingerprint = 78, .kind = "synth"});
  const Words words = small_run(tmp, "a");
  const auto refused = [&](const std::string& train, const std::string& valid) {
    const std::string message = error_of(words + Words{"data.train=" + tmp / train, "data.valid=" + tmp / valid});
    EXPECT_EQ(message.find("bytes"), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(tmp.path / "a"));
    return message;
  };
  for (const std::string& message : {refused("far.tok", "a.txt"), refused("a.txt", "far.tok")}) {
    says(message, "a.txt must be packed with the tokenizer of the token files");
    says(message, "far.tok was packed with (bpe, 000000000000004d) is not at hand");
    says(message, "data.tokenizer=PATH names one");
  }
  says(refused("synth.tok", "a.txt"), "synth.tok holds the ids of a generated language");
  says(refused("train.tok", "a.txt"), "train.tok does not say which tokenizer it was packed with");
  unsetenv("BHYT_CACHE");
}

TEST(Data, WhatHoldsNothingIsSaid) {
  const Folder tmp;
  setenv("BHYT_CACHE", (tmp / "cache").c_str(), 1);
  const Words words = small_run(tmp, "a") + Words{"data.valid=null"};
  const auto error = [&](const std::string& file) { return error_of(words + Words{"data.train=" + tmp / file}); };
  TokenFileWriter(tmp / "none.tok", {.vocab = kVocab}).finish();
  says(error("none.tok"), "none.tok: expected a token file with tokens, got one that is empty");
  write_synced(tmp / "zero.tok", "");
  says(error("zero.tok"), "zero.tok: expected .jsonl, .ndjson or .txt");
  write_synced(tmp / "white.txt", "\n \n");
  says(error("white.txt"), "no document has any text in " + tmp / "white.txt");
  write_synced(tmp / "short.txt", "a few bytes");
  says(error("short.txt"), tmp / "short.txt" + ": 12 tokens, a row of seq_len 32 needs 33");
  unsetenv("BHYT_CACHE");
}

TEST(Data, TextsArePackedOnce) {
  const Folder tmp;
  setenv("BHYT_CACHE", (tmp / "cache").c_str(), 1);
  std::string text;
  for (int i = 0; i < 800; ++i) text += fmt::format("line {} of a text that repeats itself\n", i % 37);
  write_synced(tmp / "a.txt", text);
  write_synced(tmp / "b.txt", text);
  const Words words = small_run(tmp, "a") + Words{"data.train=" + tmp / "*.txt", "data.valid=" + tmp / "a.txt", "train.steps=2"};
  train(words);
  EXPECT_EQ(files_in(tmp.path / "cache").size(), 2u);
  const Json resolved = read_yaml(tmp / "a" + "/resolved.yaml");
  EXPECT_EQ(resolved["data"]["train"], Json::array({tmp / "a.txt", tmp / "b.txt"}));
  EXPECT_EQ(resolved["data"]["tokenizer"], "bytes");
  EXPECT_EQ(resolved["model"]["vocab"], 257);
  EXPECT_TRUE(fs::exists(tmp.path / "a" / "checkpoint-2" / "tokenizer.json"));
  const auto before = fs::last_write_time(tmp.path / "cache" / files_in(tmp.path / "cache")[0]);
  train(words + Words{"run.dir=" + tmp / "b"});
  EXPECT_EQ(files_in(tmp.path / "cache").size(), 2u);
  EXPECT_EQ(fs::last_write_time(tmp.path / "cache" / files_in(tmp.path / "cache")[0]), before);
  expect_same_runs(tmp.path / "a", tmp.path / "b");
  unsetenv("BHYT_CACHE");
}

TEST(Data, ADamagedOrUnwritableCacheStopsNoRun) {
  const Folder tmp;
  setenv("BHYT_CACHE", (tmp / "cache").c_str(), 1);
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("line {} of a text that repeats itself\n", i % 37);
  write_synced(tmp / "a.txt", text);
  const Words words = small_run(tmp, "a") + Words{"data.train=" + tmp / "a.txt", "data.valid=null", "train.steps=1"};
  train(words);
  ASSERT_EQ(files_in(tmp.path / "cache").size(), 1u);
  cut_file(tmp.path / "cache" / files_in(tmp.path / "cache")[0], 1000);
  ::testing::internal::CaptureStderr();
  train(words + Words{"run.dir=" + tmp / "b"});
  says(::testing::internal::GetCapturedStderr(), "the packed copy of " + tmp / "a.txt" + " is damaged (");
  expect_same_runs(tmp.path / "a", tmp.path / "b");
  setenv("BHYT_CACHE", "/proc/self", 1);  // is there, takes no file whoever asks
  train(words + Words{"run.dir=" + tmp / "c"});
  expect_same_runs(tmp.path / "a", tmp.path / "c");
  unsetenv("BHYT_CACHE");
}

// What is damaged inside is the packed copy, not the text.
TEST(Data, ADamagedTokenOfACachedPackNamesTheCopy) {
  const Folder tmp;
  setenv("BHYT_CACHE", (tmp / "cache").c_str(), 1);
  write_synced(tmp / "a.txt", repeating_text());
  const Words words = small_run(tmp, "a") + Words{"data.train=" + tmp / "a.txt", "data.valid=null", "train.steps=1"};
  train(words);
  const fs::path file = tmp.path / "cache" / files_in(tmp.path / "cache").at(0);
  std::string bytes = read_text(file);
  for (std::size_t i = 129; i < bytes.size() / 2; i += 2) bytes[i] = 5;  // the upper bytes of the first half
  write_synced(file, bytes);
  const std::string message = error_of(words + Words{"run.dir=" + tmp / "b", "train.steps=20"});
  says(message, file.string() + " (packed from " + tmp / "a.txt" + "; delete it, and it is made again): token ");
  unsetenv("BHYT_CACHE");
}

// The model's vocabulary is the checkpoint's: it is the data that does not fit.
TEST(Data, ALargerVocabularyThanTheCheckpointsNamesTheData) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.steps=1"});
  write_language(tmp / "large.tok", 3000, 3, {.vocab = 100, .end_of_text = 0});
  const std::string init = tmp / "a/checkpoint-1";
  const Words on = {"model.init=" + init, "data.seq_len=32", "train.batch=2", "train.steps=1", "run.dir=" + tmp / "b", "threads=1"};
  EXPECT_EQ(error_of(on + Words{"data.train=" + tmp / "large.tok"}),
            fmt::format("{} has a vocabulary of 100 tokens, the model that starts from {} one of 61: they do not belong together",
                        tmp / "large.tok", init));
  EXPECT_EQ(error_of(on + Words{"data.train=" + tmp / "train.tok", "data.tokenizer=bytes"}),
            fmt::format("data.tokenizer bytes has a vocabulary of 257 tokens, the model that starts from {} one of 61: they do not belong "
                        "together",
                        init));
}

// A token beyond the vocabulary, met in the middle of a run: the steps before it are not lost.
TEST(Data, ADamagedFileEndsARunThatIsSaved) {
  const Folder tmp;
  const auto run = [&](const char* dir) {
    return small_run(tmp, dir) + Words{"data.train=" + tmp / "short.tok", "train.save_every=0", "train.steps=14"};
  };
  const fs::path file = tmp.path / "short.tok";
  write_language(file.string(), 2000, 4);  // ten steps go through all of it
  const std::string good = read_text(file);
  std::string bytes = good;
  bytes[bytes.size() / 2] = static_cast<char>(200);
  write_synced(file, bytes);
  says(error_of(run("a")), "not below the vocabulary");
  EXPECT_EQ(RunDir(tmp / "a").checkpoints().size(), 1u);
  write_synced(file, good);
  EXPECT_EQ(train(run("a") + Words{"resume=auto"}).step, 14);
  train(run("b"));
  expect_same_runs(tmp.path / "a", tmp.path / "b");

  const std::string valid = read_text(tmp.path / "valid.tok");
  bytes = valid;
  bytes[bytes.size() / 2] = static_cast<char>(200);
  write_synced(tmp.path / "valid.tok", bytes);
  says(error_of(small_run(tmp, "c") + Words{"train.save_every=0", "train.eval_batches=0"}), "not below the vocabulary");
  EXPECT_EQ(RunDir(tmp / "c").checkpoints(), (std::vector<std::int64_t>{5}));  // of the first evaluation
  write_synced(tmp.path / "valid.tok", valid);
  for (const char* dir : {"c", "d"}) train(small_run(tmp, dir) + Words{"train.save_every=0", "train.eval_batches=0", "resume=auto"});
  expect_same_runs(tmp.path / "c", tmp.path / "d");
}

TEST(Data, MixturesTrain) {
  const Folder tmp;
  const Words a = small_run(tmp, "a");
  write_language(tmp / "other.tok", 4000, 5);
  const auto mixed = [&](const std::string& x, const std::string& y) {
    return "data.train=[{path: " + tmp / "train.tok" + ", weight: " + x + "}, {path: " + tmp / "other.tok" + ", weight: " + y + "}]";
  };
  EXPECT_EQ(train(a + Words{mixed("0.75", "0.25")}).step, 12);
  const Words more = a + Words{"resume=auto", "train.steps=13"};
  says(error_of(more + Words{mixed("0.5", "0.5")}), "data.train[].weight was [0.75,0.25], now is [0.5,0.5]");
  EXPECT_EQ(train(more + Words{mixed("0.75", "0.25")}).step, 13);
}

}  // namespace
}  // namespace bhyt::train
