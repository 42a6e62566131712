#include "data/kept_tokenizer.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "data/pack.h"
#include "test_util.h"
#include "tests/text/small_tokenizer.h"

namespace bhyt {
namespace {

using namespace test;
namespace fs = std::filesystem;

// A token file in a folder of its own, packed with a tokenizer that no file holds; the cache is elsewhere and empty.
class Kept : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("BHYT_CACHE", (dir / "cache").c_str(), 1);
    write_file(dir / "a.txt", "hello hello aaaa");
    pack(*tokenizer, {.out = file, .inputs = {dir / "a.txt"}, .progress = false});
  }
  void TearDown() override { unsetenv("BHYT_CACHE"); }
  KeptTokenizer find(const std::string& at) const { return find_tokenizer(at, TokenFile(at).info().meta); }

  const TempDir dir;
  const std::unique_ptr<Tokenizer> tokenizer = parse_tokenizer_json(small_json().dump());
  const std::string file = dir / "d/a.tok", folder = dir / "d/" + fmt::format("tokenizer-{:016x}", tokenizer->fingerprint());
};

TEST_F(Kept, LiesBesideTheTokenFile) {
  const KeptTokenizer kept = find(file);
  ASSERT_TRUE(kept.tokenizer);
  EXPECT_EQ(kept.at, folder);
  EXPECT_EQ(kept.tokenizer->encode("hello you"), tokenizer->encode("hello you"));
  const auto written = fs::last_write_time(folder + "/tokenizer.json");
  pack(*tokenizer, {.out = dir / "d/b.tok", .inputs = {dir / "a.txt"}, .progress = false});
  EXPECT_EQ(fs::last_write_time(folder + "/tokenizer.json"), written);  // one for both
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "d"), fs::directory_iterator()), 3);
}

TEST_F(Kept, SurvivesAMoveOfTheFolderAndIsFoundWhereALinkLeads) {
  fs::rename(dir / "d", dir / "moved");
  EXPECT_TRUE(find(dir / "moved/a.tok").tokenizer);
  fs::create_symlink(dir / "moved/a.tok", dir / "link.tok");
  EXPECT_TRUE(find(dir / "link.tok").tokenizer);
  fs::rename(dir / "moved/a.tok", dir / "lone.tok");
  EXPECT_FALSE(find(dir / "lone.tok").tokenizer);
  keep_tokenizer(*tokenizer, dir / "cache");
  EXPECT_TRUE(find(dir / "lone.tok").tokenizer);
}

TEST_F(Kept, GoesAlongWhenTheFileIsConverted) {
  convert_tokens(file, dir / "shards/a.bin", TokenFormat::llmc_gpt2);
  EXPECT_TRUE(find(dir / "shards/a.bin").tokenizer);
  write_file(dir / "taken/a_000001.bin", "mine");  // refused: then nothing is left there
  EXPECT_HAS(message_of([&] { convert_tokens(file, dir / "taken/a.bin", TokenFormat::llmc_gpt2, 2); }), "a_000001.bin already exists");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "taken"), fs::directory_iterator()), 1);
}

TEST_F(Kept, MustBeTheOneThatItsNameSays) {
  const auto passed_over = [&](const std::string& json) {
    write_file(folder + "/tokenizer.json", json);
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(find(file).tokenizer);
    return ::testing::internal::GetCapturedStderr();
  };
  auto other = small_json();
  other["added_tokens"].push_back(added_token(265, "<|more|>"));
  const std::string wrong = passed_over(other.dump()), damaged = passed_over("{");
  EXPECT_HAS(wrong, "holds another tokenizer (bpe, ");
  EXPECT_HAS(damaged, folder + "/tokenizer.json");
}

// The next file that is packed with it brings it back, and leaves nothing else beside.
TEST_F(Kept, ADamagedOneIsMadeAnew) {
  const std::string good = read_file(folder + "/tokenizer.json");
  for (const char* damage : {"{", ""}) {
    write_file(folder + "/tokenizer.json", damage);
    pack(*tokenizer, {.out = dir / "d/b.tok", .inputs = {dir / "a.txt"}, .progress = false});
    EXPECT_EQ(read_file(folder + "/tokenizer.json"), good);
    EXPECT_TRUE(find(file).tokenizer);
    EXPECT_EQ(std::distance(fs::directory_iterator(dir / "d"), fs::directory_iterator()), 3);  // a.tok, b.tok and the tokenizer
  }
}

TEST_F(Kept, BytesAreBuiltInAndSomeFilesNameNone) {
  const auto bytes = make_byte_tokenizer();
  pack(*bytes, {.out = dir / "bytes/a.tok", .inputs = {dir / "a.txt"}, .progress = false});
  EXPECT_EQ(find(dir / "bytes/a.tok").at, "built in");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "bytes"), fs::directory_iterator()), 1);
  EXPECT_FALSE(find_tokenizer(file, {.vocab = 300, .kind = "gpt2"}).tokenizer);
}

TEST_F(Kept, APlaceThatTakesNoneIsAnError) {
  write_file(dir / "file", "");
  EXPECT_HAS(message_of([&] { keep_tokenizer(*tokenizer, dir / "file"); }), "cannot write to");
}

}  // namespace
}  // namespace bhyt
