// A generated language whose entropy rate is known: everything that decides the next token can be read off the document so far,
// so the true conditional distributions are computable, and so is their average (docs/data.md derives it).
//
//     document  = TOPIC NAME body END
//     body      = one free choice after another:  END | REF NAME (the document's own) | PHRASE w₁…w_L, then w₁…w_L again and again | a word
//     word      ~ q · T_topic + (1 − q) · S_previous word    (T_topic alone after NAME)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/rng.h"
#include "text/tokenizer.h"

namespace bhyt {

class SynthLanguage {
 public:
  // The free choices and the shapes of the lists; probabilities are powers of two, so that every platform draws the same text.
  static constexpr double kEnd = 1.0 / 128, kRefer = 1.0 / 16, kPhrase = 1.0 / 32, kWord = 1 - kEnd - kRefer - kPhrase, kTopical = 1.0 / 4;
  static constexpr int kPhraseLength = 4, kRepeats = 3, kSuccessors = 8, kTopicWords = 24;
  static constexpr std::int64_t kSmallest = 64, kLargest = 65536, kDefault = 256;

  SynthLanguage(std::int64_t vocab, std::uint64_t seed);  // UsageError outside kSmallest…kLargest

  std::int64_t vocab() const { return vocab_; }
  std::int64_t topics() const { return topics_; }
  std::int64_t names() const { return names_; }
  std::int64_t words() const { return words_; }
  TokenId end_of_text() const { return static_cast<TokenId>(vocab_ - 1); }
  std::uint64_t fingerprint() const;

  void document(Rng& rng, std::vector<TokenId>& out) const;   // appends one
  double nats(std::span<const TokenId> document) const;       // −ln p of a whole document under the language; +∞: not one of it
  std::string text(std::span<const TokenId> document) const;  // words and spaces; the end has no text

  // Exact, up to the rounding of doubles.
  struct Entropy {
    double rate = 0;                 // nats per token, the end included
    double per_document = 0;         // nats
    double tokens_per_document = 0;  // expected
    double bytes_per_document = 0;   // of text(), plus one for the end
    double row_cut = 0;              // at most this many nats are lost per row that starts inside a document
  };
  Entropy entropy() const;

 private:
  double word_probability(std::int64_t topic, TokenId previous, TokenId word) const;  // previous −1: after NAME
  double word_entropy(std::int64_t topic, TokenId previous) const;
  TokenId draw_word(Rng& rng, std::int64_t topic, TokenId previous) const;
  std::string spelling(TokenId id) const;
  void step(std::int64_t topic, const std::vector<double>& from, std::vector<double>& to) const;
  void add_topic(std::int64_t topic, Entropy& e) const;

  TokenId reference() const { return static_cast<TokenId>(vocab_ - 3); }
  TokenId phrase() const { return static_cast<TokenId>(vocab_ - 2); }
  TokenId topic_id(std::int64_t k) const { return static_cast<TokenId>(words_ + k); }
  TokenId name_id(std::int64_t n) const { return static_cast<TokenId>(words_ + topics_ + n); }

  std::int64_t vocab_, topics_, names_, words_;
  std::uint64_t seed_;
  std::vector<TokenId> topic_words_;  // [topics, kTopicWords], the likeliest first
  std::vector<TokenId> successors_;   // [words, kSuccessors]
};

struct SynthOptions {
  std::string out;  // a folder
  std::int64_t tokens = 0;
  std::int64_t vocab = SynthLanguage::kDefault;
  std::uint64_t seed = 0;
  bool documents = false;  // train.jsonl and valid.jsonl instead of .tok
  bool progress = true;
  std::function<int()> interrupted{};  // as in PackOptions
};

struct SynthResult {
  SynthLanguage::Entropy entropy;
  std::uint64_t train_tokens = 0, valid_tokens = 0, train_documents = 0, valid_documents = 0;
};

std::vector<std::string> synth_files(const SynthOptions& options);  // what synthesize writes

// Writes train, valid (a tenth, at most a million tokens) and info.json: whole documents, at least as many tokens as asked for.
SynthResult synthesize(const SynthOptions& options);

// The entropy rate in nats per token of data that synthesize() wrote (a .tok file, or a .jsonl file read with the built-in
// byte tokenizer), from the info.json beside it; nothing for any other data.
std::optional<double> entropy_floor(const std::string& data_file, const std::string& tokenizer_kind);

}  // namespace bhyt
