// Records of the three forms, and every way to be none.
#include "data/records.h"

#include <gtest/gtest.h>

#include "tests/data/test_util.h"

namespace bhyt {
namespace {

struct Read {
  std::vector<Record> records;
  std::vector<DroppedRecord> dropped;
};

Read read_all(const std::string& path) {
  Read all;
  RecordFile file(path);
  for (RecordText text; file.next(text);) {
    auto parsed = file.parse(text);
    if (auto* r = std::get_if<Record>(&parsed))
      all.records.push_back(std::move(*r));
    else
      all.dropped.push_back(std::get<DroppedRecord>(parsed));
  }
  return all;
}

// "S:… U:… A:…"
std::string told(const Record& record) {
  std::string out;
  for (const ChatMessage& m : record.messages) out += std::string(1, "SUA"[static_cast<int>(m.role)]) + ":" + m.content + "|";
  return out;
}

class Records : public ::testing::Test {
 protected:
  Read read(const std::string& name, const std::string& text) {
    test::write_file(dir_ / name, text);
    return read_all(dir_ / name);
  }
  std::string error(const std::string& name, const std::string& text) {
    return test::message_of([&] { read(name, text); });
  }
  // The one record of a file.
  std::string record(const std::string& json) {
    const Read all = read("one.json", "[" + json + "]");
    return all.records.size() == 1 ? told(all.records[0]) : "dropped";
  }
  std::string drop(const std::string& json) {
    const Read all = read("one.json", "[" + json + "]");
    return all.dropped.size() == 1 ? std::string(drop_name(all.dropped[0].drop)) + ": " + all.dropped[0].detail : "kept";
  }
  test::TempDir dir_;
};

TEST_F(Records, Alpaca) {
  EXPECT_EQ(record(R"({"instruction": "a", "input": "", "output": "b"})"), "U:a|A:b|");
  EXPECT_EQ(record(R"({"instruction": "a\n", "input": "b", "output": " c "})"), "U:a\n\nb|A: c |");
  EXPECT_EQ(record(R"({"instruction": "", "input": "b", "output": ""})"), "U:b|A:|");
  EXPECT_EQ(record(R"({"input": "b", "output": ""})"), "U:b|A:|");
  EXPECT_EQ(record(R"({"instruction": null, "input": null, "output": "c"})"), "U:|A:c|");
  EXPECT_EQ(record(R"({"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"], ["", " "]]})"),
            "S:s|U:a|A:b|U:|A: |U:c|A:d|");
  EXPECT_EQ(record(R"({"instruction": "a", "output": "b", "system": "", "history": []})"), "U:a|A:b|");
  EXPECT_EQ(record(R"({"instruction": "a", "output": "b", "system": null, "history": null})"), "U:a|A:b|");
}

TEST_F(Records, ShareGpt) {
  EXPECT_EQ(record(R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"})"),
            "S:s|U:a|A:b|");
  const std::string with_system =
      R"({"conversations": [{"from": "system", "value": "%"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"})";
  const auto own = [&](const std::string& text) { return record(std::string(with_system).replace(with_system.find('%'), 1, text)); };
  EXPECT_EQ(own("first"), "S:first|U:a|A:b|");
  EXPECT_EQ(own(""), "U:a|A:b|");  // an empty one is none, and still beats the field
}

TEST_F(Records, OpenAi) {
  EXPECT_EQ(record(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                       {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}], "id": 7})"),
            "U:a|A:b|U:c|A:d|");
  EXPECT_EQ(
      record(
          R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
      "S:s|U:a|A:b|");
  EXPECT_EQ(record(R"({"messages": null, "instruction": "a", "output": "b"})"), "U:a|A:b|");
}

TEST_F(Records, WhatIsDroppedAndWhy) {
  EXPECT_EQ(drop("7"), "not an object: found a number");
  EXPECT_EQ(drop(R"(["instruction"])"), "not an object: found a list");
  EXPECT_EQ(drop(R"({"text": "a", "id": 1})"), "neither alpaca nor ShareGPT nor OpenAI messages: fields id, text");
  EXPECT_EQ(drop("{}"), "neither alpaca nor ShareGPT nor OpenAI messages: no fields");
  EXPECT_EQ(drop(R"({"instruction": "a"})"), "output is not a text: output is nothing");
  EXPECT_EQ(drop(R"({"instruction": "a", "output": null})"), "output is not a text: output is null");
  EXPECT_EQ(drop(R"({"instruction": "a", "output": ["b"]})"), "output is not a text: output is a list");
  const std::string field = "a field is missing or of the wrong kind: ";
  EXPECT_EQ(drop(R"({"output": "b"})"), field + "neither instruction nor input");
  EXPECT_EQ(drop(R"({"instruction": 7, "output": "b"})"), field + "instruction: expected a text, found a number");
  EXPECT_EQ(drop(R"({"instruction": "a", "output": "b", "system": {}})"), field + "system: expected a text, found an object");
  EXPECT_EQ(drop(R"({"instruction": "a", "output": "b", "history": "x"})"), field + "history: expected a list, found a text");
  EXPECT_EQ(drop(R"({"instruction": "a", "output": "b", "history": [["x"]]})"), field + "history: expected pairs of texts");
  EXPECT_EQ(drop(R"({"messages": "a"})"), field + "messages: expected a list, found a text");
  EXPECT_EQ(drop(R"({"messages": null})"), field + "messages: expected a list, found null");
  EXPECT_EQ(drop(R"({"messages": ["a"]})"), field + "message 1: expected a text under role, found nothing");
  EXPECT_EQ(drop(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]})"),
            field + "message 2: expected a text under content, found null");
  EXPECT_EQ(drop(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}, {"role": "assistant", "content": ""}]})"),
            field + "message 1: expected a text under content, found a list");
  EXPECT_EQ(drop(R"({"messages": []})"), "no messages: messages is empty");
  EXPECT_EQ(drop(R"({"conversations": [{"from": "system", "value": "s"}]})"), "no messages: conversations is empty");
  EXPECT_EQ(drop(R"({"conversations": [{"from": "human", "value": "a"}]})"), "the last message has no answer: 1 messages");
  EXPECT_EQ(drop(R"({"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "b"}]})"),
            "roles out of turn: message 1: expected human, found gpt");
  EXPECT_EQ(drop(R"({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "tool", "content": ""}]})"),
            "roles out of turn: message 3: expected assistant, found tool");
  EXPECT_EQ(drop(R"({"messages": [{"role": "human", "content": ""}, {"role": "gpt", "content": ""}]})"),
            "roles out of turn: message 1: expected user, found human");
}

constexpr const char* kGood = R"({"instruction": "[,{\"\\", "output": "}]"})";

TEST_F(Records, PlacesGoOnBehindWhatIsDropped) {
  const std::string text = std::string("\n") + kGood + "\r\n\n{}\n" + kGood;  // no line break at the end
  for (const auto& [name, bytes] : {std::pair("a.jsonl", text),
                                    {"a.json", text},
                                    {"a.ndjson", text},
                                    {"a.jsonl.gz", test::gzip(text)},
                                    {"a.json.zst", test::zstd(text)}}) {
    const Read all = read(name, bytes);
    ASSERT_EQ(all.records.size(), 2u) << name;
    ASSERT_EQ(all.dropped.size(), 1u) << name;
    EXPECT_EQ(all.dropped[0].index, 1) << name;
    EXPECT_EQ(all.dropped[0].line, 4) << name;
    EXPECT_EQ(all.records[1].index, 2) << name;
    EXPECT_EQ(told(all.records[1]), "U:[,{\"\\|A:}]|") << name;
  }
}

TEST_F(Records, ArraysOverManyLines) {
  const std::string text = std::string("\xEF\xBB\xBF [\n") + kGood + ",\n\n [1,\n2] ,\n" + kGood + "\n]\n";
  for (const auto& [name, bytes] : {std::pair("a.json", text), {"a.json.gz", test::gzip(text)}}) {
    const Read all = read(name, bytes);
    ASSERT_EQ(all.records.size(), 2u) << name;
    EXPECT_EQ(all.dropped.at(0).line, 4) << name;
    EXPECT_EQ(all.records[1].index, 2) << name;
  }
  EXPECT_TRUE(read("a.json", " [ ]").records.empty());
  EXPECT_TRUE(read("a.jsonl", "").records.empty());
}

// Longer than what is read at once, so that records reach over the border.
TEST_F(Records, LongFiles) {
  std::string lines, array = "[";
  for (int i = 0; i < 3000; ++i) {
    const std::string record =
        R"({"instruction": ")" + std::to_string(i) + std::string(static_cast<std::size_t>(i % 997), 'x') + R"(\\", "output": "y"})";
    lines += record + "\n";
    array += (i ? "," : "") + record;
  }
  const Read a = read("a.jsonl", lines), b = read("a.json", array + "]");
  ASSERT_EQ(a.records.size(), 3000u);
  ASSERT_EQ(b.records.size(), 3000u);
  for (std::size_t i = 0; i < 3000; ++i) ASSERT_EQ(told(a.records[i]), told(b.records[i])) << i;
}

TEST_F(Records, MalformedFilesNameThePlace) {
  EXPECT_HAS(error("a.jsonl", std::string(kGood) + "\n{\"instruction\": \"a\n"), "a.jsonl, record 1, line 2: bad JSON at column");
  EXPECT_HAS(error("a.jsonl", "\xFF\n"), "a.jsonl, record 0, line 1: bad JSON");
  EXPECT_HAS(error("a.json", std::string("[") + kGood + ",\n{\"a\" 1}]"), "a.json, record 1, line 2: bad JSON at column 6: expected ':'");
  EXPECT_HAS(error("a.json", std::string("[") + kGood + ",\n]"), "a.json, line 2: expected a record");
  EXPECT_HAS(error("a.json", std::string("[") + kGood + ",\n{\"a\": [1, 2"), "a.json ends inside the record that begins at line 2");
  EXPECT_HAS(error("a.json", std::string("[") + kGood), "a.json ends inside the record");
  EXPECT_HAS(error("a.json", std::string("[") + kGood + "]\n]"), "a.json, line 2: expected the end of the file");
  EXPECT_HAS(error("a.json", "7"), "a.json, line 1: expected [");
  EXPECT_HAS(error("a.json", ""), "a.json is empty");
  EXPECT_HAS(error("a.txt", "x"), "expected .json, .jsonl or .ndjson");
  EXPECT_HAS(error("a.jsonl.gz", test::gzip(kGood).substr(0, 20)), "gzip");
  EXPECT_HAS(test::message_of([&] { RecordFile file(dir_ / "none.json"); }), "there is no such file");
  EXPECT_HAS(test::message_of([&] { RecordFile file(dir_ / "none.safetensors"); }), "cannot read");
}

}  // namespace
}  // namespace bhyt
