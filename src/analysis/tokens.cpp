#include "analysis/tokens.h"

#include <algorithm>

#include "core/check.h"
#include "data/text_chunks.h"
#include "data/token_file.h"

namespace bhyt::analysis {

namespace {

constexpr std::size_t kBytesPerToken = 64;  // more of a text than this for each token that is wanted is not encoded

// The beginning of a text, cut between characters.
std::string_view beginning(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0u) == 0x80u) --bytes;
  return text.substr(0, bytes);
}

void read_token_file(const std::string& path, const Tokenizer* tokenizer, std::size_t wanted, std::vector<TokenId>& out) {
  const TokenFile file(path);
  const TokenMeta& meta = file.info().meta;
  check(meta.fingerprint == 0 || !tokenizer || meta.fingerprint == tokenizer->fingerprint(),
        "{} was packed with another tokenizer ({}) than the model's ({})", path, meta.kind, tokenizer ? tokenizer->kind() : "");
  const std::size_t n = std::min<std::size_t>(wanted - out.size(), file.tokens()), before = out.size();
  out.resize(before + n);
  file.read(0, n, out.data() + before);
}

void read_text_files(const std::vector<std::string>& paths, const std::string& key, const Tokenizer& tokenizer, std::size_t wanted,
                     std::vector<TokenId>& out) {
  const std::vector<InputFile> files = find_inputs(paths);
  TextChunkReader reader(files);
  const auto end = tokenizer.end_of_text();
  for (TextChunk chunk; out.size() < wanted && reader.next(chunk);)
    for_each_text(chunk, key, [&](std::string_view text, std::int64_t) {
      if (out.size() >= wanted) return;
      tokenizer.encode(beginning(text, kBytesPerToken * (wanted - out.size())), out, {.special = false, .adds = false});
      if (end) out.push_back(*end);
    });
}

}  // namespace

bool has_text(const TokenSource& source) {
  return !std::ranges::all_of(expand_globs(source.inputs), [](const std::string& path) { return TokenFile::recognised(path); });
}

std::vector<TokenId> read_tokens(const TokenSource& source, const Tokenizer* tokenizer, std::int64_t vocab) {
  check(tokenizer || !has_text(source), "[read_tokens] expected a tokenizer for text");
  const auto wanted = static_cast<std::size_t>(source.tokens);
  std::vector<TokenId> out;
  for (const std::string& path : expand_globs(source.inputs)) {
    if (out.size() >= wanted) break;
    if (TokenFile::recognised(path))
      read_token_file(path, tokenizer, wanted, out);
    else
      read_text_files({path}, source.key, *tokenizer, wanted, out);
  }
  out.resize(std::min(out.size(), wanted));
  for (const TokenId id : out) check(id >= 0 && id < vocab, "the data hold the token {}, beyond the model's vocabulary of {}", id, vocab);
  return out;
}

}  // namespace bhyt::analysis
