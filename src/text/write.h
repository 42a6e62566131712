// tokenizer.json, tokenizer_config.json, special_tokens_map.json and generation_config.json, as `transformers` loads them.
#pragma once

#include <filesystem>

#include "text/spec.h"

namespace bhyt {

// Makes a folder that tokenizer files are written to.
void make_folder(const std::filesystem::path& dir);

void write_tokenizer(const TokenizerSpec& spec, const std::filesystem::path& dir);

// Of everything that decides which ids a text gets; the same for a tokenizer and for what write_tokenizer makes of it.
std::uint64_t fingerprint(const TokenizerSpec& spec);

}  // namespace bhyt
