// Byte-level BPE and BPE with byte fallback, from a TokenizerSpec.
#include <algorithm>
#include <atomic>

#include "core/check.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/word_cache.h"
#include "text/write.h"

namespace bhyt {

namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, how sentencepiece writes a space

std::uint32_t next_owner() {
  static std::atomic<std::uint32_t> count{0};
  return ++count;
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerSpec spec)
      : spec_(std::move(spec)),
        pieces_(spec_),
        merges_(spec_.merges),
        splitter_(spec_.pattern, spec_.isolate_digits),
        raw_(spec_.added, false),
        normalized_(spec_.added, true),
        added_(spec_.pieces.size(), nullptr) {
    for (int b = 0; b < 256; ++b) byte_ids_[b] = byte_symbol(static_cast<char>(b));
    if (spec_.style == BpeStyle::byte_fallback)
      for (std::size_t id = 0; id < spec_.pieces.size(); ++id)
        if (spec_.kinds[id] == PieceKind::byte) byte_ids_[static_cast<unsigned char>(spec_.pieces[id][0])] = static_cast<TokenId>(id);
    for (const AddedToken& t : spec_.added) added_[static_cast<std::size_t>(t.id)] = &t;
  }

  std::string kind() const override { return spec_.style == BpeStyle::byte_level ? "bpe" : "sentencepiece"; }
  std::int64_t vocab_size() const override { return std::ssize(spec_.pieces); }
  std::optional<TokenId> bos() const override { return spec_.bos; }
  std::optional<TokenId> end_of_text() const override { return spec_.end_of_text; }
  std::optional<TokenId> eos() const override { return spec_.eos; }
  std::vector<TokenId> stops() const override { return spec_.stops; }
  std::uint64_t fingerprint() const override { return bhyt::fingerprint(spec_); }
  void save(const std::filesystem::path& dir) const override { write_tokenizer(spec_, dir); }
  TokenizerSpec spec() const override { return spec_; }

  std::vector<SpecialToken> special_tokens() const override {
    std::vector<SpecialToken> all;
    for (const AddedToken& t : spec_.added)
      if (t.special) all.push_back({t.id, t.content});
    return all;
  }
  std::vector<std::pair<std::string, std::string>> details() const override {
    return {{"pattern", std::string(spec_.isolate_digits ? "single digits, " : "") + pattern_name(spec_.pattern)},
            {"merges", std::to_string(spec_.merges.size())},
            {"normalizer", spec_.nfc ? "NFC" : "none"},
            {"adds_before", join(spec_.before)},
            {"adds_after", join(spec_.after)}};
  }

  void encode(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions& options) const override {
    ids.reserve(ids.size() + text.size() / 4 + 8);
    const bool adds = options.special && options.adds;
    if (adds) ids.insert(ids.end(), spec_.before.begin(), spec_.before.end());
    bool first = true;
    raw_.split(
        text, options.special,
        [&](std::string_view part) {
          encode_stretch(part, ids, {.special = options.special, .first = first});
          first = false;
        },
        [&](const AddedToken& t) {
          ids.push_back(t.id);
          first = false;
        });
    if (adds) ids.insert(ids.end(), spec_.after.begin(), spec_.after.end());
  }

  std::string piece(TokenId id, bool special) const override { return text_of(id, special); }

  // The space that encoding put after a beginning-of-text token goes with it.
  std::string decode(const std::vector<TokenId>& ids, bool special) const override {
    std::string text;
    const std::size_t lead = spec_.before.size();
    const bool prefixed = spec_.prefix != Prefix::none && !special && lead > 0 && ids.size() > lead &&
                          std::equal(spec_.before.begin(), spec_.before.end(), ids.begin());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string& p = text_of(ids[i], special);
      text.append(p, prefixed && i == lead && p.starts_with(' ') ? 1 : 0);
    }
    return text;
  }

 private:
  const std::string& text_of(TokenId id, bool special) const {
    static const std::string nothing;
    const auto i = static_cast<std::size_t>(id);
    check(id >= 0 && i < spec_.pieces.size(), "[tokenizer] expected an id below {}, got {}", spec_.pieces.size(), id);
    if (!added_[i]) return spec_.pieces[i];
    return added_[i]->special && !special ? nothing : added_[i]->content;
  }

  static std::string join(const std::vector<TokenId>& ids) { return ids.empty() ? "nothing" : fmt::format("{}", fmt::join(ids, " ")); }

  TokenId byte_symbol(char byte) const { return pieces_.find(std::string_view(&byte, 1)); }

  // Text between added tokens, from normalization to ids.
  struct Stretch {
    bool special = true;  // added tokens are looked for, and a space may be put in front
    bool first = false;   // of the text
  };
  void encode_stretch(std::string_view text, std::vector<TokenId>& ids, Stretch at) const {
    std::string changed;
    if (spec_.nfc) text = changed = unicode::nfc(text);
    normalized_.split(
        text, at.special,
        [&](std::string_view part) {
          encode_plain(part, ids, at.special && (spec_.prefix == Prefix::every || (spec_.prefix == Prefix::first && at.first)));
          at.first = false;
        },
        [&](const AddedToken& t) {
          ids.push_back(t.id);
          at.first = false;
        });
  }

  void encode_plain(std::string_view text, std::vector<TokenId>& ids, bool prefix) const {
    std::string changed;
    if (spec_.metaspace && text.find(kMetaspace) != text.npos) {
      for (std::size_t at = 0; at < text.size();) {
        const bool space = text.substr(at).starts_with(kMetaspace);
        changed.push_back(space ? ' ' : text[at]);
        at += space ? kMetaspace.size() : 1;
      }
      text = changed;
    }
    if (prefix && !text.empty() && !(spec_.prefix_unless_space && text.front() == ' ')) text = changed = fmt::format(" {}", text);
    if (spec_.style == BpeStyle::byte_fallback) return encode_characters(text, ids);
    // A few words at a time: the cache lines of the later ones are on their way while the first are looked up.
    Pending pending[16];
    std::size_t count = 0;
    WordCache& cache = WordCache::get();
    const auto flush = [&] {
      for (std::size_t i = 0; i < count; ++i) encode_word(pending[i], ids);
      count = 0;
    };
    splitter_(text, [&](std::string_view word) {
      Pending& p = pending[count++];
      p.word = word;
      if (word.size() <= ShortKey::kMax) {
        p.key = ShortKey(word);
        p.hash = p.key.hash(word.size());
        p.entry = &cache.slot(p.hash, owner_);
        __builtin_prefetch(p.entry);
      }
      if (count == std::size(pending)) flush();
    });
    flush();
  }

  struct Pending {
    std::string_view word;
    ShortKey key{std::string_view()};
    std::uint64_t hash = 0;
    WordCache::Entry* entry = nullptr;
  };

  void encode_word(const Pending& p, std::vector<TokenId>& ids) const {
    if (p.word.size() > ShortKey::kMax) return encode_new_word(p.word, hash_bytes(p.word), ids);
    WordCache::Entry& e = *p.entry;
    const ShortKey& key = p.key;
    const bool hit = e.owner == owner_ && e.size == p.word.size() && e.key[0] == key.w[0] && e.key[1] == key.w[1] && e.key[2] == key.w[2];
    if (hit) {
      ids.push_back(e.ids[0]);
      if (e.count > 1) ids.insert(ids.end(), e.ids + 1, e.ids + e.count);
      return;
    }
    const std::size_t before = ids.size();
    encode_new_word(p.word, p.hash, ids);
    const std::size_t count = ids.size() - before;
    if (count == 0 || count > WordCache::kIds) return;
    e = {{key.w[0], key.w[1], key.w[2]}, owner_, static_cast<std::uint8_t>(p.word.size()), static_cast<std::uint8_t>(count), {}};
    std::copy_n(ids.data() + before, count, e.ids);
  }

  void encode_new_word(std::string_view word, std::uint64_t hash, std::vector<TokenId>& ids) const {
    if (spec_.ignore_merges) {
      if (const TokenId id = pieces_.find(word, hash); id >= 0) return ids.push_back(id);
    }
    Symbols symbols(word.size());
    for (const char c : word) add_symbol(byte_ids_[static_cast<unsigned char>(c)], symbols);
    merge_symbols(merges_, symbols.data, symbols.size, ids);
  }

  // Byte fallback: characters that are tokens, else their bytes.
  void encode_characters(std::string_view text, std::vector<TokenId>& ids) const {
    Symbols symbols(text.size());
    const char* const end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      const std::size_t size = unicode::decode(p, end).size;
      const TokenId id = pieces_.find(std::string_view(p, size));
      if (id >= 0)
        add_symbol(id, symbols);
      else
        for (std::size_t i = 0; i < size; ++i) add_symbol(byte_ids_[static_cast<unsigned char>(p[i])], symbols);
      p += size;
    }
    merge_symbols(merges_, symbols.data, symbols.size, ids);
  }

  // Symbols of one word, on the stack while they are few.
  struct Symbols {
    explicit Symbols(std::size_t most) {
      if (most > std::size(few)) many.resize(most);
      data = many.empty() ? few : many.data();
    }
    TokenId few[64];
    std::vector<TokenId> many;
    TokenId* data;
    std::size_t size = 0;
    bool last_unknown = false;
  };

  // A vocabulary without some bytes: the unknown token, once for a run of them if the file says so, or nothing.
  void add_symbol(TokenId id, Symbols& symbols) const {
    const bool unknown = id < 0;
    if (unknown && (!spec_.unk || (spec_.fuse_unk && symbols.last_unknown))) return;
    symbols.data[symbols.size++] = unknown ? *spec_.unk : id;
    symbols.last_unknown = unknown;
  }

  TokenizerSpec spec_;
  PieceTable pieces_;
  MergeTable merges_;
  Splitter splitter_;
  AddedMatcher raw_, normalized_;
  std::vector<const AddedToken*> added_;  // by id; null for the others
  TokenId byte_ids_[256];
  std::uint32_t owner_ = next_owner();
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerSpec spec) { return std::make_unique<BpeTokenizer>(std::move(spec)); }

}  // namespace bhyt
