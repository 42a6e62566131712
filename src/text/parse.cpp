#include "text/parse.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/json.h"
#include "text/byte_alphabet.h"

namespace bhyt {

namespace {

void push_merge(TokenizerSpec& spec, const Vocabulary& ids, const std::string& left, const std::string& right) {
  const auto a = ids.find(left), b = ids.find(right), whole = ids.find(left + right);
  const std::size_t rank = spec.merges.size();
  check(a != ids.end() && b != ids.end(), "[tokenizer] merge {}: expected tokens of the vocabulary, got {:?} and {:?}", rank, left, right);
  check(whole != ids.end(), "[tokenizer] merge {}: expected the vocabulary to hold {:?}, it does not", rank, left + right);
  spec.merges.push_back({a->second, b->second, whole->second, static_cast<std::uint32_t>(rank)});
}

void push_merge(TokenizerSpec& spec, const Vocabulary& ids, std::string_view line) {
  const std::size_t space = line.find(' ');
  check(space != line.npos && line.find(' ', space + 1) == line.npos,
        "[tokenizer] merge {}: expected two tokens and a space between, got {:?}", spec.merges.size(), line);
  push_merge(spec, ids, std::string(line.substr(0, space)), std::string(line.substr(space + 1)));
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const char* name) { return parse_json<nlohmann::json>(text, fmt::format("[{}]", name)); }

TokenId read_id(const nlohmann::json& j, std::size_t limit, const char* where) {
  const bool fits = j.is_number_unsigned() && j.get<std::uint64_t>() < limit;
  if (!fits) fail(fmt::format("{}: expected an id from 0 to {}, got {}", where, limit - 1, j.dump(-1, ' ', true).substr(0, 120)));
  return j.get<TokenId>();
}

Vocabulary read_vocab(const nlohmann::json& j, const char* where) {
  check(j.is_object(), "{}: expected an object of tokens and ids, got {}", where, j.type_name());
  check(!j.empty(), "{}: expected tokens, got none", where);
  Vocabulary ids;
  ids.reserve(j.size());
  std::vector<const std::string*> owner;
  for (auto it = j.begin(); it != j.end(); ++it) {
    const TokenId id = read_id(it.value(), id_limit(j.size()), where);
    const auto i = static_cast<std::size_t>(id);
    if (i >= owner.size()) owner.resize(i + 1, nullptr);
    check(!owner[i], "{}: expected one token for id {}, got {:?} and {:?}", where, id, owner[i] ? *owner[i] : "", it.key());
    owner[i] = &it.key();
    ids.emplace(it.key(), id);
  }
  return ids;
}

void read_merges(TokenizerSpec& spec, const Vocabulary& ids, const nlohmann::json& list) {
  check(list.is_array(), "[tokenizer.json] model.merges: expected a list, got {}", list.type_name());
  spec.merges.reserve(list.size());
  for (const nlohmann::json& j : list) {
    if (j.is_string()) {
      push_merge(spec, ids, j.get_ref<const std::string&>());
      continue;
    }
    if (!j.is_array() || j.size() != 2 || !j[0].is_string() || !j[1].is_string())
      fail(fmt::format("[tokenizer.json] model.merges: expected \"a b\" or [\"a\", \"b\"], got {}", j.dump(-1, ' ', true).substr(0, 120)));
    push_merge(spec, ids, j[0].get_ref<const std::string&>(), j[1].get_ref<const std::string&>());
  }
}

void set_spelled_piece(TokenizerSpec& spec, TokenId id, const std::string& chars) {
  if (auto bytes = chars_to_bytes(chars))
    set_piece(spec, id, std::move(*bytes), PieceKind::text);
  else
    set_piece(spec, id, chars, PieceKind::opaque);
}

void add(TokenizerSpec& spec, const Vocabulary& ids, AddedToken token) {
  const auto in_vocab = ids.find(token.content);
  if (in_vocab != ids.end()) {
    check(in_vocab->second == token.id, "[tokenizer] added token {:?}: expected the id {} that the vocabulary gives it, got {}",
          token.content, in_vocab->second, token.id);
  } else {
    const auto i = static_cast<std::size_t>(token.id);
    const bool taken = i < spec.kinds.size() && spec.kinds[i] != PieceKind::absent;
    check(!taken, "[tokenizer] added token {:?}: expected an id of its own, got {}, which is another token's", token.content, token.id);
    set_piece(spec, token.id, token.content, PieceKind::added);
  }
  spec.added.push_back(std::move(token));
}

int byte_token(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const int high = digit(text[3]), low = digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

TokenizerSpec read_vocab_merges(std::string_view vocab_json, std::string_view merges_txt) {
  TokenizerSpec spec;
  const nlohmann::json root = parse_json(vocab_json, "vocab.json");
  const Vocabulary ids = read_vocab(root, "[vocab.json]");
  for (const auto& [text, id] : ids) set_spelled_piece(spec, id, text);
  while (!merges_txt.empty()) {
    const std::size_t end = std::min(merges_txt.find('\n'), merges_txt.size());
    std::string_view line = merges_txt.substr(0, end);
    merges_txt.remove_prefix(std::min(end + 1, merges_txt.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) push_merge(spec, ids, line);
  }
  spec.pattern = Pattern::gpt2;
  if (const auto it = ids.find("<|endoftext|>"); it != ids.end()) add(spec, ids, {.id = it->second, .content = it->first});
  return spec;
}

std::unique_ptr<Tokenizer> finish_tokenizer(TokenizerSpec spec) {
  find_roles(spec);
  const auto same_as_bytes = [&] {
    if (spec.style != BpeStyle::byte_level || spec.pieces.size() != 257 || !spec.merges.empty() || spec.added.size() != 1) return false;
    if (spec.nfc || spec.prefix != Prefix::none || !spec.before.empty() || !spec.after.empty() || spec.added[0].id != 256) return false;
    if (!spec.added[0].special || spec.added[0].lstrip || spec.added[0].rstrip) return false;
    for (int b = 0; b < 256; ++b)
      if (spec.pieces[static_cast<std::size_t>(b)] != std::string(1, static_cast<char>(b))) return false;
    return true;
  };
  if (same_as_bytes()) {
    auto bytes = make_byte_tokenizer(spec.companions);
    if (bytes->piece(256, true) == spec.added[0].content) return bytes;
  }
  return make_bpe_tokenizer(std::move(spec));
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json) { return finish_tokenizer(read_tokenizer_json(json)); }
std::unique_ptr<Tokenizer> parse_vocab_merges(std::string_view vocab_json, std::string_view merges_txt) {
  return finish_tokenizer(read_vocab_merges(vocab_json, merges_txt));
}
std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view model) { return finish_tokenizer(read_tiktoken(model)); }
std::unique_ptr<Tokenizer> parse_llama2c(std::string_view file) { return finish_tokenizer(read_llama2c(file)); }

}  // namespace bhyt
