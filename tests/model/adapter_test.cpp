// Adapter folders: written and read back, merged in every way there is, refused where they do not fit; and PEFT's own, with what it
// computed.
#include "model/adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "model/checkpoint.h"
#include "model/checkpoint_convert.h"
#include "model/checkpoint_json.h"
#include "model/score_pass.h"
#include "tests/devices.h"
#include "tests/model/helpers.h"
#include "tests/model/small_model.h"
#include "tests/model/stored.h"

namespace bhyt::testing {
namespace {

namespace fs = std::filesystem;
using schema::Json;
using test::has;
using test::message_of;
using test::TempDir;
using P = Projection;

Context& cpu() { return test::context_on(Device::cpu()); }

ValueSource values_of(const Model& m) {
  return [&m](const Parameter& p) { return m.parameters().read_value(p); };
}

fs::path made(const fs::path& dir) {
  fs::create_directories(dir);
  return dir;
}

// A base checkpoint and an adapter that was trained on it, both with values away from any special point.
struct Pair {
  TempDir dir;
  ModelConfig config;
  LoraConfig lora;
  fs::path base, adapter;
  std::unique_ptr<Model> model;  // with the adapter beside its weights
  explicit Pair(LoraConfig with, const std::string& method = "bhyt", DType type = DType::f32)
      : config(small_config(method, 3)), lora(std::move(with)), base(made(dir / "base")), adapter(made(dir / "adapter")) {
    const auto plain = make_model(cpu(), config, type);
    save_model(base, *plain);
    model = make_model(cpu(), config, type, {}, lora);
    for (const Parameter& p : model->parameters().list()) {  // norms that were trained are others than the base's
      if (p.frozen || p.adapter()) continue;
      std::vector<float> v = model->parameters().read_value(p);
      for (float& e : v) e += 0.25f;
      model->parameters().write_value(p, v.data());
    }
    save_adapter(adapter, *model, "somewhere/base", values_of(*model));
  }
  Json settings() const { return read_json(adapter / kAdapterConfig); }
  // The message when one key has another value.
  std::string with(const char* key, const Json& value) const {
    const Json before = settings();
    Json changed = before;
    changed[key] = value;
    test::write_file(adapter / kAdapterConfig, changed.dump());
    const std::string message = message_of([&] { Adapter{adapter}; });
    test::write_file(adapter / kAdapterConfig, before.dump());
    return message;
  }
};

LoraConfig adapters_on(std::vector<P> targets, std::int64_t rank = 3) { return {.rank = rank, .alpha = 6, .targets = std::move(targets)}; }

std::vector<float> logits_of(const Model& m) {
  Context& ctx = m.context();
  const Tokens tokens(ctx, draw_rows(m.config().vocab, 2));
  ScorePass pass(ctx, m, 2, kSeq);
  pass.forward(tokens.batch);
  const OwnedTensor out(ctx, DType::f32, {2 * kSeq, m.config().vocab});
  pass.logits(0, 2 * kSeq, out);
  return on_host(ctx, out);
}

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, top = 0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
    top = std::max(top, std::fabs(static_cast<double>(b[i])));
  }
  return worst / top;
}

// ---- there and back

TEST(AdapterFolder, ComesBackAsItWas) {
  LoraConfig some_layers = adapters_on({P::k, P::up});
  some_layers.layers = {0, 2};
  LoraConfig norms = adapters_on({P::q, P::down}, 1);
  norms.train_norms = true;
  for (const LoraConfig& lora :
       {adapters_on(all_projections()), adapters_on({P::q, P::v}, 8), some_layers, norms, LoraConfig{.train_norms = true}}) {
    const Pair pair(lora);
    const Adapter read(pair.adapter);
    const LoraConfig config = read.config(pair.config);
    EXPECT_EQ(config.rank, lora.rank);
    EXPECT_EQ(config.layers, lora.layers);
    EXPECT_EQ(config.train_norms, lora.train_norms);
    if (lora.rank > 0) {
      EXPECT_EQ(config.targets, lora.targets);
      EXPECT_EQ(config.alpha, lora.alpha);
    }
    Model again(cpu(), pair.config, DType::f32, {}, config);
    load_weights(pair.base, again.parameters());
    std::map<std::string, std::int64_t> told;
    load_adapter(read, again, [&](const Parameter& p, std::int64_t, std::int64_t n, const float*) { told[p.name] += n; });
    for (const Parameter& p : again.parameters().list()) {
      EXPECT_TRUE(same_bits(again.parameters().read_value(p), pair.model->parameters().read_value(pair.model->parameters().at(p.name))))
          << p.name;
      EXPECT_EQ(told[p.name], p.frozen ? 0 : p.size) << p.name;
    }
  }
}

TEST(AdapterFolder, HoldsTheMastersUnderPeftsNames) {
  const Pair pair(adapters_on({P::q, P::v}), "bhyt", DType::bf16);
  const float exact = 0.1234567f;  // no bf16
  save_adapter(pair.adapter, *pair.model, "b",
               [&](const Parameter& p) { return std::vector<float>(static_cast<std::size_t>(p.size), exact); });
  const SafeTensors file(pair.adapter / kAdapterWeights);
  EXPECT_EQ(file.tensors().size(), 3u * 2 * 2);
  const SafeTensor& a = file.at("base_model.model.model.layers.2.self_attn.v_proj.lora_A.weight");
  EXPECT_EQ(a.dtype, "F32");
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{3, 12}));
  EXPECT_EQ(file.at("base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight").shape, (std::vector<std::int64_t>{12, 3}));
  std::vector<float> values(36);
  SafeTensors::to_float(a, 0, 36, values.data());
  EXPECT_EQ(values[35], exact);
  const Json settings = pair.settings();
  EXPECT_EQ(settings["peft_type"], "LORA");
  EXPECT_EQ(settings["r"], 3);
  EXPECT_EQ(settings["lora_alpha"].dump(), "6");
  EXPECT_EQ(settings["target_modules"], (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(settings["task_type"], "CAUSAL_LM");
}

TEST(AdapterFolder, ValuesThatAreNotFiniteAreRefused) {
  const Pair pair(adapters_on({P::q}));
  const auto save = [&](const fs::path& to, auto&& how) {
    how(to, [&](const Parameter& p) { return std::vector<float>(static_cast<std::size_t>(p.size), p.role == Role::lora_b ? NAN : 0.0f); });
  };
  EXPECT_TRUE(has(message_of([&] { save(pair.adapter, [&](auto& to, auto v) { save_adapter(to, *pair.model, "b", v); }); }), "not finite"));
  EXPECT_TRUE(has(message_of([&] { save(pair.adapter, [&](auto& to, auto v) { save_merged(to, *pair.model, v); }); }), "not finite"));
  EXPECT_TRUE(has(message_of([&] { save_model(pair.base, *pair.model); }), "without adapters"));
}

// ---- merging

// Four ways to the same model: beside the weights, merged as they are loaded, merged folder to folder, merged out of a model.
TEST(AdapterMerge, IsTheAdapterBesideTheWeights) {
  for (const char* method : {"rmsnorm", "bhyt", "seednorm"}) {
    LoraConfig lora = adapters_on({P::q, P::v, P::o, P::gate, P::down});
    lora.layers = {0, 2};
    lora.train_norms = true;
    const Pair pair(lora, method);
    const Adapter adapter(pair.adapter);
    // c_attn of merged weights is another one; with the model's own the rest must agree.
    const auto beside = logits_of(*pair.model);
    const auto loaded = load_model(cpu(), pair.base, DType::f32, {}, Load::copied, &adapter);
    copy(cpu(), pair.model->constants(), loaded->constants());
    EXPECT_LT(apart(logits_of(*loaded), beside), 2e-4) << method;
    EXPECT_GT(apart(logits_of(*load_model(cpu(), pair.base, DType::f32)), beside), 1e-2) << method << ": the adapter must count";
    convert_checkpoint(pair.base, pair.dir / "merged", {.merge = &adapter});
    save_merged(made(pair.dir / "again"), *pair.model, values_of(*pair.model));
    const auto merged = test::values_in(pair.dir / "merged"), again = test::values_in(pair.dir / "again"),
               base = test::values_in(pair.base);
    EXPECT_EQ(merged, again);
    ASSERT_EQ(merged.size(), base.size());
    for (const Parameter& p : loaded->parameters().list()) {
      EXPECT_TRUE(same_bits(loaded->parameters().read_value(p), merged.at(p.name))) << p.name;
      EXPECT_EQ(adapter.touches(p), !same_bits(merged.at(p.name), base.at(p.name))) << p.name;
    }
    EXPECT_EQ(load_model(cpu(), pair.dir / "again", DType::f32)->config().norm.method, method);
  }
}

TEST(AdapterMerge, SumsInFp32AndRoundsOnce) {
  const Pair pair(adapters_on(all_projections()), "rmsnorm", DType::bf16);
  const Adapter adapter(pair.adapter);
  const auto merged = load_model(cpu(), pair.base, DType::bf16, {}, Load::copied, &adapter);
  convert_checkpoint(pair.base, pair.dir / "wide", {.dtype = DType::f32, .merge = &adapter});
  const auto wide = test::values_in(pair.dir / "wide"), base = test::values_in(pair.base),
             low = test::values_in(pair.adapter / kAdapterWeights);
  const std::string stem = "model.layers.1.mlp.gate_proj";
  const auto &a = low.at("base_model.model." + stem + ".lora_A.weight"), &b = low.at("base_model.model." + stem + ".lora_B.weight");
  const std::vector<float> got = merged->parameters().read_value(merged->parameters().at(stem + ".weight"));
  for (std::size_t i = 0; i < got.size(); ++i) {
    double sum = 0;
    for (std::size_t k = 0; k < 3; ++k) sum += static_cast<double>(b[i / 12 * 3 + k]) * a[k * 12 + i % 12];
    const double exact = base.at(stem + ".weight")[i] + 2 * sum;  // α/r = 6/3
    ASSERT_NEAR(wide.at(stem + ".weight")[i], exact, 1e-6);
    ASSERT_EQ(got[i], to_float(to_bf16(wide.at(stem + ".weight")[i])));
  }
}

TEST(AdapterMerge, WorksForGeneratingInEveryWeightType) {
  const Pair pair(adapters_on(all_projections()));
  const Adapter adapter(pair.adapter);
  const auto plain = load_model(cpu(), pair.base, DType::f32, {}, Load::copied, &adapter),
             folded = load_model(cpu(), pair.base, DType::f32, Model::Repack{}, Load::copied, &adapter);
  EXPECT_TRUE(folded->repacked());
  EXPECT_LT(apart(logits_of(*folded), logits_of(*plain)), 1e-4);
}

// ---- what does not fit

TEST(AdapterFolder, WhatIsNotComputedIsNamed) {
  const Pair pair(adapters_on({P::q}));
  EXPECT_EQ(message_of([&] { Adapter{pair.adapter}; }), "no error");
  EXPECT_TRUE(has(pair.with("use_dora", true), "use_dora is true: DoRA is not computed"));
  EXPECT_TRUE(has(pair.with("use_rslora", true), "rsLoRA"));
  EXPECT_TRUE(has(pair.with("bias", "lora_only"), "bias is"));
  EXPECT_TRUE(has(pair.with("rank_pattern", {{"q_proj", 4}}), "rank_pattern"));
  EXPECT_TRUE(has(pair.with("alpha_pattern", {{"q_proj", 4}}), "alpha_pattern"));
  EXPECT_TRUE(has(pair.with("modules_to_save", {"lm_head"}), "modules_to_save"));
  EXPECT_TRUE(has(pair.with("init_lora_weights", "pissa_niter_4"), "init_lora_weights is pissa_niter_4"));
  EXPECT_EQ(pair.with("init_lora_weights", "gaussian"), "no error");
  EXPECT_EQ(pair.with("modules_to_save", Json::array()), "no error");
  EXPECT_TRUE(has(pair.with("peft_type", "IA3"), "expected peft_type LORA, got"));
  EXPECT_TRUE(has(pair.with("r", 4), "of rank 4, got [3, 12]"));
  EXPECT_TRUE(has(pair.with("r", 2.5), "whole number"));
  EXPECT_TRUE(has(pair.with("r", "8"), "expected r to be a number"));
  EXPECT_TRUE(has(pair.with("lora_alpha", nullptr), "expected lora_alpha to be a number"));
}

TEST(AdapterFolder, OfAnotherModelIsRefusedWithBothShapes) {
  const Pair pair(adapters_on({P::o, P::down}));
  const Adapter adapter(pair.adapter);
  ModelConfig wide = pair.config, shallow = pair.config, other = pair.config;
  wide.mlp = 14;
  shallow.layers = 2;
  const auto message = [&](const ModelConfig& c) { return message_of([&] { adapter.check_fits(parameter_list(c)); }); };
  EXPECT_EQ(message(pair.config), "no error");
  EXPECT_TRUE(has(message(wide), "it adapts model.layers.0.mlp.down_proj.weight [12, 10], the model's is [12, 14]"));
  EXPECT_TRUE(has(message(shallow), "model.layers.2.mlp.down_proj.weight [12, 10], the model has none of that name"));
  TempDir dir;
  save_model(dir.path(), *make_model(cpu(), wide));
  EXPECT_TRUE(
      has(message_of([&] { load_model(cpu(), dir.path(), DType::f32, {}, Load::copied, &adapter); }), "does not belong to this model"));
  EXPECT_TRUE(has(message_of([&] { convert_checkpoint(dir.path(), dir / "out", {.merge = &adapter}); }), "does not belong to this model"));
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(AdapterFolder, OfOtherSettingsThanTheRunsIsRefused) {
  const Pair pair(adapters_on({P::q, P::v}));
  const Adapter adapter(pair.adapter);
  const auto message = [&](LoraConfig lora) {
    const Model m(cpu(), pair.config, DType::f32, {}, lora);
    return message_of([&] { load_adapter(adapter, m); });
  };
  EXPECT_EQ(message(pair.lora), "no error");
  EXPECT_TRUE(has(message(adapters_on({P::q, P::v}, 4)), "the adapter has rank 3 and alpha 6, the run asks for 4 and 6"));
  EXPECT_TRUE(has(message({.rank = 3, .alpha = 12, .targets = {P::q, P::v}}), "alpha 6, the run asks for 3 and 12"));
  EXPECT_TRUE(has(message(adapters_on({P::q, P::k})),
                  "the adapter is for q_proj, v_proj of all layers, the run asks for q_proj, k_proj of all layers"));
  LoraConfig low = pair.lora;
  low.layers = {0, 1};
  EXPECT_TRUE(has(message(low), "the run asks for q_proj, v_proj of layers 0, 1"));
  LoraConfig with_norms = pair.lora;
  with_norms.train_norms = true;
  EXPECT_EQ(message(with_norms), "no error") << "norms may be trained from now on";
  const Pair trained(with_norms);
  const Model without(cpu(), pair.config, DType::f32, {}, pair.lora);
  EXPECT_TRUE(has(message_of([&] { load_adapter(Adapter(trained.adapter), without); }), "norms were trained with this adapter"));
}

TEST(AdapterFolder, DamagedOnesAreRefused) {
  const Pair pair(adapters_on({P::q}));
  const auto rewrite = [&](auto&& change) {
    const SafeTensors file(pair.dir / "adapter" / kAdapterWeights);
    std::vector<SafeTensorOut> out;
    for (const auto& entry : file.tensors()) {
      std::string to = entry.first;
      const SafeTensor* t = &entry.second;
      if (!change(to)) continue;
      out.push_back({to, t->dtype, t->shape, [t](const auto& put) { put(t->data, t->end - t->begin); }});
    }
    const fs::path other = made(pair.dir / "other");
    write_safetensors(other / kAdapterWeights, std::move(out));
    fs::copy_file(pair.adapter / kAdapterConfig, other / kAdapterConfig, fs::copy_options::overwrite_existing);
    return message_of([&] { Adapter(other).check_fits(pair.model->parameters().list()); });
  };
  const std::string a = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
  EXPECT_EQ(rewrite([](std::string&) { return true; }), "no error");
  EXPECT_TRUE(has(rewrite([&](std::string& n) { return n != a; }), "model.layers.1.self_attn.q_proj.weight has lora_B without lora_A"));
  EXPECT_TRUE(has(rewrite([](std::string& n) { return n = n.substr(11), true; }), "names that begin with base_model.model."));
  EXPECT_TRUE(has(rewrite([&](std::string& n) { return n = n == a ? "base_model.model.lm_head.weight" : n, n.find("layers.1") == n.npos; }),
                  "it holds lm_head.weight [3, 12]"));
  EXPECT_TRUE(has(rewrite([](std::string& n) { return n += "2", true; }), "of a kind that is not computed"));
  EXPECT_TRUE(has(rewrite([](std::string&) { return false; }), "holds no tensor"));
  EXPECT_TRUE(has(message_of([&] { Adapter{pair.base}; }), "not an adapter: looked for adapter_config.json (missing)"));
  EXPECT_TRUE(has(message_of([&] { Adapter{pair.dir / "nowhere"}; }), "no such folder"));
  EXPECT_TRUE(has(message_of([&] { require_checkpoint(pair.adapter); }), "an adapter, not a model"));
  test::write_file(pair.adapter / kAdapterConfig, "[1]");
  EXPECT_TRUE(has(message_of([&] { Adapter{pair.adapter}; }), "expected an object"));
}

TEST(AdapterFolder, ARunsNewestIsFoundAndADamagedOnePassedOver) {
  const Pair pair(adapters_on({P::q}));
  for (const char* name : {"checkpoint-2", "checkpoint-10"}) {
    fs::copy(pair.adapter, made(pair.dir / "run" / name));
    write_manifest(pair.dir / "run" / name);
  }
  EXPECT_EQ(named_adapter(pair.dir / "run", Verify::yes).filename(), "checkpoint-10");
  test::write_file(pair.dir / "run" / "checkpoint-10" / kAdapterConfig, "{}");
  EXPECT_EQ(named_adapter(pair.dir / "run", Verify::yes).filename(), "checkpoint-2");
  EXPECT_EQ(named_adapter(pair.dir / "run", Verify::no).filename(), "checkpoint-10");
  EXPECT_EQ(named_adapter(pair.adapter, Verify::yes), pair.adapter);
}

// ---- PEFT's own

std::vector<float> logits_for(const Model& m, const SafeTensor& tokens) {
  Context& ctx = m.context();
  const std::int64_t batch = tokens.shape[0], seq = tokens.shape[1];
  const OwnedTensor ids(ctx, DType::i32, {batch, seq}), out(ctx, DType::f32, {batch * seq, m.config().vocab});
  from_host(ctx, test::ids_of(tokens).data(), ids);
  ScorePass pass(ctx, m, batch, seq);
  pass.forward({.batch = batch, .seq = seq, .tokens = ids, .targets = ids, .weights = {}, .positions = {}, .first = {}});
  pass.logits(0, batch * seq, out);
  return on_host(ctx, out);
}

void check_peft(Context& ctx, const fs::path& base, const fs::path& folder) {
  SCOPED_TRACE(folder.string() + " on " + name_of(ctx.device()));
  const SafeTensors golden(folder / "expected" / "logits.safetensors");
  const auto error = [&](const Model& m, const char* of) {
    const SafeTensor& t = golden.at(of);
    std::vector<float> want(static_cast<std::size_t>(t.size()));
    SafeTensors::to_float(t, 0, t.size(), want.data());
    return apart(logits_for(m, golden.at("tokens")), want);
  };
  const Adapter adapter(folder / "expected" / "adapter");
  const ModelConfig config = read_model_config(base / "config.json");
  Model beside(ctx, config, DType::f32, {}, adapter.config(config));
  load_weights(base, beside.parameters());
  load_adapter(adapter, beside);
  beside.refresh_constants();
  EXPECT_LT(error(beside, "logits"), 2e-5);
  EXPECT_LT(error(*load_model(ctx, base, DType::f32, {}, Load::copied, &adapter), "logits_merged"), 2e-5);
  EXPECT_LT(error(*load_model(ctx, base, DType::f32), "logits_base"), 2e-5);
  const auto merged = load_model(ctx, base, DType::f32, {}, Load::copied, &adapter),
             theirs = load_model(ctx, folder / "expected" / "merged", DType::f32);
  for (const Parameter& p : theirs->parameters().list()) {
    const std::vector<float> got = merged->parameters().read_value(merged->parameters().at(p.name)),
                             want = theirs->parameters().read_value(p);
    EXPECT_LT(apart(got, want), 1e-6) << p.name;
  }
}

TEST(AdapterGolden, PeftsAdaptersGivePeftsLogits) {
  const char* data = std::getenv("BHYT_DATA");
  if (!data) GTEST_SKIP() << "BHYT_DATA is not set";
  const fs::path at = fs::path(data) / ".." / "fixtures" / "sft" / "train";
  for (Context& ctx : test::contexts()) {
    check_peft(ctx, at / "model", at / "lora");
    check_peft(ctx, at / "model_bhyt", at / "bhyt_lora");
  }
}

}  // namespace
}  // namespace bhyt::testing
