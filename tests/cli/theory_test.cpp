// bhyt analyze theory, toy and depth, and bhyt bench norm-calls, through the program itself.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

TEST(AnalyzeTheory, SaysAVerdictForEachStatement) {
  const Outcome o = bhyt({"analyze", "theory", "--json", "device=cpu"});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json j = Json::parse(o.out);
  ASSERT_EQ(j.at("statements").size(), 7u);
  EXPECT_TRUE(j.at("model").is_null());
  for (const Json& s : j.at("statements")) {
    EXPECT_EQ(s.at("random").at("failed"), 0) << s.at("id");
    EXPECT_GT(s.at("random").at("checks"), 0) << s.at("id");
    EXPECT_FALSE(s.contains("on_model"));
  }
  const Outcome text = bhyt({"analyze", "theory", "device=cpu"});
  EXPECT_TRUE(has(text.out, "Jacobian bound: ")) << text.out;
  EXPECT_TRUE(has(text.out, "holds under its assumptions")) << text.out;
}

// A checkpoint made by the program, looked at in each way.
TEST(AnalyzeTheory, LooksAtACheckpoint) {
  const TempFolder folder;
  const auto path = [&](const char* name) { return (folder.path / name).string(); };
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the cat sat on mat " + std::to_string(i) + " ";
  std::ofstream(path("words.txt")) << text;
  const Outcome trained =
      bhyt({"pretrain", "model.preset=tiny", "model.layers=2", "norm.method=bhyt", "data.train=" + path("words.txt"),
            "data.tokenizer=bytes", "data.seq_len=32", "train.batch=4", "train.steps=4", "run.dir=" + path("run"), "device=cpu"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::vector<std::string> on{"--model", path("run"), "--data", path("words.txt"), "--tokens", "128", "--json", "device=cpu"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), on.begin(), on.end());
    return bhyt(words);
  };
  const Outcome theory = with({"analyze", "theory"});
  ASSERT_EQ(theory.code, 0) << theory.err;
  const Json t = Json::parse(theory.out);
  for (const Json& s : t.at("statements")) {
    EXPECT_TRUE(s.contains("on_model")) << s.at("id");
    EXPECT_EQ(s.at("on_model").at("failed"), 0) << s.dump(1);
  }
  // 4 rows of the 32 tokens that it was trained with, 2 layers; the second site is approximated.
  EXPECT_EQ(t.at("statements")[0].at("on_model").at("checks"), 256);
  EXPECT_EQ(t.at("statements")[0].at("on_model").at("beyond"), 256);

  const Outcome depth = with({"analyze", "depth", "--layers", "6", "--bound", "2.5"});
  ASSERT_EQ(depth.code, 0) << depth.err;
  const Json d = Json::parse(depth.out);
  EXPECT_EQ(d.at("measured").size(), 2u);
  EXPECT_EQ(d.at("profile").at("measured").size(), 3u);
  EXPECT_EQ(d.at("predicted").at("rmsnorm").size(), 7u);
  EXPECT_EQ(d.at("bound"), 2.5);
  EXPECT_LT(d.at("error").at("own_worst"), 0.2);

  // Mistakes.
  EXPECT_EQ(bhyt({"analyze", "theory", "--model", path("run")}).code, 2);
  EXPECT_EQ(bhyt({"analyze", "depth", "--data", path("words.txt")}).code, 2);
  std::ofstream(path("short.txt")) << "too short";
  const Outcome brief = bhyt({"analyze", "theory", "--model", path("run"), "--data", path("short.txt"), "device=cpu"});
  EXPECT_EQ(brief.code, 2);
  EXPECT_TRUE(has(brief.err, "which is less than a row of 32")) << brief.err;
  EXPECT_EQ(with({"analyze", "depth", "--bound", "-1"}).code, 2);
  EXPECT_EQ(with({"analyze", "depth", "--seq-len", "1000000"}).code, 2);
}

TEST(AnalyzeDepth, MeasuresANewModel) {
  const Outcome o = bhyt(
      {"analyze", "depth", "--layers", "24", "--tokens", "64", "--seq-len", "32", "model.preset=tiny", "norm.method=lns", "device=cpu"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(has(o.out, "a new tiny (lns, 4 layers), 2 rows of 32 tokens")) << o.out;
  EXPECT_TRUE(has(o.out, "24 layers, each method as it begins")) << o.out;
  EXPECT_TRUE(has(o.out, "1/√L is 0.204")) << o.out;
  EXPECT_EQ(bhyt({"analyze", "depth", "model.presett=tiny"}).code, 2);
}

TEST(AnalyzeToy, WritesItsFiguresAndNumbers) {
  const TempFolder folder;
  const Outcome o =
      bhyt({"analyze", "toy", "--dim", "64", "--layers", "6", "--seeds", "1", "--json", "--svg", (folder.path / "figures").string()});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j.at("profiles")[0].at("variance").size(), 7u);
  EXPECT_TRUE(has(read_text(folder.path / "figures" / "toy.svg"), "bhyt λ=2"));
  EXPECT_TRUE(has(read_text(folder.path / "figures" / "toy_methods.svg"), ">peri<"));
  const Outcome again = bhyt({"analyze", "toy", "--dim", "64", "--layers", "6", "--seeds", "1", "--json", "threads=1"});
  EXPECT_EQ(again.out, o.out);
  EXPECT_EQ(bhyt({"analyze", "toy", "--dim", "1"}).code, 2);
  EXPECT_EQ(bhyt({"analyze", "nonsense"}).code, 2);
}

TEST(BenchNormCalls, CountsEveryCallOfAForward) {
  const Outcome o =
      bhyt({"bench", "norm-calls", "--json", "--reps", "1", "--sequences", "8,16", "model.preset=tiny", "dtype=fp32", "device=cpu"});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json j = Json::parse(o.out);
  const auto find = [&](const std::string& method, int sequence) {
    for (const Json& r : j)
      if (r.at("method") == method && r.at("sequence") == sequence) return r;
    return Json();
  };
  // tiny: 4 blocks, d 128. Two sites each and the last norm; the first call has nothing to add.
  const Json rms = find("rmsnorm", 16), bhyt_row = find("bhyt", 16), peri = find("peri", 8);
  EXPECT_EQ(rms.at("calls"), 9);
  EXPECT_EQ(rms.at("statistics"), 9);
  EXPECT_EQ(rms.at("bytes"), (2 + 8 * 4) * 16 * 128 * 4);
  EXPECT_EQ(bhyt_row.at("calls"), 9);
  EXPECT_EQ(bhyt_row.at("statistics"), 5);
  EXPECT_EQ(find("bhyt_exact", 16).at("statistics"), 9);
  EXPECT_EQ(find("dyt", 16).at("statistics"), 0);
  EXPECT_EQ(peri.at("calls"), 17);
  // Peri's output norms read and write once each.
  EXPECT_EQ(peri.at("bytes").get<std::int64_t>() * 2 * (2 + 8 * 4), rms.at("bytes").get<std::int64_t>() * (2 + 8 * 4 + 8 * 2));
  EXPECT_GT(rms.at("gb_s"), 0);
  EXPECT_GT(rms.at("fraction"), 0);
  const Outcome one = bhyt({"bench", "norm-calls", "--json", "--reps", "1", "data.seq_len=24", "norm.method=bhyt", "model.preset=tiny",
                            "dtype=fp32", "device=cpu"});
  const Json only = Json::parse(one.out);
  ASSERT_EQ(only.size(), 1u);
  EXPECT_EQ(only[0].at("sequence"), 24);
  EXPECT_EQ(bhyt({"bench", "norm", "--sequences", "8"}).code, 2);
}

}  // namespace
}  // namespace bhyt::test
