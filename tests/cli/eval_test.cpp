// bhyt eval from the outside: what it prints and writes, how it goes on, several models and seeds, and what it refuses.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/cli/mpi.h"

namespace bhyt::test {
namespace {

// Two small models of bytes, and tasks with a few documents.
class Eval : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    place_ = new Place;
    write_tasks();
    for (const char* method : {"rmsnorm", "bhyt"}) {
      const Outcome trained =
          bhyt(place_->run(method, {"train.steps=30", "train.save_every=0", "train.eval_every=0", "model.max_positions=256",
                                    std::string("norm.method=") + method, "device=cpu", "--quiet"}));
      ASSERT_EQ(trained.code, 0) << trained.err;
    }
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }

 protected:
  static std::string at(const std::string& name) { return (place_->path / name).string(); }
  static Outcome run(const Words& more, const std::string& model = at("rmsnorm")) {
    return bhyt(Words{"eval", "--model", model, "--data", at("tasks"), "device=cpu", "threads=1"} + more);
  }
  static Outcome score(const Words& more) {
    return bhyt(Words{"eval", "--model", at("rmsnorm"), "device=cpu", "threads=1", "--json"} + more);
  }
  static Json json(const Words& more, const std::string& model = at("rmsnorm")) {
    const Outcome o = run(Words{"--json"} + more, model);
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out, nullptr, false);
  }
  static std::vector<Json> lines(const std::string& file) {
    std::vector<Json> all;
    std::ifstream in(at(file));
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }
  static void write_lines(const std::string& file, const std::vector<Json>& rows) {
    fs::create_directories(fs::path(at(file)).parent_path());
    std::ofstream out(at(file));
    for (const Json& row : rows) out << row.dump() << "\n";
  }

  // A checkpoint whose weights are no numbers.
  static void write_without_numbers(const std::string& name) {
    fs::copy(fs::path(at("rmsnorm/checkpoint-30")), at(name), fs::copy_options::recursive);
    fs::remove(at(name + "/manifest.json"));
    std::string file = read_text(at(name + "/model.safetensors"));
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    const Json table = Json::parse(file.substr(8, header))["model.norm.weight"];
    ASSERT_EQ(table["dtype"], "F32");
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(file.data() + 8 + header + table["data_offsets"][0].get<std::size_t>(), &nan, sizeof nan);
    write_text(at(name + "/model.safetensors"), file);
  }

  static Place* place_;

 private:
  static void write_tasks() {
    std::vector<Json> train, test, piqa;
    for (int i = 0; i < 9; ++i)
      (i < 5 ? train : test)
          .push_back({{"question", "How many sheep are " + std::to_string(i) + " sheep?"},
                      {"choices", {{"text", {"one", "two sheep", "many"}}, {"label", {"A", "B", "C"}}}},
                      {"answerKey", i % 2 ? "A" : "C"}});
    for (int i = 0; i < 7; ++i)
      piqa.push_back({{"goal", "jump " + std::to_string(i)}, {"sol1", "over fences"}, {"sol2", "under"}, {"label", i % 2}});
    write_lines("tasks/arc_easy/train.jsonl", train);
    write_lines("tasks/arc_easy/test.jsonl", test);
    write_lines("tasks/piqa/train.jsonl", piqa);
    write_lines("tasks/piqa/validation.jsonl", {piqa[5], piqa[6]});
    write_lines("tasks/wikitext/test.jsonl", {{{"page", "3 sheep jump , over 4 fences"}}, {{"page", "one after the other . "}}});
  }
};
Place* Eval::place_ = nullptr;

TEST_F(Eval, PrintsAndWritesWhatTheHarnessDoes) {
  const Json j = json({"--tasks", "arc_easy,wikitext", "--shots", "2", "--seed", "7", "--samples", at("a.jsonl")});
  const Json& r = j.at("results").at("arc_easy");
  EXPECT_EQ(r.at("alias"), "arc_easy");
  EXPECT_EQ(j.at("n-samples").at("arc_easy"), (Json{{"original", 4}, {"effective", 4}}));
  double acc = 0, acc_norm = 0;
  const auto samples = lines("a.jsonl");
  ASSERT_EQ(samples.size(), 6u);
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& s = samples[i];
    EXPECT_EQ(s.at("task"), "arc_easy");
    EXPECT_EQ(s.at("doc_id"), i);
    EXPECT_EQ(s.at("fewshot").size(), 2u);
    EXPECT_EQ(s.at("requests").size(), 3u);
    std::vector<double> sums, per_character;
    for (const Json& q : s.at("requests")) {
      sums.push_back(q.at("loglikelihood"));
      EXPECT_EQ(q.at("tokens"), q.at("continuation").get<std::string>().size());
      per_character.push_back(sums.back() / static_cast<double>(q.at("continuation").get<std::string>().size() - 1));
    }
    const auto right = [&](const std::vector<double>& x) {
      return std::max_element(x.begin(), x.end()) - x.begin() == s.at("target") ? 1.0 : 0.0;
    };
    EXPECT_EQ(s.at("acc"), right(sums));
    EXPECT_EQ(s.at("acc_norm"), right(per_character));
    acc += right(sums) / 4, acc_norm += right(per_character) / 4;
  }
  EXPECT_DOUBLE_EQ(r.at("acc,none").get<double>(), acc);
  EXPECT_DOUBLE_EQ(r.at("acc_norm,none").get<double>(), acc_norm);
  EXPECT_EQ(samples[4].at("text"), "3 sheep jump, over 4 fences");
  EXPECT_EQ(samples[4].at("words"), 7);
  EXPECT_GT(j.at("results").at("wikitext").at("word_perplexity,none").get<double>(), 1);
  EXPECT_TRUE(has(run({"--tasks", "arc_easy"}).out, "|arc_easy|      1|none  |     0|acc     |")) << run({"--tasks", "arc_easy"}).out;
}

// What a run that was stopped has written is not computed again, and the end is the same.
TEST_F(Eval, GoesOnWhereItStopped) {
  const Words words{"--tasks", "arc_easy,piqa,wikitext", "--shots", "1", "--seed", "1,2", "--samples", at("b.jsonl")};
  const Json whole = json(words);
  const auto all = lines("b.jsonl");
  ASSERT_EQ(all.size(), 2u * 4 + 2 * 2 + 2);
  std::string text = read_text(at("b.jsonl"));
  for (const std::size_t kept : {std::size_t{0}, text.size() / 3, text.size() / 2 + 7, text.size() - 1}) {
    write_text(at("b.jsonl"), text.substr(0, kept));
    EXPECT_EQ(json(words), whole) << kept;
    EXPECT_EQ(read_text(at("b.jsonl")), text) << kept;
  }
  Outcome o = run(words);
  EXPECT_TRUE(has(o.err, "0 tokens computed")) << o.err;  // finished: no model is asked
  o = run({"--tasks", "arc_easy,piqa,wikitext", "--shots", "2", "--seed", "1,2", "--samples", at("b.jsonl")});
  EXPECT_NE(o.code, 0);
  EXPECT_TRUE(has(o.err, "shots")) << o.err;
  EXPECT_EQ(read_text(at("b.jsonl")), text);
  o = bhyt(Words{"eval", "--model", at("bhyt"), "--data", at("tasks"), "device=cpu"} + words);
  EXPECT_NE(o.code, 0) << o.err;
  EXPECT_EQ(run({"--tasks", "piqa", "--samples", at("b.jsonl"), "--force"}).code, 0);
  EXPECT_EQ(lines("b.jsonl").size(), 2u);
}

TEST_F(Eval, SeveralModelsAndSeeds) {
  const Words words{"--model", at("bhyt"),  "--tasks",     "arc_easy,piqa", "--shots",    "1",      "--seed",
                    "1,2,3",   "--samples", at("c.jsonl"), "--html",        at("c.html"), "--force"};
  const Json j = json(words);
  ASSERT_EQ(j.at("models").size(), 2u);
  EXPECT_EQ(j.at("models")[1].at("model"), "bhyt");
  EXPECT_EQ(j.at("models")[0].at("seeds").size(), 3u);
  ASSERT_EQ(j.at("comparisons").size(), 1u);
  EXPECT_EQ(lines("c.bhyt.jsonl").size(), 3u * (4 + 2));
  const Outcome o = run(words);
  EXPECT_TRUE(has(o.out, "|rmsnorm|")) << o.out;
  EXPECT_TRUE(has(o.out, "Difference")) << o.out;
  EXPECT_TRUE(has(read_text(at("c.html")), "<html")) << o.err;
}

TEST_F(Eval, ScoresRequests) {
  write_lines("requests.jsonl", {{{"context", "3 sheep"}, {"continuation", " jump"}}, {{"context", "3 sheep "}, {"continuation", "jump"}}});
  const Json j = Json::parse(score({"--requests", at("requests.jsonl"), "--samples", at("r.jsonl")}).out, nullptr, false);
  const auto all = lines("r.jsonl");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0], all[1]);  // the space moves
  EXPECT_EQ(all[0].at("tokens"), 5);
  EXPECT_EQ(j.at("requests"), 2);
  write_lines("requests.jsonl", {{{"context", "3 sheep"}}});
  const Outcome o = score({"--requests", at("requests.jsonl")});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(has(o.err, "line 1, column continuation")) << o.err;
}

TEST_F(Eval, ADryRunShowsWhatWouldBeAsked) {
  const Outcome o = run({"--tasks", "arc_easy,piqa", "--shots", "1", "--dry-run"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(has(o.out, "How many sheep are 5 sheep?\nAnswer:")) << o.out;
  EXPECT_TRUE(has(o.out, "contexts once")) << o.out;
  EXPECT_TRUE(has(run({"--tasks", "wikitext", "--dry-run"}).out, "wikitext")) << o.out;
  EXPECT_EQ(bhyt({"eval", "--tasks", "piqa", "--data", at("tasks"), "--dry-run"}).code, 0);  // without a model, too
}

TEST_F(Eval, AYamlTaskEqualsTheBuiltInOne) {
  write_text(
      at("mine.yaml"),
      "name: arc_easy\nsplit: test\ntext: \"Question: {question}\\nAnswer:\"\nchoices: \"{choices.text}\"\nlabels: \"{choices.label}\"\n"
      "gold: \"{answerKey}\"\nacc_norm: true\n");
  const Json mine = json({"--tasks", at("mine.yaml"), "--shots", "2", "--samples", at("mine.jsonl")});
  const Json own = json({"--tasks", "arc_easy", "--shots", "2", "--samples", at("own.jsonl")});
  EXPECT_EQ(lines("mine.jsonl"), lines("own.jsonl"));
  EXPECT_EQ(mine.at("results"), own.at("results"));
  write_text(at("mine.yaml"), "name: arc_easy\nsplit: test\ntext: \"{question}\"\nchoices: \"{choices.text}\"\ngold: two\n");
  const Outcome o = run({"--tasks", at("mine.yaml"), "--dry-run"});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(has(o.err, "test.jsonl, line 1: expected gold to be the place of the right choice, 0 to ")) << o.err;
  EXPECT_TRUE(has(o.err, ", got \"two\" for every document (a column is written {NAME})")) << o.err;
}

TEST_F(Eval, WhatCannotBeIsSaid) {
  const auto refused = [&](const Words& words, int code, const std::string& what) {
    const Outcome o = run(words);
    EXPECT_EQ(o.code, code) << what;
    EXPECT_TRUE(has(o.err, what)) << o.err;
    EXPECT_EQ(o.out, "");
  };
  refused({}, 2, "expected --tasks NAMES or --requests FILE");
  refused({"--tasks", "arc_esy"}, 2, "arc_easy");
  refused({"--tasks", "boolq"}, 2, "boolq/validation.jsonl");
  refused({"--tasks", "arc_easy", "--shots", "6"}, 2, "6");
  refused({"--tasks", "arc_easy", "--seed", "1,1"}, 2, "--seed has 1 twice");
  refused({"--tasks", "arc_easy", "--chat"}, 2, "--template NAME");
  refused({"--tasks", "arc_easy", "--template", "llama3"}, 2, "--template goes with --chat");
  refused({"--tasks", "arc_easy", "--requests", "x"}, 2, "got both");
  refused({"--tasks", "arc_easy", "--max-length", "3"}, 1, "tokens to score are more than the 3");
  EXPECT_TRUE(has(bhyt({"eval", "--tasks", "arc_easy"}).err, "--model is required"));
  EXPECT_TRUE(has(bhyt({"eval", "--model", at("rmsnorm"), "--tasks", "arc_easy"}).err, "--data"));
  write_text(at("tasks/openbookqa/test.jsonl"), "");
  fs::create_directories(at("tasks/openbookqa"));
  write_text(
      at("tasks/openbookqa/test.jsonl"),
      "{\"question_stem\": \"a\", \"choices\": {\"text\": [\"b\", \"c\"], \"label\": [\"A\", \"B\"]}, \"answerKey\": \"A\"}\n{broken\n");
  refused({"--tasks", "openbookqa"}, 1, "line 2");
}

// Lists end where the next word begins, and may hold blanks.
TEST_F(Eval, ListsTakeOneWord) {
  const Outcome o =
      bhyt({"eval", "--model", at("rmsnorm"), "--data", at("tasks"), "--json", "--seed", "1,2", "--tasks", "arc_easy, piqa", "device=cpu"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out).at("models")[0].at("seeds").size(), 2u);
}

// What is wrong with the last task or model is said before the first is scored.
TEST_F(Eval, MistakesDoNotWaitForTheirTurn) {
  Outcome o = run({"--model", at("nowhere"), "--tasks", "arc_easy", "--samples", at("w.jsonl")});
  EXPECT_NE(o.code, 0);
  EXPECT_FALSE(fs::exists(at("w.jsonl"))) << o.err;
  EXPECT_FALSE(fs::exists(at("w.rmsnorm.jsonl"))) << o.err;
  fs::create_directories(at("tasks/winogrande"));
  write_lines("tasks/winogrande/validation.jsonl", {{{"sentence", "Ann saw _ ."}, {"option1", "Bob"}, {"option2", "Cy"}, {"answer", "3"}}});
  o = run({"--tasks", "arc_easy,winogrande", "--samples", at("w.jsonl")});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(has(o.err, "line 1, column answer")) << o.err;
  EXPECT_FALSE(fs::exists(at("w.jsonl")));
}

// What is asked is part of what a file of samples was made with.
TEST_F(Eval, SamplesOfOtherQuestionsAreNotTaken) {
  write_lines("q.jsonl", {{{"context", "3 sheep"}, {"continuation", " jump"}}});
  ASSERT_EQ(score({"--requests", at("q.jsonl"), "--samples", at("q.out.jsonl")}).code, 0);
  write_lines("q.jsonl", {{{"context", "4 sheep"}, {"continuation", " sleep"}}});
  EXPECT_NE(score({"--requests", at("q.jsonl"), "--samples", at("q.out.jsonl")}).code, 0);
  const std::string before = read_text(at("q.jsonl"));
  EXPECT_EQ(score({"--requests", at("q.jsonl"), "--samples", at("q.jsonl"), "--force"}).code, 2);
  EXPECT_EQ(read_text(at("q.jsonl")), before);
  EXPECT_EQ(run({"--tasks", "piqa", "--samples", at("x.jsonl"), "--html", at("x.jsonl")}).code, 2);
  EXPECT_TRUE(has(run({"--tasks", "piqa", "threads=4097"}).err, "threads must be auto or a number from 1 to 4096, got 4097"));
  const Outcome device = run({"--tasks", "piqa", "--html", "/dev/full", "--force"});  // before anything is scored
  EXPECT_EQ(device.code, 1);
  EXPECT_EQ(device.out, "");
  EXPECT_EQ(device.err, "error: cannot write /dev/full: it is not a regular file\n");
  EXPECT_EQ(score({"--requests", at("q.jsonl"), "--limit", "3"}).code, 2);
}

// Weights that are no numbers give no result.
TEST_F(Eval, NoNumbersAreNoScores) {
  write_without_numbers("nan");
  const Outcome o = run({"--tasks", "arc_easy", "--samples", at("nan.jsonl")}, at("nan"));
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_TRUE(has(o.err, "arc_easy, document 0: the model gives no numbers")) << o.err;
  EXPECT_EQ(o.out, "");
}

// eval.tasks of a run: the numbers that bhyt eval gives for the checkpoint of that step.
TEST_F(Eval, TasksWhileAModelIsTrained) {
  const Words tasks{
      "eval.tasks=arc_easy,wikitext", "eval.data=" + at("tasks"), "eval.every=10", "eval.shots=1", "eval.seed=5", "train.steps=20",
      "train.save_every=10",          "model.max_positions=256",  "device=cpu",    "--quiet"};
  const Outcome trained = bhyt(place_->run("watched", tasks));
  ASSERT_EQ(trained.code, 0) << trained.err;
  int found = 0;
  for (const Json& line : lines("watched/metrics.jsonl")) {
    if (!line.contains("tasks")) continue;
    ++found;
    const Json j = json({"--tasks", "arc_easy,wikitext", "--shots", "1", "--seed", "5"},
                        at(fmt::format("watched/checkpoint-{}", line.at("step").get<int>())));
    EXPECT_EQ(line.at("tasks").at("arc_easy").at("acc"), j.at("results").at("arc_easy").at("acc,none"));
    EXPECT_NEAR(line.at("tasks").at("wikitext").at("bits_per_byte").get<double>(),
                j.at("results").at("wikitext").at("bits_per_byte,none").get<double>(), 1e-5);  // there γ is folded
  }
  EXPECT_EQ(found, 2);
  EXPECT_EQ(bhyt(place_->run("refused", {"eval.tasks=arc_esy", "eval.data=" + at("tasks")})).code, 2);
  EXPECT_FALSE(fs::exists(at("refused")));
}

// Several ranks: every byte of what one process prints and writes. Of five some have nothing to do.
TEST_F(Eval, RanksGiveTheBytesOfOneProcess) {
  NEEDS_MPI;
  const auto words = [&](const std::string& file) {
    return Words{"eval",    "--model", at("rmsnorm"), "--model", at("bhyt"),  "--data", at("tasks"), "--tasks",    "arc_easy,piqa,wikitext",
                 "--shots", "1",       "--seed",      "1,2",     "--samples", at(file), "--json",    "device=cpu", "threads=1"};
  };
  const Outcome one = bhyt(words("one.jsonl"));
  ASSERT_EQ(one.code, 0) << one.err;
  for (const int n : {2, 3, 5}) {
    SCOPED_TRACE(n);
    const std::string name = fmt::format("ranks-{}", n);
    const Outcome several = ranks(*place_, n, words(name + ".jsonl"));
    ASSERT_EQ(several.code, 0) << several.err;
    EXPECT_EQ(several.out, one.out);
    for (const char* model : {".rmsnorm.jsonl", ".bhyt.jsonl"}) {
      EXPECT_EQ(read_text(at(name + model)), read_text(at(std::string("one") + model)));
      EXPECT_EQ(read_text(at(name + model + ".meta.json")), read_text(at(std::string("one") + model + ".meta.json")));
    }
    EXPECT_EQ(times(several.err, "tokens computed"), 2) << several.err;  // the first rank alone speaks, of each model
  }
}

TEST_F(Eval, RanksGoOnWhereAnyNumberStopped) {
  NEEDS_MPI;
  const Words words{"eval",     "--model", at("rmsnorm"), "--data", at("tasks"), "--tasks",         "arc_easy,piqa,wikitext",
                    "--shots",  "1",       "--seed",      "1,2",    "--samples", at("again.jsonl"), "device=cpu",
                    "threads=1"};
  const Outcome whole = bhyt(words);
  ASSERT_EQ(whole.code, 0) << whole.err;
  const std::string text = read_text(at("again.jsonl"));
  for (const std::size_t kept : {text.size() / 3, text.size() - 1, text.size()}) {
    write_text(at("again.jsonl"), text.substr(0, kept));
    const Outcome o = ranks(*place_, 2, words);
    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.out, whole.out) << kept;
    EXPECT_EQ(read_text(at("again.jsonl")), text) << kept;
    EXPECT_EQ(has(o.err, " 0 tokens computed"), kept == text.size()) << o.err;
  }
  // A file that is not this run's: the first rank says so, and all end.
  write_text(at("again.jsonl"), text.substr(text.find('\n') + 1));
  const Outcome o = ranks(*place_, 2, words);
  EXPECT_EQ(o.code, 1);
  EXPECT_EQ(times(o.err, "--force starts it anew"), 1) << o.err;
}

TEST_F(Eval, RanksScoreRequests) {
  NEEDS_MPI;
  std::vector<Json> pairs;
  for (int i = 0; i < 7; ++i) pairs.push_back({{"context", fmt::format("{} sheep", i)}, {"continuation", " jump over fences"}});
  write_lines("pairs.jsonl", pairs);
  const auto words = [&](const std::string& file) {
    return Words{"eval",      "--model", at("rmsnorm"), "--requests", at("pairs.jsonl"),
                 "--samples", at(file),  "--json",      "device=cpu", "threads=1"};
  };
  const Outcome one = bhyt(words("p1.jsonl"));
  ASSERT_EQ(one.code, 0) << one.err;
  for (const int n : {2, 3}) {
    const std::string file = fmt::format("p{}.jsonl", n);
    EXPECT_EQ(ranks(*place_, n, words(file)).out, one.out);
    EXPECT_EQ(read_text(at(file)), read_text(at("p1.jsonl")));
    const std::string text = read_text(at(file));
    write_text(at(file), text.substr(0, text.size() / 2));
    EXPECT_EQ(ranks(*place_, n, words(file)).out, one.out);
    EXPECT_EQ(read_text(at(file)), text);
  }
}

// Stopped in the middle by a signal to all; what is written is the beginning of what one process writes, and goes on.
TEST_F(Eval, RanksThatAreInterruptedKeepTheirSamples) {
  NEEDS_MPI;
  std::string seeds = "1";
  for (int i = 2; i <= 400; ++i) seeds += fmt::format(",{}", i);
  const auto words = [&](const std::string& file) {
    return Words{"eval", "--model", at("rmsnorm"), "--data",    at("tasks"), "--tasks",    "arc_easy", "--shots",
                 "3",    "--seed",  seeds,         "--samples", at(file),    "device=cpu", "threads=1"};
  };
  {
    Process process(Words{"launch", "-n", "2", "--"} + words("signal.jsonl"));
    const fs::path file = at("signal.jsonl");
    for (int i = 0; i < 6000 && (!fs::exists(file) || fs::file_size(file) < 20000); ++i) usleep(10000);
    process.send(SIGTERM);
    EXPECT_EQ(process.wait(), 143) << process.messages();
    EXPECT_EQ(times(process.messages(), "stopped; the same command goes on from here"), 1) << process.messages();
  }
  ASSERT_EQ(bhyt(words("alone.jsonl")).code, 0);
  const std::string all = read_text(at("alone.jsonl")), some = read_text(at("signal.jsonl"));
  EXPECT_LT(some.size(), all.size());
  EXPECT_EQ(some, all.substr(0, some.size()));
  const Outcome rest = ranks(*place_, 3, words("signal.jsonl"));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(read_text(at("signal.jsonl")), all);
}

// What is wrong on one rank or on all is said once, with rank and host, and ends all.
TEST_F(Eval, AnErrorOfARankIsToldOnce) {
  NEEDS_MPI;
  const auto words = [&](const std::string& model, const std::string& data) {
    return Words{"eval", "--model", at(model), "--data", at(data), "--tasks", "arc_easy", "device=cpu", "threads=1"};
  };
  write_without_numbers("no-numbers");
  Outcome o = ranks(*place_, 2, words("no-numbers", "tasks"));
  EXPECT_EQ(o.code, 1);
  EXPECT_EQ(times(o.err, "error: "), 1) << o.err;
  says(o.err, "error: rank 0 on ");
  says(o.err, ": arc_easy, document 0: the model gives no numbers");
  o = mpirun(*place_, fmt::format("-n 1 {} : -n 1 {}", line_of(words("rmsnorm", "tasks")), line_of(words("rmsnorm", "nowhere"))));
  EXPECT_EQ(o.code, 2);
  EXPECT_EQ(times(o.err, "error: "), 1) << o.err;
  says(o.err, "error: rank 1 on ");
  says(o.err, "nowhere");
  // The same words, other weights.
  for (const char* model : {"rmsnorm", "bhyt"}) {
    fs::create_directories(at(std::string("sees-") + model));
    fs::create_directory_symlink(at(model), at(std::string("sees-") + model + "/model"));
  }
  Words same = words("rmsnorm", "tasks");
  same[2] = "model";
  const auto rank = [&](const std::string& in) { return fmt::format("-n 1 --wdir {} {}", quoted(at(in)), line_of(same)); };
  o = mpirun(*place_, rank("sees-rmsnorm") + " : " + rank("sees-bhyt"));
  EXPECT_EQ(o.code, 2);
  EXPECT_EQ(times(o.err, "error: "), 1) << o.err;
  says(o.err, "all ranks must have the same weights (model): rank 1 on ");
  EXPECT_EQ(o.out, "");
}

TEST_F(Eval, RanksShareTheTasksOfATrainingOut) {
  NEEDS_MPI;
  const Words tasks{"eval.tasks=arc_easy,wikitext",
                    "eval.data=" + at("tasks"),
                    "eval.every=10",
                    "eval.shots=1",
                    "eval.seed=5",
                    "train.steps=20",
                    "train.save_every=10",
                    "dtype=fp32",
                    "device=cpu",
                    "model.max_positions=256"};
  const Outcome trained = ranks(*place_, 2, place_->run("watched-by-two", tasks));
  ASSERT_EQ(trained.code, 0) << trained.err;
  ASSERT_EQ(bhyt(place_->run("watched-by-one", tasks)).code, 0);
  const auto of_tasks = [](const fs::path& run) {
    std::vector<Json> found;
    for (const Json& line : metrics_of(run))
      if (line.contains("tasks")) found.push_back(line);
    return found;
  };
  const auto two = of_tasks(at("watched-by-two")), one = of_tasks(at("watched-by-one"));
  ASSERT_EQ(two.size(), 2u);
  ASSERT_EQ(one.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(two[i]["step"], one[i]["step"]);
    EXPECT_EQ(two[i]["tasks"]["arc_easy"], one[i]["tasks"]["arc_easy"]);
    EXPECT_NEAR(two[i]["tasks"]["wikitext"]["bits_per_byte"].get<double>(), one[i]["tasks"]["wikitext"]["bits_per_byte"].get<double>(),
                1e-5);
  }
}

// Tasks that cannot be asked end no training, on no rank.
TEST_F(Eval, RanksTrainOnWhereTasksFail) {
  NEEDS_MPI;
  const Words tasks{"eval.tasks=arc_easy", "eval.data=" + at("tasks"), "train.steps=6", "model.max_positions=32", "eval.every=3",
                    "device=cpu"};
  std::vector<Json> rows = lines("tasks/arc_easy/test.jsonl");
  const std::string before = read_text(at("tasks/arc_easy/test.jsonl"));
  rows.back()["choices"]["text"][1] = std::string(50, 'x');  // more than the model reads, in a document of the last rank
  write_lines("tasks/arc_easy/test.jsonl", rows);
  const Outcome trained = ranks(*place_, 2, place_->run("without-tasks", tasks));
  write_text(at("tasks/arc_easy/test.jsonl"), before);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(times(trained.err, "no tasks at step "), 2) << trained.err;
  says(trained.err, "no tasks at step 3: rank 1 on ");
  EXPECT_EQ(newest_checkpoint(at("without-tasks")), 6);
}

}  // namespace
}  // namespace bhyt::test
