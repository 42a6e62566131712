// Examples against what LLaMA-Factory makes of the same records.
#include "data/examples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "data/bytes_in.h"
#include "tests/data/sha256.h"
#include "tests/data/test_util.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

ChatFormat::Turn turn(int source, int target, int from = 0) {
  ChatFormat::Turn t;
  for (int i = 0; i < source; ++i) t.source.push_back(from + i);
  for (int i = 0; i < target; ++i) t.target.push_back(from + 100 + i);
  return t;
}

// How many of source and target are left in a row of n.
std::pair<int, int> left(int source, int target, int n) {
  const std::vector<ChatFormat::Turn> turns{turn(source, target)};
  bool cut = false;
  const Example e = make_example(0, turns, {.seq_len = n}, &cut);
  const auto t = static_cast<int>(std::ranges::count_if(e.ids, [](int id) { return id >= 100; })), s = static_cast<int>(e.ids.size()) - t;
  EXPECT_EQ(cut, s < source || t < target);
  EXPECT_TRUE(std::equal(e.ids.begin(), e.ids.begin() + s, turns[0].source.begin()));
  EXPECT_TRUE(std::equal(e.ids.begin() + s, e.ids.end(), turns[0].target.begin()));
  return {s, t};
}

TEST(Examples, SourceAndTargetShareTheRoom) {
  using P = std::pair<int, int>;
  EXPECT_EQ(left(5, 5, 10), (P{5, 5}));
  EXPECT_EQ(left(5, 5, 9), (P{5, 4}));    // 2·5 ≥ 9 both: ⌊9·½⌋ = 4 for the target
  EXPECT_EQ(left(20, 4, 9), (P{5, 4}));   // a short target stays whole
  EXPECT_EQ(left(20, 5, 10), (P{8, 2}));  // 2·5 is not below 10
  EXPECT_EQ(left(4, 20, 9), (P{4, 5}));   // a short source stays whole
  EXPECT_EQ(left(5, 20, 10), (P{2, 8}));  // ⌊10·0.8⌋ = 8
  EXPECT_EQ(left(49, 51, 100), (P{49, 51}));
  EXPECT_EQ(left(9, 1, 1), (P{1, 0}));
  EXPECT_EQ(left(0, 3, 1), (P{0, 1}));
  EXPECT_EQ(left(14, 30, 22), (P{8, 14}));  // in doubles 22·(30/44) is just below 15
  for (int n = 1; n < 60; ++n)
    for (int s = 0; s < 40; ++s)
      for (int t = 1; t < 40; ++t) {
        const auto [a, b] = left(s, t, n);
        ASSERT_LE(a + b, n);
        ASSERT_EQ(a + b, std::min(n, s + t)) << s << " " << t << " " << n;
      }
}

TEST(Examples, LaterTurnsTakeWhatIsLeft) {
  const std::vector<ChatFormat::Turn> turns{turn(2, 2), turn(2, 2, 10), turn(2, 2, 20)};
  bool cut = true;
  const Example whole = make_example(3, turns, {.seq_len = 12}, &cut);
  EXPECT_FALSE(cut);
  EXPECT_EQ(whole.index, 3);
  EXPECT_EQ(whole.ids, (Ids{0, 1, 100, 101, 10, 11, 110, 111, 20, 21, 120, 121}));
  const int m = kNotScored;
  EXPECT_EQ(whole.labels, (Ids{m, m, 100, 101, m, m, 110, 111, m, m, 120, 121}));
  EXPECT_EQ(scored_tokens(whole), 6);
  const Example some = make_example(3, turns, {.seq_len = 8}, &cut);
  EXPECT_TRUE(cut);
  EXPECT_EQ(some.ids, Ids(whole.ids.begin(), whole.ids.begin() + 8));
  const Example all = make_example(3, turns, {.seq_len = 12, .mask_prompt = false});
  EXPECT_EQ(all.labels, all.ids);
  EXPECT_EQ(scored_tokens(all), 11);  // nothing comes before the first
}

class ExampleFiles : public ::testing::Test {
 protected:
  ExampleSet read(const std::string& text, const ExampleOptions& options = {}) {
    test::write_file(dir_ / "a.jsonl", text);
    Threads threads(3);
    return read_examples(threads, dir_ / "a.jsonl", format_, options);
  }
  static std::string record(const std::string& user, const std::string& answer) {
    return Json{{"instruction", user}, {"output", answer}}.dump() + "\n";
  }
  test::TempDir dir_;
  std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
  ChatFormat format_{find_chat_template("default"), *bytes_};
};

TEST_F(ExampleFiles, InOrderWithCounts) {
  std::string text;
  for (int i = 0; i < 2500; ++i) text += i % 10 == 7 ? "{}\n" : record(std::to_string(i), "yes");
  const ExampleSet set = read(text, {.seq_len = 27});
  const ExampleSummary& s = set.summary;
  EXPECT_EQ(s.records, 2500);
  EXPECT_EQ(s.kept, 2250);
  ASSERT_EQ(set.examples.size(), 2250u);
  EXPECT_EQ(s.dropped_count(), 250);
  const auto& dropped = s.dropped[static_cast<std::size_t>(Drop::unknown_fields)];
  EXPECT_EQ(dropped.count, 250);
  ASSERT_EQ(dropped.first.size(), 3u);
  EXPECT_EQ(dropped.first[1].index, 17);
  EXPECT_EQ(dropped.first[1].line, 18);
  std::int64_t tokens = 0, scored = 0, cut = 0;
  for (std::size_t i = 0; i < set.examples.size(); ++i) {
    const Example& e = set.examples[i];
    ASSERT_TRUE(i == 0 || set.examples[i - 1].index < e.index);
    const std::string text_of = "Human: " + std::to_string(e.index) + "<|endoftext|>\nAssistant:";
    const std::size_t source = std::size("Human: \nAssistant:") - 1 + 1 + std::to_string(e.index).size();
    if (source + 5 <= 27) {
      ASSERT_EQ(bytes_->decode(e.ids, true), text_of + "yes<|endoftext|>\n");
    }
    cut += source + 5 > 27;
    tokens += std::ssize(e.ids);
    scored += scored_tokens(e);
    ASSERT_EQ(s.lengths[i], std::ssize(e.ids));
  }
  EXPECT_EQ(s.tokens, tokens);
  EXPECT_EQ(s.scored, scored);
  EXPECT_EQ(s.cut, cut);
  EXPECT_GT(cut, 1000);
}

TEST_F(ExampleFiles, FingerprintsTellWhatIsShared) {
  const auto a = read(record("one", "1") + record("two", "2") + record("two", "2")).summary.fingerprints;
  const auto b = read(record("three", "3") + record("two", "2") + record("two", "3")).summary.fingerprints;
  EXPECT_EQ(count_shared(b, a), 1);
  EXPECT_EQ(count_shared(a, b), 2);
  EXPECT_EQ(count_shared({}, a), 0);
}

TEST_F(ExampleFiles, NothingToLearnFromIsRefused) {
  EXPECT_HAS(test::message_of<UsageError>([&] { read("\n"); }), "holds no records");
  EXPECT_HAS(test::message_of<UsageError>([&] { read("{}\n7\n"); }), "all of its 2 records are dropped");
  EXPECT_HAS(test::message_of<UsageError>([&] { read(record("a long question", "a"), {.seq_len = 1}); }),
             "none of the 1 tokens of its 1 examples is scored");
  EXPECT_HAS(test::message_of<Error>([&] { read(record("a", "b") + "{\n"); }), "a.jsonl, record 1, line 2: bad JSON");
  const ExampleSet some = read(record(std::string(500, 'x'), "") + record("a", std::string(100, 'b')), {.seq_len = 4});
  EXPECT_EQ(some.summary.unscored, 1);
}

// What follows needs GPT-2's and Llama-3's vocabularies and what the reference gave with them.
class ExampleGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("BHYT_DATA");
    if (!data) GTEST_SKIP() << "BHYT_DATA is not set";
    data_ = data;
    tokenize_ = data_.parent_path() / "fixtures" / "sft" / "tokenize";
  }
  const Tokenizer& tokenizer(const std::string& name) {
    static std::map<std::string, std::unique_ptr<Tokenizer>> all;
    if (!all[name]) all[name] = load_tokenizer((data_ / "tokenizers" / name).string());
    return *all[name];
  }
  fs::path data_, tokenize_;
  Threads threads_;
};

TEST_F(ExampleGolden, EveryRecordTemplateAndLength) {
  int seen = 0, dropped = 0;
  for (const char* name : {"gpt2", "llama3"}) {
    std::map<std::tuple<std::string, std::string, int, bool>, std::map<std::int64_t, Example>> made;
    InputBytes lines({.path = (tokenize_ / "expected" / (std::string(name) + ".jsonl.gz")).string(), .compression = Compression::gzip});
    for (std::string line; lines.line(line);) {
      const Json want = Json::parse(line);
      const std::tuple key{want["file"].get<std::string>(), want["template"].get<std::string>(), want["seq_len"].get<int>(),
                           want["mask_prompt"].get<bool>()};
      if (!made.contains(key)) {
        const ChatFormat format(find_chat_template(std::get<1>(key)), tokenizer(name));
        auto& examples = made[key];
        for (Example& e : read_examples(threads_, (tokenize_ / "records" / std::get<0>(key)).string(), format,
                                        {.seq_len = std::get<2>(key), .mask_prompt = std::get<3>(key)})
                              .examples)
          examples[e.index] = std::move(e);
      }
      const auto& examples = made[key];
      const auto found = examples.find(want["index"]);
      if (want.contains("dropped")) {
        EXPECT_EQ(found, examples.end()) << line;
        ++dropped;
        continue;
      }
      ASSERT_NE(found, examples.end()) << line;
      EXPECT_EQ(Json(found->second.ids), want["input_ids"]) << name << " " << line.substr(0, 120);
      EXPECT_EQ(Json(found->second.labels), want["labels"]) << name << " " << line.substr(0, 120);
      ++seen;
    }
  }
  EXPECT_GT(seen, 500);
  EXPECT_GT(dropped, 40);
}

TEST_F(ExampleGolden, WholeDataSetsByTheirDigests) {
  for (const Json& want : Json::parse(test::read_file((tokenize_ / "digests.json").string()))) {
    const ChatFormat format(find_chat_template(want["template"].get<std::string>()), tokenizer(want["tokenizer"]));
    test::Sha256 hash;
    const auto add = [&](const Ids& ids) { hash.update(ids.data(), ids.size() * sizeof(std::int32_t)); };
    const auto summary = for_each_example(threads_, (data_ / "sft" / want["file"].get<std::string>()).string(), format,
                                          {.seq_len = want["seq_len"]}, [&](Example&& e) {
                                            add({static_cast<std::int32_t>(e.ids.size())});
                                            add(e.ids);
                                            add(e.labels);
                                          });
    EXPECT_EQ(summary.kept, want["examples"]) << want;
    EXPECT_EQ(summary.tokens, want["tokens"]) << want;
    EXPECT_EQ(summary.scored, want["scored"]) << want;
    EXPECT_EQ(std::ranges::count(summary.lengths, want["seq_len"].get<int>()), want["full_length"]) << want;
    EXPECT_EQ(Json(hash.hex()), want["sha256"]) << want;
  }
}

}  // namespace
}  // namespace bhyt
