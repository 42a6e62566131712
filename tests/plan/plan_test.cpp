// What a plan says, against figures worked out by hand, sizes of shards and what was measured.
#include "plan/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "model/shard.h"

namespace bhyt::plan {
namespace {

using Words = std::vector<std::string>;

train::RunConfig config_of(const Words& words) { return train::read_run_config(train::config_tree("", words)); }

// Blocks of 163,840 matrix elements (qkv 49,152, o 16,384, gate and up 65,536, down 32,768), embedding and head of 128,000 each, nine
// vectors of 128.
train::RunConfig small(const Words& more = {}) {
  Words words = {"model.d=128",      "model.layers=4",   "model.heads=4",    "model.kv_heads=4", "model.mlp=256",
                 "model.vocab=1000", "model.tied=false", "data.seq_len=128", "train.batch=16",   "norm.method=rmsnorm"};
  words.insert(words.end(), more.begin(), more.end());
  return config_of(words);
}
constexpr double kMatrices = 2 * 128000 + 4 * 163840, kVectors = 9 * 128;
constexpr double kShard = 224 * 1024, kArena = 892 * 1024;  // of four ranks, and whole: in steps of 1024
static_assert(kShard - (kVectors + kMatrices / 4) < 1024 && kArena - (kVectors + kMatrices) < 1024);

const Row& row_of(const Plan& p, std::int64_t zero, Recompute recompute = Recompute::none) {
  for (const Row& r : p.rows)
    if (r.zero == zero && r.recompute == recompute) return r;
  throw std::runtime_error("no such row");
}

std::string refusal(const std::function<void()>& what) {
  try {
    what();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

Cluster h200s(int gpus, int nodes = 1, double network = 0) {
  return {.gpu = find_gpu("h200"), .per_node = gpus, .nodes = nodes, .network = network};
}

TEST(Plan, MemoryOfARankIsThatOfItsShard) {
  const Plan p = make_plan(small(), h200s(4));
  const Parameters layout = Parameters::layout(p.config.model.config, DType::bf16, {}, 4);
  EXPECT_EQ(static_cast<double>(Shard(layout, 3, 4).size()), kShard);
  for (const Row& r : p.rows) EXPECT_EQ(r.memory.weights, 2 * kMatrices + 4 * kVectors);
  EXPECT_EQ(row_of(p, 0).memory.gradients, 4 * kArena);
  EXPECT_EQ(row_of(p, 1).memory.gradients, 4 * (kArena - kVectors + kShard));
  EXPECT_EQ(row_of(p, 2).memory.gradients, 4 * (2 * 163840 + 2 * 128000 + kShard));  // two blocks at a time
  EXPECT_EQ(row_of(p, 0).memory.optimizer, 10 * kArena);                             // two moments, and the masters' low bits
  EXPECT_EQ(row_of(p, 1).memory.optimizer, 10 * kShard);
  EXPECT_EQ(row_of(p, 2).memory.optimizer, 10 * kShard);
}

TEST(Plan, ShardsTakeLess) {
  const Plan p = make_plan(config_of({"model.preset=llama-1b", "train.batch=64", "data.seq_len=1024"}), h200s(8));
  EXPECT_LT(row_of(p, 1).memory.device(), row_of(p, 0).memory.device());
  EXPECT_LT(row_of(p, 2).memory.device(), row_of(p, 1).memory.device());
  for (const std::int64_t zero : {0, 1, 2}) {
    EXPECT_LT(row_of(p, zero, Recompute::norm).memory.device(), row_of(p, zero).memory.device());
    EXPECT_LT(row_of(p, zero, Recompute::swiglu).memory.device(), row_of(p, zero, Recompute::norm).memory.device());
    EXPECT_LT(row_of(p, zero, Recompute::block).memory.device(), row_of(p, zero, Recompute::swiglu).memory.device());
  }
}

TEST(Plan, WhatIsSent) {
  const Plan once = make_plan(small(), h200s(4)), twice = make_plan(small({"train.micro_batch=2"}), h200s(4));
  const double vectors = 2 * 4 * kVectors;  // added up and handed round
  ASSERT_EQ(row_of(once, 2).pieces, 1);
  ASSERT_EQ(row_of(twice, 2).pieces, 2);
  for (const Plan* p : {&once, &twice}) {
    EXPECT_EQ(row_of(*p, 0).time.sent, 0.75 * (2 * 4 * kMatrices + vectors));
    EXPECT_EQ(row_of(*p, 1).time.sent, 0.75 * ((4 + 2) * kMatrices + vectors));
    EXPECT_EQ(row_of(*p, 2).time.sent, 0.75 * ((4.0 * static_cast<double>(row_of(*p, 2).pieces) + 2) * kMatrices + vectors));
  }
  const Plan half = make_plan(small({"parallel.reduce=bf16"}), h200s(4));
  EXPECT_EQ(row_of(half, 2).time.sent, 0.75 * ((2 + 2) * kMatrices + vectors));
  const Plan alone = make_plan(small(), h200s(1));
  EXPECT_EQ(alone.rows.size(), 4u);
  EXPECT_EQ(row_of(alone, 0).time.sent, 0);
  EXPECT_NEAR(row_of(alone, 0).time.exposed(), 0, 1e-12);
}

// Two ranks and a byte a second: so many bytes take half as many seconds.
TEST(Timeline, WaitsAsARankDoes) {
  const Ring ring{.ranks = 2, .rate = 1};
  Work w{.sections = {{0, 4, 2}, {1, 4, 2}, {2, 4, 2}}, .layers = 2, .zero = 1, .forward = 1, .backward = 2, .head = 1, .optimizer = 1};
  // Weights are there at 1, 2 and 3; the second block's forward ends at 4, the head at 5, backwards at 7 and 9; sums are made until 9, 11
  // and 13.
  StepTime t = time_step(w, ring);
  EXPECT_EQ(t.step, 14);
  EXPECT_EQ(t.compute, 8);
  EXPECT_EQ(t.communication, 9);
  EXPECT_EQ(t.exposed(), 6);
  EXPECT_EQ(t.sent, 9);
  // Without shards gradients go round twice and weights not at all: forwards until 3, backwards until 5 and 7, sums until 9, 13 and 17.
  w.zero = 0;
  EXPECT_EQ(time_step(w, ring).step, 18);
  // Two micro-batches: sums are made until 9, 11 and 13; the second pass has its forward from 9 to 12 and its backwards until 14 and 16,
  // its sums are made until 16, 18 and 20.
  w.zero = 2;
  w.pieces = 2;
  t = time_step(w, ring);
  EXPECT_EQ(t.communication, 15);
  EXPECT_EQ(t.step, 21);
  // Quick links hide everything but the weights of the embedding and the first block, and their gradients: there is nothing to compute for
  // the embedding.
  const Ring quick{.ranks = 2, .rate = 100};
  w.pieces = 1;
  EXPECT_NEAR(time_step(w, quick).exposed(), 2 * 0.01 + 2 * 0.02, 1e-9);
  EXPECT_EQ(time_step(w, {.ranks = 1}).exposed(), 0);
}

TEST(Timeline, WithZero2ABlockWaitsForAPlace) {
  // The third block's sum is made until 22, and the first takes its place; with zero 1 it need not wait.
  Work w{.sections = {{1, 0, 0}, {2, 0, 0}, {3, 40, 0}}, .layers = 3, .zero = 2, .forward = 0, .backward = 2};
  const Ring ring{.ranks = 2, .rate = 1};
  EXPECT_EQ(time_step(w, ring).step, 24);
  w.zero = 1;
  EXPECT_EQ(time_step(w, ring).step, 22);
}

TEST(Ring, IsAsSlowAsItsSlowestLink) {
  const Ring inside = ring_of(h200s(8));
  EXPECT_EQ(inside.rate, 0.8 * 450e9);
  EXPECT_FALSE(inside.over_network);
  EXPECT_NEAR(inside.latency, 7 * 3e-6, 1e-12);
  const Ring across = ring_of(h200s(8, 4, 50e9));
  EXPECT_EQ(across.ranks, 32);
  EXPECT_EQ(across.rate, 0.8 * 50e9);
  EXPECT_TRUE(across.over_network);
  EXPECT_NEAR(across.latency, 27 * 3e-6 + 4 * 10e-6, 1e-12);
  EXPECT_EQ(across.sent(32), 31);
  EXPECT_FALSE(ring_of(h200s(8, 4, 1e12)).over_network);
  EXPECT_EQ(parse_network("400G"), 50e9);
  EXPECT_EQ(parse_network("3.2T"), 400e9);
  for (const char* wrong : {"", "400", "G", "-1G", "0G", "400GB", "nanG"}) EXPECT_NE(refusal([&] { parse_network(wrong); }), "") << wrong;
}

TEST(Plan, SaysWhatLimits) {
  const Words words = {"model.preset=llama-1b", "train.batch=64", "data.seq_len=1024"};
  const Plan inside = make_plan(config_of(words), h200s(8));
  EXPECT_EQ(inside.limit(row_of(inside, 2)), "compute");
  const Plan slow = make_plan(config_of(words), h200s(4, 2, 100e9 / 8));
  EXPECT_EQ(slow.limit(row_of(slow, 2)), "network");
  EXPECT_GT(row_of(slow, 2).time.step, row_of(inside, 2).time.step);
  const Plan pcie =
      make_plan(config_of({"model.preset=llama-374m", "train.batch=8", "data.seq_len=256"}), {.gpu = find_gpu("l40s"), .per_node = 8});
  EXPECT_EQ(pcie.limit(row_of(pcie, 2)), "PCIe");
}

// Measured on one H200 (docs/benchmarks.md). The plan's rates come from Llama-1B without recompute, which they must give back, and from
// Llama-3B at twice the length; the rest is predicted.
TEST(Plan, IsNearWhatWasMeasured) {
  const Plan three = make_plan(config_of({"model.preset=llama-3b", "train.batch=16", "data.seq_len=1024"}), h200s(1));
  EXPECT_NEAR(row_of(three, 0).tok_s / 30281, 1, 0.05);
  const Plan one = make_plan(config_of({"model.preset=llama-1b", "train.batch=16", "data.seq_len=1024"}), h200s(1));
  EXPECT_NEAR(row_of(one, 0).tok_s / 75650, 1, 1e-3);
  EXPECT_NEAR(row_of(one, 0, Recompute::block).tok_s / 60920, 1, 0.05);
  const double gib = 1 << 30;
  EXPECT_NEAR(row_of(one, 0).memory.device() / gib, 37.4, 0.1);
  EXPECT_NEAR(row_of(one, 0, Recompute::norm).memory.device() / gib, 35.5, 0.1);
  EXPECT_NEAR(row_of(one, 0, Recompute::swiglu).memory.device() / gib, 31.7, 0.1);
  EXPECT_NEAR(row_of(one, 0, Recompute::block).memory.device() / gib, 21.0, 0.1);
}

// Three pieces of 6, 6 and 4 rows compute no more than one of 16.
TEST(Plan, PiecesComputeWhatIsThere) {
  const Plan whole = make_plan(small({"train.batch=64"}), h200s(4)),
             pieces = make_plan(small({"train.batch=64", "train.micro_batch=6"}), h200s(4));
  ASSERT_EQ(row_of(pieces, 1).pieces, 3);
  EXPECT_NEAR(row_of(pieces, 1).time.compute, row_of(whole, 1).time.compute, 1e-12);
}

TEST(Plan, TheLargestMicroBatchIsTheLargestThatFits) {
  const Plan p =
      make_plan(config_of({"model.preset=llama-3b", "train.batch=128", "data.seq_len=2048"}), {.gpu = find_gpu("h100-80g"), .per_node = 8});
  for (const Row& r : p.rows) {
    train::RunConfig c = p.config;
    c.parallel.zero = r.zero;
    c.train.recompute = r.recompute;
    EXPECT_TRUE(r.largest == 0 || train::plan_memory(c, r.largest).device() <= p.room);
    EXPECT_TRUE(r.largest == 16 || train::plan_memory(c, r.largest + 1).device() > p.room);
    EXPECT_EQ(r.fits(), r.largest > 0);
    EXPECT_TRUE(!r.fits() || r.micro_batch <= r.largest);
    EXPECT_GE(r.micro_batch * r.pieces, 16);
  }
  EXPECT_EQ(row_of(p, 2, Recompute::block).micro_batch, 16);
  EXPECT_TRUE(p.rows[p.best].fits());
}

TEST(Plan, RefusesWhatCannotBe) {
  const std::string unknown = refusal([] { find_gpu("h300"); });
  EXPECT_EQ(unknown, "unknown GPU h300; expected one of h200, h100-80g, a100-80g, a100-40g, b200, l40s");
  const std::string large = refusal([] {
    make_plan(config_of({"model.preset=llama-3b", "train.batch=16", "data.seq_len=1024"}), {.gpu = find_gpu("a100-40g")});
  });
  EXPECT_NE(large.find("this run does not fit on 1 × a100-40g"), std::string::npos) << large;
  EXPECT_NE(large.find(" more than the 38.0 GiB that are there for it"), std::string::npos) << large;
  EXPECT_NE(refusal([] { make_plan(small({"train.batch=3"}), h200s(4)); }), "");
  EXPECT_NE(refusal([] { make_plan(small({"dtype=fp32"}), h200s(4)); }), "");
}

}  // namespace
}  // namespace bhyt::plan
