#include "fuzz/targets.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/token_file.h"
#include "fuzz/require.h"
#include "fuzz/run_targets.h"
#include "io/hash.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/llama2c.h"
#include "model/safetensors.h"
#include "text/parse.h"

namespace bhyt::fuzz {

namespace {

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
  std::vector<float> row;
  for (const auto& w : file.weights()) {
    row.resize(static_cast<std::size_t>(w.shape.back()));
    for (std::int64_t i = 0; w.shape.size() == 2 && i < w.shape[0]; ++i) file.rows(w, i, 1, row.data());
    if (w.shape.size() == 1) file.rows(w, 0, w.shape[0], row.data());
  }
}

// Encodes and decodes with whatever came out of the file; where every byte has a token, nothing may be lost.
void use(const Tokenizer& t, bool every_byte) {
  static const std::string sample = "Hello world's  12345\n\t caf\xC3\xA9 \xE2\x82\xAC \xFF\xFE <|end_of_text|> aaaaaaaa";
  for (const bool special : {false, true}) {
    const std::vector<TokenId> ids = t.encode(sample, special);
    for (const TokenId id : ids) require(id >= 0 && id < t.vocab_size());
    const std::string back = t.decode(ids, special);
    require(special || !every_byte || back == sample);
  }
  t.piece(0, true);
  t.fingerprint();
}

void tokenizer_json(const std::uint8_t* data, std::size_t size) { use(*parse_tokenizer_json(text_of(data, size)), false); }
void llama2c_tokenizer(const std::uint8_t* data, std::size_t size) { use(*parse_llama2c(text_of(data, size)), true); }

// As many ranks as the input has lines: Llama-3's 128,000 would allow a few runs a second.
void tiktoken(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = text_of(data, size);
  std::size_t lines = 0;
  for (std::size_t i = 0; i < size; ++i) lines += text[i] != '\n' && (i + 1 == size || text[i + 1] == '\n');
  use(*finish_tokenizer(read_tiktoken(text, lines)), true);
}

// Two files in one input, parted by a zero byte.
void vocab_merges(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = text_of(data, size);
  const std::size_t cut = std::min(text.find('\0'), size);
  use(*parse_vocab_merges(text.substr(0, cut), text.substr(std::min(cut + 1, size))), false);
}

// Makes the checksums of our own format right (docs/data.md has the layout): no mutation would ever get past them.
void repair(std::vector<unsigned char>& file) {
  if (file.size() < 128 || std::memcmp(file.data(), "BHYTTOK\n", 8) != 0) return;
  const auto word = [&](std::size_t at) {
    std::uint64_t v;
    std::memcpy(&v, &file[at], 8);
    return v;
  };
  const auto put = [&](std::size_t at, std::uint64_t v) { std::memcpy(&file[at], &v, 8); };
  const std::uint64_t width = word(8) >> 32, tokens = word(16), documents = word(24), ends_at = word(80), size = file.size();
  if (width <= 4 && tokens <= size && 128 + tokens * width <= size) put(88, hash64(file.data() + 128, tokens * width));
  if (ends_at <= size && documents <= (size - ends_at) / 8) put(96, hash64(file.data() + ends_at, documents * 8));
  put(120, hash64(file.data(), 120));
}

void token_file(const std::uint8_t* data, std::size_t size) {
  std::vector<unsigned char> bytes(data, data + size);
  repair(bytes);
  const TokenFile file("fuzz", std::move(bytes));
  const auto attempt = [](auto&& f) {
    try {
      f();
    } catch (const Error&) {
    }
  };
  std::vector<TokenId> ids(static_cast<std::size_t>(std::min<std::uint64_t>(file.tokens(), 1000)));
  attempt([&] { file.read(0, ids.size(), ids.data()); });
  std::vector<std::uint64_t> starts;
  attempt([&] { file.document_starts(0, file.tokens(), starts); });
  file.verify();
}

constexpr Target kTargets[] = {{"safetensors", safetensors},       {"model_config", model_config},
                               {"weight_index", weight_index},     {"llama2c_model", llama2c_model},
                               {"tokenizer_json", tokenizer_json}, {"tiktoken", tiktoken},
                               {"vocab_merges", vocab_merges},     {"llama2c_tokenizer", llama2c_tokenizer},
                               {"token_file", token_file},         {"jsonl_text", jsonl_text},
                               {"run_config", run_config},         {"compressed_input", compressed_input},
                               {"trainer_state", trainer_state},   {"metrics_lines", metrics_lines}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

}  // namespace bhyt::fuzz
