// Rolling, windows and packed perplexities of some golden cases (all of them take minutes): what lm-evaluation-harness and plain loops over
// transformers gave.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/input.h"
#include "eval/detokenize.h"
#include "eval/perplexity.h"
#include "eval/python_text.h"
#include "eval/rolling.h"
#include "model/checkpoint.h"
#include "tests/temporary_folder.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string read_all(const fs::path& file) {
  const auto stream = open_input(find_inputs({file.string()}).at(0));
  std::string all;
  char buffer[1 << 16];
  for (std::size_t n = 0; (n = stream->read(buffer, sizeof buffer)) > 0;) all.append(buffer, n);
  return all;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at <= text.size(); at = lines.back().size() + at + 1) lines.push_back(text.substr(at, text.find('\n', at) - at));
  return lines;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// A line like " = Title = " begins a page; " = = Section = = " does not.
bool begins_page(const std::string& line) {
  const std::string joined = replaced(replaced(line, "= = =", "==="), "= =", "==");
  const std::string_view s = python_strip(joined);
  return s.starts_with("= ") && s.ends_with(" =");
}

class PerplexityGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("BHYT_DATA");
    if (!data) GTEST_SKIP() << "BHYT_DATA is not set";
    data_ = data;
    golden_ = data_.parent_path() / "fixtures" / "eval";
    wikitext_ = read_all(data_ / "text" / "wikitext2_raw_test.txt");
  }

  // The head and the documents of a case.
  std::vector<Json> read_case(const std::string& name) const {
    std::vector<Json> lines;
    for (const std::string& line : lines_of(read_all(golden_ / "cases" / (name + ".jsonl.gz"))))
      if (!line.empty()) lines.push_back(Json::parse(line));
    return lines;
  }
  std::vector<std::string> pages(const Json& rows) const {
    std::vector<std::string> all;
    for (const std::string& line : lines_of(wikitext_)) {
      if (all.empty() || begins_page(line))
        all.push_back(line);
      else
        all.back() += "\n" + line;
    }
    if (python_strip(all.front()).empty()) all.erase(all.begin());
    return {all.begin() + rows[0].get<std::int64_t>(), all.begin() + rows[1].get<std::int64_t>()};
  }
  struct Reader {
    std::unique_ptr<Model> model;
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<Context> ctx = std::make_unique<Context>(Device::cpu(), 2);
  };
  Reader& reader(const std::string& name) {
    Reader& r = readers_[name];
    if (!r.model) {
      const fs::path at = golden_ / "models" / name;
      r.model = load_model(*r.ctx, at, DType::f32, Model::Repack{});
      r.tokenizer = load_tokenizer(at.string());
    }
    return r;
  }
  std::string texts_file(const Json& head) const {
    std::string text;
    if (head["bytes"].is_number()) {
      text = wikitext_.substr(0, head["bytes"].get<std::size_t>());
    } else {
      for (const std::string& page : pages(head["rows"])) text += Json{{"text", page}}.dump() + "\n";
    }
    const fs::path file = folder_ / (head["bytes"].is_number() ? "text.txt" : "texts.jsonl");
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

  fs::path data_, golden_;
  test::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path;
  std::string wikitext_;
  std::map<std::string, Reader> readers_;
};

void expect_near_relative(double a, double b, const std::string& what) {
  EXPECT_LE(std::abs(a / b - 1), 1e-5) << what << ": " << a << " " << b;
}

TEST_F(PerplexityGolden, WindowsAndPacked) {
  for (const char* name : {"packed-wikitext2-llama3-1023", "ppl-wikitext2-bos-1024-512"}) {
    SCOPED_TRACE(name);
    const std::vector<Json> lines = read_case(name);
    const Json& head = lines.at(0);
    Reader& r = reader(head["model"]);
    Engine engine(*r.ctx, *r.model);
    std::vector<ScoredText> texts;
    const Perplexity p = score_files(engine, *r.tokenizer,
                                     {.inputs = {texts_file(head)},
                                      .mode = head["mode"] == "packed" ? PerplexityMode::packed : PerplexityMode::windows,
                                      .window = head["window"],
                                      .stride = head["stride"],
                                      .bos = head["bos"],
                                      .progress = false},
                                     [&](const ScoredText& t) { texts.push_back(t); });
    EXPECT_EQ(p.documents, head["documents"].get<std::int64_t>());
    EXPECT_EQ(p.tokens, head["tokens"].get<std::int64_t>());
    EXPECT_EQ(p.costs.scored, head["scored"].get<std::int64_t>());
    EXPECT_EQ(p.costs.windows, head["windows"].get<std::int64_t>());
    expect_near_relative(p.costs.nll(), head["nll"], "nll");
    expect_near_relative(p.costs.ppl(), head["ppl"], "ppl");
    for (std::size_t i = 1; i < lines.size(); ++i) {
      EXPECT_EQ(texts.at(i - 1).tokens, lines[i]["tokens"].get<std::int64_t>());
      EXPECT_EQ(texts[i - 1].costs.scored, lines[i]["scored"].get<std::int64_t>());
      expect_near_relative(texts[i - 1].costs.sum, lines[i]["nll_sum"], "nll_sum");
    }
  }
}

TEST_F(PerplexityGolden, Rolling) {
  for (const char* name : {"rolling-wikitext2-bos", "rolling-wikitext2-nobos", "rolling-wikitext2-cut256"}) {
    SCOPED_TRACE(name);
    const std::vector<Json> lines = read_case(name);
    const Json& head = lines.at(0);
    Reader& r = reader(head["model"]);
    Engine engine(*r.ctx, *r.model);
    const std::int64_t length = head["max_length"].is_number() ? head["max_length"].get<std::int64_t>() : r.model->config().max_positions;
    const std::vector<std::string> all = pages(head["rows"]);
    ASSERT_EQ(all.size(), lines.size() - 1);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(detokenize(all[i]), lines[i + 1]["text"].get<std::string>());
    const std::vector<std::size_t> shortest{0, 2};
    const std::vector<std::string> scored{all.at(0), all.at(2)};
    std::size_t told = 0;
    const auto check_document = [&](std::size_t i, const RollingDocument& d) {
      const Json& golden = lines[shortest.at(i) + 1];
      EXPECT_EQ(i, told++);
      EXPECT_EQ(d.text, golden["text"].get<std::string>());
      EXPECT_EQ(d.tokens, golden["tokens"].get<std::int64_t>());
      EXPECT_EQ(d.words, golden["words"].get<std::int64_t>());
      EXPECT_EQ(d.bytes, golden["bytes"].get<std::int64_t>());
      expect_near_relative(d.loglikelihood, golden["loglikelihood"], "loglikelihood");
    };
    EXPECT_TRUE(score_rolling(engine, *r.tokenizer, scored, {.length = length, .bos = head["bos"]}, check_document));
    EXPECT_EQ(told, scored.size());
  }
}

}  // namespace
}  // namespace bhyt
