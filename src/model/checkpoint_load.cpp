// Weights of a checkpoint into a model's memory, or left where they lie in the mapped files.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "core/check.h"
#include "core/log.h"
#include "core/threads.h"
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

// One parameter from its stored tensor, part by part. Returns how many values are not finite.
std::int64_t load_tensor(Context& ctx, const WeightFiles::Entry& entry, const Parameter& p) {
  const SafeTensor& t = *entry.tensor;
  const DType type = p.value.dtype;
  if (p.borrowed) return take_all(ctx, t, 0, p.size, type, nullptr);
  const bool on_gpu = ctx.device().is_cuda(), as_it_is = same_type(t, type);
  std::vector<char> raw(on_gpu && !as_it_is ? static_cast<std::size_t>(std::min(kAtOnce, p.size)) * size_of(type) : 0);
  const std::uint64_t stored = safetensors_dtype_size(t.dtype);
  std::int64_t non_finite = 0;
  for (std::int64_t first = 0; first < p.size; first += kAtOnce) {
    const std::int64_t n = std::min(kAtOnce, p.size - first);
    const std::size_t begin = static_cast<std::size_t>(first) * size_of(type), bytes = static_cast<std::size_t>(n) * size_of(type);
    char* const to = static_cast<char*>(p.value.data) + begin;
    non_finite += take_all(ctx, t, first, n, type, !on_gpu ? to : as_it_is ? nullptr : raw.data());
    if (on_gpu) ctx.copy(ctx.device(), to, Device::cpu(), as_it_is ? static_cast<const char*>(t.data) + begin : raw.data(), bytes);
    entry.file->release(t, static_cast<std::uint64_t>(first) * stored, static_cast<std::uint64_t>(first + n) * stored);
  }
  return non_finite;
}

void check_fit(const fs::path& dir, const WeightFiles& files, const std::vector<Parameter>& parameters) {
  const std::vector<std::string> wrong = mismatches(files, parameters);
  check(wrong.empty(), "{}: the weights do not fit config.json:\n  {}", dir.string(), fmt::join(wrong, "\n  "));
}

// For those who want the values in fp32 beside.
void tell(const WeightFiles::Entry& entry, const Parameter& p, const ValueSink& sink) {
  each_piece(entry, [&](const float* values, std::int64_t first, std::int64_t n) { sink(p, first, n, values); });
}

void load_from(const WeightFiles& files, const Parameters& into, const ValueSink& sink = {}) {
  check_tied_head(files, into.list());
  for (const Parameter& p : into.list()) {
    const WeightFiles::Entry* entry = files.find(p.name);
    if (!entry) {  // optional: keeps its initial value
      const std::vector<float> initial(static_cast<std::size_t>(p.size), static_cast<float>(p.init_value));
      into.write_value(p, initial.data());
      if (sink) sink(p, 0, p.size, initial.data());
      continue;
    }
    if (const std::int64_t count = load_tensor(into.context(), *entry, p))
      log::warning("{}: tensor {} holds {} values that are not finite", entry->file->path().filename().string(), p.name, count);
    if (sink) tell(*entry, p, sink);
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

// What a model borrows from the files, which stay open as long as it lives.
Borrowed borrow(const std::shared_ptr<const WeightFiles>& files, const std::vector<Parameter>& list, DType type) {
  Borrowed out{.lender = files, .find = {}, .rest_is_written = true};
  out.find = [found = usable_matrices(*files, list, type)](const Parameter& p) -> void* {
    const auto it = found.find(p.name);
    return it == found.end() ? nullptr : it->second;
  };
  return out;
}

}  // namespace

void load_weights(const fs::path& dir, const Parameters& into, const ValueSink& sink) {
  require_checkpoint(dir);
  const WeightFiles files(dir);
  check_fit(dir, files, into.list());
  load_from(files, into, sink);
}

std::unique_ptr<Model> load_model(Context& ctx, const fs::path& dir, DType type, const std::optional<Model::Repack>& for_generating,
                                  Load load) {
  require_checkpoint(dir);
  const bool mapped = load == Load::mapped;
  check(!mapped || for_generating, "[load] expected weights that stay in their files only for generating");
  check_usage(!mapped || !ctx.device().is_cuda(), "--load mapped is for the CPU, the model goes to {}", name_of(ctx.device()));
  check_usage(!mapped || !for_generating->weights, "--load mapped keeps the weights as they are, --weights does not");
  const ModelConfig config = read_model_config(dir / "config.json");
  const auto files = std::make_shared<const WeightFiles>(dir);
  const std::vector<Parameter> list = parameter_list(config);
  check_fit(dir, *files, list);  // before the memory is asked for: a wrong config may ask for anything
  Borrowed borrowed{.lender = {}, .find = {}, .rest_is_written = for_generating.has_value()};
  if (mapped) borrowed = borrow(files, list, type);
  auto model = std::make_unique<Model>(ctx, config, type, Frozen{}, borrowed);
  load_from(*files, model->parameters());
  model->refresh_constants();
  if (!for_generating) return model;
  Model::Repack how = *for_generating;
  how.fold &= !mapped;  // gains would be written into the weights
  model->repack(how);
  return model;
}

}  // namespace bhyt
