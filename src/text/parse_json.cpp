// tokenizer.json, as Hugging Face's `tokenizers` writes it. What we cannot follow to the letter is refused by name.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/check.h"
#include "text/parse.h"

namespace bhyt {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

[[noreturn]] void wrong(const std::string& where, const std::string& expected, const Json& got) {
  std::string shown = got.dump(-1, ' ', true);
  if (shown.size() > 120) shown = shown.substr(0, 117) + "...";
  throw Error(fmt::format("[tokenizer.json] {}: expected {}, got {}", where, expected, shown));
}

const Json& at(const Json& object, const char* key) {
  static const Json null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

std::string text_of(const Json& object, const char* key, const std::string& where) {
  const Json& j = at(object, key);
  if (!j.is_string()) wrong(where + "." + key, "a string", j);
  return j.get<std::string>();
}

bool flag(const Json& object, const char* key, bool otherwise, const std::string& where) {
  const Json& j = at(object, key);
  if (j.is_null()) return otherwise;
  if (!j.is_boolean()) wrong(where + "." + key, "true or false", j);
  return j.get<bool>();
}

// Normalizers, pre-tokenizers, decoders and post-processors nest in Sequences: calls visit(step) for each step in order.
template <class Visit>
void each_step(const Json& step, const char* list, const std::string& where, Visit&& visit) {
  if (step.is_null()) return;
  if (!step.is_object()) wrong(where, "an object or null", step);
  if (text_of(step, "type", where) != "Sequence") return visit(step);
  const Json& steps = at(step, list);
  if (!steps.is_array()) wrong(where + "." + list, "a list", steps);
  for (const Json& inner : steps) {
    if (!inner.is_object() || at(inner, "type") == "Sequence") wrong(where + "." + list, "steps that are not sequences themselves", inner);
    visit(inner);
  }
}

class Parser {
 public:
  explicit Parser(const Json& root) : root_(root) {}

  TokenizerSpec parse() {
    if (!root_.is_object()) wrong("file", "an object", root_.is_null() ? root_ : Json(root_.type_name()));
    model();
    normalizer();
    pre_tokenizer();
    added_tokens();
    decoder();
    post_processor();
    return std::move(spec_);
  }

 private:
  bool fallback() const { return spec_.style == BpeStyle::byte_fallback; }

  void model() {
    const Json& m = at(root_, "model");
    if (!m.is_object()) wrong("model", "an object", m);
    // Old files leave the type out.
    if (const Json& type = at(m, "type"); !type.is_null() && type != "BPE") wrong("model.type", "BPE, the one kind supported", type);
    if (const Json& d = at(m, "dropout"); !d.is_null() && d != 0) wrong("model.dropout", "null", d);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& j = at(m, key); !j.is_null() && j != "") wrong(std::string("model.") + key, "null or empty", j);
    if (flag(m, "byte_fallback", false, "model")) spec_.style = BpeStyle::byte_fallback;
    spec_.ignore_merges = flag(m, "ignore_merges", false, "model");
    spec_.fuse_unk = flag(m, "fuse_unk", false, "model");
    vocab(at(m, "vocab"));
    read_merges(spec_, ids_, at(m, "merges"));
    if (const Json& unk = at(m, "unk_token"); !unk.is_null()) {
      if (!unk.is_string() || !ids_.contains(unk.get_ref<const std::string&>())) wrong("model.unk_token", "a token of the vocabulary", unk);
      spec_.unk = ids_[unk.get_ref<const std::string&>()];
    }
  }

  void vocab(const Json& j) {
    ids_ = read_vocab(j, "[tokenizer.json] model.vocab");
    int bytes = 0;
    for (const auto& [text, id] : ids_) {
      if (!fallback()) {
        set_spelled_piece(spec_, id, text);
      } else if (const int byte = byte_token(text); byte >= 0) {
        set_piece(spec_, id, std::string(1, static_cast<char>(byte)), PieceKind::byte);
        ++bytes;
      } else {
        set_piece(spec_, id, text, PieceKind::text);
      }
    }
    check(!fallback() || bytes == 256, "[tokenizer.json] model.byte_fallback: expected the 256 tokens <0x00> to <0xFF>, got {}", bytes);
  }

  void normalizer() {
    each_step(at(root_, "normalizer"), "normalizers", "normalizer", [&](const Json& step) {
      const std::string type = text_of(step, "type", "normalizer");
      if (type == "NFC") {
        spec_.nfc = true;
      } else if (fallback() && type == "Prepend" && (at(step, "prepend") == kMetaspace || at(step, "prepend") == " ")) {
        spec_.prefix = Prefix::every;
        spec_.prefix_unless_space = false;
        prepended_ = at(step, "prepend").get<std::string>();
      } else if (fallback() && type == "Replace" && at(step, "pattern") == Json{{"String", " "}} && at(step, "content") == kMetaspace) {
        use_metaspace();
      } else {
        wrong("normalizer", fallback() ? "NFC, Prepend of a space or Replace of spaces by U+2581" : "NFC or null", step);
      }
    });
    // A prefix that does not read as a space would be part of the text.
    if (!prepended_.empty() && (prepended_ == kMetaspace) != spec_.metaspace)
      wrong("normalizer", "Prepend and the spaces of the vocabulary to agree", at(root_, "normalizer"));
  }

  // The vocabulary writes spaces as U+2581: from here on they are spaces.
  void use_metaspace() {
    if (spec_.metaspace) return;  // normalizer and pre-tokenizer may both say so
    spec_.metaspace = true;
    for (std::size_t id = 0; id < spec_.pieces.size(); ++id) {
      std::string& p = spec_.pieces[id];
      if (p.find(' ') != p.npos && spec_.kinds[id] == PieceKind::text) spec_.kinds[id] = PieceKind::opaque;
      if (spec_.kinds[id] != PieceKind::text) continue;
      std::size_t kept = 0;
      for (std::size_t at = 0; at < p.size(); ++kept) {
        const bool space = p.compare(at, kMetaspace.size(), kMetaspace) == 0;
        p[kept] = space ? ' ' : p[at];
        at += space ? kMetaspace.size() : 1;
      }
      p.resize(kept);
    }
  }

  void pre_tokenizer() {
    const Json& root = at(root_, "pre_tokenizer");
    bool byte_level = false;
    each_step(root, "pretokenizers", "pre_tokenizer", [&](const Json& step) {
      const std::string type = text_of(step, "type", "pre_tokenizer");
      if (byte_level) wrong("pre_tokenizer", "nothing after ByteLevel", step);
      if (fallback()) {
        if (type != "Metaspace") wrong("pre_tokenizer", "null or Metaspace beside byte_fallback", step);
        metaspace(step);
      } else if (type == "Split") {
        split(step);
      } else if (type == "Digits" && flag(step, "individual_digits", false, "pre_tokenizer") && spec_.pattern == Pattern::whole) {
        spec_.isolate_digits = true;
      } else if (type == "ByteLevel") {
        byte_level = true;
        const bool first = spec_.pattern == Pattern::whole && !spec_.isolate_digits;
        if (flag(step, "add_prefix_space", true, "pre_tokenizer")) {
          if (!first) wrong("pre_tokenizer", "ByteLevel without add_prefix_space after another step", step);
          spec_.prefix = Prefix::every;
        }
        if (flag(step, "use_regex", true, "pre_tokenizer")) {
          if (spec_.pattern != Pattern::whole) wrong("pre_tokenizer", "ByteLevel without use_regex after Split", step);
          spec_.pattern = Pattern::gpt2;
        }
      } else {
        wrong("pre_tokenizer", "Split, Digits with individual_digits or ByteLevel", step);
      }
    });
    if (!fallback() && !byte_level) wrong("pre_tokenizer", "ByteLevel (only byte-level BPE and byte_fallback are supported)", root);
  }

  void split(const Json& step) {
    const Json& given = at(step, "pattern");
    const Json& regex = given.is_object() ? at(given, "Regex") : given;
    const auto pattern = regex.is_string() ? find_pattern(regex.get_ref<const std::string&>()) : std::nullopt;
    if (!pattern || spec_.pattern != Pattern::whole) wrong("pre_tokenizer", "the pattern of Llama-3, GPT-2 or Qwen2", step);
    const bool invert = flag(step, "invert", false, "pre_tokenizer");
    const std::string behavior = text_of(step, "behavior", "pre_tokenizer");
    // The patterns cover every text, so both ways to say it keep the matches and nothing else.
    if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert))
      wrong("pre_tokenizer", "Split that keeps its matches", step);
    spec_.pattern = *pattern;
  }

  void metaspace(const Json& step) {
    if (at(step, "replacement") != kMetaspace || flag(step, "split", true, "pre_tokenizer"))
      wrong("pre_tokenizer", "Metaspace with replacement U+2581 and split false", step);
    use_metaspace();
    const std::string scheme = at(step, "prepend_scheme").is_string() ? step["prepend_scheme"].get<std::string>() : "always";
    if (scheme != "always" && scheme != "first" && scheme != "never")
      wrong("pre_tokenizer.prepend_scheme", "always, first or never", scheme);
    if (spec_.prefix == Prefix::none) spec_.prefix = scheme == "always" ? Prefix::every : scheme == "first" ? Prefix::first : Prefix::none;
  }

  void added_tokens() {
    const Json& list = at(root_, "added_tokens");
    if (list.is_null()) return;
    if (!list.is_array()) wrong("added_tokens", "a list", list);
    const std::size_t limit = id_limit(ids_.size() + list.size());
    for (const Json& j : list) {
      if (!j.is_object()) wrong("added_tokens", "objects", j);
      AddedToken t;
      t.id = read_id(at(j, "id"), limit, "[tokenizer.json] added_tokens");
      t.content = text_of(j, "content", "added_tokens");
      if (t.content.empty()) wrong("added_tokens", "a token that is not empty", j);
      t.special = flag(j, "special", false, "added_tokens");
      t.lstrip = flag(j, "lstrip", false, "added_tokens");
      t.rstrip = flag(j, "rstrip", false, "added_tokens");
      t.normalized = flag(j, "normalized", !t.special, "added_tokens");
      if (flag(j, "single_word", false, "added_tokens")) wrong("added_tokens", "single_word false, the one way supported", j);
      add(spec_, ids_, std::move(t));
    }
  }

  void decoder() {
    each_step(at(root_, "decoder"), "decoders", "decoder", [&](const Json& step) {
      const std::string type = text_of(step, "type", "decoder");
      const bool known = fallback()
                             ? type == "Replace" || type == "ByteFallback" || type == "Fuse" || type == "Strip" || type == "Metaspace"
                             : type == "ByteLevel";
      if (!known) wrong("decoder", fallback() ? "Replace, ByteFallback, Fuse, Strip or Metaspace" : "ByteLevel", step);
    });
  }

  void post_processor() {
    each_step(at(root_, "post_processor"), "processors", "post_processor", [&](const Json& step) {
      const std::string type = text_of(step, "type", "post_processor");
      if (type == "ByteLevel") return;  // moves offsets only
      if (type != "TemplateProcessing") wrong("post_processor.type", "TemplateProcessing or ByteLevel", step);
      template_processing(step);
    });
  }

  void template_processing(const Json& step) {
    const Json& single = at(step, "single");
    if (!single.is_array()) wrong("post_processor.single", "a list", single);
    int texts = 0;
    for (const Json& part : single) {
      if (part.is_object() && part.contains("Sequence")) {
        ++texts;
        continue;
      }
      const Json& token = part.is_object() ? at(part, "SpecialToken") : part;
      if (!token.is_object()) wrong("post_processor.single", "SpecialToken and Sequence", part);
      const std::string name = text_of(token, "id", "post_processor.single");
      const Json& known = at(step, "special_tokens");
      const Json& entry = known.is_object() ? at(known, name.c_str()) : known;
      const Json& ids = entry.is_object() ? at(entry, "ids") : entry;
      if (!ids.is_array()) wrong("post_processor.special_tokens", "the ids of " + name, entry);
      for (const Json& j : ids) {
        const TokenId id = read_id(j, spec_.pieces.size(), "[tokenizer.json] post_processor.special_tokens");
        (texts ? spec_.after : spec_.before).push_back(id);
      }
    }
    if (texts != 1) wrong("post_processor.single", "one Sequence", single);
  }

  const Json& root_;
  TokenizerSpec spec_;
  Vocabulary ids_;
  std::string prepended_;
};

}  // namespace

TokenizerSpec read_tokenizer_json(std::string_view json) {
  const Json root = parse_json(json, "tokenizer.json");
  return Parser(root).parse();
}

}  // namespace bhyt
