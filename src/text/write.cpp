#include "text/write.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/files.h"
#include "text/byte_alphabet.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// A token as the vocabulary spells it.
std::string spelled(const TokenizerSpec& spec, std::size_t id) {
  const std::string& piece = spec.pieces[id];
  if (spec.kinds[id] == PieceKind::byte) return fmt::format("<0x{:02X}>", static_cast<unsigned char>(piece[0]));
  if (spec.kinds[id] != PieceKind::text) return piece;
  if (spec.style == BpeStyle::byte_level) return bytes_to_chars(piece);
  if (!spec.metaspace) return piece;
  std::string out;
  for (const char c : piece) c == ' ' ? out += kMetaspace : out += c;
  return out;
}

const std::string& content(const TokenizerSpec& spec, TokenId id) {
  for (const AddedToken& t : spec.added)
    if (t.id == id) return t.content;
  return spec.pieces[static_cast<std::size_t>(id)];
}

Json model(const TokenizerSpec& spec) {
  Json vocab = Json::object(), merges = Json::array();
  std::vector<std::string> names(spec.pieces.size());
  for (std::size_t id = 0; id < names.size(); ++id) names[id] = spelled(spec, id);
  // Straight into the underlying list: looking each key up first would take time quadratic in the vocabulary.
  auto& entries = vocab.get_ref<Json::object_t&>();
  for (std::size_t id = 0; id < names.size(); ++id)
    if (spec.kinds[id] != PieceKind::absent && spec.kinds[id] != PieceKind::added) entries.push_back({names[id], Json(id)});
  for (const Merge& m : spec.merges) merges.push_back({names[static_cast<std::size_t>(m.left)], names[static_cast<std::size_t>(m.right)]});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", spec.unk ? Json(names[static_cast<std::size_t>(*spec.unk)]) : Json()},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", spec.fuse_unk},
          {"byte_fallback", spec.style == BpeStyle::byte_fallback},
          {"ignore_merges", spec.ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

struct ByteLevel {
  bool prefix = true, regex = true;
};
Json byte_level(const ByteLevel& how) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", how.prefix}, {"trim_offsets", true}, {"use_regex", how.regex}};
}

Json normalizer(const TokenizerSpec& spec) {
  Json steps = Json::array();
  if (spec.nfc) steps.push_back({{"type", "NFC"}});
  if (spec.style == BpeStyle::byte_fallback && !spec.prefix_unless_space) {
    if (spec.prefix == Prefix::every) steps.push_back({{"type", "Prepend"}, {"prepend", spec.metaspace ? kMetaspace : " "}});
    if (spec.metaspace) steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMetaspace}});
  }
  if (steps.empty()) return nullptr;
  return steps.size() == 1 ? steps[0] : Json{{"type", "Sequence"}, {"normalizers", steps}};
}

Json pre_tokenizer(const TokenizerSpec& spec) {
  if (spec.style == BpeStyle::byte_fallback) {
    if (!spec.metaspace || !spec.prefix_unless_space) return nullptr;
    const char* scheme = spec.prefix == Prefix::every ? "always" : spec.prefix == Prefix::first ? "first" : "never";
    return {{"type", "Metaspace"}, {"replacement", kMetaspace}, {"prepend_scheme", scheme}, {"split", false}};
  }
  Json steps = Json::array();
  if (spec.isolate_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (spec.pattern != Pattern::whole && spec.pattern != Pattern::gpt2)
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern_regex(spec.pattern)}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(byte_level({.prefix = spec.prefix != Prefix::none, .regex = spec.pattern == Pattern::gpt2}));
  return steps.size() == 1 ? steps[0] : Json{{"type", "Sequence"}, {"pretokenizers", steps}};
}

Json post_processor(const TokenizerSpec& spec) {
  const Json offsets = spec.style == BpeStyle::byte_level ? byte_level({.prefix = spec.prefix != Prefix::none}) : Json();
  if (spec.before.empty() && spec.after.empty()) return offsets;
  Json single = Json::array(), pair = Json::array(), known = Json::object();
  const auto token = [&](TokenId id, int type) {
    const std::string& name = content(spec, id);
    known[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  for (int type = 0; type < 2; ++type) {
    for (const TokenId id : spec.before) pair.push_back(token(id, type));
    pair.push_back({{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}});
    for (const TokenId id : spec.after) pair.push_back(token(id, type));
    if (type == 0) single = pair;
  }
  const Json around{{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", known}};
  return offsets.is_null() ? around : Json{{"type", "Sequence"}, {"processors", {offsets, around}}};
}

Json decoder(const TokenizerSpec& spec) {
  if (spec.style == BpeStyle::byte_level) return byte_level({});
  Json steps = Json::array();
  if (spec.metaspace) steps.push_back({{"type", "Replace"}, {"pattern", {{"String", kMetaspace}}}, {"content", " "}});
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (spec.prefix != Prefix::none) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

Json added_token(const AddedToken& t) {
  return {{"content", t.content}, {"single_word", false},       {"lstrip", t.lstrip},
          {"rstrip", t.rstrip},   {"normalized", t.normalized}, {"special", t.special}};
}

Json tokenizer(const TokenizerSpec& spec) {
  Json added = Json::array();
  for (const AddedToken& t : spec.added) {
    Json j{{"id", t.id}};
    j.update(added_token(t));
    added.push_back(std::move(j));
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", normalizer(spec)},
          {"pre_tokenizer", pre_tokenizer(spec)},
          {"post_processor", post_processor(spec)},
          {"decoder", decoder(spec)},
          {"model", model(spec)}};
}

// bos_token and its kin, where the tokenizer has them.
Json named_tokens(const TokenizerSpec& spec) {
  Json j = Json::object();
  if (spec.bos) j["bos_token"] = content(spec, *spec.bos);
  if (spec.eos) j["eos_token"] = content(spec, *spec.eos);
  if (spec.unk) j["unk_token"] = content(spec, *spec.unk);
  return j;
}

Json tokenizer_config(const TokenizerSpec& spec) {
  Json decoder = Json::object();
  for (const AddedToken& t : spec.added) decoder[std::to_string(t.id)] = added_token(t);
  Json j{{"added_tokens_decoder", std::move(decoder)}};
  j.update(named_tokens(spec));
  j["clean_up_tokenization_spaces"] = false;
  j["model_input_names"] = {"input_ids", "attention_mask"};
  j["model_max_length"] = 1000000000000000019884624838656.0;  // how transformers writes "no limit"
  j["tokenizer_class"] = "PreTrainedTokenizerFast";
  return j;
}

Json generation_config(const TokenizerSpec& spec) {
  Json j = Json::object();
  if (spec.bos) j["bos_token_id"] = *spec.bos;
  if (spec.stops.size() == 1) j["eos_token_id"] = spec.stops[0];
  if (spec.stops.size() > 1) j["eos_token_id"] = spec.stops;
  return j;
}

void make_folder(const std::filesystem::path& dir) {
  std::error_code why, ignored;
  std::filesystem::create_directories(dir, why);
  check(std::filesystem::is_directory(dir, ignored), "cannot write to {}: not a folder, and none can be made there{}{}", dir.string(),
        why ? ": " : "", why ? why.message() : "");
}

class Fnv {
 public:
  void add(std::string_view s) {
    number(s.size());
    for (const char c : s) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }
  void number(std::uint64_t n) {
    for (int i = 0; i < 8; ++i) hash_ = (hash_ ^ (n >> (8 * i) & 0xFF)) * 0x100000001B3ull;
  }
  template <class T>
  void numbers(const std::vector<T>& list) {
    number(list.size());
    for (const T v : list) number(static_cast<std::uint64_t>(v));
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325ull;
};

}  // namespace

std::map<std::string, std::string> companion_files(const TokenizerSpec& spec) {
  std::map<std::string, std::string> files = spec.companions;
  const auto made = [&](const char* name, const Json& j) { files.try_emplace(name, j.dump(2) + "\n"); };
  made("tokenizer_config.json", tokenizer_config(spec));
  made("special_tokens_map.json", named_tokens(spec));
  made("generation_config.json", generation_config(spec));
  return files;
}

void write_tokenizer(const TokenizerSpec& spec, const std::filesystem::path& dir) {
  make_folder(dir);
  write_synced(dir / "tokenizer.json", tokenizer(spec).dump(1) + "\n");
  for (const auto& [name, text] : companion_files(spec)) write_synced(dir / name, text);
}

std::uint64_t fingerprint(const TokenizerSpec& spec) {
  Fnv f;
  const int flags[] = {static_cast<int>(spec.style),
                       spec.ignore_merges,
                       spec.fuse_unk,
                       spec.nfc,
                       static_cast<int>(spec.pattern),
                       spec.isolate_digits,
                       static_cast<int>(spec.prefix),
                       spec.prefix_unless_space,
                       spec.metaspace,
                       spec.unk.value_or(-1),
                       spec.end_of_text.value_or(-1)};
  for (const int flag : flags) f.number(static_cast<std::uint64_t>(flag));
  for (std::size_t id = 0; id < spec.pieces.size(); ++id) {
    f.add(spec.pieces[id]);
    f.number(static_cast<std::uint64_t>(spec.kinds[id]));
  }
  for (const Merge& m : spec.merges) {  // in their order, not by rank: equal ranks become distinct ones in a file
    f.number(static_cast<std::uint64_t>(m.left));
    f.number(static_cast<std::uint64_t>(m.right));
  }
  for (const AddedToken& t : spec.added) {
    f.number(static_cast<std::uint64_t>(t.id));
    f.add(t.content);
    f.number(static_cast<std::uint64_t>(t.special | t.lstrip << 1 | t.rstrip << 2 | t.normalized << 3));
  }
  f.numbers(spec.before);
  f.numbers(spec.after);
  return f.value();
}

}  // namespace bhyt
