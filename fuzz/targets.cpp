#include "fuzz/targets.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/token_file.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/llama2c.h"
#include "model/safetensors.h"
#include "text/tokenizer.h"

namespace bhyt::fuzz {

namespace {

std::string_view text_of(const std::uint8_t* data, std::size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// A property of what was read does not hold: as loud as a crash.
void require(bool ok) {
  if (!ok) std::abort();
}

void safetensors(const std::uint8_t* data, std::size_t size) {
  const SafeTensors file(data, size, "fuzz");
  std::vector<float> values;
  for (const auto& [name, t] : file.tensors()) {
    if (!is_float_dtype(t.dtype)) continue;
    values.resize(static_cast<std::size_t>(t.size()));
    SafeTensors::to_float(t, 0, t.size(), values.data());
  }
}

// What was read is written, and read again as the same.
void model_config(const std::uint8_t* data, std::size_t size) {
  const ModelConfig c = parse_model_config(text_of(data, size), "fuzz");
  const std::string text = model_config_json(c, DType::f32);
  require(model_config_json(parse_model_config(text, "fuzz"), DType::f32) == text);
  if (c.layers <= 8) require(!parameter_list(c).empty());
}

void weight_index(const std::uint8_t* data, std::size_t size) { parse_weight_index(text_of(data, size), "fuzz"); }

void llama2c_model(const std::uint8_t* data, std::size_t size) {
  const Llama2cFile file(data, size, "fuzz");
  for (const auto& w : file.weights()) file.values(w);
}

// Encodes and decodes with whatever came out of the file.
void use(const Tokenizer& t) {
  static const std::string sample = "Hello world's  12345\n\t caf\xC3\xA9 \xE2\x82\xAC \xFF\xFE <|end_of_text|> aaaaaaaa";
  for (const bool special : {false, true}) {
    const std::vector<TokenId> ids = t.encode(sample, special);
    for (const TokenId id : ids) require(id >= 0 && id < t.vocab_size());
    t.decode(ids, special);
  }
  t.piece(0, true);
  t.fingerprint();
}

void tokenizer_json(const std::uint8_t* data, std::size_t size) { use(*parse_tokenizer_json(text_of(data, size))); }
void tiktoken(const std::uint8_t* data, std::size_t size) { use(*parse_tiktoken(text_of(data, size))); }
void llama2c_tokenizer(const std::uint8_t* data, std::size_t size) { use(*parse_llama2c(text_of(data, size))); }

// Two files in one input, parted by a zero byte.
void vocab_merges(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = text_of(data, size);
  const std::size_t cut = std::min(text.find('\0'), size);
  use(*parse_vocab_merges(text.substr(0, cut), text.substr(std::min(cut + 1, size))));
}

void token_file(const std::uint8_t* data, std::size_t size) {
  const TokenFile file("fuzz", std::vector<unsigned char>(data, data + size));
  file.verify();
  std::vector<TokenId> ids(static_cast<std::size_t>(std::min<std::uint64_t>(file.tokens(), 1000)));
  file.read(0, ids.size(), ids.data());
  std::vector<std::uint64_t> starts;
  file.document_starts(0, file.tokens(), starts);
}

constexpr Target kTargets[] = {{"safetensors", safetensors},     {"model_config", model_config},           {"weight_index", weight_index},
                               {"llama2c_model", llama2c_model}, {"tokenizer_json", tokenizer_json},       {"tiktoken", tiktoken},
                               {"vocab_merges", vocab_merges},   {"llama2c_tokenizer", llama2c_tokenizer}, {"token_file", token_file}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

}  // namespace bhyt::fuzz
