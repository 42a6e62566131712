// Weights of a checkpoint into a model's memory, or left where they lie in the mapped files.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "core/check.h"
#include "core/log.h"
#include "core/rng.h"
#include "core/threads.h"
#include "io/hash.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kTask = 1 << 16;     // elements that a thread takes at a time
constexpr std::int64_t kAtOnce = 16 << 20;  // elements of a file that are held at a time

bool same_type(const SafeTensor& t, DType type) { return t.dtype == safetensors_dtype(type); }

// How many of n values at `data` are not finite: those with every bit of the exponent set. Counted only where there is one.
std::int64_t count_non_finite(const char* data, std::int64_t n, DType type) {
  const auto scan = [&](auto exponent) -> std::int64_t {
    using Word = decltype(exponent);
    const auto at = [&](std::int64_t i) {
      Word word;
      std::memcpy(&word, data + static_cast<std::size_t>(i) * sizeof word, sizeof word);
      return static_cast<Word>(word & exponent);
    };
    Word top = 0;
#pragma omp simd reduction(max : top)
    for (std::int64_t i = 0; i < n; ++i) top = std::max(top, at(i));
    if (top != exponent) return 0;
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < n; ++i) found += at(i) == exponent;
    return found;
  };
  return type == DType::bf16 ? scan(std::uint16_t{0x7F80}) : scan(std::uint32_t{0x7F800000});
}

// Elements [first, first + n) of a tensor as values of type `to`, at `out` on the host; none where they are only looked at.
// Returns how many are not finite.
std::int64_t take(const SafeTensor& t, std::int64_t first, std::int64_t n, DType to, char* out) {
  if (same_type(t, to)) {
    const std::size_t size = size_of(to);
    const char* const from = static_cast<const char*>(t.data) + static_cast<std::size_t>(first) * size;
    if (!out) return count_non_finite(from, n, to);
    std::memcpy(out, from, static_cast<std::size_t>(n) * size);
    return count_non_finite(out, n, to);
  }
  float values[1024];
  std::int64_t found = 0;
  for (std::int64_t at = 0; at < n; at += std::ssize(values)) {
    const std::int64_t count = std::min<std::int64_t>(std::ssize(values), n - at);
    SafeTensors::to_float(t, first + at, count, values);
    for (std::int64_t i = 0; i < count; ++i) found += !std::isfinite(values[i]);
    encode_floats(values, count, to, out + static_cast<std::size_t>(at) * size_of(to));
  }
  return found;
}

// The same by all threads.
std::int64_t take_all(Context& ctx, const SafeTensor& t, std::int64_t first, std::int64_t n, DType to, char* out) {
  std::atomic<std::int64_t> found = 0;
  parallel_for(ctx.threads(), n, kTask, [&](std::int64_t begin, std::int64_t end) {
    found += take(t, first + begin, end - begin, to, out ? out + static_cast<std::size_t>(begin) * size_of(to) : nullptr);
  });
  return found;
}

// What becomes of the file's pages of a borrowed parameter, once its values have been looked at.
enum class Pages { stay, go };

// One parameter from its stored tensor, part by part; one that is borrowed is only looked at. Returns how many values are not finite.
std::int64_t load_tensor(Context& ctx, const WeightFiles::Entry& entry, const Parameter& p, Pages borrowed_pages) {
  const SafeTensor& t = *entry.tensor;
  const DType type = p.value.dtype;
  const std::int64_t size = t.size();  // a parameter may have more rows
  const bool on_gpu = ctx.device().is_cuda(), as_it_is = same_type(t, type);
  std::vector<char> raw(on_gpu && !as_it_is ? static_cast<std::size_t>(std::min(kAtOnce, size)) * size_of(type) : 0);
  const std::uint64_t stored = safetensors_dtype_size(t.dtype);
  std::int64_t non_finite = 0;
  for (std::int64_t first = 0; first < size; first += kAtOnce) {
    const std::int64_t n = std::min(kAtOnce, size - first);
    const std::size_t begin = static_cast<std::size_t>(first) * size_of(type), bytes = static_cast<std::size_t>(n) * size_of(type);
    char* const to = static_cast<char*>(p.value.data) + begin;
    non_finite += take_all(ctx, t, first, n, type, p.borrowed ? nullptr : !on_gpu ? to : as_it_is ? nullptr : raw.data());
    if (on_gpu) ctx.copy(ctx.device(), to, Device::cpu(), as_it_is ? static_cast<const char*>(t.data) + begin : raw.data(), bytes);
    if (p.borrowed && borrowed_pages == Pages::stay) continue;
    entry.file->release(t, static_cast<std::uint64_t>(first) * stored, static_cast<std::uint64_t>(first + n) * stored);
  }
  return non_finite;
}

// Elements [first, first + n) of a parameter.
void put_values(Context& ctx, const Parameter& p, std::int64_t first, std::int64_t n, const float* values, const ValueSink& sink) {
  const std::size_t element = size_of(p.value.dtype);
  std::vector<char> raw(static_cast<std::size_t>(n) * element);
  encode_floats(values, n, p.value.dtype, raw.data());
  ctx.copy(ctx.device(), static_cast<char*>(p.value.data) + static_cast<std::size_t>(first) * element, Device::cpu(), raw.data(),
           raw.size());
  if (sink) sink(p, first, n, values);
}

// The rows of an embedding or a head that its file lacks: the mean of those it has, and normal noise of variance 1/C.
void add_rows(Context& ctx, const WeightFiles::Entry& entry, const Parameter& p, std::uint64_t seed, const ValueSink& sink) {
  const std::int64_t width = p.shape[1], stored = entry.tensor->shape[0];
  std::vector<double> mean(static_cast<std::size_t>(width));
  each_piece(entry, [&](const float* values, std::int64_t first, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) mean[static_cast<std::size_t>((first + i) % width)] += static_cast<double>(values[i]);
  });
  std::vector<float> row(static_cast<std::size_t>(width));
  const double spread = 1 / std::sqrt(static_cast<double>(width));
  Hash64 stream;
  stream.update(p.name);
  for (std::int64_t r = stored; r < p.shape[0]; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double noise = normal(seed, stream.digest(), static_cast<std::uint64_t>(r * width + c));
      row[static_cast<std::size_t>(c)] =
          static_cast<float>(mean[static_cast<std::size_t>(c)] / static_cast<double>(stored) + spread * noise);
    }
    put_values(ctx, p, r * width, width, row.data(), sink);
  }
}

// Whether a file holds fewer rows of an embedding or a head than the model has.
bool lacks_rows(const WeightFiles::Entry* entry, const Parameter& p) {
  if (!entry || (p.role != Role::embedding && p.role != Role::head)) return false;
  const auto& shape = entry->tensor->shape;
  return shape.size() == 2 && shape[1] == p.shape[1] && shape[0] > 0 && shape[0] < p.shape[0];
}

std::vector<std::string> mismatches_but_rows(const WeightFiles& files, std::vector<Parameter> parameters, bool grow) {
  for (Parameter& p : parameters)
    if (const auto* entry = files.find(p.name); grow && lacks_rows(entry, p)) p.shape = entry->tensor->shape;
  return mismatches(files, parameters);
}

void check_fit(const fs::path& dir, const WeightFiles& files, const std::vector<Parameter>& parameters, bool grow = false) {
  const std::vector<std::string> wrong = mismatches_but_rows(files, parameters, grow);
  check(wrong.empty(), "{}: the weights do not fit config.json:\n  {}", dir.string(), fmt::join(wrong, "\n  "));
}

// One parameter with an adapter merged into it. Returns how many values are not finite.
std::int64_t load_merged(Context& ctx, const WeightFiles::Entry& entry, const Parameter& p, const ValueSink& sink, const Adapter* adapter) {
  std::int64_t non_finite = 0;
  each_merged(entry, p, adapter, [&](const float* values, std::int64_t first, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) non_finite += !std::isfinite(values[i]);
    put_values(ctx, p, first, n, values, sink);
  });
  return non_finite;
}

// For those who want the values in fp32 beside.
void tell(const WeightFiles::Entry& entry, const Parameter& p, const ValueSink& sink) {
  each_piece(entry, [&](const float* values, std::int64_t first, std::int64_t n) { sink(p, first, n, values); });
}

void load_from(const WeightFiles& files, const Parameters& into, const ValueSink& sink = {}, const Adapter* adapter = nullptr,
               Pages borrowed_pages = Pages::stay) {
  check_tied_head(files, into.list());
  for (const Parameter& p : into.list()) {
    if (p.adapter()) continue;
    const WeightFiles::Entry* entry = files.find(p.name);
    if (!entry) {  // optional: keeps its initial value
      const std::vector<float> initial(static_cast<std::size_t>(p.size), static_cast<float>(p.init_value));
      into.write_value(p, initial.data());
      if (sink) sink(p, 0, p.size, initial.data());
      continue;
    }
    const bool merged = adapter && adapter->touches(p);
    const std::int64_t count =
        merged ? load_merged(into.context(), *entry, p, sink, adapter) : load_tensor(into.context(), *entry, p, borrowed_pages);
    if (count > 0)
      log::warning("{}: tensor {} holds {} values that are not finite", entry->file->path().filename().string(), p.name, count);
    if (sink && !merged) tell(*entry, p, sink);
  }
}

// Whether a model could compute with a matrix where it lies.
bool usable(const WeightFiles::Entry* entry, const Parameter& p, DType type) {
  return entry && p.shape.size() == 2 && same_type(*entry->tensor, type) &&
         reinterpret_cast<std::uintptr_t>(entry->tensor->data) % size_of(type) == 0;
}

// The matrices that can stay in the files, by name: of those that are one in the model (q, k and v; gate and up) all or none, and only
// where they lie one behind the other.
std::unordered_map<std::string, void*> usable_matrices(const WeightFiles& files, const std::vector<Parameter>& list, DType type) {
  std::unordered_map<std::string, void*> found;
  for (std::size_t i = 0; i < list.size();) {
    std::size_t end = i + 1;
    while (end < list.size() && list[end].joined) ++end;
    const char* next = nullptr;
    bool all = true;
    for (std::size_t k = i; k < end && all; ++k) {
      const WeightFiles::Entry* const entry = files.find(list[k].name);
      all = usable(entry, list[k], type) && (!next || entry->tensor->data == next);
      if (all) next = static_cast<const char*>(entry->tensor->data) + static_cast<std::size_t>(list[k].size) * size_of(type);
    }
    for (std::size_t k = i; k < end && all; ++k) found[list[k].name] = const_cast<void*>(files.find(list[k].name)->tensor->data);
    i = end;
  }
  return found;
}

// What a model borrows from the files, which stay open as long as it lives; without the embedding, all that 8-bit weights take the place
// of.
Borrowed borrow(const std::shared_ptr<const WeightFiles>& files, const std::vector<Parameter>& list, DType type, bool embedding) {
  Borrowed out{.lender = files, .find = {}, .rest_is_written = true};
  out.find = [found = usable_matrices(*files, list, type), embedding](const Parameter& p) -> void* {
    const auto it = found.find(p.name);
    return it == found.end() || (p.role == Role::embedding && !embedding) ? nullptr : it->second;
  };
  return out;
}

}  // namespace

std::vector<std::string> weight_mismatches(const fs::path& dir, const ModelConfig& config, bool grow) {
  require_checkpoint(dir);
  return mismatches_but_rows(WeightFiles(dir), parameter_list(config), grow);
}

void load_weights(const fs::path& dir, const Parameters& into, const ValueSink& sink, std::optional<std::uint64_t> grow) {
  require_checkpoint(dir);
  const WeightFiles files(dir);
  check_fit(dir, files, into.list(), grow.has_value());
  load_from(files, into, sink);
  for (const Parameter& p : into.list())
    if (const auto* entry = files.find(p.name); grow && lacks_rows(entry, p)) add_rows(into.context(), *entry, p, *grow, sink);
}

std::unique_ptr<Model> load_model(Context& ctx, const fs::path& dir, DType type, const std::optional<Model::Repack>& for_generating,
                                  Load load, const Adapter* adapter) {
  require_checkpoint(dir);
  const bool mapped = load == Load::mapped;
  check(!mapped || for_generating, "[load] expected weights that stay in their files only for generating");
  check_usage(!mapped || !ctx.device().is_cuda(), "--load mapped is for the CPU, the model goes to {}", name_of(ctx.device()));
  check_usage(!mapped || !adapter, "--load mapped keeps the weights as they are, --adapter does not");
  check_usage(!mapped || !for_generating->weights, "--load mapped keeps the weights as they are, --weights does not");
  const ModelConfig config = read_model_config(dir / "config.json");
  const auto files = std::make_shared<const WeightFiles>(dir);
  const std::vector<Parameter> list = parameter_list(config);
  check_fit(dir, *files, list);  // before the memory is asked for: a wrong config may ask for anything
  if (adapter) adapter->check_fits(list);
  Borrowed borrowed{.lender = {}, .find = {}, .rest_is_written = for_generating.has_value()};
  // Rounded from where they lie, matrix by matrix: a copy of all of them first would be most of the memory that loading takes.
  const bool rounded = for_generating && for_generating->weights == DType::i8 && !ctx.device().is_cuda() && !adapter;
  if (mapped || rounded) borrowed = borrow(files, list, type, mapped);
  auto model = std::make_unique<Model>(ctx, config, type, Frozen{}, LoraConfig{}, borrowed);
  const auto is_borrowed = [](const Parameter& p) { return p.borrowed; };
  if (mapped && std::ranges::none_of(model->parameters().list(), is_borrowed)) {
    const bool same = std::ranges::any_of(list, [&](const Parameter& p) {
      const WeightFiles::Entry* const entry = files->find(p.name);
      return entry && p.shape.size() == 2 && same_type(*entry->tensor, type);
    });
    const std::string why = same ? "they begin where no number of their type may, or lie apart"
                                 : fmt::format("none is in {}, which this run computes with{}", name_of(type),
                                               type == DType::f32 ? " (dtype=bf16 takes weights in bf16 as they are)" : "");
    log::warning("{}: --load mapped copies all weights: {}", dir.string(), why);
  }
  load_from(*files, model->parameters(), {}, adapter, rounded ? Pages::go : Pages::stay);
  model->refresh_constants();
  if (!for_generating) return model;
  Model::Repack how = *for_generating;
  how.fold &= !mapped;  // gains would be written into the weights
  model->repack(how);
  return model;
}

}  // namespace bhyt
