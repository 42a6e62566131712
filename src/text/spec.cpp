#include "text/spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/check.h"
#include "io/json.h"
#include "text/bpe.h"

namespace bhyt {

TokenizerSpec Tokenizer::spec() const { throw Error(fmt::format("[tokenizer] {} cannot be changed", kind())); }

void set_piece(TokenizerSpec& spec, TokenId id, std::string bytes, PieceKind kind) {
  const auto i = static_cast<std::size_t>(id);
  if (i >= spec.pieces.size()) {
    spec.pieces.resize(i + 1);
    spec.kinds.resize(i + 1, PieceKind::absent);
  }
  spec.pieces[i] = std::move(bytes);
  spec.kinds[i] = kind;
}

std::optional<TokenId> find_added(const TokenizerSpec& spec, std::string_view content) {
  for (const AddedToken& t : spec.added)
    if (t.content == content) return t.id;
  return std::nullopt;
}

namespace {

nlohmann::json companion(const TokenizerSpec& spec, const char* name) {
  const auto it = spec.companions.find(name);
  return it == spec.companions.end() ? nlohmann::json() : json_or_discarded<nlohmann::json>(it->second);
}

// "bos_token": "<s>" or {"content": "<s>", …}.
std::optional<TokenId> named_token(const TokenizerSpec& spec, const nlohmann::json& config, const char* key) {
  if (!config.is_object() || !config.contains(key)) return std::nullopt;
  const nlohmann::json& value = config[key];
  if (value.is_string()) return find_added(spec, value.get_ref<const std::string&>());
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return find_added(spec, value["content"].get_ref<const std::string&>());
  return std::nullopt;
}

std::optional<TokenId> first_of(const TokenizerSpec& spec, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto id = find_added(spec, name)) return id;
  return std::nullopt;
}

}  // namespace

void find_stops(TokenizerSpec& spec) {
  const auto stop = [&](std::optional<TokenId> id) {
    if (id && std::find(spec.stops.begin(), spec.stops.end(), *id) == spec.stops.end()) spec.stops.push_back(*id);
  };
  stop(spec.end_of_text);
  stop(spec.eos);
  for (const char* name : {"<|eot_id|>", "<|eom_id|>", "<|im_end|>"}) stop(find_added(spec, name));
  const nlohmann::json generation = companion(spec, "generation_config.json");
  if (generation.is_object() && generation.contains("eos_token_id")) {
    const nlohmann::json& ids = generation["eos_token_id"];
    for (const nlohmann::json& id : ids.is_array() ? ids : nlohmann::json::array({ids}))
      if (id.is_number_unsigned() && id.get<std::uint64_t>() < spec.pieces.size()) stop(id.get<TokenId>());
  }
}

void find_roles(TokenizerSpec& spec) {
  const nlohmann::json config = companion(spec, "tokenizer_config.json");
  if (!spec.bos) spec.bos = named_token(spec, config, "bos_token");
  if (!spec.bos && !spec.before.empty()) spec.bos = spec.before.front();
  const bool without_bos = config.is_object() && config.contains("bos_token") && config["bos_token"].is_null();
  if (!spec.bos && !without_bos) spec.bos = first_of(spec, {"<|begin_of_text|>", "<s>", "<|endoftext|>"});
  if (!spec.eos) spec.eos = named_token(spec, config, "eos_token");
  // A chat model's eos_token ends a turn; what ends a text goes by its own name.
  if (!spec.end_of_text) spec.end_of_text = first_of(spec, {"<|end_of_text|>", "<|endoftext|>", "</s>"});
  if (!spec.end_of_text) spec.end_of_text = spec.eos;
  if (!spec.eos) spec.eos = spec.end_of_text;
  find_stops(spec);
}

std::vector<Merge> merges_from_ranks(const TokenizerSpec& spec, const std::vector<std::int64_t>& rank_of) {
  const PieceTable ids(spec);
  const auto find = [&](std::string_view part) {
    const TokenId id = ids.find(part);
    return id >= 0 && rank_of[static_cast<std::size_t>(id)] >= 0 ? id : -1;
  };
  std::vector<Merge> merges;
  for (std::size_t i = 0; i < spec.pieces.size(); ++i) {
    if (rank_of[i] < 0) continue;
    const std::string_view piece = spec.pieces[i];
    for (std::size_t cut = 1; cut < piece.size(); ++cut) {
      const TokenId left = find(piece.substr(0, cut));
      const TokenId right = left < 0 ? -1 : find(piece.substr(cut));
      if (right >= 0) merges.push_back({left, right, static_cast<TokenId>(i), static_cast<std::uint32_t>(rank_of[i])});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tie(a.rank, a.result, a.left, a.right) < std::tie(b.rank, b.result, b.left, b.right);
  });
  return merges;
}

}  // namespace bhyt
