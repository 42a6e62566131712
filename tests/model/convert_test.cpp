#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "model/checkpoint.h"
#include "model/checkpoint_convert.h"
#include "model/checkpoint_files.h"
#include "model/checkpoint_json.h"
#include "model/llama2c.h"
#include "tests/devices.h"
#include "tests/model/decoding.h"
#include "tests/model/helpers.h"
#include "tests/model/stored.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using schema::Json;
using test::has;
using test::message_of;
using test::TempDir;
using test::values_in;

const fs::path kGolden = fs::path(BHYT_TEST_DIR) / "golden" / "models";

TEST(Convert, KeepsValuesTypesAndWhatOthersWrote) {
  TempDir dir;
  const fs::path from = kGolden / "ref_residual", to = dir / "out";
  convert_checkpoint(from, to, {});
  EXPECT_EQ(values_in(to), values_in(from));
  EXPECT_EQ(SafeTensors(to / "model.safetensors").at("model.norm.weight").dtype, "F32");
  EXPECT_EQ(SafeTensors(to / "model.safetensors").at("lm_head.weight").dtype, "BF16");
  const Json config = read_json(to / "config.json");
  EXPECT_EQ(config["model_type"], "bhyt");
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_EQ(config["norm"]["correction"], "residual_aware");
  EXPECT_EQ(config["var_approx_method"], "residual_aware");
  EXPECT_TRUE(fs::exists(to / "modeling_bhyt.py"));
  EXPECT_FALSE(fs::exists(dir / "out.partial"));
}

TEST(Convert, UnknownKeysStayAndReplacedOnesGo) {
  TempDir dir;
  fs::create_directory(dir / "in");
  fs::copy(kGolden / "rmsnorm_v5", dir / "in");
  Json config = read_json(dir / "in" / "config.json");
  config["pad_token_id"] = 3;
  test::write_file(dir / "in" / "config.json", config.dump());
  test::write_file(dir / "in" / "tokenizer.json", "{}");
  convert_checkpoint(dir / "in", dir / "out/", {});
  const Json out = read_json(dir / "out" / "config.json");
  EXPECT_EQ(out["pad_token_id"], 3);
  EXPECT_FALSE(out.contains("rope_parameters"));
  EXPECT_EQ(out["rope_theta"], 5000.0);
  EXPECT_EQ(out["model_type"], "llama");
  EXPECT_TRUE(fs::exists(dir / "out" / "tokenizer.json"));
}

TEST(Convert, TypesRoundAndShardsHoldEverything) {
  const fs::path from = kGolden / "seednorm";
  for (const auto& [type, bits] : {std::pair{DType::f32, 23}, {DType::bf16, 7}, {DType::f16, 10}}) {
    TempDir dir;
    convert_checkpoint(from, dir / "out", {.dtype = type, .max_shard = 4000});
    const WeightFiles files(dir / "out");
    EXPECT_GT(files.files().size(), 3u);
    EXPECT_EQ(files.name(), "model.safetensors.index.json");
    std::uint64_t total = 0;
    for (const auto& [name, e] : files.tensors()) {
      EXPECT_EQ(e.tensor->dtype, safetensors_dtype(type));
      total += e.tensor->end - e.tensor->begin;
    }
    for (const auto& f : files.files()) EXPECT_TRUE(f->tensors().size() == 1 || f->file_bytes() <= 8000u);  // header included
    EXPECT_EQ(read_json(dir / "out" / "model.safetensors.index.json")["metadata"]["total_size"], total);
    const auto want = values_in(from), got = values_in(dir / "out");
    ASSERT_EQ(want.size(), got.size());
    for (const auto& [name, v] : want)
      for (std::size_t i = 0; i < v.size(); ++i) ASSERT_NEAR(got.at(name)[i], v[i], std::ldexp(std::fabs(v[i]), -bits)) << name;
    EXPECT_NO_THROW(load_model(test::context_on(Device::cpu()), dir / "out", DType::f32));
  }
}

TEST(Convert, RefusesWhatItWouldSpoil) {
  TempDir dir;
  fs::create_directory(dir / "full");
  test::write_file(dir / "full" / "x", "x");
  EXPECT_TRUE(has(message_of([&] { convert_checkpoint(kGolden / "lns", dir / "full", {}); }), "exists already"));
  EXPECT_TRUE(has(message_of([&] { convert_checkpoint(dir / "none", dir / "out", {}); }), "no such file"));
  EXPECT_TRUE(has(message_of([&] { convert_checkpoint(dir / "full", dir / "out", {}); }), "not a checkpoint"));
  EXPECT_FALSE(fs::exists(dir / "out"));
  EXPECT_FALSE(fs::exists(dir / "out.partial"));
  const ConvertOptions failing{.finish = [](const fs::path&) { throw Error("no tokenizer"); }};
  EXPECT_TRUE(has(message_of([&] { convert_checkpoint(kGolden / "lns", dir / "out", failing); }), "no tokenizer"));
  EXPECT_FALSE(fs::exists(dir / "out.partial"));
  fs::create_directory(dir / "empty");
  EXPECT_NO_THROW(convert_checkpoint(kGolden / "lns", dir / "empty", {}));
}

// --- llama2.c ------------------------------------------------------------------------------------------------------------------------

// A file whose weights count up, so that every value tells where it came from.
std::string llama2c_file(std::vector<std::int32_t> header, std::int64_t floats) {
  std::string s(header.size() * 4 + static_cast<std::size_t>(floats) * 4, '\0');
  std::memcpy(s.data(), header.data(), header.size() * 4);
  for (std::int64_t i = 0; i < floats; ++i) {
    const auto v = static_cast<float>(i);
    std::memcpy(s.data() + header.size() * 4 + i * 4, &v, 4);
  }
  return s;
}

TEST(Llama2c, LayoutAndRotation) {
  // dim 8, hidden 3, one layer, 2 heads, 1 KV head, vocabulary 5 with its own head, 4 positions.
  const std::int64_t floats = 5 * 8 + 8 + 64 + 32 + 32 + 64 + 8 + 3 * 24 + 8 + 4 * 4 + 5 * 8;
  const std::string bytes = llama2c_file({8, 3, 1, 2, 1, -5, 4}, floats);
  const Llama2cFile f(bytes.data(), bytes.size(), "x.bin");
  EXPECT_EQ(f.config().head_dim, 4);
  EXPECT_FALSE(f.config().tied);
  EXPECT_EQ(f.config().max_positions, 4);
  const auto first_of = [&](const std::string& name) {
    for (const auto& w : f.weights())
      if (w.name == name) {
        std::vector<float> values(static_cast<std::size_t>(w.shape[0] * (w.shape.size() == 2 ? w.shape[1] : 1)));
        f.rows(w, 0, w.shape[0], values.data());
        return values;
      }
    return std::vector<float>{-1};
  };
  EXPECT_EQ(first_of("model.embed_tokens.weight")[0], 0);
  EXPECT_EQ(first_of("model.layers.0.input_layernorm.weight")[0], 40);
  const std::vector<float> q = first_of("model.layers.0.self_attn.q_proj.weight");  // rows 0 1 2 3 of a head become 0 2 1 3
  for (const auto& [to, from] : {std::pair{0, 0}, {2, 1}, {1, 2}, {3, 3}, {4, 4}, {6, 5}, {5, 6}, {7, 7}})
    EXPECT_EQ(q[static_cast<std::size_t>(to * 8)], static_cast<float>(48 + from * 8));
  const auto& w = f.weights()[2];  // the same by parts
  ASSERT_EQ(w.name, "model.layers.0.self_attn.q_proj.weight");
  std::vector<float> part(16);
  f.rows(w, 5, 2, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), q.begin() + 40));
  EXPECT_THROW(f.rows(w, 7, 2, part.data()), Error);
  EXPECT_EQ(first_of("model.layers.0.self_attn.v_proj.weight")[9], 48 + 64 + 32 + 9);
  EXPECT_EQ(first_of("model.layers.0.mlp.gate_proj.weight")[0], 48 + 64 + 32 + 32 + 64 + 8);
  EXPECT_EQ(first_of("model.layers.0.mlp.down_proj.weight")[0], 48 + 64 + 32 + 32 + 64 + 8 + 24);
  EXPECT_EQ(first_of("lm_head.weight")[0], static_cast<float>(floats - 40));
}

TEST(Llama2c, HostileFilesAreRefused) {
  const auto refusal = [](const std::string& b) { return message_of([&] { Llama2cFile(b.data(), b.size(), "x.bin"); }); };
  EXPECT_TRUE(has(refusal("abc"), "too few"));
  EXPECT_TRUE(has(refusal(llama2c_file({8, 3, 1, 2, 1, 5, 4}, 1)), "the file holds 32"));
  EXPECT_TRUE(has(refusal(llama2c_file({0x616b3432, 1, 1, 2, 1, 5, 4}, 1)), "version 1"));
  EXPECT_TRUE(has(refusal(llama2c_file({9, 3, 1, 2, 1, 5, 4}, 1)), "multiple"));
  EXPECT_TRUE(has(refusal(llama2c_file({8, 3, 1, 0, 1, 5, 4}, 1)), "multiple"));
  EXPECT_TRUE(has(refusal(llama2c_file({8, 3, -1, 2, 1, 5, 4}, 1)), "model.layers"));
  EXPECT_TRUE(has(refusal(llama2c_file({8, 3, 1, 2, 1, INT32_MIN, 4}, 1)), "model.vocab"));
  EXPECT_TRUE(has(refusal(llama2c_file({1 << 22, 1 << 24, 1 << 14, 1 << 8, 1 << 8, 1, 1}, 1)),
                  "the file holds 32"));  // asks for 2^64 bytes and a few
  TempDir dir;
  test::write_file(dir / "x.bin", "hello, this is no model at all");
  EXPECT_FALSE(Llama2cFile::recognised(dir / "x.bin"));
  EXPECT_FALSE(Llama2cFile::recognised(dir / "none.bin"));
  EXPECT_TRUE(has(message_of([&] { convert_checkpoint(dir / "x.bin", dir / "out", {}); }), "not a llama2.c checkpoint"));
}

TEST(Llama2c, RealModelsContinueAsTheirAuthorsDo) {
  const char* data = std::getenv("BHYT_DATA");
  if (!data) GTEST_SKIP() << "BHYT_DATA is not set";
  const fs::path from = fs::path(data) / "checkpoints";
  const Json greedy = read_json(from / "greedy.json");
  for (const auto& [name, expected] : greedy.items()) {
    TempDir dir;
    EXPECT_TRUE(Llama2cFile::recognised(from / (name + ".bin")));
    convert_checkpoint(from / (name + ".bin"), dir / "out", {});
    const auto model = load_model(test::context_on(Device::cpu()), dir / "out", DType::f32);
    const auto want = expected["greedy_from_bos"].get<std::vector<std::int32_t>>();
    const auto got = test::continue_greedily(*model, {want[0]}, want.size());
    EXPECT_EQ(got, want) << name;
  }
}

}  // namespace
}  // namespace bhyt
