// Several processes by MPI, as a user starts them: the same mathematics as one, resumed with any number, and ends that lose nothing.
#include "tests/cli/ranks.h"

namespace bhyt::test {
namespace {

struct Shared {
  const char* name;
  int ranks;
  Words words;
};

// train.batch=6 for 2, 3 and 4 ranks: whole, whole and uneven; with micro-batches of two and of different numbers of pieces.
TEST(Parallel, RanksHaveTheLossesOfOneProcess) {
  NEEDS_MPI;
  const Place place;
  const Words small = {"train.steps=16", "train.save_every=0", "dtype=fp32"};
  const Shared cases[] = {
      {"bhyt", 2, {"norm.method=bhyt"}},
      {"uneven", 4, {"norm.method=bhyt", "norm.aux_loss=0.01", "train.micro_batch=1"}},
      {"untied", 3, {"norm.method=seednorm", "model.tied=false", "train.micro_batch=2"}},
      {"documents", 2, {"norm.method=peri", "data.attend=document", "train.batch=5"}},
      {"alone", 3, {"norm.method=rmsnorm", "train.batch=2", "model.tied=false"}},  // a rank without rows
      {"learned", 2, {"norm.method=dyt", "model.embedding_scale=learned"}},
  };
  for (const Shared& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string one = std::string("one-") + c.name;
    const Outcome alone = bhyt(place.run(one, small + c.words));
    ASSERT_EQ(alone.code, 0) << alone.err;
    for (const char* zero : {"0", "1", "2"}) {
      SCOPED_TRACE(zero);
      const std::string dir = fmt::format("{}-{}", c.name, zero);
      const Outcome out =
          ranks(place, c.ranks, place.run(dir, small + c.words + Words{std::string("parallel.zero=") + zero, "parallel.bucket=0.01"}));
      ASSERT_EQ(out.code, 0) << out.err;
      expect_near(place.path / one, place.path / dir, 1e-6);
    }
  }
}

// Two steps in Chrome's trace format: what is computed one behind the other, and every layer's collectives where they belong.
TEST(Parallel, ATimelineHasLayersAndTheirCollectives) {
  NEEDS_MPI;
  const Place place;
  const Outcome out = ranks(place, 2, place.run("run", {"train.steps=6", "train.save_every=0", "parallel.trace=3"}));
  ASSERT_EQ(out.code, 0) << out.err;
  struct Stretch {
    double begin, end;
  };
  std::map<std::string, std::vector<Stretch>> by_name;
  double end = 0;
  const Json trace = Json::parse(read_text(place.path / "run" / "trace.json"));
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    const double begin = e["ts"], duration = e["dur"];
    EXPECT_GE(duration, 0) << e;
    by_name[e["name"]].push_back({begin, begin + duration});
    if (e["tid"] != 0) continue;
    EXPECT_GE(begin, end - 0.2) << e << " begins before the one in front of it ends";  // microseconds, rounded
    end = begin + duration;
  }
  // Of both steps; a layer's gradients are added up behind its backward, its weights are there before its forward.
  for (const std::string layer : {"1", "2"}) {
    const auto &forward = by_name["forward " + layer], &backward = by_name["backward " + layer],
               &reduced = by_name["reduce-scatter, layer " + layer], &gathered = by_name["all-gather, layer " + layer];
    for (const auto* two : {&forward, &backward, &reduced, &gathered}) ASSERT_EQ(two->size(), 2u) << layer;
    for (std::size_t step = 0; step < 2; ++step) {
      EXPECT_GE(reduced[step].begin, backward[step].end - 0.2);
      EXPECT_GE(gathered[step].begin, reduced[step].end);
    }
    EXPECT_GE(forward[1].begin, gathered[0].end - 20);  // waits shorter than that are left out
  }
}

TEST(Parallel, GradientsMayTravelInBf16) {
  NEEDS_MPI;
  const Place place;
  const Words words = {"train.steps=12", "train.save_every=0", "dtype=bf16"};
  ASSERT_EQ(bhyt(place.run("one", words)).code, 0);
  ASSERT_EQ(ranks(place, 2, place.run("two", words + Words{"parallel.reduce=bf16"})).code, 0);
  expect_near(place.path / "one", place.path / "two", 5e-3);
}

// Adapters are saved whole and merged; a finished run that is started again ends at once on all ranks.
TEST(Parallel, AdaptersOfRanksAreThoseOfOneProcess) {
  NEEDS_MPI;
  const Place place;
  ASSERT_EQ(bhyt(place.run("base", {"train.steps=3", "dtype=fp32"})).code, 0);
  std::string records;
  for (int i = 0; i < 17; ++i)
    records +=
        fmt::format("{}{{\"instruction\": \"count to {}\", \"input\": \"\", \"output\": \"one, two and {}\"}}", i ? "," : "[", i, i * i);
  write_text(place.path / "talk.json", records + "]");
  for (const char* type : {"dtype=fp32", "dtype=bf16"}) {
    SCOPED_TRACE(type);
    const auto words = [&](const std::string& dir) {
      return Words{"sft",
                   "model.init=" + (place.path / "base").string(),
                   "data.train=" + (place.path / "talk.json").string(),
                   "data.template=default",
                   "data.seq_len=64",
                   "train.batch=5",
                   "train.steps=7",
                   "train.log_every=1",
                   "train.save_every=4",
                   "train.lr=1e-2",
                   "lora.rank=3",
                   "lora.merge=true",
                   "threads=1",
                   type,
                   "resume=auto",
                   "run.dir=" + (place.path / (dir + type)).string()};
    };
    ASSERT_EQ(bhyt(words("one")).code, 0);
    const Outcome out = ranks(place, 3, words("three"));
    ASSERT_EQ(out.code, 0) << out.err;
    const fs::path one = place.path / (std::string("one") + type), three = place.path / (std::string("three") + type);
    expect_near(one, three, std::string(type) == "dtype=fp32" ? 1e-6 : 1e-4);
    for (const char* file : {"checkpoint-7/adapter_model.safetensors", "merged/model.safetensors"})
      EXPECT_EQ(fs::file_size(one / file), fs::file_size(three / file)) << file;
    EXPECT_EQ(ranks(place, 3, words("three")).code, 0);
  }
}

// Half of a run with two ranks, the rest with others: exactly what is stored goes on. With as many again the bits are those of an
// undisturbed run.
TEST(Parallel, ARunGoesOnWithAnotherNumberOfRanks) {
  NEEDS_MPI;
  for (const char* type : {"dtype=fp32", "dtype=bf16"}) {
    SCOPED_TRACE(type);
    const Place place;
    const Words all = {"train.steps=18", "train.save_every=9", "train.keep=9", type};
    ASSERT_EQ(ranks(place, 2, place.run("whole", all)).code, 0);
    for (const int n : {1, 2, 3}) {
      SCOPED_TRACE(n);
      const std::string dir = fmt::format("then-{}", n);
      fs::copy(place.path / "whole", place.path / dir, fs::copy_options::recursive);
      fs::remove_all(place.path / dir / "checkpoint-18");
      const Outcome out = ranks(place, n, place.run(dir, all + Words{"resume=must"}));
      ASSERT_EQ(out.code, 0) << out.err;
      says(out.err, "going on after step 9");
      if (n == 2)
        expect_same_runs(place.path / "whole", place.path / dir);
      else
        expect_near(place.path / "whole", place.path / dir, std::string(type) == "dtype=fp32" ? 1e-6 : 3e-3);
      EXPECT_EQ(names_in(place.path / dir / "checkpoint-18", "optimizer").size(), static_cast<std::size_t>(n));
    }
  }
}

// What a process leaves that is killed while it takes the optimizer's state out of an older checkpoint: files that the manifest lists no
// more.
TEST(Parallel, HalfOfTheOptimizersStateIsNoneToGoOnFrom) {
  NEEDS_MPI;
  const Place place;
  const fs::path run = place.path / "run";
  ASSERT_EQ(ranks(place, 3, place.run("run", {"train.steps=9"})).code, 0);
  Json manifest = Json::parse(read_text(run / "checkpoint-9" / "manifest.json"));
  for (const std::string& name : names_in(run / "checkpoint-9", "optimizer-")) manifest["files"].erase(name);
  write_text(run / "checkpoint-9" / "manifest.json", manifest.dump());
  fs::remove(run / "checkpoint-9" / "optimizer-1-of-3.safetensors");
  const Words more = place.run("run", {"train.steps=12", "resume=auto", "--force"});
  const Outcome out = ranks(place, 2, more);
  EXPECT_EQ(out.code, 0) << out.err;
  says(out.err, "checkpoint-9: optimizer-1-of-3.safetensors is missing");
  says(out.err, "going on after step 6");
}

TEST(Parallel, AnotherConfigOnOneRankIsNamed) {
  NEEDS_MPI;
  const Place place;
  const std::string one = line_of(place.run("run")), other = line_of(place.run("run", {"train.lr=5e-3"}));
  const Outcome out = mpirun(place, fmt::format("-n 2 {} : -n 1 {}", one, other));
  EXPECT_EQ(out.code, 2) << out.err;
  says(out.err, "all ranks must have the same train.lr: rank 2 on ");
  says(out.err, " has 0.005, rank 0 on ");
  says(out.err, " has 0.003");
  EXPECT_FALSE(fs::exists(place.path / "run"));
}

TEST(Parallel, AMistakeIsToldOnce) {
  NEEDS_MPI;
  const Place place;
  for (const Words& wrong : {Words{"train.lrr=1"}, Words{"train.batch=0"}, Words{"--frce"}, Words{"norm.method=nosuch"}}) {
    const Outcome out = ranks(place, 3, place.run("run", wrong));
    EXPECT_EQ(out.code, 2) << out.err;
    EXPECT_EQ(times(out.err, "error: "), 1) << out.err;
    EXPECT_FALSE(has(out.err, "rank 0 on")) << out.err;  // it is every rank's
  }
  says(ranks(place, 3, place.run("run", {"train.lrr=1"})).err, "error: unknown key train.lrr (did you mean train.lr?)");
  EXPECT_FALSE(fs::exists(place.path / "run"));

  // One that only one rank has is that rank's.
  write_text(place.path / "only.yaml", "train: {steps: 3}\n");
  const fs::path own = place.path / "own";
  fs::create_directory(own);
  const Words words = place.run("run", {"only.yaml"});
  const auto rank = [&](const fs::path& dir) { return fmt::format("-n 1 --wdir {} {}", quoted(dir.string()), line_of(words)); };
  const Outcome out = mpirun(place, rank(place.path) + " : " + rank(own));
  EXPECT_NE(out.code, 0);
  EXPECT_EQ(times(out.err, "error: "), 1) << out.err;
  says(out.err, "error: rank 1 on ");
  says(out.err, "only.yaml");
}

// A program without libbhyt_mpi.so beside it: one process works as it does alone, several cannot.
TEST(Parallel, OneProcessNeedsNoLibrary) {
  const Place place;
  const fs::path program = place.path / "bin" / "bhyt";
  fs::create_directory(place.path / "bin");
  fs::copy_file(BHYT_PROGRAM, program);
  const auto launched = [&](const std::string& as, const std::string& dir) {
    std::string line = as + " " + quoted(program.string());
    for (const std::string& word : place.run(dir, {"train.steps=3"})) line += " " + quoted(word);
    return shell(place, line);
  };
  int n = 0;
  for (const char* as : {"OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1", "PMIX_RANK=0 SLURM_STEP_NUM_TASKS=1"}) {
    const Outcome out = launched(as, fmt::format("run-{}", n++));
    EXPECT_EQ(out.code, 0) << as << "\n" << out.err;
    EXPECT_EQ(out.err.find("without MPI"), std::string::npos) << out.err;
  }
  for (const char* as : {"OMPI_COMM_WORLD_SIZE=2", "PMIX_RANK=0 SLURM_STEP_NUM_TASKS=2", "PMIX_RANK=0"}) {
    const Outcome out = launched(as, "none");
    EXPECT_EQ(out.code, 1) << as << "\n" << out.err;
    says(out.err, "libbhyt_mpi.so could not be loaded from beside the program");
  }
  // One that is there and of no use is told of.
  write_text(place.path / "bin" / "libbhyt_mpi.so", "not a library");
  const Outcome out = launched("OMPI_COMM_WORLD_SIZE=1", "warned");
  EXPECT_EQ(out.code, 0) << out.err;
  says(out.err, "goes on without MPI: ");
}

TEST(Parallel, OtherDataOnOneRankIsNamed) {
  NEEDS_MPI;
  const Place place;
  const fs::path text = place.path / "text.txt", token = place.path / "a.tok", changed = place.path / "b.tok";
  ASSERT_EQ(bhyt({"data", "pack", text.string(), "--tokenizer", "bytes", "--out", token.string()}).code, 0);
  write_text(text, read_text(text) + "one more line\n");
  ASSERT_EQ(bhyt({"data", "pack", text.string(), "--tokenizer", "bytes", "--out", changed.string()}).code, 0);
  // Each rank sees its file under the same name.
  const fs::path link = place.path / "data";
  const auto rank = [&](const fs::path& file) {
    const fs::path own = place.path / ("see-" + file.stem().string());
    fs::create_directory(own);
    fs::copy_file(file, own / "x.tok");
    Words words = place.run("run", {"data.train=x.tok"});
    std::erase_if(words, [](const std::string& w) { return w.starts_with("data.valid"); });
    return fmt::format("-n 1 --wdir {} {}", quoted(own.string()), line_of(words));
  };
  const Outcome out = mpirun(place, rank(token) + " : " + rank(changed));
  EXPECT_EQ(out.code, 2) << out.err;
  says(out.err, "all ranks must have the same data.train (checksum of its tokens): rank 1 on ");
}

// A run whose ranks each see a folder of their own as the working directory, with what lies there as x.tok.
std::string ranks_in_folders(const Words& words, const std::vector<fs::path>& folders) {
  std::string line;
  for (const fs::path& dir : folders)
    line += fmt::format("{}-n 1 --wdir {} {}", line.empty() ? "" : " : ", quoted(dir.string()), line_of(words));
  return line;
}

// A token beyond the vocabulary in one rank's copy of a file, met in the middle of a run: all ranks save the step before it.
TEST(Parallel, DamagedDataOnOneRankLosesNoStep) {
  NEEDS_MPI;
  const Place place;
  const fs::path good = place.path / "good", bad = place.path / "bad";
  for (const fs::path& dir : {good, bad}) fs::create_directory(dir);
  write_text(place.path / "short.txt", read_text(place.path / "text.txt").substr(0, 3000));
  ASSERT_EQ(bhyt({"data", "pack", (place.path / "short.txt").string(), "--tokenizer", "bytes", "--out", (good / "x.tok").string()}).code,
            0);
  std::string bytes = read_text(good / "x.tok");
  bytes[bytes.size() / 2] = bytes[bytes.size() / 2 + 1] = static_cast<char>(250);
  write_text(bad / "x.tok", bytes);
  for (const char* which : {"data.train=x.tok", "data.valid=x.tok"}) {
    SCOPED_TRACE(which);
    const bool valid = std::string(which).starts_with("data.valid");
    const auto words = [&](const std::string& dir) {
      return place.run(dir, {which, "train.save_every=0", "train.log_every=1", "train.eval_batches=0", "train.steps=20", "resume=auto"});
    };
    const std::string dir = valid ? "valid" : "train", whole = dir + "-whole";
    const Outcome out = mpirun(place, ranks_in_folders(words(dir), {good, bad}));
    EXPECT_EQ(out.code, 1) << out.err;
    EXPECT_EQ(times(out.err, "error: rank 1 on "), 1) << out.err;
    says(out.err, "not below the vocabulary");
    ASSERT_EQ(names_in(place.path / dir, "checkpoint-").size(), 1u) << out.err;
    EXPECT_EQ(lost_steps(place.path / dir), 0);
    EXPECT_TRUE(!valid || newest_checkpoint(place.path / dir) == 7);  // whose validation it was
    for (const std::string& run : {dir, whole}) {
      const Outcome again = mpirun(place, ranks_in_folders(words(run), {good, good}));
      EXPECT_EQ(again.code, 0) << again.err;
    }
    expect_same_runs(place.path / whole, place.path / dir);
  }
}

// A validation that would take a minute.
TEST(Parallel, ASignalStopsAValidationOfAllRanks) {
  NEEDS_MPI;
  const Place place;
  const std::string text = read_text(place.path / "text.txt");
  {
    std::ofstream out(place.path / "long.txt", std::ios::binary);
    for (int i = 0; i < 200; ++i) out << text;
  }
  const auto words = [&](const std::string& batches) {
    return Words{"launch", "-n", "2", "--"} +
           place.run("run", {"data.valid=" + (place.path / "long.txt").string(), "train.steps=4", "train.eval_every=2",
                             "train.eval_batches=" + batches, "train.save_every=0", "train.log_every=1", "resume=auto"});
  };
  Process process(words("0"));
  ASSERT_TRUE(process.read_until_step(2, 4)) << process.messages();  // its line is written before its validation
  process.send(SIGTERM);
  EXPECT_EQ(process.wait(), 128 + SIGTERM) << process.messages();
  says(process.messages(), "stopped by SIGTERM after step 2 (its validation is still to be made)");
  EXPECT_EQ(newest_checkpoint(place.path / "run"), 2);
  const Outcome again = bhyt(words("1"));
  EXPECT_EQ(again.code, 0) << again.err;
  says(again.err, "valid   step 2");
}

// A disk that is full for one rank: all end, and the checkpoint before is whole.
TEST(Parallel, AFullDiskOnOneRankLosesNothing) {
  NEEDS_MPI;
  const Place place;
  const Words words = place.run("run", {"train.steps=6", "train.save_every=3"});
  ASSERT_EQ(ranks(place, 2, place.run("run", {"train.steps=3", "train.save_every=3"})).code, 0);
  const Words more = words + Words{"resume=must", "--force"};
  const Outcome out = mpirun(place, fmt::format("-n 1 {} : -n 1 sh -c {}", line_of(more), quoted("ulimit -f 16; exec " + line_of(more))));
  EXPECT_EQ(out.code, 1) << out.err;
  says(out.err, "could not save");
  says(out.err, "rank 1 on ");
  EXPECT_EQ(newest_checkpoint(place.path / "run"), 3);
  EXPECT_EQ(names_in(place.path / "run", "tmp-"), Words{});
  EXPECT_EQ(bhyt({"info", (place.path / "run").string()}).code, 0);
  EXPECT_EQ(ranks(place, 2, more).code, 0);
}

TEST(Parallel, ARankThatDoesNotAnswerIsNamed) {
  NEEDS_MPI;
  const Place place;
  const Words words = place.run("run", {"train.steps=100000", "train.eval_every=0", "train.log_every=1", "parallel.timeout=3"});
  // The second rank stops itself once the first has written some steps.
  const fs::path metrics = place.path / "run" / "metrics.jsonl";
  const std::string stops =
      fmt::format("{} & pid=$!; while ! [ $(wc -l < {} 2>/dev/null || echo 0) -gt 8 ]; do sleep 0.1; done; kill -STOP $pid; sleep 40",
                  line_of(words), quoted(metrics.string()));
  const Outcome out = mpirun(place, fmt::format("-n 1 {} : -n 1 sh -c {}", line_of(words), quoted(stops)));
  EXPECT_NE(out.code, 0);
  says(out.err, "rank 1 on ");
  says(out.err, " did not answer for 3 s (parallel.timeout)");
  std::system("pkill -KILL -f 'parallel.timeout=3' 2>/dev/null");
}

TEST(Parallel, OtherFileSystemsAreNoticed) {
  NEEDS_MPI;
  const Place place;
  const std::string here = line_of(place.run("run"));
  const fs::path own = place.path / "own";
  fs::create_directory(own);
  Words words = place.run("run");
  for (std::string& w : words)
    if (w.starts_with("run.dir=")) w = "run.dir=run";
  const auto rank = [&](const fs::path& dir) { return fmt::format("-n 1 --wdir {} {}", quoted(dir.string()), line_of(words)); };
  const Outcome out = mpirun(place, rank(place.path) + " : " + rank(own));
  EXPECT_EQ(out.code, 1) << out.err;
  says(out.err, "is not the one that rank 0 on ");
  EXPECT_FALSE(fs::exists(place.path / "run"));
}

}  // namespace
}  // namespace bhyt::test
