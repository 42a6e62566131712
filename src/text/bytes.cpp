// The built-in tokenizer: 256 bytes and the end-of-text token 256.
#include <filesystem>

#include "core/check.h"
#include "text/spec.h"
#include "text/write.h"

namespace bhyt {

namespace {

constexpr TokenId kEndOfText = 256;
constexpr std::string_view kEndText = "<|endoftext|>";

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(std::map<std::string, std::string> companions) : companions_(std::move(companions)) {}
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
  void save(const std::filesystem::path& dir) const override { write_tokenizer(spec(), dir); }
  TokenizerSpec spec() const override {
    TokenizerSpec spec;
    for (int b = 0; b < 256; ++b) set_piece(spec, b, std::string(1, static_cast<char>(b)), PieceKind::text);
    set_piece(spec, kEndOfText, std::string(kEndText), PieceKind::added);
    spec.added.push_back({.id = kEndOfText, .content = std::string(kEndText)});
    spec.eos = spec.end_of_text = kEndOfText;
    spec.stops = stops();
    spec.companions = companions_;
    return spec;
  }

 private:
  static void append(std::string_view text, std::vector<TokenId>& ids) {
    const auto* p = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), p, p + text.size());
  }

  std::map<std::string, std::string> companions_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer(std::map<std::string, std::string> companions) {
  return std::make_unique<ByteTokenizer>(std::move(companions));
}

}  // namespace bhyt
