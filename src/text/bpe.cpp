#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <queue>
#include <unordered_map>

#include "core/check.h"

namespace bhyt {

std::uint64_t hash_bytes(std::string_view s) {
  if (s.size() <= ShortKey::kMax) return ShortKey(s).hash(s.size());
  std::uint64_t h = s.size();
  std::size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) h = ShortKey::mix(h ^ ShortKey::load(s.data() + i, 8), 0xD6E8FEB86659FD93ull);
  return ShortKey::mix(h ^ ShortKey::load(s.data() + i, s.size() - i), 0x9E3779B97F4A7C15ull);
}

PieceTable::PieceTable(const TokenizerSpec& spec) : pieces_(spec.pieces) {
  slots_.assign(std::bit_ceil(spec.pieces.size() * 2 + 2), Slot{0, -1});
  mask_ = slots_.size() - 1;
  for (std::size_t id = 0; id < spec.pieces.size(); ++id) {
    if (spec.kinds[id] != PieceKind::text) continue;
    const std::uint64_t h = hash_bytes(spec.pieces[id]);
    std::uint64_t i = h & mask_;
    while (slots_[i].id >= 0) i = (i + 1) & mask_;
    slots_[i] = {static_cast<std::uint32_t>(h >> 32), static_cast<TokenId>(id)};
  }
}

TokenId PieceTable::find(std::string_view s, std::uint64_t hash) const {
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::uint64_t i = hash & mask_;; i = (i + 1) & mask_) {
    const Slot& slot = slots_[i];
    if (slot.id < 0) return -1;
    if (slot.tag == tag && pieces_[static_cast<std::size_t>(slot.id)] == s) return slot.id;
  }
}

MergeTable::MergeTable(const std::vector<Merge>& merges) {
  slots_.resize(std::bit_ceil(merges.size() * 3 / 2 + 2));
  mask_ = slots_.size() - 1;
  shift_ = 64 - std::countr_zero(slots_.size());
  for (const Merge& m : merges) {
    const std::uint64_t key = pack(m.left, m.right);
    std::uint64_t i = slot_of(key);
    while (slots_[i].found.rank != kNone && slots_[i].key != key) i = (i + 1) & mask_;
    slots_[i] = {key, {m.rank, m.result}};  // said twice: the later rank holds
  }
}

namespace {

constexpr std::size_t kScan = 96;  // up to here looking at every pair beats keeping them in order

// Few symbols: find the lowest rank by looking at all of them, again and again.
void merge_by_scan(const MergeTable& merges, const TokenId* symbols, std::size_t n, std::vector<TokenId>& out) {
  TokenId ids[kScan];
  MergeTable::Found pairs[kScan];  // of symbols i and i + 1
  std::copy_n(symbols, n, ids);
  for (std::size_t i = 0; i + 1 < n; ++i) pairs[i] = merges.find(ids[i], ids[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == MergeTable::kNone) break;
    ids[best] = pairs[best].result;
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    std::copy(pairs + best + 1, pairs + n - 1, pairs + best);
    --n;
    if (best + 1 < n) merges.prefetch(ids[best], ids[best + 1]);
    if (best > 0) pairs[best - 1] = merges.find(ids[best - 1], ids[best]);
    if (best + 1 < n) pairs[best] = merges.find(ids[best], ids[best + 1]);
  }
  out.insert(out.end(), ids, ids + n);
}

// Many symbols: a linked list, and for each rank the places where it applies. Places mostly arrive in order, so that a rank's
// list is read straight through; those that arrive late go to a heap beside it.
class LongMerge {
 public:
  LongMerge(const MergeTable& merges, const TokenId* symbols, std::size_t size) : merges_(merges) {
    check(size < std::numeric_limits<Place>::max(), "[tokenizer] expected a text below 2 GiB, got {} bytes without a break", size);
    nodes_.resize(size);
    const auto n = static_cast<Place>(size);
    for (Place i = 0; i < n; ++i) node(i) = {symbols[i], {}, i - 1, i + 1 < n ? i + 1 : -1};
    for (Place i = 0; i < n; ++i) look(i);
  }

  void run(std::vector<TokenId>& out) {
    while (!ranks_.empty()) {
      const std::uint32_t rank = ranks_.top();
      Bucket& bucket = buckets_[rank];
      if (bucket.empty()) {
        ranks_.pop();
        buckets_.erase(rank);
        continue;
      }
      const Place at = bucket.pop();
      if (node(at).pair.rank == rank) merge(at);  // else the pair has changed since
    }
    for (Place i = 0; i >= 0; i = node(i).next) out.push_back(node(i).id);
  }

 private:
  using Place = std::int32_t;
  struct Node {
    TokenId id;
    MergeTable::Found pair;  // with the next symbol
    Place prev, next;
  };
  struct Bucket {
    std::vector<Place> in_order;
    std::size_t read = 0;
    std::priority_queue<Place, std::vector<Place>, std::greater<>> late;

    bool empty() const { return read == in_order.size() && late.empty(); }
    void push(Place at) {
      if (in_order.empty() || at > in_order.back())
        in_order.push_back(at);
      else
        late.push(at);
    }
    Place pop() {
      if (late.empty() || (read < in_order.size() && in_order[read] < late.top())) return in_order[read++];
      const Place at = late.top();
      late.pop();
      return at;
    }
  };

  Node& node(Place i) { return nodes_[static_cast<std::size_t>(i)]; }

  // Finds the merge of a place with its neighbour and puts it in line.
  void look(Place at) {
    Node& n = node(at);
    n.pair = n.next >= 0 ? merges_.find(n.id, node(n.next).id) : MergeTable::Found{};
    if (n.pair.rank == MergeTable::kNone) return;
    const auto [it, fresh] = buckets_.try_emplace(n.pair.rank);
    if (fresh) ranks_.push(n.pair.rank);
    it->second.push(at);
  }

  void merge(Place at) {
    Node& left = node(at);
    Node& right = node(left.next);
    left.id = left.pair.result;
    left.next = right.next;
    if (right.next >= 0) node(right.next).prev = at;
    right.pair.rank = MergeTable::kNone;
    look(at);
    if (left.prev >= 0) look(left.prev);
  }

  const MergeTable& merges_;
  std::vector<Node> nodes_;
  std::unordered_map<std::uint32_t, Bucket> buckets_;
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ranks_;
};

}  // namespace

void merge_symbols(const MergeTable& merges, const TokenId* symbols, std::size_t n, std::vector<TokenId>& out) {
  if (n <= kScan)
    merge_by_scan(merges, symbols, n, out);
  else
    LongMerge(merges, symbols, n).run(out);
}

}  // namespace bhyt
