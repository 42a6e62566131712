// tokenizer.json, tokenizer_config.json, special_tokens_map.json and generation_config.json, as `transformers` loads them.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "text/spec.h"

namespace bhyt {

// What is written beside tokenizer.json, by name: the spec's own companions, and made ones where it has none.
std::map<std::string, std::string> companion_files(const TokenizerSpec& spec);

void write_tokenizer(const TokenizerSpec& spec, const std::filesystem::path& dir);

// Of everything that decides which ids a text gets; the same for a tokenizer and for what write_tokenizer makes of it.
std::uint64_t fingerprint(const TokenizerSpec& spec);

}  // namespace bhyt
