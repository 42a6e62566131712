#include "data/token_file.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <random>

#include "core/threads.h"
#include "io/hash.h"
#include "test_util.h"

namespace bhyt {
namespace {

using namespace test;

using Documents = std::vector<std::vector<TokenId>>;

Documents random_documents(int n, TokenId vocab, unsigned seed) {
  std::mt19937 r(seed);
  Documents docs(static_cast<std::size_t>(n));
  for (auto& d : docs) {
    d.resize(1 + r() % 50);
    for (auto& id : d) id = static_cast<TokenId>(r() % static_cast<unsigned>(vocab - 1));
    d.back() = vocab - 1;
  }
  return docs;
}

TokenFileInfo write(const std::string& path, const Documents& docs, TokenMeta meta) {
  TokenFileWriter w(path, std::move(meta));
  for (const auto& d : docs) {
    w.append(d.data(), d.size());
    w.end_document();
  }
  return w.finish();
}

Documents read_documents(const TokenFile& f) {
  std::vector<std::uint64_t> starts{0};
  f.document_starts(0, f.tokens() + 1, starts);
  if (starts.back() != f.tokens()) starts.push_back(f.tokens());
  Documents docs;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    docs.emplace_back(starts[i + 1] - starts[i]);
    f.read(starts[i], docs.back().size(), docs.back().data());
  }
  return docs;
}

TEST(Hash64, KnownValues) {
  EXPECT_EQ(hash64("", 0), 0xEF46DB3751D8E999ull);
  EXPECT_EQ(hash64("abc", 3), 0x44BC2CF5AD770999ull);
  const std::string s = "Nobody inspects the spammish repetition";
  EXPECT_EQ(hash64(s.data(), s.size()), 0xFBCEA83C8A378BF1ull);
  for (std::size_t cut = 0; cut <= s.size(); ++cut) {
    Hash64 h;
    h.update(s.data(), cut);
    h.update(s.data() + cut, s.size() - cut);
    EXPECT_EQ(h.digest(), 0xFBCEA83C8A378BF1ull) << cut;
  }
}

// Read in pieces: none, one that is cut or full, two, several.
TEST(Hash64, AFileHasThatOfItsBytes) {
  const TempDir dir;
  constexpr std::size_t piece = 1 << 20;
  std::mt19937_64 r(1);
  std::string bytes(5 * piece / 2 + 77, '\0');
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = r();
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, piece - 1, piece, piece + 1, 2 * piece, bytes.size()}) {
    write_file(dir / "f", bytes.substr(0, size));
    EXPECT_EQ(hash_file(dir / "f"), hash64(bytes.data(), size)) << size;
  }
  EXPECT_ANY_THROW(hash_file(dir / "nowhere"));
  EXPECT_ANY_THROW(hash_file(dir / "."));
}

// The hash of the pieces' hashes, as a reader of the format would compute it; the same however many threads there are.
TEST(Hash64, AFilesPiecesAreHashedByAllThreads) {
  const TempDir dir;
  constexpr auto piece = static_cast<std::size_t>(kHashPiece);
  std::mt19937_64 r(1);
  std::string bytes(5 * piece / 2 + 77, '\0');
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = r();
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
  Threads one(1), three(3);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, piece - 1, piece, piece + 1, 2 * piece, bytes.size()}) {
    write_file(dir / "f", bytes.substr(0, size));
    std::vector<std::uint64_t> pieces;
    for (std::size_t at = 0; at < size; at += piece) pieces.push_back(hash64(bytes.data() + at, std::min(piece, size - at)));
    const std::uint64_t expected = hash64(pieces.data(), pieces.size() * sizeof pieces[0]);
    EXPECT_EQ(hash_file_pieces(one, dir / "f"), expected) << size;
    EXPECT_EQ(hash_file_pieces(three, dir / "f"), expected) << size;
  }
  EXPECT_ANY_THROW(hash_file_pieces(one, dir / "nowhere"));
  EXPECT_ANY_THROW(hash_file_pieces(one, dir / "."));
}

TEST(TokenFile, RoundTripOfBothWidths) {
  TempDir dir;
  for (const TokenId vocab : {2, 257, 65536, 65537, 128256}) {
    const Documents docs = random_documents(300, vocab, 1);
    const TokenMeta meta{
        .vocab = static_cast<std::uint64_t>(vocab), .end_of_text = vocab - 1, .fingerprint = 77, .kind = "a kind too long for the field"};
    write(dir / "a.tok", docs, meta);
    const TokenFile f(dir / "a.tok");
    f.verify();
    EXPECT_EQ(f.info().token_bytes, vocab <= 65536 ? 2u : 4u);
    EXPECT_EQ(f.info().documents, docs.size());
    EXPECT_EQ(f.info().meta.vocab, meta.vocab);
    EXPECT_EQ(f.info().meta.end_of_text, vocab - 1);
    EXPECT_EQ(f.info().meta.fingerprint, 77u);
    EXPECT_EQ(f.info().meta.kind, meta.kind.substr(0, 15));
    EXPECT_EQ(read_documents(f), docs);
  }
  EXPECT_EQ(dir.files(), 1u);
}

TEST(TokenFile, LongerThanItsBuffers) {
  TempDir dir;
  TokenFileWriter w(dir / "a.tok", {.vocab = 1000, .end_of_text = 999, .fingerprint = 1, .kind = "x"});
  std::vector<TokenId> ids(700001);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i % 999);
  w.append(ids.data(), ids.size());
  w.end_document();
  for (TokenId i = 0; i < 300000; ++i) {  // more ends than the spool's buffer holds
    const TokenId one = i % 999;
    w.append(&one, 1);
    w.end_document();
  }
  w.finish();
  const TokenFile f(dir / "a.tok");
  f.verify();
  ASSERT_EQ(f.tokens(), 1000001u);
  EXPECT_EQ(f.info().documents, 300001u);
  std::vector<TokenId> back(f.tokens());
  f.read(0, back.size(), back.data());
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), back.begin()));
  EXPECT_EQ(back[700001 + 1234], 1234 % 999);
  std::vector<std::uint64_t> starts;
  f.document_starts(700000, 700004, starts);
  EXPECT_EQ(starts, (std::vector<std::uint64_t>{700001, 700002, 700003}));
}

TEST(TokenFile, EmptyFile) {
  TempDir dir;
  TokenFileWriter(dir / "a.tok", {.vocab = 3, .end_of_text = 2}).finish();
  const TokenFile f(dir / "a.tok");
  f.verify();
  EXPECT_EQ(f.tokens(), 0u);
}

TEST(TokenFile, EveryTruncationIsRefused) {
  TempDir dir;
  write(dir / "a.tok", random_documents(3, 300, 2), {.vocab = 300, .end_of_text = 299, .fingerprint = 1, .kind = "x"});
  const std::string whole = read_file(dir / "a.tok");
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_THROW(TokenFile("cut", std::vector<unsigned char>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n))), Error) << n;
  std::vector<unsigned char> more(whole.begin(), whole.end());
  more.push_back(0);
  EXPECT_HAS(message_of([&] { TokenFile("long", more); }), "overlong");
}

TEST(TokenFile, EveryDamagedByteIsFound) {
  TempDir dir;
  write(dir / "a.tok", random_documents(3, 300, 3), {.vocab = 300, .end_of_text = 299, .fingerprint = 1, .kind = "x"});
  const std::string whole = read_file(dir / "a.tok");
  const std::uint64_t tokens_end = 128 + 2 * TokenFile(dir / "a.tok").tokens();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::vector<unsigned char> bytes(whole.begin(), whole.end());
    bytes[i] ^= 0x10;
    if (i >= tokens_end && i < (tokens_end + 7) / 8 * 8) continue;  // padding
    EXPECT_THROW(TokenFile("damaged", bytes).verify(), Error) << i;
  }
}

// A header with a right checksum is no proof of good will.
TEST(TokenFile, HostileHeaders) {
  TempDir dir;
  write(dir / "a.tok", random_documents(20, 300, 4), {.vocab = 300, .end_of_text = 299, .fingerprint = 1, .kind = "x"});
  const std::string whole = read_file(dir / "a.tok");
  const std::uint64_t values[] = {0,          1,          3,          0x7fffffff, 0xffffffff,  1ull << 32,
                                  1ull << 61, 1ull << 62, 1ull << 63, ~0ull,      ~0ull - 127, whole.size()};
  for (std::size_t at = 8; at < 104; at += 4)
    for (const std::uint64_t v : values) {
      std::vector<unsigned char> bytes(whole.begin(), whole.end());
      std::memcpy(bytes.data() + at, &v, at % 8 ? 4 : 8);
      const std::uint64_t sum = hash64(bytes.data(), 120);
      std::memcpy(bytes.data() + 120, &sum, 8);
      try {
        const TokenFile f("hostile", bytes);
        std::vector<TokenId> ids(f.tokens());
        std::vector<std::uint64_t> starts;
        f.read(0, ids.size(), ids.data());
        f.document_starts(0, ~0ull, starts);
        f.verify();
      } catch (const Error&) {
      }
    }
  // Document ends that do not ascend.
  std::vector<unsigned char> bytes(whole.begin(), whole.end());
  const std::uint64_t huge = ~0ull, zero = 0;
  std::memcpy(bytes.data() + bytes.size() - 24, &zero, 8);
  std::memcpy(bytes.data() + bytes.size() - 32, &huge, 8);
  const TokenFile f("ends", bytes);
  std::vector<std::uint64_t> starts;
  for (std::uint64_t b = 0; b < f.tokens(); ++b) try {
      f.document_starts(b, f.tokens(), starts);
    } catch (const Error&) {
    }
  EXPECT_THROW(f.verify(), Error);
}

TEST(TokenFile, OtherFilesAreNamedAsSuch) {
  TempDir dir;
  write_file(dir / "x.tok", "");
  EXPECT_HAS(message_of([&] { TokenFile f(dir / "x.tok"); }), "not a token file");
  write_file(dir / "x.tok", "{\"text\": \"hello\"}\n");
  EXPECT_HAS(message_of([&] { TokenFile f(dir / "x.tok"); }), "not a token file");
  EXPECT_FALSE(TokenFile::recognised(dir / "x.tok"));
  EXPECT_HAS(message_of([&] { TokenFile f(dir / "none.tok"); }), "cannot open");
  EXPECT_HAS(message_of([&] { TokenFile f(dir.str()); }), "not a regular file");
  EXPECT_FALSE(TokenFile::recognised(dir / "none.tok"));
}

TEST(TokenFile, IdsOutsideTheVocabulary) {
  TempDir dir;
  TokenFileWriter w(dir / "a.tok", {.vocab = 10, .end_of_text = 9});
  for (const TokenId bad : {10, 65536, 65537, -1}) EXPECT_THROW(w.append(&bad, 1), Error) << bad;
}

// What is written replaces a file, never a link to one, and nothing that is not a file.
TEST(OutputFile, FollowsLinksAndRefusesDevices) {
  TempDir dir;
  write_file(dir / "real", "old");
  std::filesystem::create_symlink("real", dir / "link");
  {
    OutputFile out(dir / "link");
    out.write("new", 3);
    out.commit();
  }
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(read_file(dir / "real"), "new");
  std::filesystem::create_symlink("later", dir / "ahead");
  {
    OutputFile out(dir / "ahead");
    out.commit();
  }
  EXPECT_TRUE(std::filesystem::is_regular_file(dir / "later"));
  std::filesystem::create_symlink("loop", dir / "loop");
  EXPECT_HAS(message_of([&] { OutputFile(dir / "loop"); }), "leads nowhere");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_HAS(message_of([&] { OutputFile(dir / "pipe"); }), "not a regular file");
}

TEST(TokenFile, NothingIsLeftWithoutFinish) {
  TempDir dir;
  {
    TokenFileWriter w(dir / "a.tok", {.vocab = 10, .end_of_text = 9});
    const TokenId id = 1;
    w.append(&id, 1);
    EXPECT_THROW(w.finish(), Error);  // the document is open
  }
  EXPECT_EQ(dir.files(), 0u);
}

TEST(TokenFile, FullDiskLeavesNothing) {
  TempDir dir;
  write(dir / "a.tok", {{1, 9}}, {.vocab = 10, .end_of_text = 9});
  const std::string before = read_file(dir / "a.tok");
  // A limit on the size of files fails a write as a full disk does.
  struct rlimit old {};
  getrlimit(RLIMIT_FSIZE, &old);
  const struct rlimit small {
    1 << 20, old.rlim_max
  };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string said = message_of([&] {
    TokenFileWriter w(dir / "a.tok", {.vocab = 10, .end_of_text = 9});
    const std::vector<TokenId> ids(1 << 20, 5);
    w.append(ids.data(), ids.size());
    w.end_document();
    w.finish();
  });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_HAS(said, "cannot write " + dir / "a.tok");
  EXPECT_EQ(dir.files(), 1u);
  EXPECT_EQ(read_file(dir / "a.tok"), before);
  EXPECT_HAS(message_of([&] { TokenFileWriter w("/dev/null/x.tok", {.vocab = 10}); }), "cannot write");
}

// ---- llm.c

std::string shard(std::int32_t magic, std::int32_t version, std::int32_t n, const std::string& tokens) {
  std::string s(1024, '\0');
  const std::int32_t head[] = {magic, version, n};
  std::memcpy(s.data(), head, sizeof head);
  return s + tokens;
}

TEST(Shard, ReadsBothKinds) {
  TempDir dir;
  const std::uint16_t narrow[] = {50256, 7, 8, 50256, 9};
  write_file(dir / "a.bin", shard(20240520, 1, 5, std::string(reinterpret_cast<const char*>(narrow), sizeof narrow)));
  const TokenFile a(dir / "a.bin");
  a.verify();
  EXPECT_EQ(a.info().format, TokenFormat::llmc_gpt2);
  EXPECT_EQ(a.info().meta.vocab, 50257u);
  EXPECT_EQ(read_documents(a), (Documents{{50256, 7, 8}, {50256, 9}}));  // llm.c puts end-of-text first
  const std::uint32_t wide[] = {128000, 100000, 128000, 5};
  write_file(dir / "b.bin", shard(20240801, 7, 4, std::string(reinterpret_cast<const char*>(wide), sizeof wide)));
  const TokenFile b(dir / "b.bin");
  EXPECT_EQ(read_documents(b), (Documents{{128000, 100000}, {128000, 5}}));
  EXPECT_TRUE(TokenFile::recognised(dir / "b.bin"));
}

TEST(Shard, RefusesBadOnes) {
  TempDir dir;
  const auto refuse = [&](const std::string& bytes, const char* why) {
    EXPECT_HAS(message_of([&] { TokenFile("s", std::vector<unsigned char>(bytes.begin(), bytes.end())); }), why);
  };
  refuse(shard(20240520, 2, 1, "ab"), "version 1, got 2");
  refuse(shard(20240520, 1, 3, "ab"), "truncated");
  refuse(shard(20240520, 1, 0, "ab"), "overlong");
  refuse(shard(20240520, 1, -5, "ab"), "-5 tokens");
  refuse(shard(20240520, 1, 1, "ab").substr(0, 100), "truncated");
  std::string odd = shard(20240520, 1, 1, "ab");
  odd[12] = 100;     // a vocabulary of 100: one of ours
  odd[28] = '\xff';  // in the kind's name
  refuse(odd, "kind");
  std::string wild = shard(20240520, 1, 1, "\xff\xff");
  EXPECT_THROW(TokenFile("s", std::vector<unsigned char>(wild.begin(), wild.end())).verify(), Error);  // 65535 is no GPT-2 id
}

TEST(Shard, ConvertsThereAndBack) {
  TempDir dir;
  for (const TokenId vocab : {257, 100000}) {
    const Documents docs = random_documents(2000, vocab, 5);
    write(dir / "a.tok", docs,
          {.vocab = static_cast<std::uint64_t>(vocab),
           .end_of_text = vocab - 1,
           .fingerprint = 0x8123456789ABCDEF,
           .kind = "a kind of mine"});
    const TokenFormat format = vocab == 257 ? TokenFormat::llmc_gpt2 : TokenFormat::llmc_llama3;
    EXPECT_EQ(convert_tokens(dir / "a.tok", dir / "a.bin", format, 0, true), std::vector{dir / "a.bin"});
    convert_tokens(dir / "a.bin", dir / "b.tok", TokenFormat::bhyt, 0, true);
    EXPECT_EQ(read_file(dir / "b.tok"), read_file(dir / "a.tok"));
  }
  EXPECT_HAS(message_of([&] { convert_tokens(dir / "a.tok", dir / "c.bin", TokenFormat::llmc_gpt2); }), "does not fit");
  const auto files = convert_tokens(dir / "a.tok", dir / "c.bin", TokenFormat::llmc_llama3, 20000);
  std::uint64_t total = 0;
  for (const auto& f : files) total += TokenFile(f).tokens();
  EXPECT_EQ(total, TokenFile(dir / "a.tok").tokens());
  EXPECT_EQ(files.at(1), dir / "c_000001.bin");
}

TEST(Shard, ForeignRoundTripIsExact) {
  TempDir dir;
  std::string tokens;
  std::mt19937 r(1);
  for (int i = 0; i < 300000; ++i) {  // longer than a copying piece, so that a document can start at its edge
    const std::uint16_t id = i % 4 == 0 ? 50256 : static_cast<std::uint16_t>(r() % 50256);
    tokens.append(reinterpret_cast<const char*>(&id), 2);
  }
  write_file(dir / "a.bin", shard(20240520, 1, 300000, tokens));
  convert_tokens(dir / "a.bin", dir / "a.tok", TokenFormat::bhyt);
  const TokenFile f(dir / "a.tok");
  EXPECT_EQ(f.info().documents, 75000u);
  f.verify();
  convert_tokens(dir / "a.bin", dir / "b.bin", TokenFormat::llmc_gpt2);
  EXPECT_EQ(read_file(dir / "b.bin"), read_file(dir / "a.bin"));
}

}  // namespace
}  // namespace bhyt
