#include "core/schema.h"

#include <gtest/gtest.h>

namespace bhyt {
namespace {

enum class Shape { round, square };

struct Inner {
  double width = 2;
  bool open = false;
};
struct Sample {
  double rate = 0.5;
  std::int64_t steps = 10;
  std::string name = "none";
  Shape shape = Shape::round;
  std::vector<std::int64_t> list;
  Inner inner;
};

template <class V>
void fields(Inner& s, V& v) {
  v.number("width", s.width, "how wide", {.at_least = 1, .at_most = 3});
  v.boolean("open", s.open, "whether open");
}

template <class V>
void fields(Sample& s, V& v) {
  static const schema::Names<Shape> shapes = {{"round", Shape::round}, {"square", Shape::square}};
  v.number("rate", s.rate, "how fast", {.above = 0, .below = 1});
  v.integer("steps", s.steps, "how many", {.at_least = 1});
  v.text("name", s.name, "what it is called");
  v.choice("shape", s.shape, shapes, "its form");
  v.custom(
      "list", "some numbers",
      [&](const schema::Json& j, const std::string& key) {
        if (!j.is_array()) schema::wrong(key, "a list", j);
        s.list = j.get<std::vector<std::int64_t>>();
      },
      [&] { return s.list.empty() ? schema::Json(schema::Json::value_t::discarded) : schema::Json(s.list); });
  v.section("inner", s.inner, "what is inside");
}

Sample parse(const char* text) {
  Sample s;
  schema::read(s, schema::Json::parse(text));
  return s;
}

std::string error_of(const char* text) {
  try {
    parse(text);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Schema, ReadsWhatIsThereAndKeepsTheRest) {
  const Sample s = parse(R"({"rate": 0.25, "shape": "square", "inner": {"open": true}, "list": [1, 2]})");
  EXPECT_EQ(s.rate, 0.25);
  EXPECT_EQ(s.steps, 10);
  EXPECT_EQ(s.shape, Shape::square);
  EXPECT_TRUE(s.inner.open);
  EXPECT_EQ(s.inner.width, 2);
  EXPECT_EQ(s.list, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(parse("{}").steps, 10);
  EXPECT_EQ(parse("null").steps, 10);
  EXPECT_EQ(parse(R"({"steps": 3.0})").steps, 3);
  EXPECT_EQ(parse(R"({"name": 123})").name, "123");
}

TEST(Schema, ErrorsNameKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(error_of(R"({"rate": 0})"), "rate must be greater than 0, got 0");
  EXPECT_EQ(error_of(R"({"rate": 1})"), "rate must be less than 1, got 1");
  EXPECT_EQ(error_of(R"({"rate": "fast"})"), "rate must be a number, got \"fast\"");
  EXPECT_EQ(error_of(R"({"rate": null})"), "rate must be a number, got nothing");
  EXPECT_EQ(error_of(R"({"steps": 0})"), "steps must be at least 1, got 0");
  EXPECT_EQ(error_of(R"({"steps": 1.5})"), "steps must be a whole number, got 1.5");
  EXPECT_EQ(error_of(R"({"steps": 1e300})"), "steps must be a whole number, got 1e+300");
  EXPECT_EQ(error_of(R"({"name": [1]})"), "name must be a text, got [1]");
  EXPECT_EQ(error_of(R"({"shape": "oval"})"), "shape must be one of round, square, got \"oval\"");
  EXPECT_EQ(error_of(R"({"inner": {"width": 4}})"), "inner.width must be at most 3, got 4");
  EXPECT_EQ(error_of(R"({"inner": {"open": 1}})"), "inner.open must be true or false, got 1");
  EXPECT_EQ(error_of(R"({"inner": 3})"), "inner must be a map of keys, got 3");
  EXPECT_EQ(error_of(R"([1])"), "config must be a map of keys, got [1]");
}

TEST(Schema, UnknownKeysNameTheNearest) {
  EXPECT_EQ(error_of(R"({"ratte": 0.5})"), "unknown key ratte (did you mean rate?)");
  EXPECT_EQ(error_of(R"({"inner": {"opn": true}})"), "unknown key inner.opn (did you mean inner.open?)");
  EXPECT_TRUE(error_of(R"({"zebra_crossing": 1})").starts_with("unknown key zebra_crossing (did you mean "));
}

TEST(Schema, NearestStaysNear) {
  const std::vector<std::string> known{"rmsnorm", "layernorm", "bhyt"};
  EXPECT_EQ(schema::nearest("rmsnrm", known), "rmsnorm");
  EXPECT_EQ(schema::nearest("byht", known), "bhyt");
  EXPECT_EQ(schema::nearest("", known), "");
  EXPECT_EQ(schema::nearest("completely_different", known), "");
}

TEST(Schema, NumbersMustBeFinite) {
  EXPECT_THROW(schema::check_range("x", INFINITY, {}), UsageError);
  EXPECT_THROW(schema::check_range("x", NAN, {}), UsageError);
  EXPECT_NO_THROW(schema::check_range("x", -1e300, {}));
}

TEST(Schema, QuotesAreShort) {
  EXPECT_EQ(schema::show(schema::Json(std::string(500, 'a'))).size(), 80u);
  EXPECT_EQ(schema::show(nullptr), "nothing");
}

TEST(Schema, WritesWhatItReads) {
  const Sample s = parse(R"({"rate": 0.125, "steps": 77, "shape": "square", "inner": {"width": 1.5}})");
  const schema::Json tree = schema::write(s);
  EXPECT_EQ(tree.dump(), R"({"rate":0.125,"steps":77,"name":"none","shape":"square","inner":{"width":1.5,"open":false}})");
  EXPECT_EQ(schema::write(parse(tree.dump().c_str())), tree);
}

TEST(Schema, ListsEveryKeyWithItsHelp) {
  Sample s;
  schema::Lister lister;
  fields(s, lister);
  ASSERT_EQ(lister.entries.size(), 7u);
  EXPECT_EQ(lister.entries[3].key, "shape");
  EXPECT_EQ(lister.entries[3].help, "its form (round | square)");
  EXPECT_EQ(lister.entries[3].value, "round");
  EXPECT_EQ(lister.entries[6].key, "inner.open");
}

}  // namespace
}  // namespace bhyt
