// What the tests of bhyt pretrain share: a text to train on, a tiny run, and the comparison of two runs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace bhyt::test {

using Json = nlohmann::json;

inline void write_text(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

// Texts to train on, a cache of their own, and the words of a tiny run. In memory where there is such a place: saving syncs a lot.
struct Place : TemporaryFolder {
  explicit Place(bool on_disk = false) : TemporaryFolder(on_disk ? On::disk : On::memory) {
    std::string text;
    for (int i = 0; i < 900; ++i) text += fmt::format("{} sheep jump over {} fences, one after the other\n", i * 7 % 100, i % 13);
    write_text(path / "text.txt", text);
    setenv("BHYT_CACHE", (path / "cache").c_str(), 1);
  }
  ~Place() { unsetenv("BHYT_CACHE"); }

  Words run(const std::string& dir, const Words& more = {}) const {
    const std::string text = (path / "text.txt").string();
    return Words{"pretrain",
                 "model.d=32",
                 "model.layers=2",
                 "model.heads=4",
                 "model.kv_heads=2",
                 "model.mlp=48",
                 "data.seq_len=32",
                 "train.batch=6",
                 "train.steps=40",
                 "train.lr=3e-3",
                 "train.log_every=3",
                 "train.eval_every=7",
                 "train.save_every=3",
                 "train.eval_batches=2",
                 "norm.refresh=4",
                 "threads=1",
                 "data.train=" + text,
                 "data.valid=" + text,
                 "run.dir=" + (path / dir).string()} +
           more;
  }
};

inline Words names_in(const fs::path& dir, const std::string& prefix = "") {
  Words names;
  std::error_code gone;
  for (fs::directory_iterator it(dir, gone), end; !gone && it != end; it.increment(gone))
    if (it->path().filename().string().starts_with(prefix)) names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::vector<Json> metrics_of(const fs::path& run) {
  std::vector<Json> out;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line) && !in.eof();) {  // the last one may be under way
    out.push_back(Json::parse(line));
    for (const char* key : {"time", "tok_s", "step_ms", "mfu"}) out.back().erase(key);
  }
  return out;
}

inline std::int64_t newest_checkpoint(const fs::path& run) {
  std::int64_t newest = 0;
  for (const std::string& name : names_in(run, "checkpoint-")) newest = std::max<std::int64_t>(newest, std::stoll(name.substr(11)));
  return newest;
}

// Steps that a killed run had done and not saved.
inline std::int64_t lost_steps(const fs::path& run) {
  const auto lines = metrics_of(run);
  return lines.empty() ? 0 : lines.back()["step"].get<std::int64_t>() - newest_checkpoint(run);
}

inline void expect_same_runs(const fs::path& a, const fs::path& b) {
  ASSERT_EQ(names_in(a, "checkpoint-"), names_in(b, "checkpoint-"));
  ASSERT_FALSE(names_in(a, "checkpoint-").empty());
  EXPECT_EQ(names_in(b, "tmp-"), Words{});
  for (const std::string& name : names_in(a, "checkpoint-")) {
    ASSERT_EQ(names_in(a / name), names_in(b / name));
    for (const std::string& file : names_in(a / name))
      EXPECT_TRUE(read_text(a / name / file) == read_text(b / name / file)) << name << "/" << file;
  }
  const auto ma = metrics_of(a), mb = metrics_of(b);
  ASSERT_EQ(ma.size(), mb.size());
  for (std::size_t i = 0; i < ma.size(); ++i) EXPECT_EQ(ma[i].dump(), mb[i].dump());
  // TensorBoard: as many bytes of records, whatever the clock wrote into them.
  const auto events = [](const fs::path& run) { return fs::file_size(run / names_in(run, "events.out.tfevents.").at(0)); };
  EXPECT_EQ(names_in(b, "events.out.tfevents.").size(), 1u);
  EXPECT_EQ(events(a), events(b));
}

inline bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  ADD_FAILURE() << "expected \"" << part << "\" in \"" << text << "\"";
  return false;
}

}  // namespace bhyt::test
