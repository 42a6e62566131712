#include "train/example_rows.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/check.h"
#include "data/order.h"
#include "data/permutation.h"
#include "io/hash.h"
#include "ops/norm/norm.h"

namespace bhyt::train {

namespace {

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

std::uint64_t key_of(std::uint64_t seed, std::uint64_t set, std::uint64_t pass) { return mix64(mix64(seed + 1) + mix64(set << 48 | pass)); }

// Places one example behind what its row already holds.
void put(const Example& e, std::int64_t row, std::int64_t first, HostBatch& out) {
  const std::int64_t n = computed_tokens(e);
  for (std::int64_t t = 0; t < n; ++t) {
    const auto to = static_cast<std::size_t>(row * out.seq + first + t);
    const std::int32_t label = e.labels[static_cast<std::size_t>(t + 1)];
    out.tokens[to] = e.ids[static_cast<std::size_t>(t)];
    out.targets[to] = label == kNotScored ? -1 : label;
    out.positions[to] = static_cast<std::int32_t>(t);
    out.first[to] = static_cast<std::int32_t>(first);
  }
}

class ExampleBatches : public BatchSource {
 public:
  ExampleBatches(const std::vector<WeightedExamples>& sets, const ExampleRows& options) : options_(options) {
    for (const WeightedExamples& set : sets) {
      check(set.examples && !set.examples->empty(), "[examples] expected a set with examples, got an empty one");
      sets_.push_back({.first = std::ssize(examples_), .count = std::ssize(*set.examples), .weight = set.weight, .held = set.examples});
      for (const Example& e : *set.examples) examples_.push_back(&e);
    }
    share_out();
    if (options_.packing == Packing::documents) join_units();
  }

  std::int64_t rows() const override { return units(); }
  std::int64_t batches() const override {
    return options_.rounds ? std::max<std::int64_t>(units() / options_.batch, 1) : (units() + options_.batch - 1) / options_.batch;
  }
  void start(std::int64_t n) override { at_ = n; }
  HostBatch next() override {
    std::vector<std::vector<const Example*>> rows;
    HostBatch out;
    for (const std::int64_t unit : units_of(at_++)) {
      rows.emplace_back();
      for (const std::int64_t e : joined_.empty() ? std::vector{unit} : joined_[static_cast<std::size_t>(unit)])
        rows.back().push_back(examples_[static_cast<std::size_t>(e)]);
      out.examples += std::ssize(rows.back());
    }
    if (options_.packing == Packing::none) rows = dense(rows);
    lay(rows, out);
    return out;
  }

 private:
  struct Set {
    std::int64_t first = 0, count = 0;
    double weight = 0;
    std::int64_t per_epoch = 0;
    std::shared_ptr<const std::vector<Example>> held = nullptr;
  };

  // What is shuffled and counted: examples, or with Packing::documents whole rows of them.
  std::int64_t units() const { return joined_.empty() ? per_epoch_ : std::ssize(joined_); }

  void share_out() {
    double weights = 0;
    for (const Set& s : sets_) weights += s.weight;
    const auto all = static_cast<double>(examples_.size());
    for (Set& s : sets_) {
      s.per_epoch = weights > 0 ? std::max<std::int64_t>(std::llround(s.weight / weights * all), 1) : s.count;
      per_epoch_ += s.per_epoch;
    }
    mixed_ = weights > 0;
  }

  // Rows are filled once: every epoch has the same ones, in another order.
  void join_units() {
    check_usage(!mixed_, "data.packing=documents: data sets with weights are not packed; leave the weights or the packing out");
    std::vector<std::int64_t> lengths;
    for (const Example* e : examples_) lengths.push_back(computed_tokens(*e));
    joined_ = fill_rows(lengths, options_.seq_len);
  }

  // The k-th example of a set, which is gone through again and again.
  std::int64_t of_set(std::size_t set, std::int64_t k) const {
    const Set& s = sets_[set];
    const std::int64_t pass = k / s.count, place = k % s.count;
    if (options_.shuffle == Shuffle::none) return s.first + place;
    return s.first + static_cast<std::int64_t>(
                         Permutation(static_cast<std::uint64_t>(s.count),
                                     key_of(options_.seed, set + 1, static_cast<std::uint64_t>(pass)))(static_cast<std::uint64_t>(place)));
  }

  // The units of an epoch in their order.
  std::vector<std::int64_t> order_of(std::int64_t epoch) const {
    const std::int64_t n = units();
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    if (options_.shuffle == Shuffle::torch) {
      order = torch_randperm(n, options_.seed + static_cast<std::uint64_t>(epoch));
    } else if (options_.shuffle == Shuffle::own) {
      order = shuffled(n, options_.seed, static_cast<std::uint64_t>(epoch));
    }
    if (!mixed_) return order;
    std::vector<std::int64_t> drawn;
    for (std::size_t s = 0; s < sets_.size(); ++s)
      for (std::int64_t j = 0; j < sets_[s].per_epoch; ++j) drawn.push_back(of_set(s, epoch * sets_[s].per_epoch + j));
    for (std::int64_t& i : order) i = drawn[static_cast<std::size_t>(i)];
    return order;
  }

  std::vector<std::int64_t> units_of(std::int64_t n) {
    std::vector<std::int64_t> out;
    if (options_.rounds) {
      for (std::int64_t i = 0; i < options_.batch; ++i) out.push_back((n * options_.batch + i) % units());
      return out;
    }
    const std::int64_t epoch = n / batches(), first = n % batches() * options_.batch;
    if (epoch != epoch_) order_ = order_of(epoch_ = epoch);
    for (std::int64_t i = first; i < std::min(first + options_.batch, units()); ++i) out.push_back(order_[static_cast<std::size_t>(i)]);
    return out;
  }

  // The same examples in as few tokens as possible: every length of rows is tried.
  std::vector<std::vector<const Example*>> dense(const std::vector<std::vector<const Example*>>& alone) const {
    std::vector<std::int64_t> lengths;
    for (const auto& row : alone) lengths.push_back(computed_tokens(*row.front()));
    const std::int64_t longest = std::max<std::int64_t>(*std::ranges::max_element(lengths), 1);
    std::vector<std::vector<std::int64_t>> best;
    std::int64_t least = 0;
    for (std::int64_t length = std::min(round_up(longest, options_.multiple), options_.seq_len);;
         length = std::min(length + options_.multiple, options_.seq_len)) {
      auto rows = fill_rows(lengths, length);
      if (const std::int64_t tokens = std::ssize(rows) * length; best.empty() || tokens < least) {
        best = std::move(rows);
        least = tokens;
      }
      if (length == options_.seq_len) break;
    }
    std::vector<std::vector<const Example*>> out;
    for (const auto& row : best) {
      out.emplace_back();
      for (const std::int64_t i : row) out.back().push_back(alone[static_cast<std::size_t>(i)].front());
    }
    return out;
  }

  void lay(const std::vector<std::vector<const Example*>>& rows, HostBatch& out) const {
    std::int64_t longest = 1;
    for (const auto& row : rows) {
      std::int64_t length = 0;
      for (const Example* e : row) length += computed_tokens(*e);
      longest = std::max(longest, length);
    }
    out.batch = std::max<std::int64_t>(std::ssize(rows), 1);
    out.seq = std::min(round_up(longest, options_.multiple), options_.seq_len);
    const auto n = static_cast<std::size_t>(out.batch * out.seq);
    out.tokens.assign(n, 0);
    out.targets.assign(n, kFilling);
    out.positions.assign(n, 0);
    out.first.resize(n);
    for (std::size_t i = 0; i < n; ++i) out.first[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % out.seq);  // itself alone
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::int64_t at = 0;
      for (const Example* e : rows[r]) {
        put(*e, static_cast<std::int64_t>(r), at, out);
        at += computed_tokens(*e);
        out.used += computed_tokens(*e);
      }
    }
  }

  ExampleRows options_;
  std::vector<const Example*> examples_;  // of all sets, one behind the other
  std::vector<Set> sets_;
  bool mixed_ = false;
  std::int64_t per_epoch_ = 0;
  std::vector<std::vector<std::int64_t>> joined_;
  std::int64_t at_ = 0, epoch_ = -1;
  std::vector<std::int64_t> order_;
};

}  // namespace

std::int64_t computed_tokens(const Example& e) {
  std::int64_t last = std::ssize(e.labels) - 1;
  while (last > 0 && e.labels[static_cast<std::size_t>(last)] == kNotScored) --last;
  return std::max<std::int64_t>(last, 0);
}

std::vector<std::vector<std::int64_t>> fill_rows(std::span<const std::int64_t> lengths, std::int64_t length) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; });
  std::vector<std::vector<std::int64_t>> rows;
  std::multimap<std::int64_t, std::size_t> room;  // what is left of a row
  for (const std::int64_t i : order) {
    const std::int64_t n = lengths[static_cast<std::size_t>(i)];
    if (n == 0) continue;
    check(n <= length, "[examples] expected examples of at most {} tokens, got {}", length, n);
    auto at = room.lower_bound(n);
    if (at == room.end()) {
      at = room.emplace(length, rows.size());
      rows.emplace_back();
    }
    const auto [left, row] = *at;
    room.erase(at);
    rows[row].push_back(i);
    room.emplace(left - n, row);
  }
  return rows;
}

std::unique_ptr<BatchSource> example_batches(const std::vector<WeightedExamples>& sets, const ExampleRows& options) {
  return std::make_unique<ExampleBatches>(sets, options);
}

}  // namespace bhyt::train
