// --adapter, --unmerged and --merge as a user gives them.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/rng.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

// A golden model and an adapter for it that is far from doing nothing.
class AdapterFlags : public ::testing::Test {
 protected:
  AdapterFlags() {
    Context ctx(Device::cpu(), 1);
    const ModelConfig config = read_model_config(base_ / "config.json");
    const Model model(ctx, config, DType::f32, {}, {.rank = 3, .alpha = 6, .targets = {Projection::q, Projection::v, Projection::down}});
    Rng rng(4);
    fs::create_directories(adapter_);
    save_adapter(adapter_, model, "base", [&](const Parameter& p) {
      std::vector<float> v(static_cast<std::size_t>(p.size));
      for (float& e : v) e = static_cast<float>(0.3 * rng.normal());
      return v;
    });
  }
  std::string at(const std::string& name) const { return (folder_.path / name).string(); }
  std::vector<float> logits(std::vector<std::string> args, const std::string& name) const {
    args.insert(args.begin(), {"forward", "--tokens", (base_ / "io.safetensors").string(), "--out", at(name)});
    const Outcome o = bhyt(args);
    EXPECT_EQ(o.code, 0) << o.err;
    const SafeTensors file(at(name));
    const SafeTensor& t = file.at("logits");
    std::vector<float> out(static_cast<std::size_t>(t.size()));
    SafeTensors::to_float(t, 0, t.size(), out.data());
    return out;
  }
  static double apart(const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0, top = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
      top = std::max(top, std::fabs(static_cast<double>(b[i])));
    }
    return worst / top;
  }
  std::string ids(std::vector<std::string> args) const {
    args.insert(args.begin(), {"generate", "--ids", "--prompt", "1 2 3", "--max-tokens", "24", "--temperature", "0", "device=cpu"});
    const Outcome o = bhyt(args);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  }

  TempFolder folder_;
  fs::path base_ = fs::path(BHYT_TEST_DIR) / "golden" / "models" / "rmsnorm_v5", adapter_ = folder_.path / "adapter";
};

TEST_F(AdapterFlags, MergedUnmergedAndConvertedAgree) {
  const std::string base = base_.string(), adapter = adapter_.string();
  const Outcome o = bhyt({"convert", base, "--merge", adapter, "--out", at("merged"), "--dtype", "fp32"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto merged = logits({"--model", base, "--adapter", adapter}, "a"),
             beside = logits({"--model", base, "--adapter", adapter, "--unmerged"}, "b"), whole = logits({"--model", at("merged")}, "c"),
             plain = logits({"--model", base}, "d");
  EXPECT_LT(apart(beside, merged), 1e-5);
  EXPECT_LT(apart(whole, merged), 1e-6);
  EXPECT_GT(apart(plain, merged), 1e-2) << "the adapter must count";
  EXPECT_EQ(ids({"--model", base, "--adapter", adapter}), ids({"--model", at("merged")}));
  EXPECT_NE(ids({"--model", base, "--adapter", adapter}), ids({"--model", base}));
}

TEST_F(AdapterFlags, GradientsOfAnUnmergedAdapterAreItsOwn) {
  logits({"--model", base_.string(), "--adapter", adapter_.string(), "--unmerged", "--grads"}, "g");
  const SafeTensors file(at("g"));
  EXPECT_TRUE(file.find("grad.model.layers.0.self_attn.q_proj.lora_A.weight"));
  EXPECT_TRUE(file.find("grad.model.layers.0.mlp.down_proj.lora_B.weight"));
  EXPECT_FALSE(file.find("grad.model.layers.0.self_attn.q_proj.weight")) << "frozen";
}

TEST_F(AdapterFlags, WrongOnesAreSaid) {
  const std::string base = base_.string(), adapter = adapter_.string(), tokens = (base_ / "io.safetensors").string();
  const auto forward = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"forward", "--tokens", tokens, "--out", at("x")});
    return bhyt(args);
  };
  Outcome o = forward({"--model", base, "--unmerged"});
  EXPECT_EQ(o.code, 2);
  EXPECT_TRUE(has(o.err, "--unmerged goes with --adapter")) << o.err;
  o = forward({"--model", base, "--adapter", base});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(has(o.err, "not an adapter")) << o.err;
  o = forward({"--model", adapter});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(has(o.err, "an adapter, not a model")) << o.err;
  o = bhyt({"eval", "--model", base, "--model", base, "--adapter", adapter, "--tasks", "arc_easy", "--data", at("")});
  EXPECT_EQ(o.code, 2);
  EXPECT_TRUE(has(o.err, "--adapter is given 1 times for 2 models")) << o.err;
}

}  // namespace
}  // namespace bhyt::test
