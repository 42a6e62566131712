#include "train/state.h"

#include <cmath>

#include <vector>

#include "core/check.h"
#include "io/checkpoint_folders.h"

namespace bhyt::train {

namespace {

// A whole number from 0 in a training state; a hostile file may hold anything.
std::int64_t count_in(const Json& own, const char* key) {
  const Json& j = own.at(key);
  const bool whole = j.is_number_integer() && (j.is_number_unsigned() || j.get<std::int64_t>() >= 0);
  check(whole && j.get<std::uint64_t>() <= std::uint64_t{1} << 53, "expected {} to be a whole number from 0, got {}", key, schema::show(j));
  return j.get<std::int64_t>();
}

}  // namespace

void save_optimizer(const fs::path& checkpoint, const Model& model, const Optimizer& optimizer) {
  const Shard& shard = optimizer.shard();
  std::vector<SafeTensorOut> tensors;
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  optimizer.save(tensors, metadata);
  if (shard.rank() == 0) tensors.push_back(tensor_from(model.context(), "c_attn", {model.constants().size()}, model.constants()));
  write_safetensors(checkpoint / optimizer_file(shard.rank(), shard.ranks()), std::move(tensors), metadata);
}

void load_optimizer(const fs::path& checkpoint, Model& model, Optimizer& optimizer) {
  std::vector<SafeTensors> files;
  for (const std::string& name : optimizer_files(checkpoint)) files.emplace_back(checkpoint / name);
  check(!files.empty(), "{}: expected optimizer state, found none", checkpoint.string());
  if (const std::string wrong = incomplete_optimizer(checkpoint); !wrong.empty())
    throw Error(fmt::format("{}: {}", checkpoint.string(), wrong));
  optimizer.load(files);
  const Tensor constants = model.constants();
  for (const SafeTensors& file : files) {
    if (!file.find("c_attn")) continue;
    const std::vector<float> host = read_tensor(file, "c_attn", constants.size());
    return from_host(model.context(), host.data(), constants);
  }
  throw Error(fmt::format("{}: expected tensor c_attn, found none", (checkpoint / kOptimizerState).string()));
}

void Progress::judge(double loss) {
  if (step == 0) return;
  const bool better = std::isfinite(loss) && skipped_in_row == 0 && (best_step == 0 || loss < best_metric);
  stale = better ? 0 : stale + 1;
  if (!better) return;
  best_metric = loss;
  best_step = step;
}

std::optional<double> Progress::last(const char* key) const {
  for (auto line = log_history.rbegin(); line != log_history.rend(); ++line)
    if (line->contains(key)) return (*line)[key].is_number() ? std::optional((*line)[key].get<double>()) : std::nullopt;
  return std::nullopt;
}

Json to_json(const Progress& p) {
  Json out = {{"step", p.step},           {"updates", p.updates},       {"skipped_in_row", p.skipped_in_row},
              {"loss_sum", p.loss_sum},   {"loss_count", p.loss_count}, {"best_metric", p.best_step ? Json(p.best_metric) : Json()},
              {"best_step", p.best_step}, {"stale", p.stale},           {"tokens", p.tokens}};
  if (p.unvalidated) out["unvalidated"] = true;
  return out;
}

Progress progress_from(const Json& state, const std::string& where) {
  try {
    const Json& own = state.at("bhyt").at("progress");
    Progress p;
    p.step = count_in(own, "step");
    p.updates = count_in(own, "updates");
    p.skipped_in_row = count_in(own, "skipped_in_row");
    p.loss_sum = own.at("loss_sum");
    p.loss_count = count_in(own, "loss_count");
    p.best_step = count_in(own, "best_step");
    if (p.best_step) p.best_metric = own.at("best_metric");
    if (own.contains("stale")) p.stale = count_in(own, "stale");
    if (own.contains("tokens")) p.tokens = count_in(own, "tokens");
    p.unvalidated = own.contains("unvalidated") && own.at("unvalidated").get<bool>();
    p.log_history = state.at("log_history");
    check(p.log_history.is_array(), "expected log_history to be a list, got {}", schema::show(p.log_history));
    return p;
  } catch (const std::exception& e) {  // what JSON says, and the checks above
    throw Error(fmt::format("{}: not a training state of this program: {}", where, e.what()));
  }
}

}  // namespace bhyt::train
