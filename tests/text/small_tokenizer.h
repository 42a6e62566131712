// A tokenizer.json small enough to reason about: 256 bytes, a few merges, two special tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/byte_alphabet.h"

namespace bhyt::test {

inline nlohmann::json added_token(int id, const std::string& text, bool special = true) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

inline nlohmann::json small_json() {
  nlohmann::json vocab;
  for (int b = 0; b < 256; ++b) vocab[bytes_to_chars(std::string(1, static_cast<char>(b)))] = b;
  nlohmann::json merges = nlohmann::json::array();
  int next = 256;
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"Ġ", "hello"}, {"a", "a"}, {"aa", "aa"}}) {
    merges.push_back({a, b});
    vocab[a + b] = next++;
  }
  return {{"version", "1.0"},
          {"added_tokens", {added_token(263, "<|begin_of_text|>"), added_token(264, "<|end_of_text|>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

}  // namespace bhyt::test
