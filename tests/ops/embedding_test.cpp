#include "ops/embedding/embedding.h"

#include <fmt/format.h>

#include "core/error.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

Case embedding_case(std::int64_t n, std::int64_t vocab, std::int64_t cols, bool learned, float constant = 1) {
  Case c{.name = fmt::format("{} of {}, {} wide, {}", n, vocab, cols, learned ? "learned scale" : fmt::format("times {}", constant)),
         .inputs = {{"tokens", {n}, Role::integer, Fill::integers, static_cast<double>(vocab)}, {"table", {vocab, cols}, Role::weight}},
         .outputs = {{"out", {n, cols}}},
         .reference =
             [=](Arrays& a, Round) {
               const double scale = learned ? a["scale"][0] : constant;
               const auto &tokens = a["tokens"], &table = a["table"];
               auto& out = a["out"];
               for (std::int64_t i = 0; i < n * cols; ++i) {
                 const auto token = static_cast<std::int64_t>(tokens[static_cast<std::size_t>(i / cols)]);
                 out[static_cast<std::size_t>(i)] = table[static_cast<std::size_t>(token * cols + i % cols)] * scale;
               }
             },
         .forward =
             [=](CaseTensors& k) {
               embedding(k.ctx(), k["tokens"], k["table"], k["out"], {.constant = constant, .learned = learned ? k["scale"] : Tensor{}});
             },
         .backward =
             [=](CaseTensors& k) {
               embedding_backward(
                   k.ctx(), k["tokens"], k["table"], k.grad("out"), k.grad("table"),
                   {.constant = constant, .learned = learned ? k["scale"] : Tensor{}, .dlearned = learned ? k.grad("scale") : Tensor{}});
             }};
  if (learned) c.inputs.push_back({"scale", {1}, Role::parameter, Fill::normal, 1, 8});
  c.bytes = 2 * static_cast<double>(n * cols) * 4;
  c.backward_bytes = 3 * static_cast<double>(n * cols) * 4;
  return c;
}

std::vector<Case> tests() {
  return {embedding_case(1, 1, 1, false),    embedding_case(31, 7, 33, false),          embedding_case(257, 13, 32, true),
          embedding_case(64, 997, 31, true), embedding_case(53, 5, 1031, false, 22.6f), embedding_case(2000, 3, 17, true)};
}
std::vector<Case> benchmarks() { return {embedding_case(2048, 32000, 512, false), embedding_case(2048, 32000, 512, true)}; }

OP_CASES(Embedding, tests, benchmarks)

// A table that is not trained: its learned scale still gets its gradient, with the same bits.
TEST(Embedding, TheScaleLearnsWithoutTheTable) {
  for (Context& ctx : test::contexts())
    for (const DType type : {DType::f32, DType::bf16}) {
      const Arrays a = draw({{"table", {5, 33}, Role::weight}, {"dout", {4, 33}}}, type);
      const OwnedTensor table = make_tensor(ctx, type, {5, 33}, a.at("table")), dout = make_tensor(ctx, type, {4, 33}, a.at("dout"));
      const OwnedTensor tokens = make_tensor(ctx, DType::i32, {4}, {1, 4, 1, 0}), learned = make_tensor(ctx, DType::f32, {1}, {3});
      const auto slope = [&](const Tensor& dtable) {
        const OwnedTensor d = make_tensor(ctx, DType::f32, {1}, {2});
        embedding_backward(ctx, tokens, table, dout, dtable, {.learned = learned, .dlearned = d});
        return to_doubles(ctx, d);
      };
      const OwnedTensor dtable = make_tensor(ctx, DType::f32, {5, 33}, std::vector<double>(165, 0));
      EXPECT_EQ(slope({}), slope(dtable));
    }
}

TEST(Embedding, RefusesTokensOutsideTheTable) {
  const OwnedTensor table = make_tensor(on_cpu(), DType::f32, {5, 3}), out = make_tensor(on_cpu(), DType::f32, {2, 3});
  for (const double bad : {5.0, -1.0, 2147483647.0}) {
    const OwnedTensor tokens = make_tensor(on_cpu(), DType::i32, {2}, {0, bad});
    EXPECT_THROW(embedding(on_cpu(), tokens, table, out), Error) << bad;
    EXPECT_THROW(embedding_backward(on_cpu(), tokens, table, out, table), Error) << bad;
  }
}

TEST(Embedding, RefusesWrongShapes) {
  const OwnedTensor table = make_tensor(on_cpu(), DType::f32, {5, 3}), tokens = make_tensor(on_cpu(), DType::i32, {2}, {0, 1});
  EXPECT_THROW(embedding(on_cpu(), tokens, table, make_tensor(on_cpu(), DType::f32, {2, 4})), Error);
  EXPECT_THROW(embedding(on_cpu(), tokens, table, make_tensor(on_cpu(), DType::bf16, {2, 3})), Error);
}

// A token that could not be chosen is −1: whoever is fed it reads the first row instead of what lies before the table.
TEST(Embedding, FedTokensTakeTheirPlaces) {
  for (Context& ctx : test::contexts()) {
    const OwnedTensor tokens = make_tensor(ctx, DType::i32, {5}, {3, -1, 2, -3, -2}), feed = make_tensor(ctx, DType::i32, {3}, {7, -1, 5});
    take_fed(ctx, tokens, feed);
    std::vector<std::int32_t> ids(5);
    to_host(ctx, tokens, ids.data());
    EXPECT_EQ(ids, (std::vector<std::int32_t>{3, 7, 2, 5, 0}));
  }
}

}  // namespace
}  // namespace bhyt::testing
