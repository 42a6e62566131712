#include "data/pack.h"

#include <nlohmann/json.hpp>
#include <random>

#include "core/log.h"
#include "data/pipeline.h"
#include "test_util.h"

namespace bhyt {
namespace {

using namespace test;
namespace fs = std::filesystem;

// A tokenizer whose ids depend on where a text is cut, and large enough for 4-byte ids: pairs of bytes.
class PairTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "pairs"; }
  std::int64_t vocab_size() const override { return 70000; }
  void encode(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions&) const override {
    for (std::size_t i = 0; i < text.size(); i += 2)
      ids.push_back(static_cast<unsigned char>(text[i]) * 257 + (i + 1 < text.size() ? 1 + static_cast<unsigned char>(text[i + 1]) : 0));
  }
  std::string piece(TokenId id, bool) const override {
    std::string s(1, static_cast<char>(id / 257));
    if (id % 257) s += static_cast<char>(id % 257 - 1);
    return s;
  }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> end_of_text() const override { return 69999; }
  std::vector<TokenId> stops() const override { return {69999}; }
  std::uint64_t fingerprint() const override { return 42; }
  void save(const fs::path& dir) const override { fs::create_directories(dir); }
};

std::vector<std::string> documents(const Tokenizer& t, const std::string& path) {
  const TokenFile f(path);
  f.verify();
  EXPECT_EQ(f.info().meta.fingerprint, t.fingerprint());
  EXPECT_EQ(f.info().meta.kind, t.kind());
  std::vector<std::uint64_t> starts{0};
  f.document_starts(0, f.tokens() + 1, starts);
  if (starts.back() != f.tokens()) starts.push_back(f.tokens());
  EXPECT_EQ(starts.size() - 1, f.info().documents);
  std::vector<std::string> docs;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    std::vector<TokenId> ids(starts[i + 1] - starts[i]);
    f.read(starts[i], ids.size(), ids.data());
    EXPECT_EQ(ids.back(), *t.end_of_text());
    ids.pop_back();
    docs.push_back(t.decode(ids));
  }
  return docs;
}

PackResult run(const Tokenizer& t, std::vector<std::string> inputs, const std::string& out, PackOptions o = {}) {
  o.inputs = std::move(inputs);
  o.out = out;
  o.progress = false;
  return pack(t, o);
}

std::string jsonl(const std::vector<std::string>& docs) {
  std::string s;
  for (const auto& d : docs) s += nlohmann::json{{"id", 1}, {"text", d}}.dump() + "\n";
  return s;
}

std::vector<std::string> random_docs(int n, std::size_t longest, unsigned seed) {
  std::mt19937 r(seed);
  std::vector<std::string> docs;
  for (int i = 0; i < n; ++i) {
    std::string s;
    for (std::size_t len = 1 + r() % longest; s.size() < len;)
      s += r() % 20 == 0 ? "\n" : r() % 30 == 0 ? "é" : std::string(1 + r() % 8, static_cast<char>('a' + r() % 26));
    docs.push_back(s);
  }
  return docs;
}

TEST(ByteTokenizer, BytesAndEndOfText) {
  const auto t = make_byte_tokenizer();
  EXPECT_EQ(t->encode("a\xff<|endoftext|>b"), (std::vector<TokenId>{'a', 255, 256, 'b'}));
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(t->decode(t->encode(all, false)), all);
  EXPECT_EQ(t->encode("<|endoftext|>", false).size(), 13u);
  EXPECT_EQ(t->decode({'x', 256}), "x");
  EXPECT_EQ(t->decode({'x', 256}, true), "x<|endoftext|>");
  EXPECT_THROW(t->piece(257, true), Error);
  TempDir dir;
  t->save(dir.str());
  const auto j = nlohmann::json::parse(read_file(dir / "tokenizer.json"));
  EXPECT_EQ(j["model"]["vocab"].size(), 256u);
  EXPECT_EQ(j["model"]["vocab"]["Ġ"], 32);
  EXPECT_EQ(j["model"]["vocab"]["Ń"], 173);
}

TEST(Pack, EveryKindOfInput) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  const auto docs = random_docs(50, 300, 1);
  const std::string text = jsonl(docs);
  write_file(dir / "in/b.jsonl", text);
  write_file(dir / "in/c.jsonl.gz", gzip(text.substr(0, 1000)) + gzip(text.substr(1000)));  // two members
  write_file(dir / "in/d.ndjson.zst", zstd(text.substr(0, 777)) + zstd(text.substr(777)));  // two frames
  write_file(dir / "in/e.json.gz", gzip(text));
  write_file(dir / "in/info.json", "{}");
  write_file(dir / "in/a/x.txt", "whole\nfile");
  write_file(dir / "in/a/y.txt.gz", gzip("packed"));
  write_file(dir / "in/ignored.md", "no");
  write_file(dir / "in/empty.jsonl", "");
  write_file(dir / "in/empty.txt", "");
  const PackResult r = run(*bytes, {dir / "in"}, dir / "out/x.tok");
  std::vector<std::string> want{"whole\nfile", "packed"};
  for (int i = 0; i < 4; ++i) want.insert(want.end(), docs.begin(), docs.end());
  EXPECT_EQ(documents(*bytes, dir / "out/x.tok"), want);
  EXPECT_EQ(r.file.documents, want.size());
  EXPECT_EQ(r.empty, 1u);
  EXPECT_EQ(r.file.tokens, r.text_bytes + r.file.documents);
  run(*bytes, {dir / "in/a/*.txt*", dir / "in/b.jsonl"}, dir / "y.tok");
  EXPECT_EQ(TokenFile(dir / "y.tok").info().documents, 52u);
}

TEST(Pack, OddLines) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  write_file(dir / "a.jsonl",
             "\xEF\xBB\xBF{\"text\":\"one\"}\r\n\n   \n{\"text\":\"\"}\n{\"text\":\"<|endoftext|>\"}\n{\"text\":\"no newline\"}");
  const PackResult r = run(*bytes, {dir / "a.jsonl"}, dir / "a.tok");
  EXPECT_EQ(documents(*bytes, dir / "a.tok"), (std::vector<std::string>{"one", "<|endoftext|>", "no newline"}));
  EXPECT_EQ(r.empty, 1u);
  write_file(dir / "b.txt", "one\r\n\ntwo\nthree");
  run(*bytes, {dir / "b.txt"}, dir / "b.tok", {.lines = true});
  EXPECT_EQ(documents(*bytes, dir / "b.tok"), (std::vector<std::string>{"one", "two", "three"}));
  write_file(dir / "c.jsonl", "{\"body\":\"x\"}\n");
  run(*bytes, {dir / "c.jsonl"}, dir / "c.tok", {.key = "body"});
  EXPECT_EQ(documents(*bytes, dir / "c.tok"), std::vector<std::string>{"x"});
}

TEST(Pack, DocumentsLargerThanABatch) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  const PairTokenizer pairs;
  auto docs = random_docs(5, 100, 2);
  docs.insert(docs.begin() + 2, std::string(1500001, 'z') + "\n");
  for (const std::string ext : {".jsonl", ".jsonl.gz", ".jsonl.zst"}) {
    const std::string text = jsonl(docs);
    write_file(dir / "a" + ext, ext == ".jsonl" ? text : ext == ".jsonl.gz" ? gzip(text) : zstd(text));
    run(*bytes, {dir / "a" + ext}, dir / "a.tok");
    EXPECT_EQ(documents(*bytes, dir / "a.tok"), docs);
  }
  // One text file: in pieces with bytes, whole with a tokenizer that sees further. At and around the batch size.
  for (const std::size_t n : {262143u, 262144u, 262145u, 524288u, 700001u}) {
    const std::string text = random_docs(1, n, static_cast<unsigned>(n))[0] + std::string(n, 'q');
    write_file(dir / "t.txt", text.substr(0, n));
    run(*bytes, {dir / "t.txt"}, dir / "t.tok");
    EXPECT_EQ(documents(*bytes, dir / "t.tok"), std::vector{text.substr(0, n)});
    run(pairs, {dir / "t.txt"}, dir / "t.tok");
    EXPECT_EQ(documents(pairs, dir / "t.tok"), std::vector{text.substr(0, n)});
  }
}

TEST(Pack, TheSameFileOnAnyNumberOfThreads) {
  TempDir dir;
  const PairTokenizer pairs;
  const auto bytes = make_byte_tokenizer();
  for (int i = 0; i < 3; ++i)
    write_file(dir / "in/" + std::to_string(i) + ".jsonl", jsonl(random_docs(400, 5000, static_cast<unsigned>(i))));
  write_file(dir / "in/x.txt", random_docs(1, 900000, 9)[0]);
  for (const Tokenizer* t : {static_cast<const Tokenizer*>(&pairs), static_cast<const Tokenizer*>(bytes.get())}) {
    run(*t, {dir / "in"}, dir / "one.tok", {.threads = 1});
    for (const int threads : {2, 3, 8}) {
      run(*t, {dir / "in"}, dir / "many.tok", {.threads = threads});
      EXPECT_TRUE(read_file(dir / "many.tok") == read_file(dir / "one.tok")) << threads;
    }
  }
}

TEST(Pack, BadLinesAreNamed) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  std::string text = jsonl(random_docs(3000, 500, 3));  // several batches
  text += "{\"text\": \"a}\n" + jsonl({"x"}) + "{\"txt\": 1}\n";
  write_file(dir / "a.jsonl", jsonl({"y"}));
  write_file(dir / "b.jsonl", text);
  for (const int threads : {1, 4}) {
    EXPECT_HAS(message_of([&] {
                 run(*bytes, {dir / "a.jsonl", dir / "b.jsonl"}, dir / "x.tok", {.threads = threads});
               }),
               "b.jsonl:3001: bad JSON at column 13");
    EXPECT_FALSE(fs::exists(dir / "x.tok"));
    EXPECT_EQ(dir.files(), 2u);
    const PackResult r = run(*bytes, {dir / "b.jsonl"}, dir / "x.tok", {.skip_bad = true, .threads = threads});
    EXPECT_EQ(r.bad_lines, 2u);
    EXPECT_HAS(r.first_bad, "b.jsonl:3001: ");
    EXPECT_EQ(r.file.documents, 3001u);
    fs::remove(dir / "x.tok");
  }
}

TEST(Pack, DamagedCompressionIsNamed) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  const std::string text = jsonl(random_docs(2000, 500, 4));
  std::string g = gzip(text), z = zstd(text);
  write_file(dir / "cut.jsonl.gz", g.substr(0, g.size() - 5));
  write_file(dir / "cut.jsonl.zst", z.substr(0, z.size() - 5));
  g[g.size() / 2] ^= 0x55;
  z[z.size() / 2] ^= 0x55;
  write_file(dir / "bad.jsonl.gz", g);
  write_file(dir / "not.jsonl.gz", text);
  write_file(dir / "not.jsonl.zst", text);
  const auto refuse = [&](const char* name, const char* why) {
    EXPECT_HAS(message_of([&] { run(*bytes, {dir / name}, dir / "x.tok", {.skip_bad = true}); }), why);
    EXPECT_FALSE(fs::exists(dir / "x.tok"));
  };
  refuse("cut.jsonl.gz", "cut.jsonl.gz: truncated gzip data");
  refuse("cut.jsonl.zst", "cut.jsonl.zst: truncated zstd data");
  refuse("bad.jsonl.gz", "bad.jsonl.gz: damaged gzip data");
  refuse("not.jsonl.gz", "not.jsonl.gz: damaged gzip data");
  refuse("not.jsonl.zst", "not.jsonl.zst: damaged zstd data");
}

// Links between folders may go in circles; each folder is read once.
TEST(Input, FoldersInCircles) {
  const TempDir dir;
  fs::create_directories(dir / "a/b");
  write_file(dir / "a/x.txt", "x");
  write_file(dir / "a/b/y.txt", "y");
  fs::create_directory_symlink("..", dir / "a/b/up");
  fs::create_directory_symlink(".", dir / "a/self");
  EXPECT_EQ(find_inputs({dir / "a"}).size(), 2u);
}

// The last bytes of a compressed stream, read with every size of buffer.
TEST(Input, AnyBufferSize) {
  TempDir dir;
  const std::string text = random_docs(1, 5000, 6)[0];
  write_file(dir / "a.txt.gz", gzip(text) + gzip("") + gzip(text));
  write_file(dir / "a.txt.zst", zstd(text) + zstd("") + zstd(text));
  for (const InputFile& f : find_inputs({dir / "a.txt.*"}))
    for (const std::size_t n : {std::size_t{1}, std::size_t{7}, text.size() - 1, text.size(), text.size() + 1, 3 * text.size()}) {
      const auto in = open_input(f);
      std::string all, piece(n, '\0');
      while (const std::size_t got = in->read(piece.data(), n)) all.append(piece, 0, got);
      EXPECT_EQ(all, text + text) << f.path << " " << n;
      EXPECT_EQ(in->consumed(), f.bytes);
    }
}

TEST(Pack, AByteOrderMarkIsNotText) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  for (const char* name : {"a.txt", "a.jsonl"}) {
    write_file(dir / name, std::string("\xEF\xBB\xBF") + (name[2] == 't' ? "xy" : "{\"text\":\"xy\"}"));
    run(*bytes, {dir / name}, dir / "a.tok");
    EXPECT_EQ(TokenFile(dir / "a.tok").tokens(), 3u) << name;  // x, y and the end
  }
}

TEST(Pack, WrongInputs) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  write_file(dir / "a.pdf", "x");
  write_file(dir / "e.jsonl", "\n");
  fs::create_directories(dir / "none");
  const auto said = [&](const std::string& in) { return message_of([&] { run(*bytes, {in}, dir / "x.tok"); }); };
  EXPECT_HAS(said(dir / "a.pdf"), "expected .jsonl");
  EXPECT_HAS(said(dir / "missing.jsonl"), "No such file");
  EXPECT_HAS(said(dir / "*.csv"), "no file matches");
  EXPECT_HAS(said(dir / "none"), "nothing to read in");
  EXPECT_HAS(said(dir / "e.jsonl"), "no document has any text");
  EXPECT_FALSE(fs::exists(dir / "x.tok"));
  write_file(dir / "b.jsonl", jsonl({"x"}));
  EXPECT_HAS(message_of<UsageError>([&] { run(*bytes, {dir / "b.jsonl"}, dir / "b.jsonl"); }), "would destroy it");
  EXPECT_HAS(message_of([&] { run(*bytes, {dir / "b.jsonl"}, dir / "none"); }), "it is a directory");
  EXPECT_HAS(message_of([&] { run(*bytes, {dir / "b.jsonl"}, dir / "y.tok", {.interrupted = [] { return true; }}); }), "interrupted");
  EXPECT_FALSE(fs::exists(dir / "y.tok"));
}

TEST(Pipeline, OrderAndFirstErrorOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 7}) {
    int made = 0;
    std::vector<int> used;
    const auto go = [&](int bad) {
      made = 0;
      used.clear();
      ordered_pipeline<int>(
          threads, [&](int& i) { return i = made, made++ < 500; },
          [&](int& i) {
            if (i == bad || i == bad + 1) throw Error(std::to_string(i));
            i = -i;
          },
          [&](const int& i) { used.push_back(-i); });
    };
    go(1000);
    ASSERT_EQ(used.size(), 500u);
    for (int i = 0; i < 500; ++i) EXPECT_EQ(used[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(message_of([&] { go(123); }), "123");
    EXPECT_EQ(used.size(), 123u);
    EXPECT_EQ(message_of([&] {
                ordered_pipeline<int>(
                    threads, [](int&) -> bool { throw Error("maker"); }, [](int&) {}, [](const int&) {});
              }),
              "maker");
  }
}

TEST(Pack, RealData) {
  const char* data = std::getenv("BHYT_DATA");
  if (!data) GTEST_SKIP() << "BHYT_DATA is not set";
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  for (const char* name : {"wikipedia_valid.jsonl.zst", "c4_validation_1k.jsonl.gz"}) {
    const std::string path = std::string(data) + "/text/" + name;
    const auto in = open_input(find_inputs({path})[0]);
    std::string all, piece(1 << 16, '\0');
    while (const std::size_t n = in->read(piece.data(), piece.size())) all.append(piece, 0, n);
    std::vector<std::string> want;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = std::min(all.find('\n', at), all.size());
      want.push_back(nlohmann::json::parse(all.substr(at, end - at))["text"].get<std::string>());
      at = end + 1;
    }
    run(*bytes, {path}, dir / "x.tok");
    EXPECT_TRUE(documents(*bytes, dir / "x.tok") == want) << name;
    EXPECT_EQ(want.size(), name[0] == 'w' ? 132u : 1000u);
  }
}

}  // namespace
}  // namespace bhyt
