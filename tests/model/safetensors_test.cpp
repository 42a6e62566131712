#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "tests/model/helpers.h"

namespace bhyt {
namespace {

using test::has;
using test::message_of;
using test::TempDir;

template <class T>
SafeTensorOut out(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape, std::vector<T> values) {
  return {name, dtype, std::move(shape), [values](const auto& put) { put(values.data(), values.size() * sizeof(T)); }};
}

std::string file_of(const std::string& header, std::size_t data_bytes = 0) {
  const std::uint64_t n = header.size();
  std::string s(8, '\0');
  std::memcpy(s.data(), &n, 8);
  return s + header + std::string(data_bytes, '\0');
}

std::string error_of(const std::string& bytes) {
  return message_of([&] { SafeTensors t(bytes.data(), bytes.size(), "evil.safetensors"); });
}

TEST(SafeTensors, RoundTripsEveryShapeAndType) {
  TempDir dir;
  const auto file = dir / "t.safetensors";
  write_safetensors(file,
                    {out<float>("b.weight", "F32", {2, 3}, {1, 2, 3, 4, 5, 6}), out<float>("a.scalar", "F32", {}, {2.5f}),
                     out<std::uint16_t>("half", "F16", {2}, {0x3C00, 0xC000}), out<std::uint16_t>("brain", "BF16", {2}, {0x3F80, 0xC000}),
                     out<std::int64_t>("ids", "I64", {1, 2}, {5, -7}), out<float>("empty", "F32", {4, 0, 2}, {}),
                     out<double>("wide", "F64", {1}, {0.1}), out<std::uint8_t>("flags", "BOOL", {3}, {1, 0, 1})},
                    {{"format", "pt"}, {"note", "ü"}});
  const SafeTensors t(file);
  EXPECT_EQ(t.metadata().at("format"), "pt");
  EXPECT_EQ(t.metadata().at("note"), "ü");
  ASSERT_EQ(t.tensors().size(), 8u);
  const auto values = [&](const char* name) {
    const SafeTensor& x = t.at(name);
    std::vector<float> v(static_cast<std::size_t>(x.size()));
    SafeTensors::to_float(x, 0, x.size(), v.data());
    return v;
  };
  EXPECT_EQ(values("b.weight"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values("a.scalar"), (std::vector<float>{2.5f}));
  EXPECT_TRUE(t.at("a.scalar").shape.empty());
  EXPECT_EQ(values("half"), (std::vector<float>{1, -2}));
  EXPECT_EQ(values("brain"), (std::vector<float>{1, -2}));
  EXPECT_EQ(values("ids"), (std::vector<float>{5, -7}));
  EXPECT_EQ(values("empty"), std::vector<float>{});
  EXPECT_EQ(t.at("empty").shape, (std::vector<std::int64_t>{4, 0, 2}));
  EXPECT_EQ(values("wide"), (std::vector<float>{0.1f}));
  EXPECT_EQ(values("flags"), (std::vector<float>{1, 0, 1}));
  // Widest type first, then by name; header padded so that the data is aligned.
  EXPECT_EQ(t.at("ids").begin, 0u);
  EXPECT_EQ(t.at("wide").begin, 16u);
  EXPECT_EQ(t.at("a.scalar").begin, 24u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.at("ids").data) % 8, 0u);
  float part[2];
  SafeTensors::to_float(t.at("b.weight"), 3, 2, part);
  EXPECT_EQ(part[1], 5);
  EXPECT_THROW(SafeTensors::to_float(t.at("b.weight"), 5, 2, part), Error);
  EXPECT_THROW(t.at("nothing"), Error);
}

TEST(SafeTensors, EmptyFileAndFileWithoutMetadata) {
  TempDir dir;
  write_safetensors(dir / "none.safetensors", {}, {});
  EXPECT_TRUE(SafeTensors(dir / "none.safetensors").tensors().empty());
  EXPECT_EQ(error_of(file_of("{}")), "no error");
  EXPECT_EQ(error_of(file_of("  { \"__metadata__\" : {\"a\":\"b\"} }  \n")), "no error");
}

TEST(SafeTensors, UnalignedDataIsRead) {
  std::string bytes = file_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )", 4);
  const float v = 3.25f;
  std::memcpy(bytes.data() + bytes.size() - 4, &v, 4);
  const SafeTensors t(bytes.data(), bytes.size(), "m");
  float got = 0;
  SafeTensors::to_float(t.at("x"), 0, 1, &got);
  EXPECT_EQ(got, v);
}

TEST(SafeTensors, HostileFilesAreRefusedByName) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"x\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  struct Case {
    std::string bytes, expected;
  };
  std::string huge = file_of("{}");
  const std::uint64_t big = 100'000'001, most = ~0ull;
  std::memcpy(huge.data(), &big, 8);
  std::string endless = file_of("{}");
  std::memcpy(endless.data(), &most, 8);
  const Case cases[] = {
      {"", "too few"},
      {"1234567", "too few"},
      {huge, "over the limit"},
      {endless, "over the limit"},
      {file_of("{}").substr(0, 9), "truncated"},
      {file_of(""), "not JSON"},
      {file_of("{"), "not JSON"},
      {file_of("{} x"), "not JSON"},
      {file_of(std::string("{}\0\0", 4)), "not JSON"},
      {file_of("{\"\xff\xfe\":1}"), "not JSON"},
      {file_of("[]"), "must be a JSON object"},
      {file_of("7"), "must be a JSON object"},
      {file_of(std::string(100000, '[')), "nested too deeply"},
      {file_of(R"({"x":[[[[1]]]]})"), "nested too deeply"},
      {file_of(R"({"x":7})"), "tensor x: description"},
      {file_of(R"({"x":{}})"), "dtype is missing"},
      {file_of(R"({"x":{"dtype":"F32","shape":[]}})"), "data_offsets is missing"},
      {file_of(one("\"F33\"", "[1]", "[0,4]"), 4), "unknown dtype \"F33\""},
      {file_of(one("32", "[1]", "[0,4]"), 4), "dtype must be a text"},
      {file_of(one("\"F32\"", "{}", "[0,4]"), 4), "shape must be a list"},
      {file_of(one("\"F32\"", "[-1]", "[0,4]"), 4), "not negative"},
      {file_of(one("\"F32\"", "[1.0]", "[0,4]"), 4), "whole number"},
      {file_of(one("\"F32\"", "[18446744073709551615]", "[0,4]"), 4), "overflows"},
      {file_of(one("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4), "overflows"},
      {file_of(one("\"F32\"", "[4611686018427387905]", "[0,4]"), 4), "overflows"},
      {file_of(one("\"F4\"", "[3]", "[0,1]"), 1), "whole bytes"},
      {file_of(one("\"F32\"", "[1]", "[0]"), 4), "two numbers"},
      {file_of(one("\"F32\"", "[1]", "[4,0]"), 4), "backwards"},
      {file_of(one("\"F32\"", "[2]", "[0,4]"), 4), "needs 8 bytes, data_offsets give 4"},
      {file_of(one("\"F32\"", "[1]", "[4,8]"), 8), "hole"},
      {file_of(one("\"F32\"", "[1]", "[0,4]"), 3), "truncated"},
      {file_of(one("\"F32\"", "[1]", "[0,4]"), 5), "the file holds 5"},
      {file_of("{}", 8), "the file holds 8"},
      {file_of(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
       "overlap"},
      {file_of(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})", 6), "hole"},
      {file_of(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "twice"},
      {file_of(R"({"__metadata__":{"a":1}})"), "texts to texts"},
      {file_of(R"({"__metadata__":[]})"), "texts to texts"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.bytes);
    EXPECT_TRUE(has(message, c.expected)) << c.bytes.substr(0, 200);
    EXPECT_TRUE(has(message, "evil.safetensors: "));
    EXPECT_LT(message.size(), 600u);
  }
}

TEST(SafeTensors, FilesThatCannotBeReadOrWritten) {
  TempDir dir;
  EXPECT_THROW(SafeTensors(dir / "missing.safetensors"), Error);
  EXPECT_THROW(SafeTensors{dir.path()}, Error);
  test::write_file(dir / "empty.safetensors", "");
  EXPECT_THROW(SafeTensors(dir / "empty.safetensors"), Error);
  EXPECT_TRUE(has(message_of([&] { write_safetensors(dir / "no" / "x", {}); }), "No such file"));
  if (std::filesystem::exists("/dev/full")) {
    EXPECT_TRUE(has(message_of([&] { write_safetensors("/dev/full", {out<float>("x", "F32", {1}, {1})}); }), "No space left"));
  }
  const auto file = dir / "x";
  EXPECT_TRUE(has(message_of([&] { write_safetensors(file, {out<float>("x", "F32", {2}, {1})}); }), "4 of 8 bytes"));
  EXPECT_TRUE(has(message_of([&] { write_safetensors(file, {out<float>("x", "F32", {}, {1, 2})}); }), "more than its 4 bytes"));
  const std::vector<SafeTensorOut> twice{out<float>("x", "F32", {}, {1}), out<float>("x", "F32", {}, {1})};
  EXPECT_TRUE(has(message_of([&] { write_safetensors(file, twice); }), "twice"));
  EXPECT_TRUE(has(message_of([&] { write_safetensors(file, {out<float>("x", "f32", {}, {1})}); }), "unknown dtype"));
}

TEST(SafeTensors, HalfPrecisionRoundsToNearestEven) {
  // Every fp16 value survives fp16 → fp32 → fp16.
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto bits = static_cast<std::uint16_t>(h);
    SafeTensor t{.name = "x", .dtype = "F16", .shape = {1}, .begin = 0, .end = 2, .data = &bits};
    float f = 0;
    SafeTensors::to_float(t, 0, 1, &f);
    std::uint16_t back = 0;
    encode_floats(&f, 1, DType::f16, &back);
    if (std::isnan(f))
      EXPECT_GT(back & 0x7FFF, 0x7C00);
    else
      ASSERT_EQ(back, bits);
  }
  const auto half = [](float f) {
    std::uint16_t h = 0;
    encode_floats(&f, 1, DType::f16, &h);
    return h;
  };
  EXPECT_EQ(half(1.0f + 0x1p-11f), 0x3C00);  // a tie goes to even
  EXPECT_EQ(half(1.0f + 3 * 0x1p-11f), 0x3C02);
  EXPECT_EQ(half(1.0f + 0x1p-11f + 0x1p-20f), 0x3C01);
  EXPECT_EQ(half(65519.9f), 0x7BFF);
  EXPECT_EQ(half(65520.0f), 0x7C00);
  EXPECT_EQ(half(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(half(0x1p-25f), 0);  // half of the smallest, tie to even
  EXPECT_EQ(half(0x1.8p-25f), 1);
  EXPECT_EQ(half(-0.0f), 0x8000);
}

}  // namespace
}  // namespace bhyt
