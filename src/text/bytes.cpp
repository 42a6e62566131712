// The built-in tokenizer: 256 bytes and the end-of-text token 256.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "text/tokenizer.h"
#include "text/write.h"

namespace bhyt {

namespace {

constexpr TokenId kEndOfText = 256;
constexpr std::string_view kEndText = "<|endoftext|>";

// The byte alphabet of Hugging Face's ByteLevel: printable bytes stand for themselves, the others for U+0100, U+0101, … in order.
std::string byte_letter(int byte) {
  const auto printable = [](int b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; };
  int code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& j) {
  std::ofstream out(path);
  out << j.dump(2) << '\n';
  out.close();
  check(out.good(), "cannot write {}", path.string());
}

class ByteTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return 257; }

  void encode(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions& options) const override {
    while (options.special) {
      const std::size_t at = text.find(kEndText);
      if (at == std::string_view::npos) break;
      append(text.substr(0, at), ids);
      ids.push_back(kEndOfText);
      text.remove_prefix(at + kEndText.size());
    }
    append(text, ids);
  }

  std::string piece(TokenId id, bool special) const override {
    check(id >= 0 && id <= kEndOfText, "[tokenizer] expected an id from 0 to {}, got {}", kEndOfText, id);
    if (id == kEndOfText) return std::string(special ? kEndText : "");
    return std::string(1, static_cast<char>(id));
  }

  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> end_of_text() const override { return kEndOfText; }
  std::vector<TokenId> stops() const override { return {kEndOfText}; }
  std::uint64_t fingerprint() const override { return 0x62797465732D3031ull; }  // "bytes-01"
  bool splits_anywhere() const override { return true; }

  // The same ids as a byte-level BPE without merges, which other programs read.
  void save(const std::filesystem::path& dir) const override {
    using Json = nlohmann::ordered_json;
    make_folder(dir);
    Json vocab = Json::object();
    for (int b = 0; b < 256; ++b) vocab[byte_letter(b)] = b;
    const Json end = {{"id", kEndOfText}, {"content", kEndText}, {"single_word", false}, {"lstrip", false},
                      {"rstrip", false},  {"normalized", false}, {"special", true}};
    const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    write_json(dir / "tokenizer.json", {{"version", "1.0"},
                                        {"truncation", nullptr},
                                        {"padding", nullptr},
                                        {"added_tokens", Json::array({end})},
                                        {"normalizer", nullptr},
                                        {"pre_tokenizer", byte_level},
                                        {"post_processor", nullptr},
                                        {"decoder", byte_level},
                                        {"model",
                                         {{"type", "BPE"},
                                          {"dropout", nullptr},
                                          {"unk_token", nullptr},
                                          {"continuing_subword_prefix", nullptr},
                                          {"end_of_word_suffix", nullptr},
                                          {"fuse_unk", false},
                                          {"byte_fallback", false},
                                          {"ignore_merges", false},
                                          {"vocab", vocab},
                                          {"merges", Json::array()}}}});
    write_json(dir / "tokenizer_config.json", {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                               {"eos_token", kEndText},
                                               {"clean_up_tokenization_spaces", false},
                                               {"bhyt_tokenizer", "bytes"}});
    write_json(dir / "special_tokens_map.json", {{"eos_token", kEndText}});
    write_json(dir / "generation_config.json", {{"eos_token_id", kEndOfText}});
  }

 private:
  static void append(std::string_view text, std::vector<TokenId>& ids) {
    const auto* p = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), p, p + text.size());
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace bhyt
