// bhyt sft as a user runs it: killed and gone on with, seeds, tasks on the way, and the report of it all.
#include "tests/cli/training.h"

namespace bhyt::test {
namespace {

// A small model of bytes, and conversations whose answers it can learn.
class SftRun : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    place_ = new Place;
    std::string train, valid;
    for (int i = 0; i < 22; ++i) train += conversation(i, 3 + i * 5 % 17);
    for (int i = 0; i < 5; ++i) valid += conversation(i + 3, 4 + i);
    write_text(at("train.jsonl"), train + "{\"instruction\": \"no answer\"}\n");
    write_text(at("valid.jsonl"), valid);
    const Outcome trained =
        bhyt(place_->run("base", {"train.steps=20", "train.save_every=0", "train.eval_every=0", "model.max_positions=256", "--quiet"}));
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }

 protected:
  static std::string at(const std::string& name) { return (place_->path / name).string(); }
  // 5 steps an epoch, the last one short.
  static Words run(const std::string& dir, const Words& more = {}) {
    return Words{"sft",
                 "model.init=" + at("base"),
                 "data.train=" + at("train.jsonl"),
                 "data.valid=" + at("valid.jsonl"),
                 "data.template=default",
                 "data.seq_len=48",
                 "train.batch=5",
                 "train.lr=5e-3",
                 "train.log_every=1",
                 "threads=1",
                 "device=cpu",
                 "run.dir=" + at(dir)} +
           more;
  }

 private:
  static std::string conversation(int i, int answer) {
    const char letter = static_cast<char>('a' + i % 7);
    return Json{{"instruction", std::string("say ") + letter}, {"output", std::string(static_cast<std::size_t>(answer), letter)}}.dump() +
           "\n";
  }
  static Place* place_;
};
Place* SftRun::place_ = nullptr;

TEST_F(SftRun, KilledInTheMiddleOfAnEpochItEndsWithTheSameBits) {
  for (const Words& variant : {Words{}, Words{"lora.rank=4", "lora.dropout=0.1"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(variant, " ")));
    const Words words = variant + Words{"train.epochs=24", "train.save_every=30", "train.eval_every=30"};
    fs::remove_all(at("a"));
    fs::remove_all(at("b"));
    const Outcome straight = bhyt(run("a", words));
    ASSERT_EQ(straight.code, 0) << straight.err;
    const Words again = run("b", words + Words{"resume=auto"});
    for (const std::int64_t step : {33, 64, 97}) {  // of epochs of 5 steps
      Process process(again);
      ASSERT_TRUE(process.read_until_step(step, 120)) << process.messages();
      process.send(SIGKILL);
      EXPECT_EQ(process.wait(), 128 + SIGKILL);
      EXPECT_EQ(newest_checkpoint(at("b")), step / 30 * 30);
      EXPECT_GE(lost_steps(at("b")), 3);
    }
    const Outcome last = bhyt(again);
    EXPECT_EQ(last.code, 0) << last.err;
    says(last.err, "going on after step 90");
    expect_same_runs(at("a"), at("b"));
    EXPECT_EQ(fs::read_symlink(at("a/best")), fs::read_symlink(at("b/best")));
    EXPECT_EQ(fs::exists(at("b/best/adapter_model.safetensors")), !variant.empty());
  }
}

TEST_F(SftRun, TasksOfAUsersOwnAreAskedEveryEpoch) {
  write_text(at("letters.yaml"),
             "name: letters\nsplit: test\ntext: \"Human: {question}\\nAssistant:\"\nchoices: \"{answers}\"\ngold: \"{right}\"\n");
  std::string documents;
  for (int i = 0; i < 6; ++i) {
    const std::string own(3, static_cast<char>('a' + i)), other(3, static_cast<char>('a' + (i + 1) % 7));
    documents += Json{{"question", "say " + own.substr(0, 1)}, {"answers", {own, other}}, {"right", 0}}.dump() + "\n";
  }
  fs::create_directories(at("tasks/letters"));
  write_text(at("tasks/letters/test.jsonl"), documents);
  const Words tasks{"eval.tasks=" + at("letters.yaml"), "eval.data=" + at("tasks"), "train.epochs=2", "train.keep=2"};
  const Outcome out = bhyt(run("tasks-run", tasks));
  ASSERT_EQ(out.code, 0) << out.err;
  std::vector<int> asked;
  for (const Json& line : metrics_of(at("tasks-run"))) {
    if (!line.contains("tasks")) continue;
    asked.push_back(line["step"].get<int>());
    const Outcome alone = bhyt({"eval", "--model", at(fmt::format("tasks-run/checkpoint-{}", asked.back())), "--tasks", at("letters.yaml"),
                                "--data", at("tasks"), "device=cpu", "threads=1", "--json"});
    ASSERT_EQ(alone.code, 0) << alone.err;
    EXPECT_EQ(line["tasks"]["letters"]["acc"], Json::parse(alone.out)["results"]["letters"]["acc,none"]);
  }
  EXPECT_EQ(asked, (std::vector<int>{5, 10}));
}

TEST_F(SftRun, SeedsThatAreDoneAreLeftAloneUnlessAllBeginAgain) {
  const Words seeds{"train.epochs=1", "--seeds", "3,4", "--json"};
  const Outcome first = bhyt(run("seeds", seeds));
  ASSERT_EQ(first.code, 0) << first.err;
  const Json seen = Json::parse(first.out);
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0]["seed"], 3);
  says(first.err, "2 seeds  lowest validation loss");
  const Outcome again = bhyt(run("seeds", seeds));
  EXPECT_EQ(again.code, 0) << again.err;
  const Json same = Json::parse(again.out);  // what those runs came to, though nothing was done
  for (const char* key : {"loss", "valid_loss", "best"}) EXPECT_EQ(same[1][key], seen[1][key]) << key;
  EXPECT_EQ(same[1]["tok_s"], nullptr);
  says(again.err, "nothing left to do");
  EXPECT_EQ(names_in(at("seeds/seed-3"), "earlier-"), Words{});
  const Outcome afresh = bhyt(run("seeds", seeds + Words{"resume=restart"}));
  EXPECT_EQ(afresh.code, 0) << afresh.err;
  EXPECT_EQ(afresh.err.find("nothing left to do"), std::string::npos);
  for (const char* seed : {"seeds/seed-3", "seeds/seed-4"}) EXPECT_EQ(names_in(at(seed), "earlier-"), Words{"earlier-1"});
  EXPECT_EQ(Json::parse(afresh.out)[0]["best"], Json::parse(first.out)[0]["best"]);
}

TEST_F(SftRun, TheReportShowsEpochsTheChoiceAndTheData) {
  const Outcome out = bhyt(run("shown", {"train.epochs=2", "--json"}));
  ASSERT_EQ(out.code, 0) << out.err;
  const Json best = Json::parse(out.out)["best"];
  const Outcome report = bhyt({"report", at("shown"), "--json"});
  ASSERT_EQ(report.code, 0) << report.err;
  const Json described = Json::parse(report.out)["runs"][0]["best"];
  EXPECT_EQ(described["step"], best["step"]);
  EXPECT_EQ(described["epoch"], best["step"].get<double>() / 5);
  EXPECT_EQ(described["valid_loss"], best["valid_loss"]);
  const std::string page = read_text(at("shown/report.html"));
  says(page, fmt::format("chosen: epoch {} (step {})", best["step"].get<int>() / 5, best["step"].get<int>()));
  says(page, "<h2>Data</h2>");
  says(page, ">train.jsonl</th>");
  says(page, ">1: 1 output is not a text</td>");
  EXPECT_EQ(page.find("<th>examples</th><td colspan"), std::string::npos);
  // A run that goes on says the same of its data.
  const Json before = Json::parse(read_text(at("shown/run.json")))["examples"];
  EXPECT_EQ(before["epoch_steps"], 5);
  EXPECT_EQ(before["train"][0]["examples"], 22);
  ASSERT_EQ(bhyt(run("shown", {"train.epochs=3", "resume=auto"})).code, 0);
  EXPECT_EQ(Json::parse(read_text(at("shown/run.json")))["examples"], before);
}

}  // namespace
}  // namespace bhyt::test
