// What a tokenizer file says, whatever its format: readers fill it, BpeTokenizer works from it, the writer puts it down again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/split.h"
#include "text/tokenizer.h"

namespace bhyt {

// byte_level: text is bytes. byte_fallback (sentencepiece, llama2.c): text is characters, those without a token become bytes.
enum class BpeStyle : std::uint8_t { byte_level, byte_fallback };

enum class PieceKind : std::uint8_t {
  absent,  // no token has this id
  text,    // reached by encoding; `pieces` holds its bytes
  byte,    // <0xNN>: one byte, reached by fallback only
  opaque,  // in the vocabulary, but spelled so that no text leads to it
  added,   // an added token outside the vocabulary
};

struct Merge {
  TokenId left = 0, right = 0, result = 0;
  std::uint32_t rank = 0;  // lower first; equal ranks: the leftmost place first
};

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = true;
  bool lstrip = false, rstrip = false;  // takes the spaces before, after it
  bool normalized = false;              // looked for in normalized text, after those that are not
};

// A space that is put before a text: never, before the first stretch only, or before each one between special tokens.
enum class Prefix : std::uint8_t { none, first, every };

struct TokenizerSpec {
  BpeStyle style = BpeStyle::byte_level;
  std::vector<std::string> pieces;  // by id
  std::vector<PieceKind> kinds;     // by id
  std::vector<Merge> merges;        // ranks ascending
  bool ignore_merges = false;       // a pre-token that is itself in the vocabulary is taken whole
  std::optional<TokenId> unk;
  bool fuse_unk = false;

  bool nfc = false;
  Pattern pattern = Pattern::whole;
  bool isolate_digits = false;
  Prefix prefix = Prefix::none;
  bool prefix_unless_space = true;  // no prefix where the text begins with a space
  bool metaspace = false;           // byte_fallback: the file writes spaces as U+2581, so text that holds it reads as a space

  std::vector<AddedToken> added;
  std::vector<TokenId> before, after;  // what the post-processor puts around a text
  std::optional<TokenId> bos, eos, end_of_text;
  std::vector<TokenId> stops;
  std::map<std::string, std::string> companions;  // tokenizer_config.json and others as they were beside it, by name
};

// Grows pieces and kinds to hold `id`, and sets them.
void set_piece(TokenizerSpec& spec, TokenId id, std::string bytes, PieceKind kind);
// The added token with this text, or nothing.
std::optional<TokenId> find_added(const TokenizerSpec& spec, std::string_view content);
// Fills bos, eos, end_of_text and stops where the companions, the post-processor or well-known names tell.
void find_roles(TokenizerSpec& spec);
void find_stops(TokenizerSpec& spec);  // the stops alone: what ends a text or a turn, and what generation_config.json says
// Every way to put a token together from two others, with the rank of the result: how tiktoken and scored vocabularies merge.
// rank_of[id] < 0: the token is never merged into or from.
std::vector<Merge> merges_from_ranks(const TokenizerSpec& spec, const std::vector<std::int64_t>& rank_of);

std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerSpec spec);

}  // namespace bhyt
