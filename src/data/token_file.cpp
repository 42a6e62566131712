#include "data/token_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "core/check.h"
#include "data/kept_tokenizer.h"
#include "io/mapped_file.h"

namespace bhyt {

namespace {

constexpr char kMagic[8] = {'B', 'H', 'Y', 'T', 'T', 'O', 'K', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kBuffer = 1 << 20;

// The first 128 bytes of our format.
struct Header {
  char magic[8];
  std::uint32_t version, token_bytes;
  std::uint64_t tokens, documents, vocab;
  std::int64_t end_of_text;
  std::uint64_t fingerprint;
  char kind[16];
  std::uint64_t tokens_at, ends_at;
  std::uint64_t tokens_checksum, ends_checksum;
  std::uint64_t reserved[2];
  std::uint64_t header_checksum;  // of everything before
};
static_assert(sizeof(Header) == 128);

// llm.c: 256 int32. Words from 3 on are zero there; ours carry vocabulary, end-of-text + 1, fingerprint and kind, so that a file converts
// back to the same bytes.
struct Shard {
  std::int32_t magic, version;
  std::uint32_t token_bytes;
  std::uint64_t vocab;
  TokenId delimiter;
  TokenFormat format;
};
constexpr Shard kShards[] = {{20240520, 1, 2, 50257, 50256, TokenFormat::llmc_gpt2},
                             {20240801, 7, 4, 128256, 128000, TokenFormat::llmc_llama3}};
constexpr std::size_t kShardHeader = 1024;

const Shard* shard_of(const unsigned char* p, std::size_t size) {
  std::int32_t magic;
  if (size < 4) return nullptr;
  std::memcpy(&magic, p, 4);
  for (const Shard& s : kShards)
    if (s.magic == magic) return &s;
  return nullptr;
}

// The name of a tokenizer's kind: people see it.
std::string kind_of(const void* from, const std::string& path) {
  const auto* text = static_cast<const char*>(from);
  std::string kind(text, strnlen(text, sizeof Header::kind));
  check(std::all_of(kind.begin(), kind.end(), [](char c) { return c >= ' ' && c <= '~'; }), "{}: damaged token file: its kind is no name",
        path);
  return kind;
}

std::uint64_t padded(std::uint64_t n) { return (n + 7) / 8 * 8; }

}  // namespace

const char* name_of(TokenFormat f) {
  switch (f) {
    case TokenFormat::bhyt: return "bhyt";
    case TokenFormat::llmc_gpt2: return "llm.c gpt2";
    case TokenFormat::llmc_llama3: return "llm.c llama3";
  }
  return "?";
}

TokenMeta meta_of(const Tokenizer& t) {
  return {.vocab = static_cast<std::uint64_t>(t.vocab_size()),
          .end_of_text = t.end_of_text().value_or(-1),
          .fingerprint = t.fingerprint(),
          .kind = t.kind()};
}

TokenFile::TokenFile(const std::string& path, const std::string& name)
    : name_(name.empty() ? path : name),
      where_(name.empty() ? path : fmt::format("{} (packed from {}; delete it, and it is made again)", path, name)) {
  auto map = std::make_shared<MappedFile>(path);
  bytes_ = {map->data(), map->size()};
  owner_ = std::move(map);
  parse();
}

TokenFile::TokenFile(std::string name, std::vector<unsigned char> bytes) : name_(std::move(name)), where_(name_) {
  auto held = std::make_shared<std::vector<unsigned char>>(std::move(bytes));
  bytes_ = *held;
  owner_ = std::move(held);
  parse();
}

bool TokenFile::recognised(const std::string& path) {
  char start[8] = {};
  std::ifstream in(path, std::ios::binary);
  if (!in.read(start, sizeof start)) return false;
  return std::memcmp(start, kMagic, 8) == 0 || shard_of(reinterpret_cast<unsigned char*>(start), sizeof start);
}

void TokenFile::parse() {
  check(!bytes_.empty(), "{}: not a token file: it is empty", where_);
  if (bytes_.size() >= 8 && std::memcmp(bytes_.data(), kMagic, 8) == 0) return parse_bhyt();
  if (shard_of(bytes_.data(), bytes_.size())) return parse_shard();
  throw Error(fmt::format("{}: not a token file (expected one made by `bhyt data pack`, or an llm.c shard)", where_));
}

void TokenFile::parse_bhyt() {
  check(bytes_.size() >= sizeof(Header), "{}: truncated token file: {} bytes, the header alone has {}", where_, bytes_.size(),
        sizeof(Header));
  Header h;
  std::memcpy(&h, bytes_.data(), sizeof h);
  check(h.version == kVersion, "{}: token file of version {}, this program reads version {}", where_, h.version, kVersion);
  check(h.header_checksum == hash64(&h, offsetof(Header, header_checksum)), "{}: damaged token file: the header's checksum does not match",
        where_);
  check(h.token_bytes == 2 || h.token_bytes == 4, "{}: expected 2 or 4 bytes per token, got {}", where_, h.token_bytes);
  const std::uint64_t most = bytes_.size() / 2;  // bounds every count below, so that the products cannot overflow
  check(h.tokens <= most && h.documents <= most, "{}: truncated token file: {} bytes cannot hold {} tokens in {} documents", where_,
        bytes_.size(), h.tokens, h.documents);
  const std::uint64_t ends_at = sizeof(Header) + padded(h.tokens * h.token_bytes), whole = ends_at + 8 * h.documents;
  check(h.tokens_at == sizeof(Header) && h.ends_at == ends_at, "{}: damaged token file: its offsets are wrong", where_);
  check(bytes_.size() == whole, "{}: {} token file: {} bytes, expected {}", where_, bytes_.size() < whole ? "truncated" : "overlong",
        bytes_.size(), whole);
  check(h.vocab <= (h.token_bytes == 2 ? 1u << 16 : 1u << 31), "{}: a vocabulary of {} does not fit {}-byte tokens", where_, h.vocab,
        h.token_bytes);
  check(h.end_of_text >= -1 && h.end_of_text < static_cast<std::int64_t>(h.vocab), "{}: end-of-text {} is outside the vocabulary of {}",
        where_, h.end_of_text, h.vocab);
  tokens_at_ = h.tokens_at;
  ends_checksum_ = h.ends_checksum;
  ends_ = {reinterpret_cast<const std::uint64_t*>(bytes_.data() + h.ends_at), h.documents};
  check(h.documents == 0 ? h.tokens == 0 : ends_.back() == h.tokens,
        "{}: damaged token file: its last document does not end with its tokens", where_);
  info_ = {.format = TokenFormat::bhyt,
           .version = h.version,
           .token_bytes = h.token_bytes,
           .tokens = h.tokens,
           .documents = h.documents,
           .checksum = h.tokens_checksum,
           .meta = {.vocab = h.vocab,
                    .end_of_text = static_cast<TokenId>(h.end_of_text),
                    .fingerprint = h.fingerprint,
                    .kind = kind_of(h.kind, where_)}};
}

void TokenFile::parse_shard() {
  const Shard& s = *shard_of(bytes_.data(), bytes_.size());
  check(bytes_.size() >= kShardHeader, "{}: truncated llm.c shard: {} bytes, the header alone has {}", where_, bytes_.size(), kShardHeader);
  std::int32_t word[11];
  std::memcpy(word, bytes_.data(), sizeof word);
  check(word[1] == s.version, "{}: expected {} shard version {}, got {}", where_, name_of(s.format), s.version, word[1]);
  check(word[2] >= 0, "{}: an llm.c shard of {} tokens", where_, word[2]);
  const std::uint64_t tokens = static_cast<std::uint64_t>(word[2]), whole = kShardHeader + tokens * s.token_bytes;
  check(bytes_.size() == whole, "{}: {} llm.c shard: {} bytes, expected {}", where_, bytes_.size() < whole ? "truncated" : "overlong",
        bytes_.size(), whole);
  const bool ours = word[3] > 0;
  check(!ours || (word[4] >= 0 && word[4] <= word[3] && (s.token_bytes == 4 || word[3] <= 1 << 16)),
        "{}: a vocabulary of {} with end-of-text {}", where_, word[3], std::int64_t{word[4]} - 1);
  std::uint64_t fingerprint = 0;
  if (ours) std::memcpy(&fingerprint, word + 5, sizeof fingerprint);
  tokens_at_ = kShardHeader;
  delimiter_leads_ = !ours;
  info_ = {.format = s.format,
           .version = static_cast<std::uint32_t>(s.version),
           .token_bytes = s.token_bytes,
           .tokens = tokens,
           .documents = 0,
           .checksum = 0,
           .meta = {.vocab = ours ? static_cast<std::uint64_t>(word[3]) : s.vocab,
                    .end_of_text = ours ? word[4] - 1 : s.delimiter,
                    .fingerprint = fingerprint,
                    .kind = ours                                 ? kind_of(word + 7, where_)
                            : s.format == TokenFormat::llmc_gpt2 ? "gpt2"
                                                                 : "llama3"}};
}

template <class F>
void TokenFile::with_tokens(F&& f) const {
  const unsigned char* p = bytes_.data() + tokens_at_;
  if (info_.token_bytes == 2)
    f(reinterpret_cast<const std::uint16_t*>(p));
  else
    f(reinterpret_cast<const std::uint32_t*>(p));
}

void TokenFile::read(std::uint64_t begin, std::size_t n, TokenId* out) const {
  check(begin <= info_.tokens && n <= info_.tokens - begin, "[token file] expected a range within {} tokens, got {} from {}", info_.tokens,
        n, begin);
  std::uint32_t largest = 0;
  with_tokens([&](const auto* tokens) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t id = tokens[begin + i];
      largest = std::max(largest, id);
      out[i] = static_cast<TokenId>(id);
    }
  });
  check(n == 0 || largest < info_.meta.vocab, "{}: token {} near position {} is not below the vocabulary of {}", where_, largest, begin,
        info_.meta.vocab);
}

void TokenFile::document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const {
  end = std::min(end, info_.tokens);
  if (info_.format == TokenFormat::bhyt) {
    std::uint64_t last = begin;
    for (auto it = std::upper_bound(ends_.begin(), ends_.end(), begin); it != ends_.end() && *it < end; ++it) {
      check(*it > last, "{}: damaged token file: its document ends do not ascend near {}", where_, last);
      out.push_back(last = *it);
    }
    return;
  }
  if (info_.meta.end_of_text < 0) return;
  const auto delimiter = static_cast<std::uint32_t>(info_.meta.end_of_text);
  const std::uint64_t shift = delimiter_leads_ ? 0 : 1;  // a document starts at its delimiter, or after the one before
  with_tokens([&](const auto* tokens) {
    for (std::uint64_t i = begin + 1; i < end; ++i)
      if (tokens[i - shift] == delimiter) out.push_back(i);
  });
}

void TokenFile::verify() const {
  if (info_.format == TokenFormat::bhyt) {
    check(hash64(bytes_.data() + tokens_at_, info_.tokens * info_.token_bytes) == info_.checksum,
          "{}: damaged token file: the tokens' checksum does not match", where_);
    check(hash64(ends_.data(), ends_.size_bytes()) == ends_checksum_,
          "{}: damaged token file: the checksum of its document ends does not match", where_);
    std::uint64_t last = 0;
    for (const std::uint64_t e : ends_) {
      check(e > last, "{}: damaged token file: its document ends do not ascend near {}", where_, last);
      last = e;
    }
  }
  std::vector<TokenId> ids(1 << 16);
  for (std::uint64_t at = 0; at < info_.tokens; at += ids.size())
    read(at, static_cast<std::size_t>(std::min<std::uint64_t>(ids.size(), info_.tokens - at)), ids.data());
}

// ---- writing

TokenFileWriter::TokenFileWriter(const std::string& path, TokenMeta meta)
    : meta_(std::move(meta)), width_(meta_.vocab <= 1u << 16 ? 2 : 4), out_(path), spool_(path + ".ends"), buffer_(kBuffer) {
  check(meta_.vocab > 0 && meta_.vocab <= 1u << 31, "[token file] expected a vocabulary of 1 to 2^31, got {}", meta_.vocab);
  const Header blank{};
  out_.write(&blank, sizeof blank);
}

void TokenFileWriter::append(const TokenId* ids, std::size_t n) {
  tokens_ += n;
  while (n > 0) {
    const std::size_t take = std::min(n, (buffer_.size() - used_) / width_);
    std::uint32_t largest = 0;
    const auto narrow = [&](auto* to) {
      for (std::size_t i = 0; i < take; ++i) {
        const auto id = static_cast<std::uint32_t>(ids[i]);  // a negative id becomes too large
        largest = std::max(largest, id);
        to[i] = static_cast<std::remove_pointer_t<decltype(to)>>(id);
      }
    };
    if (width_ == 2)
      narrow(reinterpret_cast<std::uint16_t*>(buffer_.data() + used_));
    else
      narrow(reinterpret_cast<std::uint32_t*>(buffer_.data() + used_));
    check(largest < meta_.vocab, "[token file] expected ids below the vocabulary of {}, got {}", meta_.vocab,
          static_cast<TokenId>(largest));
    ids += take;
    n -= take;
    used_ += take * width_;
    if (buffer_.size() - used_ < width_) flush();
  }
}

void TokenFileWriter::flush() {
  hash_.update(buffer_.data(), used_);
  out_.write(buffer_.data(), used_);
  used_ = 0;
}

void TokenFileWriter::end_document() {
  check(tokens_ > last_end_, "[token file] expected a document of at least one token");
  ends_.push_back(last_end_ = tokens_);
  ++documents_;
  if (ends_.size() == kBuffer / 8) spool_ends();
}

void TokenFileWriter::spool_ends() {
  spool_.write(ends_.data(), ends_.size() * 8);
  ends_.clear();
}

TokenFileInfo TokenFileWriter::finish() {
  check(tokens_ == last_end_, "[token file] expected every document to be ended");
  flush();
  spool_ends();
  const std::uint64_t zero = 0, ends_at = padded(out_.size());
  out_.write(&zero, ends_at - out_.size());
  Hash64 ends_hash;
  for (std::uint64_t at = 0; at < spool_.size();) {
    const std::size_t n = spool_.read_at(at, buffer_.data(), buffer_.size());
    check(n > 0, "cannot read back the document ends of {}", out_.path());
    ends_hash.update(buffer_.data(), n);
    out_.write(buffer_.data(), n);
    at += n;
  }
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.token_bytes = width_;
  h.tokens = tokens_;
  h.documents = documents_;
  h.vocab = meta_.vocab;
  h.end_of_text = meta_.end_of_text;
  h.fingerprint = meta_.fingerprint;
  std::memcpy(h.kind, meta_.kind.data(), std::min(meta_.kind.size(), sizeof h.kind - 1));
  h.tokens_at = sizeof(Header);
  h.ends_at = ends_at;
  h.tokens_checksum = hash_.digest();
  h.ends_checksum = ends_hash.digest();
  h.header_checksum = hash64(&h, offsetof(Header, header_checksum));
  out_.write_at(0, &h, sizeof h);
  out_.commit();
  return {.format = TokenFormat::bhyt,
          .version = kVersion,
          .token_bytes = width_,
          .tokens = tokens_,
          .documents = documents_,
          .checksum = h.tokens_checksum,
          .meta = meta_};
}

// ---- converting

namespace {

void to_bhyt(const TokenFile& in, const std::string& to) {
  TokenFileWriter out(to, in.info().meta);
  std::vector<TokenId> ids(1 << 18);
  std::vector<std::uint64_t> starts;
  for (std::uint64_t at = 0; at < in.tokens();) {
    const std::uint64_t n = std::min<std::uint64_t>(ids.size(), in.tokens() - at);
    in.read(at, static_cast<std::size_t>(n), ids.data());
    starts.clear();
    in.document_starts(at, at + n + 1, starts);  // one further: a document may start just after this piece
    std::uint64_t from = at;
    for (const std::uint64_t s : starts) {
      out.append(ids.data() + (from - at), static_cast<std::size_t>(s - from));
      out.end_document();
      from = s;
    }
    out.append(ids.data() + (from - at), static_cast<std::size_t>(at + n - from));
    at += n;
  }
  if (in.tokens() > 0) out.end_document();
  out.finish();
}

void to_shard(const TokenFile& in, const Shard& s, std::uint64_t begin, std::uint64_t n, const std::string& to) {
  const TokenMeta& m = in.info().meta;
  OutputFile out(to);
  std::int32_t header[kShardHeader / 4] = {s.magic, s.version, static_cast<std::int32_t>(n)};
  const bool native = m.vocab == s.vocab && m.end_of_text == s.delimiter && in.info().format == s.format;
  if (!native) {
    header[3] = static_cast<std::int32_t>(m.vocab);
    header[4] = m.end_of_text + 1;
    std::memcpy(header + 5, &m.fingerprint, sizeof m.fingerprint);
    std::memcpy(header + 7, m.kind.data(), std::min(m.kind.size(), sizeof Header::kind - 1));
  }
  out.write(header, sizeof header);
  std::vector<TokenId> ids(1 << 18);
  std::vector<std::uint16_t> narrow(ids.size());
  for (std::uint64_t at = begin; at < begin + n; at += ids.size()) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(ids.size(), begin + n - at));
    in.read(at, count, ids.data());
    std::transform(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), narrow.begin(),
                   [](TokenId id) { return static_cast<std::uint16_t>(id); });
    if (s.token_bytes == 2)
      out.write(narrow.data(), count * 2);
    else
      out.write(ids.data(), count * 4);
  }
  out.commit();
}

std::uint64_t most_in_shard(std::uint64_t asked) {
  constexpr std::uint64_t kMost = (1u << 31) - 1;
  return asked == 0 ? kMost : std::min(asked, kMost);
}

std::vector<std::string> shard_names(const std::string& to, std::uint64_t tokens, std::uint64_t shard_tokens) {
  const std::uint64_t most = most_in_shard(shard_tokens);
  if (tokens <= most) return {to};
  const std::filesystem::path p(to);
  std::vector<std::string> names;
  for (std::uint64_t at = 0; at < tokens; at += most)
    names.push_back((p.parent_path() / fmt::format("{}_{:06}{}", p.stem().string(), names.size(), p.extension().string())).string());
  return names;
}

}  // namespace

std::vector<std::string> convert_tokens(const std::string& from, const std::string& to, TokenFormat format, std::uint64_t shard_tokens,
                                        bool force) {
  const TokenFile in(from);
  const std::vector<std::string> files = format == TokenFormat::bhyt ? std::vector{to} : shard_names(to, in.tokens(), shard_tokens);
  for (const std::string& file : files) check_output_file(file, force);
  in.verify();
  const auto keep = [&] {
    const KeptTokenizer kept = find_tokenizer(from, in.info().meta);
    if (kept.tokenizer) keep_tokenizer(*kept.tokenizer, std::filesystem::path(to).parent_path());
  };
  if (format == TokenFormat::bhyt) {
    keep();
    to_bhyt(in, to);
    return files;
  }
  const Shard& s = format == TokenFormat::llmc_gpt2 ? kShards[0] : kShards[1];
  check(in.info().meta.vocab <= (s.token_bytes == 2 ? 1u << 16 : (1u << 31) - 1),
        "{}: a vocabulary of {} does not fit {} shards of {}-byte tokens", from, in.info().meta.vocab, name_of(format), s.token_bytes);
  keep();
  const std::uint64_t most = most_in_shard(shard_tokens);
  for (std::size_t i = 0; i < files.size(); ++i) to_shard(in, s, i * most, std::min(most, in.tokens() - i * most), files[i]);
  return files;
}

}  // namespace bhyt
