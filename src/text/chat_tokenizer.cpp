#include "text/chat_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "text/chat_jinja.h"
#include "text/parse.h"
#include "text/spec.h"
#include "text/write.h"

namespace bhyt {

namespace {

using OrderedJson = nlohmann::ordered_json;  // files keep the order of their keys

// The template's tokens, all of them special: those that the vocabulary lacks behind it, others where they are.
void add_chat_tokens(TokenizerSpec& spec, const ChatFormat& format) {
  for (const std::string& text : format.row().tokens) {
    if (find_added(spec, text)) continue;
    const TokenId id = format.token(text);
    if (id >= std::ssize(spec.pieces)) set_piece(spec, id, text, PieceKind::added);
    spec.added.push_back({.id = id, .content = text});
  }
}

// A companion as a tree, changed, and put back.
template <class Change>
void change_file(std::map<std::string, std::string>& files, const char* name, Change&& change) {
  OrderedJson tree = json_or_discarded(files[name]);
  if (!tree.is_object()) tree = OrderedJson::object();
  change(tree);
  files[name] = tree.dump(2) + "\n";
}

// As tokenizer_config.json lists them.
OrderedJson listed_tokens(const std::vector<AddedToken>& added) {
  TokenizerSpec only;
  only.added = added;
  return OrderedJson::parse(companion_files(only)["tokenizer_config.json"])["added_tokens_decoder"];
}

}  // namespace

std::unique_ptr<Tokenizer> chat_tokenizer(const ChatFormat& format) {
  TokenizerSpec spec = format.tokenizer().spec();
  add_chat_tokens(spec, format);
  spec.eos = format.end();
  find_stops(spec);
  spec.companions.erase("chat_template.jinja");  // of another template, and it would come first
  std::map<std::string, std::string> files = companion_files(spec);
  const auto name_tokens = [&](OrderedJson& tree) {
    if (spec.eos) tree["eos_token"] = tree["pad_token"] = *slot_token(std::string(kEosSlot), format.row(), format.tokenizer());
  };
  change_file(files, "tokenizer_config.json", [&](OrderedJson& tree) {
    name_tokens(tree);
    if (tree.contains("added_tokens_decoder")) tree["added_tokens_decoder"] = listed_tokens(spec.added);
    if (!spec.bos) tree["bos_token"] = nullptr;
    tree["chat_template"] = chat_jinja(format.row(), format.tokenizer());
  });
  change_file(files, "special_tokens_map.json", name_tokens);
  change_file(files, "generation_config.json", [&](OrderedJson& tree) {
    tree["eos_token_id"] = spec.stops;
    if (spec.eos) tree["pad_token_id"] = *spec.eos;
  });
  spec.companions = std::move(files);
  return finish_tokenizer(std::move(spec));
}

}  // namespace bhyt
