// Run directories and their checkpoints.
#include "train/run_dir.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <functional>

#include "core/error.h"
#include "tests/train/helpers.h"

namespace bhyt::train {
namespace {

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void fill(const fs::path& dir) {
  write_synced(dir / "a.bin", std::string(1000, 'a'));
  write_synced(dir / "optimizer.bin", "moments");
}

TEST(RunDir, IsLockedWhileOpen) {
  const Folder tmp;
  {
    const RunDir first(tmp.path / "deep" / "run");
    EXPECT_EQ(message_of([&] { RunDir second(tmp.path / "deep" / "run"); }),
              fmt::format("the run directory {} is being written by another process", (tmp.path / "deep" / "run").string()));
  }
  const RunDir again(tmp.path / "deep" / "run");
}

TEST(RunDir, SaysWhyItCannotBeMade) {
  const Folder tmp;
  write_synced(tmp.path / "file", "x");
  EXPECT_NE(message_of([&] { RunDir d(tmp.path / "file" / "run"); }).find("could not make the run directory"), std::string::npos);
  EXPECT_NE(message_of([&] { RunDir d(tmp.path / "file"); }).find("could not make the run directory"), std::string::npos);
}

TEST(RunDir, CheckpointsAreListedNewestFirst) {
  const Folder tmp;
  RunDir dir(tmp.path / "run");
  EXPECT_FALSE(dir.holds_run());
  for (int step : {9, 100, 20}) dir.write_checkpoint(step, fill);
  fs::create_directory(dir.path() / "checkpoint-x");
  write_synced(dir.path() / "checkpoint-7", "a file, no checkpoint");
  EXPECT_EQ(dir.checkpoints(), (std::vector<std::int64_t>{100, 20, 9}));
  EXPECT_TRUE(dir.holds_run());
  dir.remove_checkpoint(20);
  EXPECT_EQ(dir.checkpoints(), (std::vector<std::int64_t>{100, 9}));
}

TEST(RunDir, AFailedSaveLeavesNothingAndTouchesNothing) {
  const Folder tmp;
  RunDir dir(tmp.path / "run");
  dir.write_checkpoint(1, fill);
  const auto broken = [](const fs::path& to) {
    fill(to);
    throw Error("no space left");
  };
  EXPECT_EQ(message_of([&] { dir.write_checkpoint(2, broken); }),
            fmt::format("could not save {}: no space left (earlier checkpoints are untouched)", dir.checkpoint(2).string()));
  EXPECT_NE(message_of([&] { dir.write_checkpoint(1, broken); }), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
  EXPECT_EQ(verify_manifest(dir.checkpoint(1)), "");
}

// What happens to a name in a folder, in order: it goes, or something comes in its place.
std::vector<std::string> moves_of(const std::string& name, const fs::path& dir, const std::function<void()>& f) {
  const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  inotify_add_watch(watch, dir.c_str(), IN_MOVE | IN_DELETE);
  f();
  alignas(inotify_event) char events[8192];
  const ssize_t bytes = ::read(watch, events, sizeof events);
  close(watch);
  std::vector<std::string> moves;
  for (ssize_t at = 0; at < bytes;) {
    const auto* e = reinterpret_cast<const inotify_event*>(events + at);
    at += static_cast<ssize_t>(sizeof *e) + e->len;
    if (e->len && e->name == name) moves.push_back(e->mask & IN_MOVED_TO ? "comes" : "goes");
  }
  return moves;
}

// The new one stands in the old one's place before that is gone: a crash in between leaves one of them.
TEST(RunDir, ACheckpointMadeAgainChangesPlacesWithTheOldOne) {
  const Folder tmp;
  RunDir dir(tmp.path / "run");
  dir.write_checkpoint(3, fill);
  const auto again = [&] { dir.write_checkpoint(3, [](const fs::path& to) { write_synced(to / "a.bin", "new"); }); };
  const std::vector<std::string> moves = moves_of("checkpoint-3", dir.path(), again);
  EXPECT_EQ(read_text(dir.checkpoint(3) / "a.bin"), "new");
  EXPECT_FALSE(fs::exists(dir.checkpoint(3) / "optimizer.bin"));
  EXPECT_EQ(verify_manifest(dir.checkpoint(3)), "");
  EXPECT_EQ(files_in(dir.path()), std::vector<std::string>{"checkpoint-3"});
  ASSERT_FALSE(moves.empty());
  EXPECT_EQ(moves.front(), "comes");
}

TEST(RunDir, LeftoversAreCleared) {
  const Folder tmp;
  fs::create_directories(tmp.path / "run" / "tmp-checkpoint-5");
  write_synced(tmp.path / "run" / "tmp-checkpoint-5" / "half", "x");
  fs::create_directories(tmp.path / "run" / "tmp-mine");
  const RunDir dir(tmp.path / "run");
  EXPECT_FALSE(fs::exists(tmp.path / "run" / "tmp-checkpoint-5"));
  EXPECT_TRUE(fs::exists(tmp.path / "run" / "tmp-mine"));  // not ours
  EXPECT_TRUE(dir.checkpoints().empty());
}

TEST(RunDir, DamageIsSeenAndNamed) {
  const Folder tmp;
  RunDir dir(tmp.path / "run");
  const fs::path at = dir.checkpoint(3);
  const auto fresh = [&] { dir.write_checkpoint(3, fill); };
  fresh();
  EXPECT_EQ(verify_manifest(at), "");
  cut_file(at / "a.bin", 999);
  EXPECT_EQ(verify_manifest(at), "a.bin has 999 bytes instead of 1000");
  fresh();
  std::string damaged(1000, 'a');
  damaged.back() = 'b';
  write_synced(at / "a.bin", damaged);
  EXPECT_EQ(verify_manifest(at), "a.bin is damaged (its checksum differs)");
  fresh();
  fs::remove(at / "optimizer.bin");
  EXPECT_EQ(verify_manifest(at), "optimizer.bin is missing");
  fresh();
  const std::string deep = "{\"x\":" + std::string(50000, '[') + std::string(50000, ']') + ",\"version\":1,\"files\":{}}";
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string(R"({"version": 1, "files": 3})"),
                                  std::string(R"({"version": 1, "files": {"a.bin": {}}})"), std::string(R"({"files": {}})"), deep}) {
    write_synced(at / "manifest.json", text);
    EXPECT_EQ(verify_manifest(at), "manifest.json is damaged") << text.substr(0, 80);
  }
  remove_listed(at, {"a.bin"});  // damaged: left as it is
  EXPECT_TRUE(fs::exists(at / "a.bin"));
  write_synced(at / "manifest.json", R"({"version": 9, "files": {}})");
  EXPECT_EQ(verify_manifest(at), "manifest.json has version 9, expected 2 or 1");
  fs::remove(at / "manifest.json");
  EXPECT_EQ(verify_manifest(at), "it has no manifest.json");
}

TEST(RunDir, ManifestsOfVersion1AreStillCompared) {
  const Folder tmp;
  RunDir dir(tmp.path / "run");
  const fs::path at = dir.checkpoint(3);
  dir.write_checkpoint(3, [](const fs::path& to) { write_synced(to / "a.bin", "abc"); });
  const Json now = Json::parse(read_text(at / "manifest.json"));
  EXPECT_EQ(now["version"], 2);
  EXPECT_FALSE(now["files"]["a.bin"].contains("xxh64"));
  write_synced(at / "manifest.json", R"({"version": 1, "files": {"a.bin": {"bytes": 3, "xxh64": "44bc2cf5ad770999"}}})");
  EXPECT_EQ(verify_manifest(at), "");
  write_synced(at / "a.bin", "abd");
  EXPECT_EQ(verify_manifest(at), "a.bin is damaged (its checksum differs)");
  write_synced(at / "manifest.json", R"({"version": 1, "files": {"a.bin": {"bytes": 3, "xxh64_pieces": "44bc2cf5ad770999"}}})");
  EXPECT_EQ(verify_manifest(at), "manifest.json is damaged");
}

TEST(RunDir, WhatAModelIsReadFromMustBeListed) {
  const Folder tmp;
  RunDir dir(tmp.path / "run");
  const fs::path at = dir.checkpoint(3);
  const std::vector<std::string> files = {"adapter_config.json", "adapter_model.safetensors",        "config.json",
                                          "model.safetensors",   "model-00001-of-00002.safetensors", "model.safetensors.index.json",
                                          "trainer_state.json"};
  dir.write_checkpoint(3, [&](const fs::path& to) {
    for (const std::string& file : files) write_synced(to / file, "x");
  });
  const auto manifest = Json::parse(read_text(at / "manifest.json"));
  for (const std::string& file : files) {
    Json without = manifest;
    without["files"].erase(file);
    write_synced(at / "manifest.json", without.dump());
    EXPECT_EQ(verify_manifest(at), "manifest.json does not list " + file);
    EXPECT_EQ(verify_manifest(at, [&](const std::string& name) { return name != file; }), "");  // nobody asks for it
  }
  write_synced(at / "manifest.json", R"({"version": 1, "files": {}})");
  EXPECT_EQ(verify_manifest(at), "manifest.json does not list adapter_config.json");
  write_synced(at / "manifest.json", manifest.dump());
  // What else was put there, and optimizer state that a killed process was about to remove.
  for (const char* other : {"notes.txt", "tokenizer.json", "model_card.json", "optimizer.safetensors"}) write_synced(at / other, "x");
  EXPECT_EQ(verify_manifest(at), "");
}

TEST(RunDir, AFileCanLeaveACheckpoint) {
  const Folder tmp;
  RunDir dir(tmp.path / "run");
  dir.write_checkpoint(3, fill);
  remove_listed(dir.checkpoint(3), {"optimizer.bin"});
  remove_listed(dir.checkpoint(3), {"optimizer.bin"});
  EXPECT_FALSE(fs::exists(dir.checkpoint(3) / "optimizer.bin"));
  EXPECT_EQ(verify_manifest(dir.checkpoint(3)), "");
}

TEST(RunDir, AHalfRemovedSetOfOptimizerStateIsNoticed) {
  const Folder tmp;
  const auto holds = [&](const std::vector<std::string>& names) {
    const fs::path dir = tmp.path / "checkpoint";
    fs::remove_all(dir);
    fs::create_directory(dir);
    for (const std::string& name : names) write_synced(dir / name, "x");
    return incomplete_optimizer(dir);
  };
  const auto shard = [](int rank, int ranks) { return fmt::format("optimizer-{}-of-{}.safetensors", rank, ranks); };
  EXPECT_EQ(holds({}), "");
  EXPECT_EQ(holds({"model.safetensors"}), "");
  EXPECT_EQ(holds({"optimizer.safetensors"}), "");
  EXPECT_EQ(holds({shard(1, 2), shard(2, 2)}), "");
  EXPECT_EQ(holds({shard(1, 1)}), "optimizer.safetensors is missing");  // no program writes that
  EXPECT_EQ(holds({shard(2, 3), shard(3, 3)}), shard(1, 3) + " is missing");
  EXPECT_EQ(holds({shard(1, 3), shard(3, 3)}), shard(2, 3) + " is missing");
  EXPECT_EQ(holds({shard(1, 3), shard(2, 3)}), shard(3, 3) + " is missing");
  EXPECT_EQ(holds({shard(1, 1000000)}), shard(2, 1000000) + " is missing");
  EXPECT_NE(holds({"optimizer.safetensors", shard(1, 2), shard(2, 2)}), "");
  EXPECT_NE(holds({shard(1, 0)}), "");
  std::vector<std::string> many;
  for (int rank = 1; rank <= 12; ++rank) many.push_back(shard(rank, 12));
  EXPECT_EQ(holds(many), "");
}

TEST(RunDir, AFailedStartLeavesWhatWasThere) {
  const Folder tmp;
  const fs::path deep = tmp.path / "new" / "deeper" / "run";
  {
    const RunDir dir(deep);
    write_synced(deep / "log.txt", "x");
  }
  EXPECT_FALSE(fs::exists(tmp.path / "new"));
  fs::create_directories(tmp.path / "new" / "empty");
  {
    const RunDir dir(tmp.path / "new" / "empty");
    write_synced(dir.path() / "log.txt", "x");
  }
  EXPECT_TRUE(fs::is_empty(tmp.path / "new" / "empty"));
  write_synced(tmp.path / "new" / "mine", "x");
  for (const char* name : {"new", "kept"}) {
    RunDir dir(tmp.path / name);
    write_synced(dir.path() / "log.txt", "x");
    if (std::string(name) == "kept") dir.keep();
  }
  EXPECT_TRUE(fs::exists(tmp.path / "new" / "mine"));
  EXPECT_TRUE(fs::exists(tmp.path / "new" / "log.txt"));
  EXPECT_TRUE(fs::exists(tmp.path / "kept" / "log.txt"));
}

}  // namespace
}  // namespace bhyt::train
