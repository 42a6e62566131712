// Token files: our own format (docs/data.md) and llm.c's shards, read in place through one class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/files.h"
#include "io/hash.h"
#include "text/tokenizer.h"

namespace bhyt {

enum class TokenFormat : std::uint8_t { bhyt, llmc_gpt2, llmc_llama3 };
const char* name_of(TokenFormat f);

// What a file says of the ids it holds.
struct TokenMeta {
  std::uint64_t vocab = 0;        // ids are below this
  TokenId end_of_text = -1;       // -1: none
  std::uint64_t fingerprint = 0;  // of the tokenizer; 0: unknown
  std::string kind;               // of the tokenizer, at most 15 bytes
};
TokenMeta meta_of(const Tokenizer& tokenizer);

struct TokenFileInfo {
  TokenFormat format = TokenFormat::bhyt;
  std::uint32_t version = 1;
  std::uint32_t token_bytes = 2;  // 2 or 4
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;  // 0 in a shard: it has no index
  std::uint64_t checksum = 0;   // XXH64 of the token bytes; 0 in a shard
  TokenMeta meta;
};

class TokenFile {
 public:
  // Throws Error unless header, sizes and offsets are right to the byte. Token data is not read (verify() does).
  // `name`: the text that it was packed from, where people do not know of the file. What is wrong with the file itself names both.
  explicit TokenFile(const std::string& path, const std::string& name = "");
  TokenFile(std::string name, std::vector<unsigned char> bytes);

  static bool recognised(const std::string& path);  // by its first bytes; false also when it cannot be read

  const std::string& name() const { return name_; }
  const TokenFileInfo& info() const { return info_; }
  std::uint64_t tokens() const { return info_.tokens; }
  std::uint64_t file_bytes() const { return bytes_.size(); }

  // Copies tokens [begin, begin + n). Throws when an id is not below the vocabulary.
  void read(std::uint64_t begin, std::size_t n, TokenId* out) const;
  // Appends where documents start inside (begin, end), ascending; without an index they are found by the end-of-text token.
  void document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const;
  // Reads everything: checksums, ids, document ends.
  void verify() const;

 private:
  void parse();
  void parse_bhyt();
  void parse_shard();
  template <class F>
  void with_tokens(F&& f) const;

  std::string name_, where_;  // what people call it, and what errors about the file say
  std::shared_ptr<const void> owner_;
  std::span<const unsigned char> bytes_;
  TokenFileInfo info_;
  std::uint64_t tokens_at_ = 0, ends_checksum_ = 0;
  std::span<const std::uint64_t> ends_;  // one past each document's last token
  bool delimiter_leads_ = false;         // llm.c puts end-of-text before a document, we put it after
};

// Writes our format as it comes, in constant memory. Nothing is left behind unless finish() was reached.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, TokenMeta meta);
  void append(const TokenId* ids, std::size_t n);
  void end_document();  // after at least one token
  std::uint64_t tokens() const { return tokens_; }
  TokenFileInfo finish();

 private:
  void flush();
  void spool_ends();

  TokenMeta meta_;
  std::uint32_t width_;
  OutputFile out_, spool_;  // document ends wait in the spool until the tokens are complete
  Hash64 hash_;
  std::vector<unsigned char> buffer_;
  std::size_t used_ = 0;
  std::vector<std::uint64_t> ends_;
  std::uint64_t tokens_ = 0, documents_ = 0, last_end_ = 0;
};

// Copies a token file into another format. Shards hold at most 2³¹ − 1 tokens: more (or more than shard_tokens) become
// NAME_000000.EXT, NAME_000001.EXT, … Files that are there already are replaced only with `force`. Returns the files written.
std::vector<std::string> convert_tokens(const std::string& from, const std::string& to, TokenFormat format, std::uint64_t shard_tokens = 0,
                                        bool force = false);

}  // namespace bhyt
