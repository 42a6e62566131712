#include "model/checkpoint_convert.h"

#include <unistd.h>

#include <cmath>
#include <set>

#include "core/check.h"
#include "core/log.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/checkpoint_json.h"
#include "model/llama2c.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

using Piece = std::function<void(const float*, std::int64_t first, std::int64_t n)>;

// A tensor wherever it comes from: its values are made piece by piece when they are written.
struct Source {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::function<void(const Piece&)> each;
};

std::uint64_t bytes_of(const Source& s) {
  std::uint64_t n = safetensors_dtype_size(s.dtype);
  for (auto d : s.shape) n *= static_cast<std::uint64_t>(d);
  return n;
}

DType float_type(const std::string& dtype) {
  return dtype == "BF16" ? DType::bf16 : dtype == "F16" ? DType::f16 : dtype == "F64" ? DType::f64 : DType::f32;
}

SafeTensorOut out_of(const Source& s) {
  return {s.name, s.dtype, s.shape, [s](const auto& put) {
            const DType type = float_type(s.dtype);
            std::vector<char> raw;
            std::int64_t non_finite = 0, overflowed = 0;
            s.each([&](const float* values, std::int64_t, std::int64_t n) {
              for (std::int64_t i = 0; i < n; ++i) {
                non_finite += !std::isfinite(values[i]);
                overflowed += type == DType::f16 && std::isfinite(values[i]) && std::fabs(values[i]) >= 65520;
              }
              raw.resize(static_cast<std::size_t>(n) * size_of(type));
              encode_floats(values, n, type, raw.data());
              put(raw.data(), raw.size());
            });
            if (non_finite) log::warning("tensor {} holds {} values that are not finite", s.name, non_finite);
            if (overflowed) log::warning("tensor {}: {} values are too large for fp16 and became infinite", s.name, overflowed);
          }};
}

// One file, or as many shards as the limit asks for, with their index.
void write_weights(const fs::path& dir, const std::vector<Source>& sources, std::uint64_t max_shard) {
  std::vector<std::vector<const Source*>> shards(1);
  std::uint64_t total = 0, in_shard = 0;
  for (const Source& s : sources) {
    const std::uint64_t bytes = bytes_of(s);
    if (in_shard > 0 && in_shard + bytes > max_shard) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(&s);
    in_shard += bytes;
    total += bytes;
  }
  schema::Json map = schema::Json::object();
  log::Progress progress("convert", static_cast<double>(total), "B");
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<SafeTensorOut> tensors;
    for (const Source* s : shards[i]) {
      map[s->name] = name;
      SafeTensorOut t = out_of(*s);
      t.fill = [fill = std::move(t.fill), &progress, &done](const auto& put) {
        fill([&](const void* data, std::size_t bytes) {
          put(data, bytes);
          progress.update(static_cast<double>(done += bytes));
        });
      };
      tensors.push_back(std::move(t));
    }
    write_safetensors(dir / name, std::move(tensors));
  }
  if (shards.size() > 1)
    write_text_synced(dir / "model.safetensors.index.json",
                      schema::Json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}}.dump(2) + "\n");
}

// What others put into config.json and we have no use for is kept; what we read and write in our own way is not.
void keep_unknown_keys(const fs::path& from, const fs::path& to) {
  static const std::set<std::string> replaced{"rope_parameters", "dtype", "auto_map"};
  const schema::Json theirs = read_json(from);
  schema::Json ours = read_json(to);
  for (const auto& [key, value] : theirs.items())
    if (!ours.contains(key) && !replaced.contains(key)) ours[key] = value;
  write_text_synced(to, ours.dump(2) + "\n");
}

void convert_folder(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  require_checkpoint(from);
  const ModelConfig config = read_model_config(from / "config.json");
  const std::vector<Parameter> parameters = parameter_list(config);
  const WeightFiles files(from);
  const std::vector<std::string> wrong = mismatches(files, parameters);
  check(wrong.empty(), "{}: the weights do not fit config.json:\n  {}", from.string(), fmt::join(wrong, "\n  "));
  check_tied_head(files, parameters);
  if (options.merge) options.merge->check_fits(parameters);
  std::vector<Source> sources;
  DType widest = DType::bf16;  // what torch_dtype says: the type of the matrices
  for (const Parameter& p : parameters) {
    const WeightFiles::Entry* e = files.find(p.name);
    if (!e) continue;
    const DType type = options.dtype.value_or(float_type(e->tensor->dtype));
    if (p.shape.size() == 2 && size_of(type) >= size_of(widest)) widest = type;
    sources.push_back(
        {p.name, safetensors_dtype(type), p.shape, [e, &p, adapter = options.merge](const Piece& f) { each_merged(*e, p, adapter, f); }});
  }
  save_model_files(to, config, widest);
  keep_unknown_keys(from / "config.json", to / "config.json");
  copy_companions(from, to);
  write_weights(to, sources, options.max_shard);
}

void convert_llama2c(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  const Llama2cFile file(from);
  const DType type = options.dtype.value_or(DType::f32);
  std::vector<Source> sources;
  for (const auto& w : file.weights())
    sources.push_back({w.name, safetensors_dtype(type), w.shape, [&file, &w](const Piece& f) {
                         const std::int64_t columns = w.shape.size() == 2 ? w.shape[1] : 1;
                         const std::int64_t most = std::max<std::int64_t>(1, (1 << 20) / columns);
                         std::vector<float> values(static_cast<std::size_t>(std::min(most, w.shape[0]) * columns));
                         for (std::int64_t row = 0; row < w.shape[0]; row += most) {
                           const std::int64_t n = std::min(most, w.shape[0] - row);
                           file.rows(w, row, n, values.data());
                           f(values.data(), row * columns, n * columns);
                         }
                         file.release(w);
                       }});
  save_model_files(to, file.config(), type);
  write_weights(to, sources, options.max_shard);
}

}  // namespace

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
                           "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"})
    if (fs::exists(from / name)) fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing);
}

void convert_checkpoint(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  check(fs::exists(from), "{}: no such file or folder", from.string());
  check_usage(!fs::exists(to) || (fs::is_directory(to) && fs::is_empty(to)), "{} exists already; --out must be a new or empty folder",
              to.string());
  fs::path target = to;
  if (!target.has_filename()) target = target.parent_path();  // DST/
  const fs::path beside = target.string() + ".partial";
  std::error_code why;
  fs::remove_all(beside, why);
  fs::create_directories(beside, why);
  check(!why, "{}: cannot create: {}", beside.string(), why.message());
  try {
    if (fs::is_directory(from))
      convert_folder(from, beside, options);
    else
      convert_llama2c(from, beside, options);
    if (options.finish) options.finish(beside);
    for (const auto& e : fs::directory_iterator(beside)) sync_path(e.path());  // copies and tokenizers are not synced yet
    sync_path(beside);
    fs::rename(beside, target);  // replaces an empty folder
    sync_path(target.has_parent_path() ? target.parent_path() : ".");
  } catch (...) {
    fs::remove_all(beside, why);
    throw;
  }
}

}  // namespace bhyt
