// bhyt forward: logits, loss, constants and gradients of a checkpoint, for comparing implementations.
#include <CLI/CLI.hpp>
#include <cstring>
#include <filesystem>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/memory.h"
#include "data/files.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "model/score_pass.h"
#include "model/train_pass.h"

namespace bhyt::cli {

namespace {

using Put = std::function<void(const void*, std::size_t)>;

struct ForwardFlags {
  ModelOption model;
  std::string tokens;
  bool grads = false, unmerged = false;
};

// tokens [B,T+1] from the file, split into inputs and targets on the model's device.
struct Sample {
  std::int64_t batch = 0, seq = 0;
  OwnedTensor inputs, targets;  // int32 [B,T]

  Sample(Context& ctx, const SafeTensors& file, std::int64_t vocab) {
    const SafeTensor& t = file.at("tokens");
    check(t.dtype == "I64" && t.shape.size() == 2 && t.shape[0] > 0 && t.shape[1] > 1,
          "{}: expected tokens I64 [B, T+1] with T > 0, got {} [{}]", file.path().string(), t.dtype, fmt::join(t.shape, ", "));
    batch = t.shape[0];
    seq = t.shape[1] - 1;
    std::vector<std::int32_t> in, next;
    const char* data = static_cast<const char*>(t.data);
    for (std::int64_t i = 0; i < t.size(); ++i) {
      std::int64_t id;
      std::memcpy(&id, data + 8 * i, 8);  // the mapping need not be aligned
      check(id >= 0 && id < vocab, "{}: expected token ids below the vocabulary of {}, got {} at {}", file.path().string(), vocab, id, i);
      if (i % (seq + 1) != seq) in.push_back(static_cast<std::int32_t>(id));
      if (i % (seq + 1) != 0) next.push_back(static_cast<std::int32_t>(id));
    }
    for (auto [ids, tensor] : {std::pair{&in, &inputs}, {&next, &targets}}) {
      *tensor = OwnedTensor(ctx, DType::i32, {batch, seq});
      from_host(ctx, ids->data(), *tensor);
    }
  }
};

std::vector<float> on_host(Context& ctx, const Tensor& t) {
  std::vector<float> host(static_cast<std::size_t>(t.size()));
  to_host(ctx, t, host.data());
  return host;
}

SafeTensorOut whole(std::string name, std::vector<std::int64_t> shape, std::function<std::vector<float>()> values) {
  return {std::move(name), "F32", std::move(shape), [values = std::move(values)](const Put& put) {
            const std::vector<float> v = values();
            put(v.data(), v.size() * sizeof(float));
          }};
}

// The logits are made and written a few rows at a time: a large vocabulary never exists whole.
SafeTensorOut logits_of(Context& ctx, ScorePass& pass, const Sample& s, std::int64_t vocab) {
  return {"logits", "F32", {s.batch, s.seq, vocab}, [&ctx, &pass, rows = s.batch * s.seq, vocab](const Put& put) {
            const std::int64_t piece = std::min<std::int64_t>(rows, 64);
            OwnedTensor some(ctx, DType::f32, {piece, vocab});
            for (std::int64_t at = 0; at < rows; at += piece) {
              const Tensor part = some.t.row_slice(0, std::min(piece, rows - at));
              pass.logits(at, part.rows(), part);
              const std::vector<float> host = on_host(ctx, part);
              put(host.data(), host.size() * sizeof(float));
            }
          }};
}

// Whether a file is what this command writes, which can be made again at any time; a reference to compare with holds its tokens, too.
bool is_outcome(const std::filesystem::path& file) {
  try {
    const SafeTensors f(file);
    return f.find("logits") && f.find("loss") && !f.find("tokens");
  } catch (const Error&) {
    return false;
  }
}

// With the adapter merged into the weights or beside them, as it is trained.
std::unique_ptr<Model> open_model(Context& ctx, const ForwardFlags& f, DType type) {
  const std::filesystem::path dir = f.model.find(), adapter = f.model.find_adapter();
  if (!f.unmerged) return load_with_adapter(ctx, dir, adapter, type, {});
  const Adapter beside(adapter);
  const ModelConfig config = read_model_config(dir / "config.json");
  auto model = std::make_unique<Model>(ctx, config, type, Frozen{}, beside.config(config));
  load_weights(dir, model->parameters());
  load_adapter(beside, *model);
  model->refresh_constants();
  return model;
}

void run_forward(const ForwardFlags& f, const std::string& out, const Placement& where) {
  Context ctx(where.device, where.threads);
  const bool grads = f.grads;
  const auto model = open_model(ctx, f, where.dtype);
  const Sample sample(ctx, SafeTensors(f.tokens), model->config().vocab);
  const std::int64_t n = sample.batch * sample.seq;
  const Batch batch{.batch = sample.batch, .seq = sample.seq, .tokens = sample.inputs, .targets = sample.targets};
  const OwnedTensor loss(ctx, DType::f32, {1});
  const Gradients gradients = grads ? Gradients(ctx, model->parameters()) : Gradients();
  zero(ctx, loss);
  ScorePass pass(ctx, *model, sample.batch, sample.seq);
  if (grads) {
    TrainPass train(ctx, *model, {.batch = sample.batch, .seq = sample.seq});
    train.run(batch,
              {.gradients = gradients, .loss = loss, .scale = 1.0f / static_cast<float>(n), .tokens_in_step = static_cast<double>(n)});
  } else {
    pass.score(batch, {.loss = loss});
  }

  std::vector<SafeTensorOut> tensors;
  tensors.push_back(whole("loss", {1}, [&] { return std::vector{on_host(ctx, loss)[0] / static_cast<float>(n)}; }));
  const auto& blocks = model->norms().blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].has_constant)
      tensors.push_back(whole(fmt::format("c_attn.{}", i), {1}, [&, i] { return std::vector{on_host(ctx, model->constants())[i]}; }));
  if (grads)
    for (const Parameter& p : model->parameters().list())
      if (!p.frozen)
        tensors.push_back(whole("grad." + p.name, p.shape, [&] { return on_host(ctx, model->parameters().in_arena(gradients.arena, p)); }));
  pass.forward(batch);
  tensors.push_back(logits_of(ctx, pass, sample, model->config().vocab));

  const std::string beside = out + ".partial";
  try {
    write_safetensors(beside, std::move(tensors));
    std::filesystem::rename(beside, out);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    throw;
  }
}

}  // namespace

int cmd_forward(const Args& args) {
  CLI::App app("Logits, loss and gradients of a checkpoint, for comparing implementations", "bhyt forward");
  ForwardFlags f;
  std::string out;
  bool force = false;
  std::vector<std::string> words;
  f.model.add_to(app);
  app.add_flag("--unmerged", f.unmerged, "with --adapter: computed beside the weights, as in training; --grads then has its gradients");
  app.add_option("--tokens", f.tokens, "safetensors file with `tokens`, int64 [B, T+1]")->required();
  app.add_option("--out", out, "safetensors file to write: logits, loss, c_attn.<layer>, grad.<parameter>")->required();
  app.add_flag("--grads", f.grads, "write the gradient of every parameter too");
  app.add_flag("--force", force, "replace the file that is there, whatever it is (an outcome of this command is replaced anyway)");
  app.add_option("key=value", words, "device=cpu|cuda[:N] (cpu), dtype=fp32|bf16 (fp32), threads=N");
  parse(app, args);
  check_usage(!f.unmerged || !f.model.adapter.empty(), "--unmerged goes with --adapter");
  const Placement where = take_placement(words);
  const std::filesystem::path to = output_path(out);  // before the work
  std::error_code ignored;
  check_usage(!std::filesystem::equivalent(to, f.tokens, ignored), "--out {} is the file that --tokens names; give it another name", out);
  check_output_file(out, force || is_outcome(to));
  if (to.has_parent_path()) std::filesystem::create_directories(to.parent_path());
  run_forward(f, to.string(), where);
  return 0;
}

}  // namespace bhyt::cli
