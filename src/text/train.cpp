#include "text/train.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <unordered_set>

#include "core/check.h"
#include "text/byte_alphabet.h"
#include "text/parse.h"
#include "text/word_counts.h"

namespace bhyt {

namespace {

using Pair = std::uint64_t;  // left id above, right id below: compares as the pair does

Pair pair_of(TokenId left, TokenId right) {
  return static_cast<Pair>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

// Pair → how often it occurs, and the words where it has come up since it was last put in line.
class Pairs {
 public:
  struct Info {
    Pair pair;
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;
  };

  std::size_t index(Pair pair) {
    if (infos_.size() * 2 >= slots_.size()) grow();
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash(pair) & mask;
    for (; slots_[i].pair != kEmpty; i = (i + 1) & mask)
      if (slots_[i].pair == pair) return slots_[i].index;
    slots_[i] = {pair, static_cast<std::uint32_t>(infos_.size())};
    infos_.push_back({pair, 0, {}});
    return infos_.size() - 1;
  }
  Info& operator[](std::size_t index) { return infos_[index]; }
  std::size_t size() const { return infos_.size(); }

 private:
  static constexpr Pair kEmpty = ~0ull;
  struct Slot {
    Pair pair = kEmpty;
    std::uint32_t index = 0;
  };
  static std::size_t hash(Pair pair) { return (pair * 0x9E3779B97F4A7C15ull) >> 20; }
  void grow() {
    slots_.assign(std::max<std::size_t>(1 << 16, slots_.size() * 2), {});
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t n = 0; n < infos_.size(); ++n) {
      std::size_t i = hash(infos_[n].pair) & mask;
      while (slots_[i].pair != kEmpty) i = (i + 1) & mask;
      slots_[i] = {infos_[n].pair, static_cast<std::uint32_t>(n)};
    }
  }
  std::vector<Slot> slots_;
  std::vector<Info> infos_;
};

// The words of the corpus as symbols, and the queue of pairs. The rules are those of `tokenizers`:
// - the highest count first, then the smallest pair of ids;
// - a place in the queue carries the words that were known when it was made, and stays when the count changes (it is put back
//   with the new count when its turn comes);
// - a pair's own count is left as it was when it is merged, which matters when the same pair arises again.
class Merger {
 public:
  Merger(const WordCounts& counts, const TokenId (&byte_ids)[256]) {
    counts.for_each([&](std::string_view word, std::uint64_t count) {
      if (word.size() < 2) return;
      words_.push_back({symbols_.size(), static_cast<std::uint32_t>(word.size()), static_cast<std::int64_t>(count)});
      for (const char c : word) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
    });
    check(words_.size() < 0xFFFFFFFF, "[tokenizer train] expected fewer than 2^32 different words, got {}", words_.size());
    for (std::uint32_t w = 0; w < words_.size(); ++w)
      for (std::uint32_t i = 0; i + 1 < words_[w].size; ++i) {
        const TokenId* s = &symbols_[words_[w].begin + i];
        change(s[0], s[1], words_[w].count, w, true);
      }
    put_in_line();
  }

  // The next pair to merge: false when none is left.
  bool next(Pair& pair) {
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Place& top = queue_.back();
      const std::int64_t now = pairs_[top.index].count;
      if (top.count == now) {
        pair = top.pair;
        return now > 0;
      }
      top.count = now;
      std::push_heap(queue_.begin(), queue_.end());
    }
    return false;
  }

  // Merges the pair that next() gave, in the words of its place in the queue.
  void merge(Pair pair, TokenId result) {
    const std::vector<std::uint32_t> where = std::move(lists_[queue_.back().words]);
    free_lists_.push_back(queue_.back().words);
    queue_.pop_back();
    const auto left = static_cast<TokenId>(pair >> 32), right = static_cast<TokenId>(pair & 0xFFFFFFFF);
    for (const std::uint32_t w : where) merge_word(w, left, right, result);
    put_in_line();
  }

 private:
  struct Word {
    std::size_t begin;
    std::uint32_t size;
    std::int64_t count;
  };
  struct Place {
    std::int64_t count;
    Pair pair;
    std::uint32_t index;  // in pairs_
    std::uint32_t words;  // in lists_
    bool operator<(const Place& o) const { return count != o.count ? count < o.count : pair > o.pair; }
  };

  void change(TokenId left, TokenId right, std::int64_t by, std::uint32_t word, bool arises) {
    const std::size_t i = pairs_.index(pair_of(left, right));
    Pairs::Info& info = pairs_[i];
    info.count += by;
    if (!arises) return;
    if (info.words.empty()) touched_.push_back(static_cast<std::uint32_t>(i));
    if (info.words.empty() || info.words.back() != word) info.words.push_back(word);
  }

  void merge_word(std::uint32_t w, TokenId left, TokenId right, TokenId result) {
    Word& word = words_[w];
    TokenId* const s = &symbols_[word.begin];
    std::uint32_t to = 0;
    for (std::uint32_t from = 0; from < word.size; ++to) {
      if (s[from] != left || from + 1 == word.size || s[from + 1] != right) {
        s[to] = s[from++];
        continue;
      }
      if (to > 0) {
        change(s[to - 1], left, -word.count, w, false);
        change(s[to - 1], result, word.count, w, true);
      }
      from += 2;
      if (from < word.size) {
        change(right, s[from], -word.count, w, false);
        change(result, s[from], word.count, w, true);
      }
      s[to] = result;
    }
    word.size = to;
  }

  void put_in_line() {
    for (const std::uint32_t i : touched_) {
      Pairs::Info& info = pairs_[i];
      std::vector<std::uint32_t> words = std::move(info.words);
      info.words = {};
      if (info.count <= 0) continue;
      std::uint32_t list = static_cast<std::uint32_t>(lists_.size());
      if (free_lists_.empty()) {
        lists_.push_back(std::move(words));
      } else {
        list = free_lists_.back();
        free_lists_.pop_back();
        lists_[list] = std::move(words);
      }
      queue_.push_back({info.count, info.pair, i, list});
      std::push_heap(queue_.begin(), queue_.end());
    }
    touched_.clear();
  }

  std::vector<TokenId> symbols_;
  std::vector<Word> words_;
  Pairs pairs_;
  std::vector<Place> queue_;
  std::vector<std::vector<std::uint32_t>> lists_;
  std::vector<std::uint32_t> free_lists_;
  std::vector<std::uint32_t> touched_;  // pairs with words that are not in line yet
};

}  // namespace

// One table per thread that counts at the same time.
struct BpeTrainer::Counters {
  explicit Counters(Pattern pattern) : splitter(pattern) {}
  Splitter splitter;
  std::mutex mutex;
  std::vector<std::unique_ptr<WordCounts>> idle;

  std::unique_ptr<WordCounts> take() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<WordCounts>();
    auto counts = std::move(idle.back());
    idle.pop_back();
    return counts;
  }
  void give(std::unique_ptr<WordCounts> counts) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(counts));
  }
  WordCounts total() {
    if (idle.empty()) return {};
    WordCounts sum = std::move(*idle.front());
    for (std::size_t i = 1; i < idle.size(); ++i)
      idle[i]->for_each([&](std::string_view word, std::uint64_t count) { sum.add(word, count); });
    idle.clear();
    return sum;
  }
};

BpeTrainer::BpeTrainer(BpeTrainOptions options) : options_(std::move(options)), counters_(std::make_unique<Counters>(options_.pattern)) {
  const std::unordered_set<std::string> distinct(options_.special.begin(), options_.special.end());
  check_usage(distinct.size() == options_.special.size() && !distinct.contains(""), "special tokens must differ and not be empty");
  const std::int64_t least = 256 + std::ssize(options_.special);
  check_usage(options_.vocab >= least && options_.vocab <= 1 << 24,
              "the vocabulary must have {} tokens (256 bytes and {} special ones) to {}, got {}", least, options_.special.size(), 1 << 24,
              options_.vocab);
}
BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::count(std::string_view text) {
  auto counts = counters_->take();
  counters_->splitter(text, [&](std::string_view word) { counts->add(word); });
  counters_->give(std::move(counts));
}

std::unique_ptr<Tokenizer> BpeTrainer::train(const std::function<void(std::int64_t, std::int64_t)>& progress) {
  TokenizerSpec spec;
  spec.pattern = options_.pattern;
  Vocabulary ids;
  const auto append = [&](const std::string& chars) {
    const auto id = static_cast<TokenId>(spec.pieces.size());
    set_spelled_piece(spec, id, chars);
    ids.emplace(chars, id);
    return id;
  };
  // Special tokens, the bytes in the order of the characters that stand for them, then one token per merge.
  for (const std::string& s : options_.special) {
    const TokenId id = append(s);
    add(spec, ids, {.id = id, .content = s});
  }
  TokenId byte_ids[256];
  std::vector<int> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  const auto as_char = [](int b) { return byte_to_char(static_cast<unsigned char>(b)); };
  std::sort(bytes.begin(), bytes.end(), [&](int a, int b) { return as_char(a) < as_char(b); });
  for (const int b : bytes) byte_ids[b] = append(bytes_to_chars(std::string(1, static_cast<char>(b))));

  Merger merger(counters_->total(), byte_ids);
  Pair pair = 0;
  std::unordered_map<Pair, std::size_t> rank_of;
  std::vector<Merge> merges;
  while (std::ssize(spec.pieces) < options_.vocab && merger.next(pair)) {
    const auto left = static_cast<TokenId>(pair >> 32), right = static_cast<TokenId>(pair & 0xFFFFFFFF);
    const std::string chars = bytes_to_chars(spec.pieces[static_cast<std::size_t>(left)] + spec.pieces[static_cast<std::size_t>(right)]);
    const auto known = ids.find(chars);  // the same token may be put together in several ways
    const TokenId result = known != ids.end() ? known->second : append(chars);
    merges.push_back({left, right, result, 0});
    rank_of[pair] = merges.size() - 1;
    merger.merge(pair, result);
    if (progress && merges.size() % 64 == 0) progress(std::ssize(spec.pieces), options_.vocab);
  }
  for (std::size_t i = 0; i < merges.size(); ++i)  // said twice: the later one holds
    if (rank_of[pair_of(merges[i].left, merges[i].right)] == i) {
      merges[i].rank = static_cast<std::uint32_t>(spec.merges.size());
      spec.merges.push_back(merges[i]);
    }
  if (const auto begin = find_added(spec, "<|begin_of_text|>")) spec.before = {*begin};
  return finish_tokenizer(std::move(spec));
}

}  // namespace bhyt
