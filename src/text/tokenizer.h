// A tokenizer turns bytes into ids and back. Kinds: "bytes" (built in), byte-level BPE (tokenizer.json, tiktoken, vocab+merges), llama2.c.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/threads.h"
#include "io/checkpoint_folders.h"

namespace bhyt {

using TokenId = std::int32_t;

struct EncodeOptions {
  bool special = true;  // read the text of special tokens as those tokens, and add what the post-processor adds (BOS) …
  bool adds = true;     // … unless the text is a part of something larger
};

struct TokenizerSpec;  // text/spec.h: all that a tokenizer's files say

struct SpecialToken {
  TokenId id = 0;
  std::string text;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;         // "bytes", "bpe", …
  virtual std::int64_t vocab_size() const = 0;  // ids are below this
  // Appends the ids of one text. Safe to call from several threads at once.
  virtual void encode(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions& options) const = 0;
  // The bytes of an id; "" for a special token unless `special`.
  virtual std::string piece(TokenId id, bool special) const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> end_of_text() const = 0;               // closes every packed document
  virtual std::optional<TokenId> eos() const { return end_of_text(); }  // eos_token of its config: of a chat model, what ends a turn
  virtual std::vector<TokenId> stops() const = 0;                       // ids that end a generation
  virtual std::uint64_t fingerprint() const = 0;                        // changes whenever the same text could give other ids
  // encode(a + b) = encode(a), encode(b) wherever the text is cut (without special): long documents can then be encoded in pieces.
  virtual bool splits_anywhere() const { return false; }
  // Writes tokenizer.json and its companions into a folder, which is made where there is none.
  virtual void save(const std::filesystem::path& dir) const = 0;
  virtual TokenizerSpec spec() const;  // for making another one of it; Error for one that was not made from files
  virtual std::vector<SpecialToken> special_tokens() const { return {}; }
  // What else there is to know about it, as name and value, for people.
  virtual std::vector<std::pair<std::string, std::string>> details() const { return {}; }

  std::vector<TokenId> encode(std::string_view text, bool special = true) const {
    std::vector<TokenId> ids;
    encode(text, ids, EncodeOptions{special});
    return ids;
  }
  // The pieces of the ids, one after the other. Where encoding put a space before the text, that space is taken off again.
  virtual std::string decode(const std::vector<TokenId>& ids, bool special) const {
    std::string s;
    for (TokenId id : ids) s += piece(id, special);
    return s;
  }
  std::string decode(const std::vector<TokenId>& ids) const { return decode(ids, false); }
};

// What makes up a tokenizer in a folder: the forms that are read, and what stands beside them.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",     "tokenizer.model",         "vocab.json",
                                           "merges.txt",         "tokenizer.bin",           "tokenizer_config.json",
                                           "added_tokens.json",  "special_tokens_map.json", "generation_config.json",
                                           "chat_template.jinja"};
constexpr const char* kTokenizerHelp = "bytes, a tokenizer file, a folder that holds one, a checkpoint or a run directory";

// Whether a folder holds a file that load_tokenizer takes.
bool holds_tokenizer(const std::filesystem::path& folder);

// "bytes", a file, a folder that holds one (a checkpoint), or a run directory: that of its newest checkpoint, and a message says so. The
// files of a checkpoint are compared with its manifest. Throws Error saying what was looked for.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, Verify verify = Verify::yes);

// The folder that those files lie in.
std::filesystem::path tokenizer_folder(const std::filesystem::path& what, Verify verify = Verify::yes);

// 256 bytes and the end-of-text token 256. `companions`: files that save() writes beside tokenizer.json, by name, in place of its own.
std::unique_ptr<Tokenizer> make_byte_tokenizer(std::map<std::string, std::string> companions = {});

// The files by themselves, from memory; each throws Error on what it cannot take. load_tokenizer finds out which one to call.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json);
std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view model);
std::unique_ptr<Tokenizer> parse_vocab_merges(std::string_view vocab_json, std::string_view merges_txt);
std::unique_ptr<Tokenizer> parse_llama2c(std::string_view file);

// Many texts at once, spread over the threads.
std::vector<std::vector<TokenId>> encode_all(Threads& threads, const Tokenizer& tokenizer, const std::vector<std::string_view>& texts,
                                             const EncodeOptions& options);

}  // namespace bhyt
