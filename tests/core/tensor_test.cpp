#include "core/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/memory.h"

namespace bhyt {
namespace {

TEST(Tensor, ShapesAndSizes) {
  float data[24];
  const Tensor t(data, DType::f32, Device::cpu(), {2, 3, 4});
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.rows(), 6);
  EXPECT_EQ(t.cols(), 4);
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(t.bytes(), 96u);
  EXPECT_TRUE(t.contiguous());
  EXPECT_EQ(shape_string(t).text(), "[2, 3, 4]");
  EXPECT_EQ(shape_string(t.reshape({24})).text(), "[24]");
  EXPECT_FALSE(Tensor());
  EXPECT_EQ(Tensor(data, DType::bf16, Device::cpu(), {0, 5}).bytes(), 0u);
  EXPECT_EQ(Tensor(data, DType::f32, Device::cpu(), {}).size(), 1);
}

TEST(Tensor, SlicesShareMemory) {
  std::vector<float> v(20);
  std::iota(v.begin(), v.end(), 0.0f);
  const Tensor t(v.data(), DType::f32, Device::cpu(), {4, 5});
  const Tensor rows = t.row_slice(1, 2), cols = t.col_slice(3, 2), both = rows.col_slice(1, 3);
  EXPECT_EQ(rows.as<float>()[0], 5);
  EXPECT_TRUE(rows.contiguous());
  EXPECT_EQ(shape_string(cols).text(), "[4, 2]");
  EXPECT_FALSE(cols.contiguous());
  EXPECT_EQ(cols.as<float>()[cols.ld], 8);
  EXPECT_EQ(both.as<float>()[both.ld + 2], 13);
}

TEST(Tensor, CopiesAndClearing) {
  Context ctx(Device::cpu(), 2);
  OwnedTensor a(ctx, DType::f32, {3, 4}), b(ctx, DType::f32, {12});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.t.data) % 256, 0u);
  std::iota(a.t.as<float>(), a.t.as<float>() + 12, 1.0f);
  copy(ctx, a, b);
  EXPECT_EQ(b.t.as<float>()[11], 12);
  copy_rows(ctx, a.t.col_slice(0, 2), a.t.col_slice(2, 2));
  EXPECT_EQ(a.t.as<float>()[11], 10);
  zero(ctx, a);
  EXPECT_EQ(a.t.as<float>()[11], 0);
  EXPECT_THROW(copy(ctx, a, OwnedTensor(ctx, DType::f32, {11})), Error);
  EXPECT_THROW(copy(ctx, a, OwnedTensor(ctx, DType::bf16, {12})), Error);
  EXPECT_THROW(copy(ctx, a.t.col_slice(0, 2), b), Error);
}

TEST(Tensor, ToTheHostAndBack) {
  Context ctx(Device::cpu(), 2);
  const OwnedTensor a(ctx, DType::f32, {2, 2});
  const float from[4] = {1, 2, 3, 4};
  float to[4] = {};
  from_host(ctx, from, a);
  to_host(ctx, a, to);
  EXPECT_EQ(to[3], 4);
  EXPECT_THROW(to_host(ctx, a.t.col_slice(0, 1), to), Error);
  EXPECT_THROW(from_host(ctx, from, a.t.col_slice(0, 1)), Error);
}

TEST(Tensor, OwnersMove) {
  Context ctx(Device::cpu(), 2);
  OwnedTensor a(ctx, DType::f32, {4});
  void* const memory = a.t.data;
  const OwnedTensor b = std::move(a);
  EXPECT_EQ(b.t.data, memory);
  const Buffer empty(ctx, 0);
  EXPECT_EQ(empty.data(), nullptr);
}

TEST(Device, NamesAndAbsentGpus) {
  EXPECT_EQ(name_of(Device::cpu()), "cpu");
  EXPECT_EQ(name_of(Device::cuda(3)), "cuda:3");
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  EXPECT_THROW(parse_device("gpu"), UsageError);
  EXPECT_THROW(parse_device("cuda:x"), UsageError);
  EXPECT_THROW(parse_device("cuda:99"), UsageError);
  if (!cuda::built()) {
    EXPECT_EQ(parse_device("auto"), Device::cpu());
    EXPECT_THROW(Context(Device::cuda(0)), Error);
  }
}

TEST(DType, NamesAndSizes) {
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::i64), 8u);
  EXPECT_STREQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(parse_float_type("fp32"), DType::f32);
  EXPECT_THROW(parse_float_type("fp16"), UsageError);
}

// What is neither must not pass for fp32.
TEST(DType, DispatchTakesTheTwoFloatTypesAlone) {
  const auto size_for = [](DType t) { return dispatch_float(t, [](auto zero) { return sizeof zero; }); };
  EXPECT_EQ(size_for(DType::f32), 4u);
  EXPECT_EQ(size_for(DType::bf16), 2u);
  for (const DType t : {DType::f16, DType::f64, DType::i64, DType::i32, DType::u32, DType::u16, DType::u8}) {
    std::string message = "no error";
    try {
      size_for(t);
    } catch (const Error& e) {
      message = e.what();
    }
    EXPECT_EQ(message, std::string("[dispatch_float] expected fp32 or bf16, got ") + name_of(t));
  }
}

}  // namespace
}  // namespace bhyt
