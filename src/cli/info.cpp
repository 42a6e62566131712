// bhyt info: what a checkpoint, run directory, tokenizer or token file holds. Only headers are read, unless --verify.
#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>

#include "cli/cli.h"
#include "cli/commands.h"
#include "core/check.h"
#include "core/log.h"
#include "data/token_file.h"
#include "io/checkpoint_folders.h"
#include "io/format.h"
#include "io/json.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/checkpoint_json.h"
#include "model/config_keys.h"
#include "model/llama2c.h"
#include "ops/norm/config.h"
#include "report/run.h"
#include "text/tokenizer.h"

namespace bhyt::cli {

namespace {

namespace fs = std::filesystem;
using schema::Json;

std::string shown(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_number_unsigned()) return grouped(v.get<std::uint64_t>());
  if (!v.is_object()) return v.dump();
  std::string line;  // a map inside a list: its values on one line, the first being its name
  for (const auto& [key, value] : v.items()) line += line.empty() ? shown(value) : fmt::format("  {} {}", shown(value), key);
  return line;
}

// The tree for people: one line a value, maps and lists of maps indented under their key, nulls left out.
void print_tree(const Json& j, int depth = 0) {
  for (const auto& [key, value] : j.items()) {
    if (value.is_null()) continue;
    fmt::print("{:{}}{:<{}} ", "", depth * 2, key, 20 - depth * 2);
    if (value.is_object()) {
      fmt::print("\n");
      print_tree(value, depth + 1);
    } else if (value.is_array() && !value.empty() && !value[0].is_number()) {
      fmt::print("\n");
      for (const Json& v : value) fmt::print("{:{}}{}\n", "", depth * 2 + 2, shown(v));
    } else {
      fmt::print("{}\n", shown(value));
    }
  }
}

// For people only what was chosen: the method and what differs from its defaults.
void leave_out_defaults(Json& norm) {
  NormConfig defaults;
  defaults.method = norm["method"].get<std::string>();
  const Json usual = schema::write(defaults);
  const bool bounded = method(defaults.method).scale == ScaleKind::lambda;
  for (const auto& [key, value] : usual.items())
    if (key != "method" && norm[key] == value && !(bounded && (key == "kappa" || key == "lambda"))) norm.erase(key);
}

Json describe_config(const ModelConfig& c) {
  ModelSection section{.config = c, .init = "", .vocab_given = true};
  Json j = schema::write(section);
  j["bos"] = c.bos >= 0 ? Json(c.bos) : Json();
  j["eos"] = c.eos;
  return j;
}

Json count_by_part(const std::vector<Parameter>& parameters) {
  std::map<std::string, std::uint64_t> parts;
  std::uint64_t total = 0;
  for (const Parameter& p : parameters) {
    const char* part = p.name == "lm_head.weight"                        ? "lm_head"
                       : p.name.starts_with("model.embed_tokens")        ? "embedding"
                       : p.name.find(".self_attn.") != std::string::npos ? "attention"
                       : p.name.find(".mlp.") != std::string::npos       ? "mlp"
                                                                         : "norm";
    parts[part] += static_cast<std::uint64_t>(p.size);
    total += static_cast<std::uint64_t>(p.size);
  }
  Json j{{"total", total}};
  for (const char* part : {"embedding", "attention", "mlp", "norm", "lm_head"})
    if (parts[part]) j[part] = parts[part];
  return j;
}

Json describe_files(const WeightFiles& files, Json& types) {
  std::map<std::string, std::uint64_t> by_type;
  for (const auto& [name, e] : files.tensors()) by_type[e.tensor->dtype] += static_cast<std::uint64_t>(e.tensor->size());
  for (const auto& [type, n] : by_type) types[type] = n;
  Json list = Json::array();
  for (const auto& f : files.files())
    list.push_back({{"name", f->path().filename().string()}, {"bytes", f->file_bytes()}, {"tensors", f->tensors().size()}});
  return list;
}

// A tokenizer in the folder, if any, and whether the model has a row for each of its ids.
Json describe_tokenizer(const fs::path& dir, std::int64_t vocab, std::vector<std::string>& problems) {
  if (!holds_tokenizer(dir)) return nullptr;
  try {
    const auto t = load_tokenizer(dir.string(), Verify::no);  // its files were compared with the manifest
    if (t->vocab_size() > vocab)
      problems.push_back(fmt::format("the tokenizer has {} tokens, the model's vocabulary {}", t->vocab_size(), vocab));
    return {{"kind", t->kind()},
            {"vocab_size", static_cast<std::uint64_t>(t->vocab_size())},
            {"fingerprint", fmt::format("{:016x}", t->fingerprint())}};
  } catch (const Error& e) {
    problems.emplace_back(e.what());
    return nullptr;
  }
}

void find_not_finite(const WeightFiles& files, std::vector<std::string>& problems) {
  for (const auto& [name, e] : files.tensors()) {
    if (!is_float_dtype(e.tensor->dtype)) continue;
    std::int64_t not_finite = 0;
    each_piece(e, [&](const float* v, std::int64_t, std::int64_t n) {
      not_finite += std::count_if(v, v + n, [](float x) { return !std::isfinite(x); });
    });
    if (not_finite)
      problems.push_back(
          fmt::format("{}: tensor {} holds {} values that are not finite", e.file->path().filename().string(), name, not_finite));
  }
}

// What is wrong with a checkpoint by its manifest, if it has one: sizes, and checksums where everything is read.
std::string damage(const fs::path& dir, bool verify) {
  if (!fs::exists(dir / kManifest)) return "";
  return verify_manifest(dir, {}, verify ? Compare::checksums : Compare::sizes_only);
}

Json describe_model(const fs::path& dir, bool verify, std::vector<std::string>& problems) {
  const Json raw = read_json(dir / "config.json");
  const ModelConfig c = read_model_config(dir / "config.json");
  const std::vector<Parameter> parameters = parameter_list(c);
  const WeightFiles files(dir);
  for (std::string& line : mismatches(files, parameters)) problems.push_back(std::move(line));
  const std::int64_t vocab = c.vocab;
  Json j{{"path", dir.string()}, {"kind", "checkpoint"}};
  j["layout"] = raw.contains("norm") ? "bhyt" : raw.contains("norm_type") ? "the reference's" : "Hugging Face Llama";
  j["plain_llama"] = is_plain_llama(c);
  j["model"] = describe_config(c);
  j["norm"] = schema::write(c.norm);
  j["parameters"] = count_by_part(parameters);
  j["dtype"] = Json::object();
  j["files"] = describe_files(files, j["dtype"]);
  j["tokenizer"] = describe_tokenizer(dir, vocab, problems);
  if (fs::exists(dir / "trainer_state.json")) {
    const Json state = read_json(dir / "trainer_state.json");
    if (state.is_object() && state.contains("global_step")) j["step"] = state["global_step"];
  }
  if (verify) find_not_finite(files, problems);
  return j;
}

// First the manifest: it names the file that is damaged, where reading it would only say what is odd about its text.
Json describe_checkpoint(const fs::path& dir, bool verify, std::vector<std::string>& problems) {
  const std::string wrong = damage(dir, verify);
  if (wrong.empty()) return describe_model(dir, verify, problems);
  problems.push_back(wrong);
  std::vector<std::string> follows;  // from that
  try {
    return describe_model(dir, false, follows);
  } catch (const Error&) {
    return {{"path", dir.string()}, {"kind", "checkpoint"}};
  }
}

Json describe_llama2c(const fs::path& file) {
  const Llama2cFile f(file);
  return {{"path", file.string()},
          {"kind", "llama2.c checkpoint"},
          {"model", describe_config(f.config())},
          {"parameters", count_by_part(parameter_list(f.config()))},
          {"dtype", "F32"},
          {"bytes", static_cast<std::uint64_t>(fs::file_size(file))}};
}

Json describe_safetensors(const fs::path& file) {
  const SafeTensors f(file);
  Json j{{"path", file.string()}, {"kind", "safetensors"}, {"bytes", f.file_bytes()}, {"metadata", f.metadata()}};
  j["tensors"] = Json::object();
  for (const auto& [name, t] : f.tensors()) j["tensors"][name] = t.dtype + " " + shape_string(t.shape);
  return j;
}

// Every checkpoint of a run, each with what is wrong with it; without `verify` by the sizes of its files.
void check_run(const fs::path& dir, bool verify, std::vector<std::string>& problems) {
  std::vector<fs::path> all;
  for (const std::int64_t step : checkpoint_steps(dir)) all.push_back(checkpoint_folder(dir, step));
  if (fs::is_directory(dir / "best")) all.push_back(dir / "best");
  for (const fs::path& at : all) {
    std::vector<std::string> wrong;
    try {
      if (!verify) {
        if (const std::string what = damage(at, false); !what.empty()) wrong.push_back(what);
      } else if (fs::exists(at / kManifest)) {
        describe_checkpoint(at, true, wrong);
      } else {
        wrong.emplace_back("it has no manifest.json");
      }
    } catch (const Error& e) {
      wrong.emplace_back(e.what());
    }
    for (const std::string& what : wrong) problems.push_back(fmt::format("{}: {}", at.filename().string(), what));
  }
}

// A step as a file has it: a whole number, where it is one that can be counted.
Json step_json(double step) {
  const bool whole = step >= 0 && step <= 9e15 && step == std::floor(step);
  return whole ? Json(static_cast<std::uint64_t>(step)) : Json(step);
}

// Each loss says of which step it is.
void describe_progress(const report::Run& run, Json& j) {
  const auto put = [&](const char* name, const char* step_name, double value, double step) {
    if (!std::isfinite(value)) return;
    j[name] = value;
    j[step_name] = step_json(step);
  };
  const report::Standing now = run.standing();
  j["step"] = step_json(now.step);
  put("loss", "loss_step", now.loss, now.loss_step);
  put("valid_loss", "valid_step", run.valid.last(), run.valid.last_at());
}

Json describe_run(const fs::path& dir, bool verify, std::vector<std::string>& problems) {
  const report::Run run = report::read_run(dir);
  Json j{{"path", dir.string()}, {"kind", "run"}};
  std::vector<std::int64_t> steps = checkpoint_steps(dir);
  describe_progress(run, j);
  if (run.floor) j["entropy_rate"] = *run.floor;
  j["skipped_steps"] = static_cast<std::uint64_t>(run.skipped.size());
  j["checkpoints"] = Json::array();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    j["checkpoints"].push_back(checkpoint_folder(dir, *step).filename().string());
  check_run(dir, verify, problems);
  j["config"] = Json::object();
  for (const auto& [key, value] : run.config) {
    const Json typed = json_or_discarded(value);
    j["config"][key] = typed.is_discarded() ? Json(value) : typed;
  }
  if (!run.notes.empty()) j["notes"] = run.notes;
  return j;
}

int show(const Json& described, const std::vector<std::string>& problems, bool json) {
  Json j = described;
  j["integrity"] = problems.empty() ? Json("ok") : Json(problems);
  if (json) {
    fmt::print("{}\n", j.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    if (j.contains("norm")) leave_out_defaults(j["norm"]);
    print_tree(j);
  }
  return problems.empty() ? 0 : 1;
}

}  // namespace

int cmd_info(const Args& args) {
  CLI::App app("What a checkpoint, run directory, tokenizer, token file or safetensors file holds", "bhyt info");
  std::string what;
  bool json = false, verify = false;
  app.add_option("path", what, "a folder or file")->required();
  app.add_flag("--json", json, "as one JSON value");
  app.add_flag("--verify", verify, "read everything, not only headers: checksums, values that are not finite");
  parse(app, args);
  const fs::path path = what;
  check(fs::exists(path), "{}: no such file or folder", what);
  std::vector<std::string> problems;
  const auto flags = [&](Args words) {
    if (json) words.emplace_back("--json");
    return words;
  };
  if (fs::is_directory(path)) {
    if (is_checkpoint(path)) {
      const Json j = describe_checkpoint(path, verify, problems);
      return show(j, problems, json);
    }
    if (fs::exists(path / "metrics.jsonl") || !checkpoint_steps(path).empty()) {
      const Json j = describe_run(path, verify, problems);
      return show(j, problems, json);
    }
    if (holds_tokenizer(path)) return cmd_tokenizer(flags({"info", what}));
    throw Error(
        fmt::format("{}: looked for a checkpoint (config.json and model.safetensors or its index), a run (metrics.jsonl) and a tokenizer "
                    "(tokenizer.json, tokenizer.model, vocab.json, tokenizer.bin), found none of them",
                    what));
  }
  if (TokenFile::recognised(what)) {
    Args words{"info", what};
    if (verify) words.emplace_back("--verify");
    return cmd_data(flags(words));
  }
  if (path.extension() == ".safetensors") return show(describe_safetensors(path), problems, json);
  if (Llama2cFile::recognised(path)) return show(describe_llama2c(path), problems, json);
  const std::string end = path.extension().string();
  check(end == ".json" || end == ".model" || end == ".tiktoken" || end == ".bin" || path.filename() == "merges.txt",
        "{}: expected a checkpoint or run folder, a token file, .safetensors, a llama2.c .bin or a tokenizer (.json, .model, .tiktoken)",
        what);
  return cmd_tokenizer(flags({"info", what}));
}

}  // namespace bhyt::cli
