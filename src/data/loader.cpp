#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/check.h"
#include "data/permutation.h"
#include "data/token_file.h"

namespace bhyt {

namespace {

constexpr std::uint64_t kCycle = 10000;  // a mixture repeats after so many rows: weights are kept to one part in 10,000

struct Part {
  TokenFile file;
  std::uint64_t rows = 0;    // T inputs and T targets each; row i starts at token i·T
  std::uint64_t before = 0;  // rows of the parts before
  std::uint64_t share = 0;   // of the rows of a cycle
};

// Shares of a cycle in proportion to the weights, at least one each, by largest remainder.
void set_shares(std::vector<Part>& parts, const std::vector<DataPart>& given) {
  double total = 0;
  for (const DataPart& p : given) total += p.weight;
  std::vector<std::pair<double, std::size_t>> short_by;
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double exact = given[i].weight / total * static_cast<double>(kCycle);
    parts[i].share = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(exact));
    used += parts[i].share;
    short_by.emplace_back(static_cast<double>(parts[i].share) - exact, i);
  }
  std::sort(short_by.begin(), short_by.end());
  for (std::size_t i = 0; used < kCycle; i = (i + 1) % parts.size(), ++used) ++parts[short_by[i].second].share;
  const auto largest = std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.share < b.share; });
  largest->share -= used - kCycle;  // what the smallest were given above their weight
}

}  // namespace

struct Loader::Impl {
  struct Slot {
    std::uint32_t part, rank;  // the part of this row of the cycle, and how many rows of it came before in the cycle
  };
  struct Place {
    const Part* part;
    std::uint64_t row;
  };

  LoaderOptions options;
  std::vector<Part> parts;
  std::uint64_t rows = 0;
  std::vector<Slot> cycle;  // empty without weights: then all rows are shuffled together
  std::uint64_t vocab = 0, fingerprint = 0;

  // The prefetching thread and what it shares.
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<HostBatch> ready;
  std::exception_ptr error;
  std::jthread thread;
  bool stopping = false;

  void open();
  void lay_out_cycle();
  Place place(std::uint64_t g) const;
  void fill_row(const Place& at, std::int64_t r, HostBatch& out) const;
  void stop();
};

void Loader::Impl::open() {
  check_usage(!options.parts.empty(), "[loader] expected at least one token file");
  check_usage(options.seq_len > 0 && options.batch > 0, "[loader] expected seq_len and batch above 0, got {} and {}", options.seq_len,
              options.batch);
  const auto length = static_cast<std::uint64_t>(options.seq_len);
  std::size_t weighted = 0;
  for (const DataPart& p : options.parts) {
    Part part{.file = TokenFile(p.path, p.name)};
    const std::string& name = part.file.name();
    check_usage(p.weight >= 0 && p.weight < 1e300, "{}: expected a weight of 0 or more, below 1e300, got {}", name, p.weight);
    weighted += p.weight > 0;
    const TokenFileInfo& info = part.file.info();
    check(info.tokens > length, "{}: {} tokens, a row of seq_len {} needs {}", name, info.tokens, length, length + 1);
    part.rows = (info.tokens - 1) / length;
    part.before = rows;
    rows += part.rows;
    vocab = std::max(vocab, info.meta.vocab);
    check(fingerprint == 0 || info.meta.fingerprint == 0 || fingerprint == info.meta.fingerprint,
          "{} was packed with another tokenizer than {}", name, parts.empty() ? std::string() : std::string(parts.front().file.name()));
    if (fingerprint == 0) fingerprint = info.meta.fingerprint;
    parts.push_back(std::move(part));
  }
  check_usage(weighted == 0 || weighted == parts.size(),
              "a mixture needs a weight above 0 for every part, or none for all (then: by size)");
  check_usage(parts.size() <= kCycle / 2, "a mixture of {} parts: at most {} are allowed", parts.size(), kCycle / 2);
  if (weighted > 0 && parts.size() > 1 && options.shuffle) lay_out_cycle();
}

// Row j of a part with share s stands at time (j + ½)/s of the cycle: every stretch of it holds the parts in proportion.
void Loader::Impl::lay_out_cycle() {
  set_shares(parts, options.parts);
  for (std::uint32_t p = 0; p < parts.size(); ++p)
    for (std::uint32_t j = 0; j < parts[p].share; ++j) cycle.push_back({p, j});
  std::stable_sort(cycle.begin(), cycle.end(), [&](const Slot& a, const Slot& b) {
    return (2ull * a.rank + 1) * parts[b.part].share < (2ull * b.rank + 1) * parts[a.part].share;
  });
}

// Where the g-th row of the endless stream lies.
Loader::Impl::Place Loader::Impl::place(std::uint64_t g) const {
  const auto key = [&](std::uint64_t part, std::uint64_t epoch) { return mix64(mix64(options.seed + 1) + mix64(part << 48 | epoch)); };
  if (!cycle.empty()) {
    const Slot s = cycle[g % cycle.size()];
    const Part& p = parts[s.part];
    const std::uint64_t k = g / cycle.size() * p.share + s.rank;
    return {&p, Permutation(p.rows, key(s.part + 1, k / p.rows))(k % p.rows)};
  }
  std::uint64_t row = g % rows;
  if (options.shuffle) row = Permutation(rows, key(0, g / rows))(row);
  const auto after = std::upper_bound(parts.begin(), parts.end(), row, [](std::uint64_t r, const Part& p) { return r < p.before; });
  const Part& p = *std::prev(after);
  return {&p, row - p.before};
}

void Loader::Impl::fill_row(const Place& at, std::int64_t r, HostBatch& out) const {
  const auto length = static_cast<std::size_t>(options.seq_len);
  const std::uint64_t begin = at.row * length;
  const std::size_t to = static_cast<std::size_t>(r) * length;
  at.part->file.read(begin, length, out.tokens.data() + to);
  at.part->file.read(begin + 1, length, out.targets.data() + to);
  if (options.attend == Attend::row) return;
  std::vector<std::uint64_t> starts;
  at.part->file.document_starts(begin, begin + length, starts);
  starts.push_back(begin + length);
  std::size_t first = 0;  // a row may begin inside a document: its positions start at 0 there too
  for (const std::uint64_t s : starts) {
    for (std::size_t t = first; t < s - begin; ++t) {
      out.first[to + t] = static_cast<std::int32_t>(first);
      out.positions[to + t] = static_cast<std::int32_t>(t - first);
    }
    first = static_cast<std::size_t>(s - begin);
  }
}

void Loader::Impl::stop() {
  {
    std::lock_guard lock(mutex);
    stopping = true;
    changed.notify_all();
  }
  if (thread.joinable()) thread.join();
  stopping = false;
  ready.clear();
  error = nullptr;
}

Loader::Loader(const LoaderOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->open();
}

Loader::~Loader() { impl_->stop(); }

std::int64_t Loader::rows() const { return static_cast<std::int64_t>(impl_->rows); }

std::int64_t Loader::batches() const {
  const std::int64_t b = impl_->options.batch;
  return (rows() + (impl_->options.shuffle ? 0 : b - 1)) / b;
}

std::int64_t Loader::vocab() const { return static_cast<std::int64_t>(impl_->vocab); }
std::uint64_t Loader::tokenizer_fingerprint() const { return impl_->fingerprint; }

void Loader::batch(std::int64_t n, HostBatch& out) const {
  check(n >= 0, "[loader] expected a batch from 0, got {}", n);
  const LoaderOptions& o = impl_->options;
  out.batch = o.batch;
  if (!o.shuffle) {
    n %= batches();
    out.batch = std::min(o.batch, rows() - n * o.batch);
  }
  out.seq = o.seq_len;
  const auto size = static_cast<std::size_t>(out.batch * out.seq);
  out.tokens.resize(size);
  out.targets.resize(size);
  out.positions.resize(o.attend == Attend::document ? size : 0);
  out.first.resize(out.positions.size());
  for (std::int64_t r = 0; r < out.batch; ++r) impl_->fill_row(impl_->place(static_cast<std::uint64_t>(n * o.batch + r)), r, out);
}

void Loader::start(std::int64_t n, int ahead) {
  impl_->stop();
  const auto most = static_cast<std::size_t>(std::max(ahead, 1));
  impl_->thread = std::jthread([this, n, most]() mutable {
    Impl& i = *impl_;
    try {
      for (;; ++n) {
        HostBatch b;
        batch(n, b);
        std::unique_lock lock(i.mutex);
        i.changed.wait(lock, [&] { return i.stopping || i.ready.size() < most; });
        if (i.stopping) return;
        i.ready.push_back(std::move(b));
        i.changed.notify_all();
      }
    } catch (...) {
      std::lock_guard lock(i.mutex);
      i.error = std::current_exception();
      i.changed.notify_all();
    }
  });
}

HostBatch Loader::next() {
  Impl& i = *impl_;
  check(i.thread.joinable(), "[loader] expected start() before next()");
  std::unique_lock lock(i.mutex);
  i.changed.wait(lock, [&] { return !i.ready.empty() || i.error; });
  if (i.ready.empty()) std::rethrow_exception(i.error);
  HostBatch b = std::move(i.ready.front());
  i.ready.pop_front();
  i.changed.notify_all();
  return b;
}

}  // namespace bhyt
