#include "train/config.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "tests/train/helpers.h"

namespace bhyt::train {
namespace {

RunConfig read(std::vector<std::string> words, const std::string& yaml = "") {
  Json tree = parse_yaml(yaml, "config.yaml");
  for (const std::string& w : words) apply_override(tree, w);
  return read_run_config(tree.is_null() ? Json::object() : tree);
}

// The message, or "" when the config is fine.
std::string config_error(std::vector<std::string> words, const std::string& yaml = "") {
  try {
    read(std::move(words), yaml);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Yaml, ScalarsHaveTypes) {
  const Json j = parse_yaml(
      "{i: 12, n: -3, f: 5e-4, g: .5, h: 1., p: +2, t: true, u: False, z: null, e: ~, s: word, q: '12', r: \"true\", v: 1.2.3, w: 20B, x: "
      "0x10, "
      "y: 1e999, l: [1, a, [b]]}",
      "test");
  EXPECT_EQ(j["i"], 12);
  EXPECT_TRUE(j["i"].is_number_integer());
  EXPECT_EQ(j["n"], -3);
  EXPECT_EQ(j["f"], 5e-4);
  EXPECT_EQ(j["g"], 0.5);
  EXPECT_EQ(j["h"], 1.0);
  EXPECT_EQ(j["p"], 2);
  EXPECT_EQ(j["t"], true);
  EXPECT_EQ(j["u"], false);
  EXPECT_TRUE(j["z"].is_null());
  EXPECT_TRUE(j["e"].is_null());
  EXPECT_EQ(j["s"], "word");
  EXPECT_EQ(j["q"], "12");
  EXPECT_EQ(j["r"], "true");
  EXPECT_EQ(j["v"], "1.2.3");
  EXPECT_EQ(j["w"], "20B");
  EXPECT_EQ(j["x"], "0x10");
  EXPECT_EQ(j["y"], "1e999");
  EXPECT_EQ(j["l"], Json::parse(R"([1, "a", ["b"]])"));
}

TEST(Yaml, WritesWhatItReads) {
  const Json tree = Json::parse(
      R"({"a": {"b": 1, "c": [1.5, 1e-08, 100000000000000000000.0], "d": {}}, "text": ["plain", "12", "true", "null", "", "a b", "x: y", "#", "-", "*.tok", "ü\"\n"],
          "e": null, "f": false, "list": [{"path": "a/b-c.tok", "weight": 0.7}], "yes": "no"})");
  EXPECT_EQ(parse_yaml(write_yaml(tree), "again"), tree) << write_yaml(tree);
  EXPECT_EQ(write_yaml({{"eps", 1e-8}}), "eps: 1.0e-08\n");  // as text it would be lost on YAML 1.1 readers
}

TEST(Yaml, HostileInputIsRefused) {
  const auto message = [](const std::string& text) {
    try {
      parse_yaml(text, "c.yaml");
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("a: 1\nb: [1\nc: 2").substr(0, 14), "c.yaml: line 3");
  EXPECT_EQ(message("a: 1\na: 2"), "c.yaml: line 2: a is given twice");
  EXPECT_EQ(message("[a]: 1"), "c.yaml: line 1: a key must be a word");
  EXPECT_NE(message("&a [*a]"), "");
  std::string laughs = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 9; ++i) {
    laughs += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) laughs += fmt::format("{}*a{}", k ? "," : "", i - 1);
    laughs += "]\n";
  }
  EXPECT_NE(message(laughs), "");
  EXPECT_NE(message(std::string(100, '[') + std::string(100, ']')), "");
}

TEST(Overrides, ReachAnyKey) {
  Json tree = parse_yaml("train: {lr: 1e-3, steps: 5}", "");
  for (const char* word : {"train.lr=2e-3", "run.dir=runs/a b:c", "data.train=*.tok", "model.rope.theta=1e4", "seed=7", "device=cpu",
                           "train.steps=null", "norm.lambda=[3, 4]", "run.note=a=b"})
    apply_override(tree, word);
  EXPECT_EQ(tree["train"], Json::parse(R"({"lr": 2e-3})"));
  EXPECT_EQ(tree["run"], Json::parse(R"({"dir": "runs/a b:c", "seed": 7, "device": "cpu", "note": "a=b"})"));
  EXPECT_EQ(tree["data"]["train"], "*.tok");
  EXPECT_EQ(tree["model"]["rope"]["theta"], 1e4);
  EXPECT_EQ(tree["norm"]["lambda"], Json::parse("[3, 4]"));
  for (const char* name : {"007", "1e-3", "#1", "x # y", "true"}) {
    apply_override(tree, std::string("run.dir=") + name);
    EXPECT_EQ(tree["run"]["dir"], name);
  }
  apply_override(tree, "run.dir='a b'");
  EXPECT_EQ(tree["run"]["dir"], "a b");
  apply_override(tree, "run.dir=null");
  EXPECT_FALSE(tree["run"].contains("dir"));
  EXPECT_THROW(apply_override(tree, "train.lr.x=1"), UsageError);
  EXPECT_THROW(apply_override(tree, "=1"), UsageError);
  EXPECT_THROW(apply_override(tree, "train.=1"), UsageError);
  EXPECT_EQ(config_error({"train.lr="}), "train.lr= has no value: write train.lr=VALUE, or train.lr=null for the default");
  EXPECT_EQ(config_error({"run.dir="}).substr(0, 21), "run.dir= has no value");
  EXPECT_EQ(config_error({"seed="}).substr(0, 18), "seed= has no value");
}

TEST(Config, CountsMayHaveUnits) {
  const RunConfig c = read({"train.steps=2K", "train.batch=0.001M", "train.micro_batch=1k", "data.seq_len=1.001K", "norm.refresh=3K",
                            "train.eval_every=1B", "model.vocab=32K"});
  EXPECT_EQ(c.train.steps, 2000);
  EXPECT_EQ(c.train.batch, 1000);
  EXPECT_EQ(c.train.micro_batch, 1000);
  EXPECT_EQ(c.data.seq_len, 1001);
  EXPECT_EQ(c.model.config.norm.refresh, 3000);
  EXPECT_EQ(c.train.eval_every, 1000000000);
  EXPECT_EQ(c.model.config.vocab, 32000);
  EXPECT_EQ(resolved_tree(c)["train"]["batch"], 1000);
  EXPECT_EQ(config_error({"train.batch=1.5"}), "train.batch must be a whole number, got 1.5");
  EXPECT_EQ(config_error({"train.batch=0.0001K"}), "train.batch must be a whole number, got \"0.0001K\"");
  EXPECT_EQ(config_error({"train.batch=-1K"}), "train.batch must be at least 1, got -1000");
  for (const char* none : {"1e2K", "K", "1KK", "1 K", "infK", "0x1K", "12"}) EXPECT_EQ(schema::parse_count(none), std::nullopt) << none;
}

// A word stands behind the file: it wins over a key there that says the same thing.
TEST(Config, AWordTakesThePlaceOfItsTwin) {
  log::set_quiet(true);
  const Folder dir;
  write_synced(dir.path / "c.yaml", "train: {steps: 10, batch: 4}\nnorm: {kappa: 3}\ndata: {seq_len: 256}\n");
  const auto with = [&](const Words& words) { return read_run_config(config_tree((dir.path / "c.yaml").string(), words)); };
  EXPECT_EQ(with({"train.tokens=2K"}).train.steps, 2);
  EXPECT_EQ(with({"norm.p=0.99"}).model.config.norm.kappa, 10);
  EXPECT_EQ(with({"train.tokens=null"}).train.steps, 10);
  EXPECT_THROW(with({"train.tokens=2K", "train.steps=3"}), UsageError);
  EXPECT_EQ(with({"train.tokens=2K", "train.steps=null"}).train.steps, 2);
  write_synced(dir.path / "c.yaml", "train: {tokens: 10K, batch: 4}\nnorm: {p: 0.9}\ndata: {seq_len: 256}\n");
  EXPECT_EQ(with({"train.steps=7", "norm.kappa=2"}).train.steps, 7);
}

TEST(Config, ErrorsNameKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(config_error({"train.lrr=1"}), "unknown key train.lrr (did you mean train.lr?)");
  EXPECT_EQ(config_error({"trian.lr=1"}), "unknown key trian (did you mean train?)");
  EXPECT_EQ(config_error({"lr=1"}), "unknown key lr (did you mean train.lr?)");
  EXPECT_EQ(config_error({}, "device: cpu"), "unknown key device (did you mean run.device?)");
  for (const auto& [typo, meant] : std::vector<std::pair<const char*, const char*>>{{"sed", "run.seed"},
                                                                                    {"devce", "run.device"},
                                                                                    {"treads", "run.threads"},
                                                                                    {"train.wd", "train.weight_decay"},
                                                                                    {"train.batch_size", "train.batch"},
                                                                                    {"train.warmup", "train.warmup_ratio"},
                                                                                    {"norm.lam", "norm.lambda"},
                                                                                    {"run.directory", "run.dir"}})
    EXPECT_EQ(config_error({fmt::format("{}=1", typo)}), fmt::format("unknown key {} (did you mean {}?)", typo, meant));
  EXPECT_EQ(config_error({"norm.elsewhere=bhit"}).substr(0, 30), "norm.elsewhere must be one of ");
  EXPECT_EQ(config_error({"model.rope.thta=1"}), "unknown key model.rope.thta (did you mean model.rope.theta?)");
  EXPECT_EQ(config_error({"norm.lambda=[-1, 1]"}), "norm.lambda[0] must be greater than 0, got -1");
  EXPECT_EQ(config_error({"train.lr=fast"}), "train.lr must be a number, got \"fast\"");
  EXPECT_EQ(config_error({"train.lr=0"}), "train.lr must be greater than 0, got 0");
  EXPECT_EQ(config_error({"train.steps=2.5"}), "train.steps must be a whole number, got 2.5");
  EXPECT_EQ(config_error({"train.steps=0"}), "train.steps must be at least 1, got 0");
  EXPECT_EQ(config_error({"train.warmup_ratio=1.5"}), "train.warmup_ratio must be at most 1, got 1.5");
  EXPECT_EQ(config_error({"train.betas=[0.9]"}), "train.betas must be a list of 2 numbers, got [0.9]");
  EXPECT_EQ(config_error({"train.betas=[0.9, 1]"}), "train.betas[1] must be less than 1, got 1");
  EXPECT_EQ(config_error({"train.micro_batch=most"}), "train.micro_batch must be auto or a number, got \"most\"");
  EXPECT_EQ(config_error({"train.save=all"}), "train.save must be one of full, weights, got \"all\"");
  EXPECT_EQ(config_error({"train.tokens=20G"}), "train.tokens must be a number, with K, M, B or T behind it if you like, got \"20G\"");
  EXPECT_EQ(config_error({"train.steps=5", "train.tokens=1K"}), "train.steps and train.tokens say the same thing: give one of them");
  EXPECT_EQ(config_error({"norm.p=0.9", "norm.kappa=3"}), "norm.p and norm.kappa say the same thing: give one of them");
  EXPECT_EQ(config_error({"data.attend=rows"}), "data.attend must be one of row, document, got \"rows\"");
  EXPECT_EQ(config_error({"data.train=[a, {path: b, weight: 1}]"}), "data.train: give every path a weight, or none");
  EXPECT_EQ(config_error({"data.train=[{path: b, wight: 1}]"}), "unknown key data.train[0].wight (did you mean data.train[0].weight?)");
  EXPECT_EQ(config_error({"data.train=[3]"}), "data.train[0] must be a path, or {path, weight}, got 3");
  EXPECT_EQ(config_error({"train.tokens=1e300"}).substr(0, 34), "train.tokens must come to at most ");
  EXPECT_EQ(config_error({"model.init=/nowhere"}, "run: {dir: 7, resume: auto}"),
            "model.init: /nowhere is neither a checkpoint folder (config.json and weights) nor a run directory with checkpoints");
  EXPECT_EQ(config_error({"model.init=/nowhere"}, "run: {dir: [7], resume: auto}"), "run.dir must be a text, got [7]");
  EXPECT_EQ(config_error({"dtype=fp16"}), "run.dtype must be fp32 or bf16, got fp16");
  EXPECT_EQ(config_error({"resume=yes"}), "run.resume must be one of never, auto, must, restart, got \"yes\"");
  EXPECT_EQ(config_error({}, "version: 2"), "version must be 1, got 2");
  EXPECT_EQ(config_error({}, "train: 3"), "train must be a map of keys, got 3");
  EXPECT_EQ(config_error({"model.init=/nowhere"}),
            "model.init: /nowhere is neither a checkpoint folder (config.json and weights) nor a run directory with checkpoints");
  EXPECT_EQ(config_error({"model.preset=tinny"}).substr(0, 12), "model.preset");
  EXPECT_EQ(config_error({}, "train:\n  lr:"), "train.lr must be a number, got nothing");
}

TEST(Config, TokensBecomeSteps) {
  const auto steps = [](const std::string& tokens) {
    return read({"train.tokens=" + tokens, "train.batch=4", "data.seq_len=256"}).train.steps;
  };
  EXPECT_EQ(steps("1024"), 1);
  EXPECT_EQ(steps("1025"), 2);
  EXPECT_EQ(steps("1M"), 977);
  EXPECT_EQ(steps("1.5K"), 2);
  EXPECT_EQ(steps("20B"), 19531250);
  EXPECT_EQ(steps("1e6"), 977);
  EXPECT_FALSE(resolved_tree(read({"train.tokens=1M"}))["train"].contains("tokens"));
}

TEST(Config, ResolvedFileGivesTheSameConfigBack) {
  const RunConfig c =
      read({"model.preset=tiny", "norm.p=0.96", "norm.exact_layers=[1, 3]", "norm.alpha=[1, 0.5, 0.25]", "train.tokens=3M",
            "data.train=[{path: a.tok, weight: 0.7}, {path: b c.tok, weight: 0.3}]", "data.valid=v.tok", "train.betas=[0.8, 0.9]",
            "train.recompute=block", "seed=12", "threads=3", "train.lr=3e-4", "data.attend=document"});
  const Json tree = resolved_tree(c);
  EXPECT_EQ(tree["version"], 1);
  EXPECT_NEAR(tree["norm"]["kappa"].get<double>(), 5, 1e-12);
  EXPECT_FALSE(tree["norm"].contains("p"));
  EXPECT_EQ(tree["norm"]["seq_len"], 1024);
  const std::string text = write_yaml(tree);
  EXPECT_EQ(resolved_tree(read({}, text)), tree) << text;
  EXPECT_EQ(write_yaml(resolved_tree(read({}, text))), text);
}

TEST(Config, EveryKeyIsListedAndExplicit) {
  const auto keys = config_keys();
  const Json tree = resolved_tree(read({"model.preset=tiny"}));
  std::vector<std::string> listed;
  for (const auto& e : keys) {
    EXPECT_FALSE(e.help.empty()) << e.key;
    listed.push_back(e.key);
  }
  const auto is_listed = [&](const std::string& key) { return std::find(listed.begin(), listed.end(), key) != listed.end(); };
  for (const auto& [section, part] : tree.items()) {
    if (!part.is_object()) continue;
    for (const auto& [key, value] : part.items()) EXPECT_TRUE(value.is_object() || is_listed(section + "." + key)) << section << "." << key;
  }
  for (const char* key :
       {"model.preset", "norm.method", "norm.p", "norm.kappa", "data.train", "train.tokens", "train.max_skipped", "run.resume"})
    EXPECT_TRUE(is_listed(key)) << key;
}

TEST(Config, MathematicsIsWhatAResumedRunMayNotChange) {
  const auto changed = [](const std::vector<std::string>& words) {
    const Json base = mathematics(resolved_tree(read({"model.preset=tiny"})));
    std::vector<std::string> all = {"model.preset=tiny"};
    all.insert(all.end(), words.begin(), words.end());
    return differences(base, mathematics(resolved_tree(read(all))));
  };
  EXPECT_TRUE(changed({"train.steps=7", "data.train=x", "data.valid=y", "device=cpu", "threads=1", "train.log_every=3",
                       "train.save_every=9", "train.keep=1", "train.save=weights", "train.eval_every=1", "train.eval_batches=1",
                       "run.dir=z", "resume=auto", "train.micro_batch=1", "train.recompute=norm", "analysis.every=9"})
                  .empty());
  EXPECT_EQ(changed({"train.lr=1e-3"}), std::vector<std::string>{"train.lr was 0.0005, now is 0.001"});
  for (const char* word :
       {"model.layers=3", "norm.method=rmsnorm", "norm.kappa=4", "train.batch=3", "train.clip=2", "data.seq_len=64", "seed=1", "dtype=bf16",
        "data.attend=document", "train.weight_decay=0", "model.rope.theta=3", "norm.exact_layers=1"})
    EXPECT_FALSE(changed({word}).empty()) << word;
}

TEST(Config, DefaultsFollowEachOther) {
  EXPECT_EQ(read({"data.seq_len=128"}).model.config.norm.seq_len, 128);
  EXPECT_EQ(read({"data.seq_len=128", "norm.seq_len=64"}).model.config.norm.seq_len, 64);
  EXPECT_EQ(read({"train.batch=4", "train.micro_batch=9"}).train.micro_batch, 4);
  EXPECT_GE(read({"data.seq_len=100000"}).model.config.max_positions, 100000);
  EXPECT_EQ(read({"norm.p=0.99"}).model.config.norm.kappa, 10);
  EXPECT_FALSE(read({"model.preset=tiny"}).model.vocab_given);
  EXPECT_TRUE(read({"model.preset=tiny", "model.vocab=300"}).model.vocab_given);
}

// A preset is a short word for keys: they are what is kept, and one that is given has the last word wherever it stands.
TEST(Config, ANormPresetIsItsKeys) {
  const Json whole = resolved_tree(read({"norm.method=bhyt", "norm.gain=fixed_unit", "norm.depth_factor=inv_sqrt",
                                         "norm.gamma_in_constant=true", "model.embedding_scale=sqrt_d"})),
             preset = resolved_tree(read({"norm.preset=recommended"}));
  EXPECT_EQ(preset, whole);
  EXPECT_FALSE(preset["norm"].contains("preset"));
  const auto norm = read({"norm.method=bhyt_exact", "norm.gain=unit", "norm.preset=recommended"}).model.config.norm;
  EXPECT_EQ(norm.method, "bhyt_exact");
  EXPECT_EQ(norm.gain, Gain::unit);
  EXPECT_EQ(norm.depth_factor, Depth::inv_sqrt);
  EXPECT_EQ(read({"norm.preset=recommended", "model.embedding_scale=none"}).model.config.embedding_scale, EmbeddingScaleKind::none);
  try {
    read({"norm.preset=best"});
    FAIL() << "expected an error";
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(), "norm.preset must be recommended, got \"best\"");
  }
}

TEST(Config, ReadsAFile) {
  const Folder dir;
  write_synced(dir.path / "c.yaml", "model: {preset: tiny}\ntrain: {lr: 5e-4, steps: 10}\n");
  const RunConfig c = read_run_config(config_tree((dir.path / "c.yaml").string(), {"train.steps=20"}));
  EXPECT_EQ(c.train.steps, 20);
  EXPECT_EQ(c.train.lr, 5e-4);
  EXPECT_EQ(c.model.config.d, 128);
  EXPECT_THROW(config_tree((dir.path / "none.yaml").string(), {}), UsageError);
  write_synced(dir.path / "list.yaml", "- 1\n");
  EXPECT_THROW(config_tree((dir.path / "list.yaml").string(), {}), UsageError);
}

}  // namespace
}  // namespace bhyt::train
