// What bhyt generate prints: times, what was shared, answers that Ctrl-C ended, characters of several bytes; and what it takes to be sure
// of: bf16, checksums. On a model that knows one sentence by heart.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/one_sentence.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

const std::string kBeginning = "grüße";
const std::string kRest = " aus 東京 🙂 für alle";

class GenerateOutput : public KnowsOneSentence {
 public:
  static void SetUpTestSuite() { learn(kBeginning + kRest, 48); }

 protected:
  static Words words(const Words& more, const std::string& model = checkpoint()) {
    return Words{"generate", "--model", model, "device=cpu", "threads=1"} + more;
  }
  static std::vector<Json> lines(const std::string& out) {
    std::vector<Json> all;
    std::istringstream in(out);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with('{') || line.starts_with('"')) all.push_back(Json::parse(line));
    return all;
  }
  static std::vector<Json> generate(const Words& more) {
    const Outcome out = bhyt(words(more));
    EXPECT_EQ(out.code, 0) << out.err;
    return lines(out.out);
  }
};

TEST_F(GenerateOutput, AnswersTellTheirTimesAndWhatWasShared) {
  const auto all = generate({"--prompt", kBeginning, "--num", "3", "--json"});
  ASSERT_EQ(all.size(), 3u);
  for (const Json& j : all) {
    EXPECT_EQ(j["text"], kRest);
    for (const char* key : {"prompt_seconds", "decode_seconds"}) {
      ASSERT_TRUE(j.contains(key) && j[key].is_number_float()) << j;
      EXPECT_TRUE(std::isfinite(j[key].get<double>())) << j;
      EXPECT_GT(j[key].get<double>(), 0) << j;
    }
    ASSERT_TRUE(j.contains("shared_tokens") && j["shared_tokens"].is_number_integer()) << j;
    // The first computes the prompt, the others its last token alone.
    EXPECT_EQ(j["prompt_tokens"], kBeginning.size());
    EXPECT_EQ(j["shared_tokens"], j["sample"] == 0 ? 0 : kBeginning.size() - 1);
  }
  const Json nothing = generate({"--prompt", kBeginning, "--max-tokens", "0", "--json"}).at(0);
  EXPECT_EQ(nothing["prompt_seconds"], 0);
  EXPECT_EQ(nothing["decode_seconds"], 0);
}

// Answers that would go on for long and are not shown as they come. That they are beyond the trained length is said as soon as they are.
TEST_F(GenerateOutput, CtrlCPrintsWhatThereIsOfEveryAnswer) {
  for (const Words& more : {Words{"--num", "3"}, Words{"--num", "3", "--json"}, Words{"--json"}}) {
    Process process(words(Words{"--prompt", kBeginning, "--ignore-eos", "--max-tokens", "100K"} + more));
    ASSERT_TRUE(process.read_until("what follows may be worse")) << process.messages();
    process.send(SIGINT);
    EXPECT_EQ(process.wait(), 128 + SIGINT);
    const auto all = lines(process.messages());
    ASSERT_EQ(all.size(), more[0] == "--num" ? 3u : 1u) << process.messages();
    for (const Json& j : all) {
      const bool json = more.back() == "--json";
      EXPECT_TRUE((json ? j["text"] : j).get<std::string>().starts_with(kRest)) << j;
      if (!json) continue;
      EXPECT_EQ(j["finish_reason"], "cancelled");
      EXPECT_LT(j["ids"].size(), 100000u);
      EXPECT_GE(j["decode_seconds"].get<double>(), 0);
    }
  }
}

// What it knows by heart it knows in bf16, where every probability is another one.
TEST_F(GenerateOutput, Bf16KnowsTheSentenceToo) {
  const Words asked{"--prompt", kBeginning, "--json", "--logprobs"};
  const Json exact = generate(asked).at(0), rounded = generate(asked + Words{"dtype=bf16"}).at(0);
  for (const Json& p : exact["logprobs"]) ASSERT_GT(p.get<double>(), std::log(0.8)) << "what a rounding cannot turn";
  EXPECT_EQ(rounded["ids"], exact["ids"]);
  EXPECT_NE(rounded["logprobs"], exact["logprobs"]);
  const Words drawn = asked + Words{"dtype=bf16", "--temperature", "3", "--seed", "4", "--ignore-eos", "--max-tokens", "60"};
  const Json once = generate(drawn).at(0);
  EXPECT_EQ(once["ids"].size(), 60u);
  for (const char* key : {"ids", "logprobs", "text"}) EXPECT_EQ(generate(drawn).at(0)[key], once[key]) << key;
}

TEST_F(GenerateOutput, ADamagedCheckpointIsTakenOnlyWhereItIsAsked) {
  fs::copy(checkpoint(), at("damaged"));
  Json manifest = Json::parse(read_text(at("damaged/manifest.json")));
  Json& sum = manifest.at("files").at("model.safetensors").at("xxh64_pieces");
  sum = std::string(sum.get<std::string>().size(), '0');
  std::ofstream(at("damaged/manifest.json")) << manifest.dump();
  const Words asked = words({"--prompt", kBeginning}, at("damaged"));
  const Outcome refused = bhyt(asked), taken = bhyt(asked + Words{"--no-verify"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_TRUE(has(refused.err, "model.safetensors is damaged (its checksum differs)")) << refused.err;
  EXPECT_EQ(taken.code, 0) << taken.err;
  EXPECT_EQ(taken.out, kRest + "\n");
}

// Bytes of the character that this begins with; 0 where none begins.
std::size_t length_of(const std::string& text, std::size_t at) {
  const auto byte = static_cast<std::uint8_t>(text[at]);
  const std::size_t n = byte < 0x80 ? 1 : byte >> 5 == 6 ? 2 : byte >> 4 == 14 ? 3 : byte >> 3 == 30 ? 4 : 0;
  for (std::size_t i = 1; i < n; ++i)
    if (at + i >= text.size() || (static_cast<std::uint8_t>(text[at + i]) >> 6) != 2) return 0;
  return n;
}

bool is_whole(const std::string& text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t n = length_of(text, at);
    if (n == 0) return false;
    at += n;
  }
  return true;
}

// A pipe of packets keeps apart what was written at a time.
TEST_F(GenerateOutput, CharactersComeWholeOneAtATime) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
  Process process(words({"--prompt", kBeginning}), [&] { dup2(ends[1], STDOUT_FILENO); });
  close(ends[1]);
  std::vector<std::string> packets;
  char piece[4096];
  for (ssize_t n = 0; (n = read(ends[0], piece, sizeof piece)) > 0;) packets.emplace_back(piece, static_cast<std::size_t>(n));
  close(ends[0]);
  EXPECT_EQ(process.wait(), 0) << process.messages();
  std::string all;
  std::vector<std::string> characters;
  for (const std::string& p : packets) {
    EXPECT_TRUE(is_whole(p)) << p;
    all += p;
  }
  for (std::size_t at = 0; at < kRest.size(); at += length_of(kRest, at)) characters.push_back(kRest.substr(at, length_of(kRest, at)));
  characters.emplace_back("\n");
  EXPECT_EQ(packets, characters);  // a token is a byte here
  EXPECT_EQ(all, generate({"--prompt", kBeginning, "--json"}).at(0)["text"].get<std::string>() + "\n");
}

}  // namespace
}  // namespace bhyt::test
