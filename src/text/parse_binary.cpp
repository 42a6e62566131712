// Llama-3's tiktoken ranks (tokenizer.model) and llama2.c's tokenizer.bin.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include "core/check.h"
#include "text/bpe.h"
#include "text/parse.h"

namespace bhyt {

namespace {

constexpr std::size_t kLongestPiece = 1024;  // real ones stay below 130; longer ones would only cost time

std::string base64(std::string_view text, std::size_t line) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto bad = [&] { fail(fmt::format("[tiktoken] line {}: expected base64, got {:?}", line, text.substr(0, 60))); };
  if (text.empty() || text.size() % 4 != 0) bad();
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string out;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const std::size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) bad();
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    out.push_back(static_cast<char>(bits >> have & 0xFF));
  }
  return out;
}

// The names Meta gives the 256 ids after the ranks (Llama 3.1; the two of Llama 3 that differ were reserved there).
std::string llama3_special(std::size_t i) {
  switch (i) {
    case 0: return "<|begin_of_text|>";
    case 1: return "<|end_of_text|>";
    case 4: return "<|finetune_right_pad_id|>";
    case 6: return "<|start_header_id|>";
    case 7: return "<|end_header_id|>";
    case 8: return "<|eom_id|>";
    case 9: return "<|eot_id|>";
    case 10: return "<|python_tag|>";
    default: break;
  }
  const std::size_t named_before = i < 4 ? 2 : i < 6 ? 3 : 8;
  return fmt::format("<|reserved_special_token_{}|>", i - named_before);
}

// Reads little-endian numbers and strings one after the other.
class Bytes {
 public:
  explicit Bytes(std::string_view data) : data_(data) {}
  bool empty() const { return at_ == data_.size(); }
  std::string_view take(std::size_t n, const char* what) {
    check(n <= data_.size() - at_, "[llama2.c] expected {} at byte {}, got the end of the file", what, at_);
    at_ += n;
    return data_.substr(at_ - n, n);
  }
  std::uint32_t u32(const char* what) {
    const std::string_view b = take(4, what);
    std::uint32_t v = 0;
    for (int i = 3; i >= 0; --i) v = v << 8 | static_cast<unsigned char>(b[static_cast<std::size_t>(i)]);
    return v;
  }

 private:
  std::string_view data_;
  std::size_t at_ = 0;
};

}  // namespace

TokenizerSpec read_tiktoken(std::string_view model, std::size_t count) {
  TokenizerSpec spec;
  for (std::size_t line = 1; !model.empty(); ++line) {
    const std::size_t end = std::min(model.find('\n'), model.size());
    std::string_view text = model.substr(0, end);
    model.remove_prefix(std::min(end + 1, model.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    const std::size_t space = text.find(' ');
    TokenId rank = -1;
    const char* const stop = text.data() + text.size();
    const auto [used, error] = space == text.npos ? std::from_chars_result{text.data(), std::errc::invalid_argument}
                                                  : std::from_chars(text.data() + space + 1, stop, rank);
    check(error == std::errc() && used == stop, "[tiktoken] line {}: expected base64, a space and a rank, got {:?}", line,
          text.substr(0, 60));
    check(rank == std::ssize(spec.pieces), "[tiktoken] line {}: expected rank {}, got {}", line, spec.pieces.size(), rank);
    std::string piece = base64(text.substr(0, space), line);
    check(piece.size() <= kLongestPiece, "[tiktoken] line {}: expected at most {} bytes, got {}", line, kLongestPiece, piece.size());
    set_piece(spec, rank, std::move(piece), PieceKind::text);
  }
  // The file names no pattern and no special tokens: they are known for Llama-3 alone, and a guess would give wrong ids.
  check(spec.pieces.size() == count, "[tiktoken] expected the {} ranks of Llama-3, got {}", count, spec.pieces.size());
  const PieceTable pieces(spec);
  for (std::size_t i = 0; i < count; ++i)
    check(pieces.find(spec.pieces[i]) == static_cast<TokenId>(i), "[tiktoken] rank {}: expected a token not seen before, got {:?} again", i,
          spec.pieces[i]);
  for (int b = 0; b < 256; ++b)  // else some text would have no ids
    check(pieces.find(std::string(1, static_cast<char>(b))) >= 0, "[tiktoken] expected a token for every byte, got none for 0x{:02X}", b);
  std::vector<std::int64_t> ranks(count);
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<std::int64_t>(i);
  spec.merges = merges_from_ranks(spec, ranks);
  spec.pattern = Pattern::llama3;
  spec.ignore_merges = true;
  for (std::size_t i = 0; i < 256; ++i) add(spec, {}, {.id = static_cast<TokenId>(count + i), .content = llama3_special(i)});
  spec.before = {static_cast<TokenId>(count)};
  return spec;
}

TokenizerSpec read_llama2c(std::string_view file) {
  Bytes in(file);
  const std::uint32_t longest = in.u32("the longest piece's length");
  check(longest >= 1 && longest <= kLongestPiece, "[llama2.c] expected the longest piece to have 1 to {} bytes, got {}", kLongestPiece,
        longest);
  TokenizerSpec spec;
  spec.style = BpeStyle::byte_fallback;
  std::vector<float> scores;
  std::set<std::string_view> seen;
  while (!in.empty()) {
    const auto id = static_cast<TokenId>(scores.size());
    const float score = std::bit_cast<float>(in.u32("a score"));
    check(!std::isnan(score), "[llama2.c] piece {}: expected a score, got NaN", id);
    const std::uint32_t size = in.u32("a piece's length");
    check(size >= 1 && size <= longest, "[llama2.c] piece {}: expected 1 to {} bytes, got {}", id, longest, size);
    const std::string_view text = in.take(size, "a piece");
    check(seen.insert(text).second, "[llama2.c] piece {}: expected a piece not seen before, got {:?} again", id, text);
    scores.push_back(score);
    const int byte = byte_token(text);
    const bool right = id >= 3 && id < 259 ? byte == id - 3 : byte < 0;
    check(right, "[llama2.c] piece {}: expected <0x00> to <0xFF> as pieces 3 to 258 and nowhere else, got {:?}", id, text);
    set_piece(spec, id, byte >= 0 ? std::string(1, static_cast<char>(byte)) : std::string(text),
              byte >= 0 ? PieceKind::byte : PieceKind::text);
  }
  check(scores.size() >= 259, "[llama2.c] expected 3 special pieces, 256 bytes and more, got {} pieces", scores.size());

  // The best score merges first; equal scores go from left to right, which equal ranks say.
  std::vector<float> order(scores.begin() + 259, scores.end());
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<std::int64_t> ranks(scores.size(), -1);
  for (std::size_t i = 259; i < scores.size(); ++i)
    ranks[i] = std::lower_bound(order.begin(), order.end(), scores[i], std::greater<>()) - order.begin();
  spec.merges = merges_from_ranks(spec, ranks);

  const char* const names[] = {"<unk>", "<s>", "</s>"};
  for (TokenId id = 0; id < 3; ++id) {  // the file has line breaks around some of the names
    set_piece(spec, id, names[id], PieceKind::text);
    add(spec, {{names[id], id}}, {.id = id, .content = names[id]});
  }
  spec.unk = 0;
  spec.bos = 1;
  spec.eos = 2;
  spec.before = {1};
  spec.prefix = Prefix::every;
  spec.prefix_unless_space = false;
  return spec;
}

}  // namespace bhyt
