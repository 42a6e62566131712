// Models whose weights stay in their files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "ops/norm/methods.h"
#include "tests/devices.h"
#include "tests/model/decoding.h"
#include "tests/model/helpers.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

namespace fs = std::filesystem;
using test::has;
using test::message_of;
using test::TempDir;

Context& on_cpu() { return test::context_on(Device::cpu()); }

const std::vector<std::int32_t> kIds{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

std::vector<float> logits(const Model& m) { return test::Decoder(m, std::ssize(kIds)).next(kIds); }

std::unique_ptr<Model> mapped(const fs::path& dir, DType type) { return load_model(on_cpu(), dir, type, Model::Repack{}, Load::mapped); }

void save(const TempDir& dir, const ModelConfig& config, DType type) { save_model(dir.path(), *make_model(on_cpu(), config, type)); }

TEST(MappedLoad, IsTheSameModel) {
  for (const Method& method : methods())
    for (const std::int64_t layers : {2, 3})
      for (const DType type : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(fmt::format("{}, {} layers, {}", method.name, layers, name_of(type)));
        const TempDir dir;
        save(dir, small_config(std::string(method.name), layers), type);
        const auto copied = load_model(on_cpu(), dir.path(), type, Model::Repack{.fold = false});
        EXPECT_EQ(logits(*mapped(dir.path(), type)), logits(*copied));
      }
}

// q, k and v are one matrix in the model and lie apart in the file; gate and up lie one behind the other.
TEST(MappedLoad, MatricesStayWhereTheyCan) {
  const TempDir dir;
  save(dir, small_config("rmsnorm", 3), DType::bf16);
  const auto m = mapped(dir.path(), DType::bf16), copied = load_model(on_cpu(), dir.path(), DType::bf16, Model::Repack{});
  const auto borrowed = [&](const std::string& name) { return m->parameters().at(name).borrowed; };
  for (const char* name : {"o_proj", "q_proj", "k_proj", "v_proj"})
    EXPECT_EQ(borrowed(fmt::format("model.layers.1.self_attn.{}.weight", name)), name[0] == 'o') << name;
  for (const char* name : {"gate_proj", "up_proj", "down_proj"})
    EXPECT_TRUE(borrowed(fmt::format("model.layers.1.mlp.{}.weight", name))) << name;
  EXPECT_TRUE(borrowed("model.embed_tokens.weight"));
  EXPECT_TRUE(borrowed("lm_head.weight"));
  EXPECT_FALSE(borrowed("model.norm.weight"));
  std::size_t own = 0, all = 0;
  for (const Parameter& p : m->parameters().list()) {
    all += p.value.bytes();
    if (!p.borrowed) own += p.value.bytes();
  }
  EXPECT_LE(m->parameters().value_bytes(), own + 256 * m->parameters().list().size());
  EXPECT_GE(copied->parameters().value_bytes(), all);
  EXPECT_LT(own, all / 2);
}

TEST(MappedLoad, AnotherTypeIsCopied) {
  const TempDir dir;
  save(dir, small_config("bhyt", 3), DType::f32);
  const auto m = mapped(dir.path(), DType::bf16);
  for (const Parameter& p : m->parameters().list()) EXPECT_FALSE(p.borrowed) << p.name;
  EXPECT_EQ(logits(*m), logits(*load_model(on_cpu(), dir.path(), DType::bf16, Model::Repack{.fold = false})));
  ::testing::internal::CaptureStderr();
  mapped(dir.path(), DType::bf16);
  EXPECT_TRUE(has(::testing::internal::GetCapturedStderr(), "none is in bf16"));
  ::testing::internal::CaptureStderr();
  mapped(dir.path(), DType::f32);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// Matrices become bytes from where they lie in the file; what stays is copied, so that the file may be written to afterwards.
TEST(MappedLoad, BytesAreMadeFromTheFile) {
  for (const bool tied : {false, true})
    for (const DType type : {DType::f32, DType::bf16}) {
      const TempDir dir;
      ModelConfig config = small_config("bhyt", 3);
      config.tied = tied;
      save(dir, config, type);
      const auto right = make_model(on_cpu(), config, type);
      right->repack({.weights = DType::i8});
      const auto m = load_model(on_cpu(), dir.path(), type, Model::Repack{.weights = DType::i8});
      for (const Parameter& p : m->parameters().list())
        EXPECT_EQ(p.borrowed, has(p.name, "o_proj") || has(p.name, "mlp.") || has(p.name, "lm_head")) << p.name;
      std::fstream file(dir / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
      const std::string zeros(fs::file_size(dir / "model.safetensors"), '\0');
      file.write(zeros.data(), std::ssize(zeros));
      file.close();
      EXPECT_EQ(logits(*m), logits(*right)) << tied << ", " << name_of(type);
    }
}

// A header may leave the data on any byte.
TEST(MappedLoad, UnalignedDataIsCopied) {
  const TempDir dir;
  save(dir, small_config("bhyt", 3), DType::f32);
  const auto right = logits(*mapped(dir.path(), DType::f32));
  std::string bytes = test::read_file(dir / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  bytes.insert(8 + static_cast<std::size_t>(header), " ");
  ++header;
  std::memcpy(bytes.data(), &header, 8);
  test::write_file(dir / "model.safetensors", bytes);
  const auto m = mapped(dir.path(), DType::f32);
  for (const Parameter& p : m->parameters().list()) EXPECT_FALSE(p.borrowed) << p.name;
  EXPECT_EQ(logits(*m), right);
}

// Whichever are lent: of a layer all, none, or some.
TEST(MappedLoad, WhatIsNotBorrowedHasRoomOfItsOwn) {
  const auto down = [](const Parameter& p) { return has(p.name, "down_proj"); };
  const auto all_but_one = [](const Parameter& p) {
    return p.shape.size() == 2 && !(has(p.name, "layers.2.mlp.gate") || has(p.name, "layers.2.mlp.up"));
  };
  const auto layer = [](const Parameter& p) { return p.shape.size() == 2 && has(p.name, "layers.1."); };
  for (const std::function<bool(const Parameter&)>& lends : std::vector<std::function<bool(const Parameter&)>>{down, all_but_one, layer}) {
    std::vector<float> others(1 << 20);
    std::int64_t at = 0;
    const auto find = [&](const Parameter& p) -> void* { return lends(p) ? others.data() + std::exchange(at, at + p.size) : nullptr; };
    const Parameters own(on_cpu(), small_config("bhyt", 4), DType::f32, {}, {}, {.lender = {}, .find = find, .rest_is_written = false});
    std::vector<std::pair<const char*, const char*>> places;
    for (const Parameter& p : own.list())
      if (!p.borrowed) {
        const char* const begin = static_cast<const char*>(p.value.data);
        places.emplace_back(begin, begin + p.value.bytes());
      }
    std::ranges::sort(places);
    for (std::size_t i = 1; i < places.size(); ++i) EXPECT_LE(places[i - 1].second, places[i].first) << i;
    EXPECT_LE(places.back().second - places.front().first, static_cast<std::ptrdiff_t>(own.value_bytes()));
    EXPECT_GT(at, 0);
  }
}

TEST(MappedLoad, TheFilesMayGo) {
  auto dir = std::make_unique<TempDir>();
  save(*dir, small_config("bhyt", 2), DType::bf16);
  const auto m = mapped(dir->path(), DType::bf16);
  const auto before = logits(*m);
  dir.reset();
  EXPECT_EQ(logits(*m), before);
}

TEST(MappedLoad, ATruncatedFileIsRefused) {
  const TempDir dir;
  save(dir, small_config("bhyt", 2), DType::bf16);
  const fs::path file = dir / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 2);
  EXPECT_TRUE(has(message_of([&] { mapped(dir.path(), DType::bf16); }), "truncated?"));
}

TEST(MappedLoad, WeightsAreNeverWritten) {
  const TempDir dir;
  save(dir, small_config("rmsnorm", 3), DType::f32);
  const std::string before = test::read_file(dir / "model.safetensors");
  const auto m = mapped(dir.path(), DType::f32);
  EXPECT_TRUE(m->blocks()[0].site1().gamma) << "the gain stays apart";
  const Parameter& head = m->parameters().at("lm_head.weight");
  const auto values = m->parameters().read_value(head);
  EXPECT_TRUE(has(message_of([&] { m->parameters().write_value(head, values.data()); }), "memory of others"));
  EXPECT_TRUE(has(message_of([&] { save_model(dir.path(), *m); }), "repacked for generating"));
  EXPECT_THROW(load_model(on_cpu(), dir.path(), DType::f32, Model::Repack{.weights = DType::i8}, Load::mapped), UsageError);
  EXPECT_EQ(test::read_file(dir / "model.safetensors"), before);
}

TEST(MappedLoad, ValuesThatAreNotFiniteAreCounted) {
  const TempDir dir;
  save(dir, small_config("rmsnorm", 3), DType::bf16);
  std::string bytes = test::read_file(dir / "model.safetensors");
  for (const std::size_t back : {1, 3})
    bytes[bytes.size() - back] = static_cast<char>(0x7F), bytes[bytes.size() - back - 1] = static_cast<char>(0xC0);
  test::write_file(dir / "model.safetensors", bytes);
  for (const Load load : {Load::mapped, Load::copied}) {
    ::testing::internal::CaptureStderr();
    load_model(on_cpu(), dir.path(), DType::bf16, Model::Repack{}, load);
    EXPECT_TRUE(has(::testing::internal::GetCapturedStderr(), "holds 2 values that are not finite"));
  }
}

}  // namespace
}  // namespace bhyt::testing
