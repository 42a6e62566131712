// bhyt sweep: grids of runs, killed and started again, failed runs, what it ends with.
#include <algorithm>
#include <map>
#include <set>

#include "tests/cli/mpi.h"

namespace bhyt::test {
namespace {

// The words of a tiny sweep; run.dir is the sweep's business.
Words sweep(const Place& place, const Words& more, const std::string& folder = "sweep") {
  Words words = place.run("unused", {"train.steps=6", "train.save_every=2", "train.eval_every=3", "train.log_every=1"});
  words.erase(words.begin());
  std::erase_if(words, [](const std::string& w) { return w.starts_with("run.dir="); });
  return Words{"sweep"} + words + Words{"--out", (place.path / folder).string()} + more;
}

Json index_of(const Place& place, const std::string& folder = "sweep") {
  return Json::parse(read_text(place.path / folder / "index.json"));
}

std::map<std::string, std::string> statuses(const Place& place) {
  std::map<std::string, std::string> out;
  const Json index = index_of(place);
  for (const Json& run : index["runs"]) out[run["id"]] = run["status"];
  return out;
}

// Processes of the program whose words end with these.
std::set<pid_t> programs_with(const Words& words) {
  std::string end;
  for (const std::string& word : words) end += '\0' + word;
  end += '\0';
  std::set<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string line = read_text(entry.path() / "cmdline");
    if (line.starts_with(BHYT_PROGRAM) && line.ends_with(end)) found.insert(std::stoi(name));
  }
  return found;
}

TEST(Sweep, TrainsEveryCombinationAndEndsWithMeans) {
  const Place place;
  const Words grid = {"norm.method=rmsnorm,bhyt", "seed=0..1", "--jobs", "2"};
  const Outcome out = bhyt(sweep(place, grid));
  ASSERT_EQ(out.code, 0) << out.err;
  const Json index = index_of(place);
  ASSERT_EQ(index["runs"].size(), 4u);
  double sum = 0, squares = 0;
  for (const Json& run : index["runs"]) {
    EXPECT_EQ(run["status"], "done");
    EXPECT_EQ(run["step"], 6);
    // What the index says is what the run itself wrote.
    const auto lines = metrics_of(place.path / "sweep" / run["dir"].get<std::string>());
    EXPECT_EQ(lines.back()["valid_loss"], run["valid_loss"]);
    if (run["point"]["norm.method"] != "bhyt") continue;
    sum += run["valid_loss"].get<double>();
    squares += run["valid_loss"].get<double>() * run["valid_loss"].get<double>();
  }
  const double mean = sum / 2, spread = std::sqrt(2 * (squares / 2 - mean * mean));
  const Json summary = Json::parse(read_text(place.path / "sweep" / "summary.json"));
  EXPECT_EQ(summary["groups"][1]["point"]["norm.method"], "bhyt");
  EXPECT_NEAR(summary["groups"][1]["valid_loss"]["mean"].get<double>(), mean, 1e-9);
  EXPECT_NEAR(summary["groups"][1]["valid_loss"]["std"].get<double>(), spread, 1e-6);
  says(out.out, fmt::format("{:.4f} ± {:.4f}", mean, spread));
  says(out.err, "[4/4] ");
  says(read_text(place.path / "sweep" / "report.html"), "bhyt, seed 1");
  // Weights stay, the training state does not.
  const fs::path run = place.path / "sweep" / "method-bhyt_seed-0" / "checkpoint-6";
  EXPECT_TRUE(fs::exists(run / "model.safetensors"));
  EXPECT_FALSE(fs::exists(run / "optimizer.safetensors"));
  EXPECT_EQ(names_in(run.parent_path(), "checkpoint-"), Words{"checkpoint-6"});
  // A run is what bhyt pretrain makes of the same words.
  ASSERT_EQ(
      bhyt(place.run("alone", {"train.steps=6", "train.save_every=2", "train.eval_every=3", "train.log_every=1", "norm.method=bhyt"})).code,
      0);
  EXPECT_EQ(metrics_of(place.path / "alone"), metrics_of(run.parent_path()));
}

TEST(Sweep, KilledInTheMiddleItGoesOnAndLeavesFinishedRunsAlone) {
  const Place place;
  const Words words = sweep(place, {"seed=0..3", "train.steps=40", "--jobs", "1"});
  {
    Process process(words);
    ASSERT_TRUE(process.read_until("[2/4]")) << process.messages();
    process.send(SIGKILL);
    process.wait();
  }
  const auto before = statuses(place);
  EXPECT_EQ(before.at("seed-0"), "done");
  EXPECT_EQ(before.at("seed-1"), "done");
  std::map<std::string, std::string> kept;
  for (const char* id : {"seed-0", "seed-1"}) kept[id] = read_text(place.path / "sweep" / id / "metrics.jsonl");
  const Outcome again = bhyt(words);
  ASSERT_EQ(again.code, 0) << again.err;
  says(again.err, " of 4 runs have ended already");
  for (const auto& [id, status] : statuses(place)) EXPECT_EQ(status, "done") << id;
  for (const auto& [id, text] : kept) EXPECT_EQ(read_text(place.path / "sweep" / id / "metrics.jsonl"), text) << id;
  // Those that were killed or resumed went through the same numbers as a run that was not.
  ASSERT_EQ(bhyt(place.run("alone", {"train.steps=40", "train.save_every=2", "train.eval_every=3", "train.log_every=1", "seed=2"})).code,
            0);
  EXPECT_EQ(metrics_of(place.path / "alone"), metrics_of(place.path / "sweep" / "seed-2"));
}

TEST(Sweep, ASignalIsPassedOnAndTheIndexSaysSo) {
  const Place place;
  const Words words = sweep(place, {"seed=0..1", "train.steps=2000", "train.save_every=0", "train.eval_every=0", "--jobs", "1"});
  {
    Process process(words);
    const fs::path metrics = place.path / "sweep" / "seed-0" / "metrics.jsonl";
    for (int i = 0; i < 6000 && (!fs::exists(metrics) || fs::file_size(metrics) < 500); ++i) usleep(10000);
    process.send(SIGTERM);
    EXPECT_EQ(process.wait(), 143) << process.messages();
    says(process.messages(), "interrupted");
  }
  EXPECT_EQ(statuses(place), (std::map<std::string, std::string>{{"seed-0", "interrupted"}, {"seed-1", "planned"}}));
  EXPECT_EQ(names_in(place.path / "sweep" / "seed-0", "checkpoint-").size(), 1u);  // to go on from
}

TEST(Sweep, AFailedOrDivergedRunIsRecordedAndNotTriedAgain) {
  const Place place;
  const std::string gone = (place.path / "gone.txt").string();
  const Words words = sweep(place, {"variant.good=train.lr=1e-3", "variant.gone=data.valid=" + gone,
                                    "variant.wild=train.lr=1e30 train.clip=0 train.warmup_ratio=0 train.max_skipped=2"});
  const Outcome out = bhyt(words);
  EXPECT_EQ(out.code, 1);
  const std::map<std::string, std::string> expected = {{"good", "done"}, {"gone", "failed"}, {"wild", "diverged"}};
  EXPECT_EQ(statuses(place), expected);
  const Json index = index_of(place);
  says(index["runs"][1]["error"], "gone.txt");
  says(index["runs"][2]["error"], "steps in a row were skipped");
  says(out.out, "| wild | 0 | diverged |");
  const std::string log = read_text(place.path / "sweep" / "wild" / "log.txt");
  const Outcome again = bhyt(words);
  says(again.err, "3 of 3 runs have ended already");
  EXPECT_EQ(read_text(place.path / "sweep" / "wild" / "log.txt"), log);
  // With what was missing there, and asked to.
  write_text(gone, read_text(place.path / "text.txt"));
  EXPECT_EQ(bhyt(words + Words{"--retry"}).code, 0);
  EXPECT_EQ(statuses(place).at("gone"), "done");
}

// Without what the index knew, runs whose metrics reach the last step are done all the same.
TEST(Sweep, ALostIndexIsFoundAgain) {
  const Place place;
  const Words words = sweep(place, {"seed=0..1", "--jobs", "2"});
  ASSERT_EQ(bhyt(words).code, 0);
  const fs::path index = place.path / "sweep" / "index.json";
  const Json before = index_of(place);
  const std::string text = read_text(index), metrics = read_text(place.path / "sweep" / "seed-0" / "metrics.jsonl");
  const auto status = [&](const std::string& to) {
    Json damaged = before;
    for (Json& run : damaged["runs"]) run["status"] = to;
    return damaged.dump();
  };
  for (const std::string& lost : {std::string(), status("donne"), std::string(R"({"version": 1, "command": "pretrain", "runs": {}})")}) {
    if (lost.empty())
      fs::remove(index);
    else
      write_text(index, lost);
    says(bhyt(words + Words{"--dry-run"}).out, "2 are done");
    const Outcome again = bhyt(words);
    EXPECT_EQ(again.code, 0) << again.err;
    says(again.err, "2 of 2 runs have ended already");
    Json after = index_of(place);
    for (std::size_t i = 0; i < 2; ++i)
      for (const char* key : {"id", "point", "status", "dir", "step", "steps", "valid_loss", "best_step", "loss", "settings", "error"})
        EXPECT_EQ(after["runs"][i][key], before["runs"][i][key]) << key;
    EXPECT_EQ(read_text(place.path / "sweep" / "seed-0" / "metrics.jsonl"), metrics);
  }
  // As an older program left them.
  write_text(index, status("failed"));
  EXPECT_EQ(bhyt(words).code, 1);
  EXPECT_EQ(bhyt(words + Words{"--retry"}).code, 0);
  EXPECT_EQ(statuses(place).at("seed-1"), "done");
  // Runs with other settings are not taken for these.
  fs::remove(index);
  const Outcome other = bhyt(words + Words{"train.lr=1e-2"});
  EXPECT_EQ(other.code, 2);
  says(other.err, "run seed-0 is there with other settings: train.lr was 0.003, now is 0.01");
  // One that had not come to its end goes on; what it says where it cannot is kept whole.
  fs::remove(index);
  std::string half;
  for (std::size_t line = 0, at = 0; line < 3; ++line, half = metrics.substr(0, at)) at = metrics.find('\n', at) + 1;
  write_text(place.path / "sweep" / "seed-0" / "metrics.jsonl", half);
  fs::rename(place.path / "sweep" / "seed-0" / "checkpoint-6", place.path / "sweep" / "seed-0" / "checkpoint-1");
  fs::remove(place.path / "sweep" / "seed-0" / "checkpoint-1" / "trainer_state.json");
  write_text(place.path / "sweep" / "seed-0" / "checkpoint-1" / "optimizer.safetensors", "");  // a finished run has none
  const auto again_without_index = [&] {
    fs::remove(index);
    return bhyt(words);
  };
  const Outcome lame = bhyt(words);
  EXPECT_EQ(lame.code, 1);
  const std::string error = index_of(place)["runs"][0]["error"];
  says(error, "holds a run that cannot go on:\n  checkpoint-1: trainer_state.json is missing\nresume=restart starts it afresh");
  // Nor was one finished whose metrics go on behind its newest weights, or which has none.
  fs::remove(place.path / "sweep" / "seed-0" / "checkpoint-1" / "optimizer.safetensors");
  EXPECT_EQ(again_without_index().code, 1);
  EXPECT_EQ(statuses(place).at("seed-0"), "failed");
  write_text(place.path / "sweep" / "seed-0" / "metrics.jsonl", metrics);
  fs::remove_all(place.path / "sweep" / "seed-0" / "checkpoint-1");
  const Outcome afresh = again_without_index();
  EXPECT_EQ(afresh.code, 0) << afresh.err;
  says(afresh.err, "1 of 2 runs have ended already");
  EXPECT_TRUE(fs::exists(place.path / "sweep" / "seed-0" / "checkpoint-6"));
}

TEST(Sweep, MistakesAreToldBeforeAnythingRuns) {
  const Place place;
  const auto refused = [&](const Words& more, const std::string& why) {
    const Outcome out = bhyt(sweep(place, more));
    EXPECT_EQ(out.code, 2);
    says(out.err, why);
    EXPECT_FALSE(fs::exists(place.path / "sweep"));
  };
  refused({"train.lrr=1,2"}, "did you mean train.lr?");
  refused({"seed=0,0"}, "given twice");
  refused({"seed=0,1", "parallel.trace=3"}, "parallel.trace draws how several processes work together, and a sweep's runs have one each");
  refused({"seed=0..1", "--jobs", "0"}, "--jobs must be auto or a number");
  refused({"seed=0..1", "--keep", "some"}, "--keep must be");
  refused({"seed=0..1", "--retyr"}, "did you mean --retry?");
}

TEST(Sweep, ADryRunSaysWhatItWouldComeTo) {
  const Place place;
  const Words words = sweep(place, {"seed=0..1", "train.lr=1e-3,2e-3"});
  const Outcome before = bhyt(words + Words{"--dry-run"});
  ASSERT_EQ(before.code, 0) << before.err;
  says(before.out, "runs    4");
  says(before.out, "tokens  4.61K");  // 4 runs of 6 steps of 6 rows of 32
  says(before.out, "not known before the first run");
  says(before.out, "disk    ");
  EXPECT_FALSE(fs::exists(place.path / "sweep"));
  ASSERT_EQ(bhyt(words + Words{"train.lr=1e-3", "--keep", "none"}).code, 0);
  EXPECT_TRUE(fs::exists(place.path / "sweep" / "seed-0_lr-0.001" / "metrics.jsonl"));
  EXPECT_EQ(names_in(place.path / "sweep" / "seed-0_lr-0.001", "checkpoint-"), Words{});
  const Outcome after = bhyt(words + Words{"--dry-run"});
  says(after.out, "2 are done");
  says(after.out, "at the speed of the runs that are done");
}

// Nested too deep to be copied on a stack: every file that is read of a run says so, or is passed over.
TEST(Sweep, FilesNestedWithoutEndAreRefused) {
  const Place place;
  const Words run = place.run("run", {"train.steps=6"});
  ASSERT_EQ(bhyt(run).code, 0);
  const fs::path dir = place.path / "run", at = dir / "checkpoint-6";
  const std::string deep = "{\"x\":" + std::string(50000, '[') + std::string(50000, ']') + ",";
  const auto change = [&](const fs::path& file) {
    const std::string text = fs::exists(file) ? read_text(file) : "{\"models\": []}";
    write_text(file, deep + text.substr(text.find('{') + 1));
    return text;
  };
  const auto after = [&](const Words& words, int code, const std::string& says_so) {
    const Outcome out = bhyt(words);
    EXPECT_EQ(out.code, code) << fmt::format("{}", fmt::join(words, " ")) << out.err;
    says(out.err + out.out, says_so);
  };
  const std::string page = (place.path / "page.html").string(), name = dir.string();
  const Words report = {"report", name, "--out", page}, info = {"info", name}, again = run + Words{"resume=auto"};
  for (const char* file : {"run.json", "analysis.json"}) {
    change(dir / file);
    after(report, 0, "run  step 6");
  }
  const std::string state = change(at / "trainer_state.json");
  after(report, 0, "run  step 6");
  after(info, 1, "trainer_state.json has");
  write_text(at / "trainer_state.json", state);
  const std::string manifest = change(at / "manifest.json");
  after(info, 1, "checkpoint-6: manifest.json is damaged");
  after({"generate", "--model", at.string(), "--ids", "--prompt", "1", "--max-tokens", "1"}, 1, "manifest.json is damaged");
  after(again, 0, "passing over");
  write_text(at / "manifest.json", manifest);
  change(dir / "metrics.jsonl");
  after(report, 0, "run  step 6");
  says(read_text(page), "are not records and were left out");
  after(info, 0, "");
  after(again, 0, "");
  const Words grid = sweep(place, {"seed=0"});
  ASSERT_EQ(bhyt(grid).code, 0);
  change(place.path / "sweep" / "index.json");
  after(grid, 1, "index.json: not an index of a sweep: nested more than 500 deep");
}

TEST(Sweep, AManifestThatSaysNothingIsNoManifest) {
  const Place place;
  const Words run = place.run("run", {"train.steps=6"});
  ASSERT_EQ(bhyt(run).code, 0);
  const fs::path at = place.path / "run" / "checkpoint-6";
  for (const auto& [text, why] : {std::pair(R"({"version": 1, "files": {}})", "manifest.json does not list config.json"),
                                  std::pair(R"({"version": 9, "files": {}})", "manifest.json has version 9, expected 2 or 1")}) {
    write_text(at / "manifest.json", text);
    for (const Words& words : {Words{"info", at.string()}, Words{"generate", "--model", at.string(), "--ids", "--prompt", "1"}}) {
      const Outcome out = bhyt(words);
      EXPECT_EQ(out.code, 1) << words[0];
      says(out.out + out.err, why);
    }
    for (const char* checkpoint : {"checkpoint-3"}) fs::remove_all(place.path / "run" / checkpoint);
    const Outcome out = bhyt(run + Words{"resume=auto"});
    EXPECT_EQ(out.code, 1);
    says(out.err, why);
  }
}

// The runs of a sweep go to ranks: the same runs, index and end as in one process.
TEST(Sweep, RanksTakeItsRuns) {
  NEEDS_MPI;
  const Place place;
  const Words grid = {"variant.good=train.lr=1e-3",
                      "variant.better=train.lr=2e-3",
                      "variant.gone=data.valid=" + (place.path / "gone").string(),
                      "variant.wild=train.lr=1e30 train.clip=0 train.warmup_ratio=0 train.max_skipped=2",
                      "seed=0..1",
                      "--jobs",
                      "1"};
  const Outcome one = bhyt(sweep(place, grid, "one")), two = ranks(place, 3, sweep(place, grid, "sweep"));
  EXPECT_EQ(one.code, 1) << one.err;
  EXPECT_EQ(two.code, 1) << two.err;
  Json expected = index_of(place, "one"), found = index_of(place);
  ASSERT_EQ(expected["runs"].size(), 8u);
  for (Json* index : {&expected, &found}) {
    index->erase("updated");
    for (Json& run : (*index)["runs"])
      for (const char* key : {"seconds", "tok_s", "jobs"}) run.erase(key);
  }
  EXPECT_EQ(found.dump(1), expected.dump(1));
  for (const Json& run : found["runs"]) {
    const std::string dir = run["dir"];
    if (run["status"] == "done") {
      EXPECT_EQ(metrics_of(place.path / "one" / dir), metrics_of(place.path / "sweep" / dir)) << dir;
    }
    EXPECT_EQ(times(two.err, "] " + run["label"].get<std::string>() + "  "), 1) << two.err;  // each once, told by the first rank
    EXPECT_FALSE(fs::exists(place.path / "sweep" / dir / "earlier-1")) << dir;
  }
  EXPECT_EQ(index_of(place)["runs"][0]["jobs"], 3);
  EXPECT_EQ(index_of(place, "one")["runs"][0]["jobs"], 1);
  const Outcome again = ranks(place, 2, sweep(place, grid, "sweep"));
  says(again.err, "8 of 8 runs have ended already");
  EXPECT_EQ(times(again.err, "have ended already"), 1);
}

// A signal reaches the runs of all ranks; after it, and after a rank that was killed, the same command goes on.
TEST(Sweep, RanksThatWereStoppedGoOn) {
  NEEDS_MPI;
  const Place place;
  const Words words = sweep(place, {"seed=0..2", "train.steps=300", "train.save_every=50", "train.eval_every=0", "--jobs", "1"});
  const auto lines = [&](const char* seed) { return metrics_of(place.path / "sweep" / seed).size(); };
  const auto status_of_first_two = [&] {
    const auto all = statuses(place);
    return std::pair(all.at("seed-0"), all.at("seed-1"));
  };
  {
    Process process(Words{"launch", "-n", "2", "--"} + words);
    for (int i = 0; i < 6000 && (lines("seed-0") < 60 || lines("seed-1") < 60); ++i) usleep(10000);
    process.send(SIGTERM);
    EXPECT_EQ(process.wait(), 143) << process.messages();
    EXPECT_EQ(times(process.messages(), "the same command goes on"), 1) << process.messages();
  }
  EXPECT_EQ(status_of_first_two(), std::pair(std::string("interrupted"), std::string("interrupted")));
  const std::size_t before = lines("seed-1");
  {
    Process process(Words{"launch", "-n", "2", "--"} + words);
    for (int i = 0; i < 6000 && lines("seed-1") < before + 20; ++i) usleep(10000);
    const std::set<pid_t> started = programs_with(words);
    ASSERT_EQ(started.size(), 3u);  // the launcher and two ranks
    const auto second = std::find_if(started.begin(), started.end(), [](pid_t pid) { return is_rank(pid, 1); });
    ASSERT_NE(second, started.end());
    kill(*second, SIGKILL);
    EXPECT_NE(process.wait(), 0);
  }
  const Outcome out = ranks(place, 2, words);
  ASSERT_EQ(out.code, 0) << out.err;
  for (const auto& [id, status] : statuses(place)) EXPECT_EQ(status, "done") << id;
  ASSERT_EQ(bhyt(place.run("alone", {"train.steps=300", "train.save_every=50", "train.eval_every=0", "train.log_every=1", "seed=1"})).code,
            0);
  EXPECT_EQ(metrics_of(place.path / "alone"), metrics_of(place.path / "sweep" / "seed-1"));
}

TEST(Sweep, AMistakeIsToldByOneRank) {
  NEEDS_MPI;
  const Place place;
  const Outcome out = ranks(place, 2, sweep(place, {"train.lrr=1,2"}));
  EXPECT_EQ(out.code, 2);
  EXPECT_EQ(times(out.err, "did you mean train.lr?"), 1) << out.err;
  EXPECT_FALSE(fs::exists(place.path / "sweep"));
}

}  // namespace
}  // namespace bhyt::test
