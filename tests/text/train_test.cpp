// Training gives the merges of Hugging Face's `tokenizers`, on any number of threads and in any order of texts.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "core/error.h"
#include "data/input.h"
#include "data/json_text.h"
#include "tests/text/fuzz_strings.h"
#include "text/train.h"

namespace bhyt {
namespace {

using Json = nlohmann::json;

Json trained_model(const Tokenizer& tokenizer) {
  const auto dir = std::filesystem::path(::testing::TempDir()) / "bhyt_trained";
  tokenizer.save(dir);
  Json model = Json::parse(test::read_file(dir / "tokenizer.json"))["model"];
  std::filesystem::remove_all(dir);
  return model;
}

TEST(Train, SmallTextsGiveTheMergesOfTokenizers) {
  const Json golden = test::golden_json("golden.json");
  for (const Json& c : golden["train"]["small"]) {
    BpeTrainer trainer({.vocab = c["vocab"].get<std::int64_t>()});
    for (const Json& text : c["texts"]) trainer.count(text.get<std::string>());
    const auto tokenizer = trainer.train();
    EXPECT_EQ(tokenizer->vocab_size(), c["tokens"].get<std::int64_t>()) << c["name"];
    EXPECT_EQ(trained_model(*tokenizer)["merges"], c["merges"]) << c["name"];
  }
}

TEST(Train, WikipediaGivesTheMergesOfTokenizers) {
  if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const auto stream = open_input(find_inputs({test::data_dir() + "/text/wikipedia_valid.jsonl.zst"}).at(0));
  std::string all;
  char buffer[1 << 16];
  for (std::size_t n = 0; (n = stream->read(buffer, sizeof buffer)) > 0;) all.append(buffer, n);

  const Json want = test::golden_json("golden.json")["train"]["wikipedia_valid"];
  BpeTrainer trainer({.vocab = want["vocab"].get<std::int64_t>()});
  JsonText json("text");
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view text;
    if (end > 0 && json.scan(rest.substr(0, end), text)) trainer.count(text);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const Json model = trained_model(*trainer.train());
  test::Checksum sum;
  for (const Json& m : model["merges"]) {
    const auto id = [&](const Json& piece) { return model["vocab"][piece.get<std::string>()].get<TokenId>(); };
    sum.add({id(m[0]), id(m[1])});
  }
  EXPECT_EQ(model["merges"].size(), want["merges"].get<std::size_t>());
  EXPECT_EQ(sum.value(), want["crc"].get<std::uint32_t>());
  const Json last(model["merges"].end() - 3, model["merges"].end());
  EXPECT_EQ(last, want["last"]);
}

TEST(Train, ThreadsAndOrderDoNotMatter) {
  const test::FuzzStrings strings;
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < 2000; ++i) texts.push_back(strings(i));
  BpeTrainer forward({.vocab = 1500}), backward({.vocab = 1500});
  for (const std::string& t : texts) forward.count(t);
  {
    std::vector<std::jthread> threads;
    for (std::size_t k = 0; k < 4; ++k)
      threads.emplace_back([&, k] {
        for (std::size_t i = texts.size(); i-- > 0;)
          if (i % 4 == k) backward.count(texts[i]);
      });
  }
  const auto a = forward.train(), b = backward.train();
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  EXPECT_EQ(a->vocab_size(), 1500);
  for (std::size_t i = 0; i < 200; ++i) EXPECT_EQ(a->decode(a->encode(texts[i], false)), texts[i]);
}

TEST(Train, SpecialTokensAndRoles) {
  BpeTrainer trainer({.vocab = 300});
  trainer.count("low lower lowest");
  const auto t = trainer.train();
  EXPECT_EQ(t->bos(), 0);
  EXPECT_EQ(t->end_of_text(), 1);
  EXPECT_EQ(t->encode("low<|eot_id|>").front(), 0);
  EXPECT_EQ(t->encode("low<|eot_id|>").back(), 4);
  EXPECT_LT(t->vocab_size(), 300);  // nothing was left to merge
}

TEST(Train, RefusesWhatCannotBe) {
  EXPECT_THROW(BpeTrainer({.vocab = 260}), UsageError);
  EXPECT_THROW(BpeTrainer({.vocab = std::int64_t{1} << 40}), UsageError);
  EXPECT_THROW(BpeTrainer({.vocab = 1000, .special = {"a", "a"}}), UsageError);
  EXPECT_THROW(BpeTrainer({.vocab = 1000, .special = {""}}), UsageError);
}

}  // namespace
}  // namespace bhyt
