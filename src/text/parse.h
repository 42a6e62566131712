// Readers of tokenizer files, from memory to a TokenizerSpec. Each throws Error that names what it expected and what it found.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "text/spec.h"

namespace bhyt {

TokenizerSpec read_tokenizer_json(std::string_view json);
TokenizerSpec read_vocab_merges(std::string_view vocab_json, std::string_view merges_txt);
// `ranks`: how many the file must hold; fuzzing makes do with fewer.
constexpr std::size_t kLlama3Ranks = 128000;
TokenizerSpec read_tiktoken(std::string_view model, std::size_t ranks = kLlama3Ranks);
TokenizerSpec read_llama2c(std::string_view file);

// What they share.
using Vocabulary = std::unordered_map<std::string, TokenId>;
nlohmann::json parse_json(std::string_view text, const char* name);
// An id below `limit`, Error otherwise.
TokenId read_id(const nlohmann::json& j, std::size_t limit, const char* where);
// Ids may leave gaps, but a small file must not ask for a table of millions.
inline std::size_t id_limit(std::size_t tokens) { return 4 * tokens + (1 << 16); }
Vocabulary read_vocab(const nlohmann::json& j, const char* where);
// "a b" or ["a", "b"], the rank being the place in the list.
void read_merges(TokenizerSpec& spec, const Vocabulary& ids, const nlohmann::json& list);
// A token as a byte-level vocabulary spells it.
void set_spelled_piece(TokenizerSpec& spec, TokenId id, const std::string& chars);
// Puts an added token in, unless its text or id already belongs to another.
void add(TokenizerSpec& spec, const Vocabulary& ids, AddedToken token);
// The byte that "<0x0A>" stands for, or -1.
int byte_token(std::string_view text);

// What fills in roles and makes a tokenizer of it; the built-in byte tokenizer where that is what was read.
std::unique_ptr<Tokenizer> finish_tokenizer(TokenizerSpec spec);

}  // namespace bhyt
