// bhyt generate with text: every flag, where it stops, and what a long prompt gives, on a model that knows one sentence by heart.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "model/safetensors.h"
#include "tests/cli/one_sentence.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kSentence = "mary had a little lamb";
constexpr int kEndOfText = 256;  // of the byte tokenizer

class GenerateText : public KnowsOneSentence {
 public:
  static void SetUpTestSuite() { learn(kSentence, 32); }

 protected:
  static Json generate(const Words& more, const std::string& model = checkpoint()) {
    Words args = {"generate", "--model", model, "--json", "device=cpu", "threads=1"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome out = bhyt(args);
    EXPECT_EQ(out.code, 0) << out.err;
    return Json::parse(out.out, nullptr, false);
  }
  static Outcome run(const Words& more, const std::string& input = "", const std::string& model = checkpoint()) {
    Words args = {"generate", "--model", model, "device=cpu", "threads=1"};
    args.insert(args.end(), more.begin(), more.end());
    return bhyt(args, input);
  }
  static std::vector<Json> lines(const Outcome& out) {
    EXPECT_EQ(out.code, 0) << out.err;
    std::vector<Json> all;
    std::istringstream in(out.out);
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line, nullptr, false));
    return all;
  }
  static void expect_usage_error(const Words& more, const std::string& message) {
    const Outcome out = run(more);
    EXPECT_EQ(out.code, 2) << out.err;
    EXPECT_EQ(out.out, "");
    EXPECT_NE(out.err.find(message), std::string::npos) << out.err;
  }
  static std::string write(const std::string& name, const std::string& text) {
    std::ofstream(at(name), std::ios::binary) << text;
    return at(name);
  }
};

TEST_F(GenerateText, StopsAtTheEndOfTheText) {
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "40"});
  EXPECT_EQ(j["text"], " a little lamb");
  EXPECT_EQ(j["finish_reason"], "stop");
  EXPECT_EQ(j["ids"].size(), 14u);
  EXPECT_EQ(j["prompt_tokens"], 8);
  const Outcome plain =
      bhyt({"generate", "--model", checkpoint(), "--prompt", "mary had", "--max-tokens", "40", "device=cpu", "threads=1"});
  EXPECT_EQ(plain.out, " a little lamb\n");
}

TEST_F(GenerateText, GoesOnWhereItIsToldTo) {
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "40", "--ignore-eos"});
  EXPECT_EQ(j["finish_reason"], "length");
  ASSERT_EQ(j["ids"].size(), 40u);
  EXPECT_EQ(j["ids"][14], kEndOfText);
  const Json ids = generate({"--ids", "--prompt", "109 97 114 121 32 104 97 100", "--max-tokens", "40"});  // ids have no end of text
  EXPECT_EQ(ids["ids"], j["ids"]);
}

TEST_F(GenerateText, StopsAtTheLengthThatIsAsked) {
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "4"});
  EXPECT_EQ(j["text"], " a l");
  EXPECT_EQ(j["finish_reason"], "length");
}

TEST_F(GenerateText, StopsAtTheIdsThatTheCheckpointNames) {
  fs::copy(checkpoint(), at("stops"));
  Json config = Json::parse(read_text(at("stops/config.json")));
  config["eos_token_id"] = {static_cast<int>('b'), static_cast<int>('l')};
  std::ofstream(at("stops/config.json")) << config.dump();
  fs::remove(at("stops/manifest.json"));  // the change was meant
  const Json j = generate({"--prompt", "mary had", "--max-tokens", "40"}, at("stops"));
  EXPECT_EQ(j["text"], " a ");
  EXPECT_EQ(j["finish_reason"], "stop");
}

TEST_F(GenerateText, WithoutATokenizerSaysWhatNamesOne) {
  fs::copy(checkpoint(), at("bare"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "manifest.json"})
    fs::remove(at("bare/") + name);
  const Words words{"generate", "--model", at("bare"), "--prompt", "mary had", "device=cpu", "threads=1"};
  const Outcome none = bhyt(words);
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(none.err,
            "error: " + at("bare") + " holds no tokenizer: --tokenizer PATH names one, and --ids takes and gives token ids without\n");
  EXPECT_EQ(generate({"--tokenizer", "bytes", "--prompt", "mary had"}, at("bare"))["text"], " a little lamb");
  EXPECT_EQ(generate({"--ids", "--prompt", "109", "--max-tokens", "3"}, at("bare"))["ids"].size(), 3u);
}

TEST_F(GenerateText, APromptFileIsAFile) {
  const Words words{"generate", "--model", checkpoint(), "device=cpu", "threads=1", "--max-tokens", "40", "--prompt-file"};
  const auto with = [&](const std::string& file) {
    Words args = words;
    args.push_back(file);
    return bhyt(args);
  };
  std::ofstream(at("prompt.txt")) << "mary had";
  EXPECT_EQ(with(at("prompt.txt")).out, " a little lamb\n");
  for (const std::string& file : {at("run"), at("nowhere")}) {
    const Outcome out = with(file);
    EXPECT_EQ(out.code, 1);
    EXPECT_EQ(out.out, "");
    EXPECT_NE(out.err.find(file + ": expected a file with the text to continue"), std::string::npos) << out.err;
  }
}

// Of the right size, but not the one that the checkpoint holds: it may be meant, so it is said.
TEST_F(GenerateText, ATokenizerFromElsewhereIsNamed) {
  fs::create_directory(at("foreign"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) fs::copy(fs::path(checkpoint()) / name, at("foreign/") + name);
  const auto said = [&] {
    const Outcome out = bhyt({"generate", "--model", checkpoint(), "--tokenizer", at("foreign"), "--prompt", "mary had", "--max-tokens",
                              "3", "device=cpu", "threads=1"});
    EXPECT_EQ(out.code, 0) << out.err;
    return out.err.find("is not the tokenizer that " + checkpoint() + " was trained with") != std::string::npos;
  };
  EXPECT_FALSE(said());
  Json tokenizer = Json::parse(read_text(at("foreign/tokenizer.json")));
  auto& vocab = tokenizer["model"]["vocab"];
  const Json a = vocab["a"];
  vocab["a"] = vocab["b"];
  vocab["b"] = a;
  std::ofstream(at("foreign/tokenizer.json")) << tokenizer.dump();
  EXPECT_TRUE(said());
}

// Rows that no token of the tokenizer uses: drawn, they have no text. A tokenizer of another size is refused before anything is computed.
TEST_F(GenerateText, AModelMayBePaddedAndATokenizerMustFit) {
  const auto train = [&](const std::string& vocab) {
    const std::string run = at("padded" + vocab);
    const Outcome trained =
        bhyt({"pretrain", "model.d=16", "model.layers=1", "model.heads=2", "model.mlp=16", "model.vocab=" + vocab, "data.seq_len=16",
              "train.batch=2", "train.steps=1", "threads=1", "device=cpu", "data.train=" + at("text.jsonl"), "run.dir=" + run, "--quiet"});
    EXPECT_EQ(trained.code, 0) << trained.err;
    return run + "/checkpoint-1";
  };
  setenv("BHYT_CACHE", at("cache").c_str(), 1);
  const std::string model = train("2000");
  unsetenv("BHYT_CACHE");
  const Words words{"generate", "--model",      model, "--prompt",   "mary",     "--temperature",
                    "2",        "--max-tokens", "30",  "device=cpu", "threads=1"};
  for (const Words& more : {Words{}, Words{"--json"}, Words{"--tokenizer", "bytes"}}) {
    Words args = words;
    args.insert(args.end(), more.begin(), more.end());
    const Outcome out = bhyt(args);
    EXPECT_EQ(out.code, 0) << out.err;
    EXPECT_NE(out.err.find("new tokens have no text: their ids are not below 257"), std::string::npos) << out.err;
  }
  const auto refused = [&](const std::string& checkpoint, const std::string& tokenizer, const std::string& sizes) {
    const Outcome out = bhyt({"generate", "--model", checkpoint, "--tokenizer", tokenizer, "--prompt", "mary", "device=cpu", "threads=1"});
    EXPECT_EQ(out.code, 1);
    EXPECT_EQ(out.out, "");
    EXPECT_EQ(out.err, "error: the tokenizer " + tokenizer + " has " + sizes + ": they do not belong together\n");
  };
  ASSERT_EQ(bhyt({"tokenizer", "train", "--vocab", "266", "--out", at("266"), at("text.jsonl")}).code, 0);
  refused(model, at("266"), "266 ids, the model 2000");        // of a smaller model
  refused(checkpoint(), at("266"), "266 ids, the model 257");  // of a larger one
}

// Prompts are computed in pieces of 256: the continuation is the one that the whole row through forward gives.
TEST_F(GenerateText, ALongPromptContinuesAsTheWholeRowDoes) {
  constexpr std::int64_t kNew = 6;
  std::set<int> first;
  for (const std::int64_t length : {255, 256, 257, 700}) {
    std::vector<std::int64_t> ids;
    std::string prompt;
    for (std::int64_t i = 0; i < length; ++i) {
      ids.push_back(kSentence[i % static_cast<std::int64_t>(std::string(kSentence).size())]);
      prompt += std::to_string(ids.back()) + " ";
    }
    const Json made = generate({"--ids", "--prompt", prompt, "--max-tokens", std::to_string(kNew)})["ids"];
    ASSERT_EQ(made.size(), static_cast<std::size_t>(kNew));
    for (const auto& id : made) ids.push_back(id);
    first.insert(made[0].get<int>());
    const auto bytes = ids.size() * sizeof ids[0];
    write_safetensors(at("row.safetensors"), {{"tokens", "I64", {1, length + kNew}, [&](const auto& put) { put(ids.data(), bytes); }}});
    const Outcome run = bhyt(
        {"forward", "--model", checkpoint(), "--tokens", at("row.safetensors"), "--out", at("out.safetensors"), "device=cpu", "threads=1"});
    ASSERT_EQ(run.code, 0) << run.err;
    const SafeTensors file(at("out.safetensors"));
    const SafeTensor& logits = file.at("logits");  // [1, T, V]
    std::vector<float> row(static_cast<std::size_t>(logits.shape[2]));
    for (std::int64_t i = 0; i < kNew; ++i) {
      SafeTensors::to_float(logits, (length - 1 + i) * logits.shape[2], logits.shape[2], row.data());
      EXPECT_EQ(made[static_cast<std::size_t>(i)], std::max_element(row.begin(), row.end()) - row.begin()) << length << " " << i;
    }
  }
  EXPECT_GT(first.size(), 1u);  // where the prompt ends decides
}

TEST_F(GenerateText, TakesPromptsFromAnywhere) {
  EXPECT_EQ(run({"--prompt", "mary had"}).out, " a little lamb\n");
  EXPECT_EQ(run({}, "mary had").out, " a little lamb\n");
  EXPECT_EQ(run({"--prompt-file", write("prompt.txt", "mary had")}).out, " a little lamb\n");
  EXPECT_EQ(run({"--ids", "--max-tokens", "3"}, "109,97 114").out, run({"--ids", "--prompt", "[109, 97, 114]", "--max-tokens", "3"}).out);
  EXPECT_EQ(run({"--prompt", "mary had", "--max-tokens", "0"}).out, "\n");
  const Outcome missing = run({"--prompt-file", at("nowhere.txt")});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("cannot read " + at("nowhere.txt")), std::string::npos) << missing.err;
}

// All in one batch, one answer a line, in the order of the prompts.
TEST_F(GenerateText, AFileOfPromptsGivesAnAnswerALine) {
  const std::string file =
      write("prompts.jsonl", "{\"prompt\": \"mary had\"}\n\n{\"prompt\": \"mary\", \"more\": 1}\n{\"prompt\": \"mary had a little l\"}");
  const auto texts = lines(run({"--prompt-file", file}));
  EXPECT_EQ(texts, (std::vector<Json>{" a little lamb", " had a little lamb", "amb"}));
  const auto objects = lines(run({"--prompt-file", file, "--json"}));
  ASSERT_EQ(objects.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(objects[i]["prompt"], i);
    EXPECT_EQ(objects[i]["sample"], 0);
    EXPECT_EQ(objects[i]["text"], texts[i]);
    EXPECT_EQ(objects[i]["finish_reason"], "stop");
  }
  EXPECT_EQ(objects[1]["prompt_tokens"], 4);
  const std::string ids = write("ids.jsonl", "[109, 97, 114, 121, 32]\n[108,97]\n");
  const auto arrays = lines(run({"--ids", "--prompt-file", ids, "--max-tokens", "5"}));
  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays[0], (Json{'h', 'a', 'd', ' ', 'a'}));
  EXPECT_EQ(arrays[1].size(), 5u);
}

TEST_F(GenerateText, AFileOfPromptsNamesTheLineThatIsWrong) {
  const auto refused = [&](const std::string& text, const Words& more, const std::string& message) {
    const std::string file = write("bad.jsonl", text);
    Words args = {"--prompt-file", file};
    args.insert(args.end(), more.begin(), more.end());
    expect_usage_error(args, message);
  };
  const std::string bad = at("bad.jsonl");
  refused("{\"prompt\": \"a\"}\n{\"promt\": \"b\"}\n", {}, bad + ", line 2: expected {\"prompt\": TEXT}, got {\"promt\": \"b\"}");
  refused("{\"prompt\": 3}\n", {}, bad + ", line 1: expected");
  refused("mary had\n", {}, bad + ", line 1: expected");
  refused("[1, 2]\n[1, \"a\"]\n", {"--ids"}, bad + ", line 2: expected an array of token ids");
  refused("[1, 2]\n[1.5]\n", {"--ids"}, bad + ", line 2: expected an array of token ids");
  refused("[1, 2]\n[1, 999]\n", {"--ids"}, bad + ", line 2: token id 999 of the prompt is not below the model's vocabulary of 257");
  refused("[1, 2]\n[]\n", {"--ids"}, bad + ", line 2: the prompt is empty");
  refused("\n\n", {}, bad + " holds no prompts");
}

TEST_F(GenerateText, SeveralAnswersToAPromptHaveSeedsOfTheirOwn) {
  const Words words{"--prompt", "mary", "--temperature", "30", "--max-tokens", "12", "--ignore-eos"};
  const auto with = [&](const Words& more) {
    Words args = words;
    args.insert(args.end(), more.begin(), more.end());
    return lines(run(args));
  };
  const auto all = with({"--num", "3", "--seed", "5", "--json"});
  ASSERT_EQ(all.size(), 3u);
  std::set<Json> different;
  for (int i = 0; i < 3; ++i) {
    const auto& one = all[static_cast<std::size_t>(i)];
    EXPECT_EQ(one["sample"], i);
    EXPECT_EQ(one["prompt"], 0);
    EXPECT_EQ(one["ids"], with({"--seed", std::to_string(5 + i), "--json"})[0]["ids"]);
    different.insert(one["ids"]);
  }
  EXPECT_EQ(different.size(), 3u);
  EXPECT_EQ(with({"--num", "2"}).size(), 2u);
  expect_usage_error({"--prompt", "mary", "--num", "0"}, "--num must be from 1 to 100000, got 0");
  expect_usage_error({"--prompt", "mary", "--num", "1000M"}, "--num must be from 1 to 100000, got 1000000000");
  for (const char* penalty : {"1e39", "1e-46", "1e-40", "1e31", "nan"})  // logits would be infinite, or nothing
    expect_usage_error({"--prompt", "mary", "--repetition-penalty", penalty}, "repetition-penalty must be greater than 0");
}

TEST_F(GenerateText, PromptsOfSeveralAnswersEachAreInOrder) {
  const std::string file = write("two.jsonl", "{\"prompt\": \"mary\"}\n{\"prompt\": \"mary had a\"}\n");
  const auto all = lines(run({"--prompt-file", file, "--num", "3", "--json", "--max-tokens", "4"}));
  ASSERT_EQ(all.size(), 6u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["prompt"], i / 3);
    EXPECT_EQ(all[i]["sample"], i % 3);
    EXPECT_EQ(all[i]["text"], i < 3 ? " had" : " lit");
  }
}

// An empty prompt starts a document.
TEST_F(GenerateText, AnEmptyPromptIsTheBeginning) {
  const Json start = generate({"--ids", "--prompt", "256", "--max-tokens", "4", "--ignore-eos"})["ids"];
  ASSERT_EQ(start.size(), 4u);
  for (const Words& empty : {Words{"--prompt", ""}, Words{}}) {
    const Json answer = generate(empty + Words{"--max-tokens", "4", "--ignore-eos"});
    EXPECT_EQ(answer["ids"], start);
    EXPECT_EQ(answer["prompt_tokens"], 1);
  }
}

TEST_F(GenerateText, WhatCannotBeWrittenIsNoSuccess) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  Words args = {"generate", "--model", checkpoint(), "device=cpu", "threads=1", "--prompt", "mary", "--ignore-eos", "--max-tokens"};
  for (const Words& more : {Words{"5"}, {"300"}, {"5", "--num", "3"}, {"2000", "--json"}, {"2000", "--num", "3"}})
    for (const char* nowhere : {">/dev/full", ">&-"}) {
      const Outcome out = bhyt(args + more, "", nowhere);
      EXPECT_EQ(out.code, 1) << more.front() << nowhere;
      EXPECT_TRUE(has(out.err, "error: could not write to stdout")) << out.err;
      EXPECT_FALSE(has(out.err, "mistake")) << out.err;
    }
  // Messages that nobody reads are another matter.
  for (const char* nowhere : {"2>/dev/full", "2>&-"}) {
    const Outcome out = bhyt(args + Words{"60"}, "", nowhere);  // beyond the trained length, of which the engine's thread warns
    EXPECT_EQ(out.code, 0) << nowhere;
    EXPECT_TRUE(has(out.out, "had a little lamb")) << out.out;
  }
  const Outcome unread = bhyt({"generate", "--model", checkpoint(), "device=cpu"}, "", "</");
  EXPECT_EQ(unread.code, 1);
  EXPECT_TRUE(has(unread.err, "error: cannot read stdin: Is a directory")) << unread.err;
}

TEST_F(GenerateText, StopsBeforeTheTextsThatEndIt) {
  EXPECT_EQ(run({"--prompt", "mary had", "--stop", "ttl"}).out, " a li\n");  // it spans three tokens
  EXPECT_EQ(run({"--prompt", "mary had", "--stop", "lamb", "--stop", "little"}).out, " a \n");
  EXPECT_EQ(run({"--prompt", "mary had", "--stop", "lambs"}).out, " a little lamb\n");  // what was held back comes at the end
  const Json j = generate({"--prompt", "mary had", "--stop", "little"});
  EXPECT_EQ(j["text"], " a ");
  EXPECT_EQ(j["finish_reason"], "stop");
  EXPECT_EQ(j["ids"].size(), 9u);  // with the tokens of the text that ended it
  expect_usage_error({"--prompt", "a", "--stop", ""}, "--stop must not be empty");
  expect_usage_error({"--ids", "--prompt", "1", "--stop", "a"}, "--ids has none: use --stop-id");
  expect_usage_error({"--ids", "--prompt", "1", "--tokenizer", "bytes"}, "--tokenizer has no use with --ids");
}

TEST_F(GenerateText, StopsAtTheIdsThatAreNamed) {
  const Json j = generate({"--prompt", "mary had", "--stop-id", "98", "--stop-id", "108"});
  EXPECT_EQ(j["text"], " a ");
  EXPECT_EQ(j["finish_reason"], "stop");
  EXPECT_EQ(generate({"--ids", "--prompt", "109 97 114 121 32 104 97 100", "--stop-id", "108"})["ids"], (Json{' ', 'a', ' '}));
  EXPECT_EQ(bhyt({"generate", "--model", checkpoint(), "--prompt", "a", "--stop-id", "98", "device=cpu"}).code, 0);  // keys may follow
  expect_usage_error({"--prompt", "a", "--stop-id", "257"}, "--stop-id 257 is not below the model's vocabulary of 257");
}

TEST_F(GenerateText, FiltersAndPenaltyDoWhatTheyShould) {
  const auto made = [&](const Words& more) {
    Words args{"--prompt", "mary", "--max-tokens", "18", "--ignore-eos"};
    args.insert(args.end(), more.begin(), more.end());
    return generate(args)["ids"];
  };
  const Json greedy = made({});
  EXPECT_NE(made({"--temperature", "30"}), greedy);
  EXPECT_EQ(made({"--temperature", "30", "--seed", "3"}), made({"--temperature", "30", "--seed", "3"}));
  EXPECT_NE(made({"--temperature", "30", "--seed", "3"}), made({"--temperature", "30", "--seed", "4"}));
  for (const Words& one : {Words{"--top-k", "1"}, Words{"--top-p", "1e-6"}, Words{"--min-p", "1"}}) {
    Words args{"--temperature", "30"};
    args.insert(args.end(), one.begin(), one.end());
    EXPECT_EQ(made(args), greedy) << one[0];
  }
  EXPECT_EQ(made({"--repetition-penalty", "1"}), greedy);
  EXPECT_NE(made({"--repetition-penalty", "5"}), greedy);
  for (const auto& [flag, value] : std::vector<std::pair<std::string, std::string>>{
           {"temperature", "-1"}, {"top-k", "-1"}, {"top-p", "0"}, {"min-p", "2"}, {"repetition-penalty", "0"}, {"max-tokens", "-1"}})
    expect_usage_error({"--prompt", "a", "--" + flag, value}, flag + " must be");
}

TEST_F(GenerateText, TellsLogProbabilities) {
  const Json j = generate({"--prompt", "mary had", "--logprobs"});
  ASSERT_EQ(j["logprobs"].size(), j["ids"].size());
  for (const auto& p : j["logprobs"]) {
    EXPECT_LE(p.get<double>(), 0);
    EXPECT_GT(p.get<double>(), -0.7);  // it knows the sentence
  }
  EXPECT_FALSE(generate({"--prompt", "mary had"}).contains("logprobs"));
  expect_usage_error({"--prompt", "a", "--logprobs"}, "--logprobs goes with --json");
}

// Rounded weights and gains kept apart: a trained sentence comes out all the same, with slightly other probabilities.
TEST_F(GenerateText, WeightsInInt8AndGainsApart) {
  const Words words{"--prompt", "The", "--logprobs"};
  const Json plain = generate(words);
  for (const Words& more : {Words{"--weights", "int8"}, Words{"--no-fold"}}) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    const Json other = generate(all);
    EXPECT_EQ(other["text"], plain["text"]);
    ASSERT_EQ(other["logprobs"].size(), plain["logprobs"].size());
    double apart = 0;
    for (std::size_t i = 0; i < plain["logprobs"].size(); ++i)
      apart = std::max(apart, std::fabs(other["logprobs"][i].get<double>() - plain["logprobs"][i].get<double>()));
    EXPECT_GT(apart, 0) << more[0] << " does something";
    EXPECT_LT(apart, more[0] == "--no-fold" ? 1e-3 : 0.1) << more[0];
  }
  expect_usage_error({"--prompt", "a", "--weights", "fp4"}, "--weights takes int8 or fp8, got fp4");
}

TEST_F(GenerateText, WeightsThatStayInTheirFile) {
  const Words words{"--prompt", "The", "--logprobs", "device=cpu"};
  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    const Json answer = generate(all);
    return std::pair(answer["text"], answer["logprobs"]);
  };
  EXPECT_EQ(with({"--load", "mapped"}), with({"--load", "copied", "--no-fold"}));
  expect_usage_error({"--prompt", "a", "--load", "borrowed"}, "--load takes copied or mapped, got borrowed");
  expect_usage_error({"--prompt", "a", "--load", "mapped", "--weights", "int8", "device=cpu"}, "--load mapped keeps the weights");
  expect_usage_error({"--prompt", "a", "--weights", "fp8", "device=cpu"}, "weights in fp8 are for a GPU");
}

// 2 layers, 32 tokens, keys and values of 32 fp32 each: 16,384 bytes a page.
TEST_F(GenerateText, LivesWithTheMemoryItIsGiven) {
  std::string prompts;
  for (int i = 0; i < 6; ++i)
    prompts += "{\"prompt\": \"" + std::string(static_cast<std::size_t>(i), '.') + "mary had a little lamb, \"}\n";
  const Words words{"--prompt-file", write("six.jsonl", prompts), "--ignore-eos", "--max-tokens", "40"};
  const auto with = [&](const std::string& memory) {
    Words args = words;
    if (!memory.empty()) args.insert(args.end(), {"--kv-memory", memory});
    return run(args);
  };
  const auto free = lines(with(""));
  EXPECT_EQ(free.size(), 6u);
  EXPECT_EQ(lines(with("80K")), free);  // four pages: about two answers at a time
  EXPECT_EQ(with("33K").code, 2);
  EXPECT_NE(
      with("33K").err.find("line 2: a prompt of 25 tokens and 40 new ones are too long: the memory for keys and values holds 64 tokens"),
      std::string::npos)
      << with("33K").err;
  expect_usage_error({"--prompt", "a", "--kv-memory", "1000"},
                     "--kv-memory 1000 is less than a page of keys and values, which takes 16384 bytes");
}

// A token whose embedding is not a number: prompts with it fail, the others are answered.
TEST_F(GenerateText, DamagedWeightsFailOnlyThoseWhoMeetThem) {
  fs::copy(checkpoint(), at("damaged"));
  fs::remove(at("damaged/manifest.json"));
  std::string file = read_text(at("damaged/model.safetensors"));
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const Json table = Json::parse(file.substr(8, header))["model.embed_tokens.weight"];
  ASSERT_EQ(table["dtype"], "F32");
  const std::array<float, 32> nan = [] {
    std::array<float, 32> row{};
    row.fill(std::numeric_limits<float>::quiet_NaN());
    return row;
  }();
  std::memcpy(file.data() + 8 + header + table["data_offsets"][0].get<std::size_t>() + 'z' * sizeof nan, nan.data(), sizeof nan);
  write("damaged/model.safetensors", file);
  const std::string prompts = write("zs.jsonl", "{\"prompt\": \"mary had\"}\n{\"prompt\": \"z\"}\n{\"prompt\": \"mary\"}\n");
  const std::string reason = "the logits behind token 1 are not finite numbers: the weights may be damaged";
  const Outcome several = run({"--prompt-file", prompts}, "", at("damaged"));
  EXPECT_EQ(several.code, 1);
  EXPECT_EQ(several.out, "\" a little lamb\"\nnull\n\" had a little lamb\"\n");
  EXPECT_NE(several.err.find("error: answer 2: " + reason + "\n"), std::string::npos) << several.err;
  const Outcome as_json = run({"--prompt-file", prompts, "--json"}, "", at("damaged"));
  EXPECT_NE(as_json.out.find("{\"prompt\":1,\"sample\":0,\"error\":\"" + reason + "\"}\n"), std::string::npos) << as_json.out;
  const Outcome one = run({"--prompt", "z"}, "", at("damaged"));
  EXPECT_EQ(one.code, 1);
  EXPECT_NE(one.err.find("error: " + reason + "\n"), std::string::npos) << one.err;
}

// Ctrl-C while an answer that would go on for long is being shown: it ends with what there is.
TEST_F(GenerateText, CtrlCEndsWithWhatThereIs) {
  Process process(
      {"generate", "--model", checkpoint(), "--prompt", "mary", "--ignore-eos", "--max-tokens", "100K", "device=cpu", "threads=1"},
      [] { dup2(open("/dev/null", O_WRONLY), STDERR_FILENO); });  // the answer alone
  ASSERT_TRUE(process.read_until(" had")) << process.messages();
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 128 + SIGINT);
  EXPECT_TRUE(process.messages().starts_with(" had")) << process.messages();
  EXPECT_EQ(process.messages().back(), '\n');
}

}  // namespace
}  // namespace bhyt::test
