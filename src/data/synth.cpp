#include "data/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "data/token_file.h"
#include "io/json.h"

namespace bhyt {

namespace {

// Zipf's law over n places: weight 1/(i+1), summing to 1.
template <int N>
const std::array<double, N>& zipf() {
  static const std::array<double, N> w = [] {
    std::array<double, N> p{};
    double sum = 0;
    for (int i = 0; i < N; ++i) sum += 1.0 / (i + 1);
    for (int i = 0; i < N; ++i) p[static_cast<std::size_t>(i)] = 1.0 / (i + 1) / sum;
    return p;
  }();
  return w;
}

template <int N>
std::size_t draw_zipf(Rng& rng) {
  double u = rng.uniform();
  std::size_t i = 0;
  for (; i + 1 < N && u >= zipf<N>()[i]; ++i) u -= zipf<N>()[i];
  return i;
}

double plogp(double p) { return p > 0 ? -p * std::log(p) : 0; }

constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

SynthLanguage::SynthLanguage(std::int64_t vocab, std::uint64_t seed) : vocab_(vocab), seed_(seed) {
  check_usage(vocab >= kSmallest && vocab <= kLargest, "vocab must be from {} to {}, got {}", kSmallest, kLargest, vocab);
  topics_ = std::clamp<std::int64_t>(vocab / 64, 2, 16);
  names_ = std::clamp<std::int64_t>(vocab / 32, 4, 64);
  words_ = vocab - topics_ - names_ - 3;
  Rng rng(seed, 1);
  const auto distinct = [](std::vector<TokenId>& list, std::size_t count, auto&& draw) {
    const std::size_t from = list.size();
    while (list.size() < from + count) {
      const TokenId w = draw();
      if (std::find(list.begin() + static_cast<std::ptrdiff_t>(from), list.end(), w) == list.end()) list.push_back(w);
    }
  };
  for (std::int64_t k = 0; k < topics_; ++k)
    distinct(topic_words_, kTopicWords, [&] { return static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(words_))); });
  // Word i is a successor with a weight of 1/(i + 8): a few words are common, most are rare.
  std::vector<double> cumulative;
  double sum = 0;
  for (std::int64_t i = 0; i < words_; ++i) cumulative.push_back(sum += 1.0 / static_cast<double>(i + 8));
  for (std::int64_t w = 0; w < words_; ++w)
    distinct(successors_, kSuccessors, [&] {
      const auto it = std::upper_bound(cumulative.begin(), cumulative.end(), rng.uniform() * sum);
      return static_cast<TokenId>(std::min(it - cumulative.begin(), words_ - 1));
    });
}

std::uint64_t SynthLanguage::fingerprint() const {
  Hash64 h;
  h.update("bhyt-synth-1");
  h.add(static_cast<std::uint64_t>(vocab_));
  h.add(seed_);
  return h.digest();
}

TokenId SynthLanguage::draw_word(Rng& rng, std::int64_t topic, TokenId previous) const {
  if (previous < 0 || rng.uniform() < kTopical) return topic_words_[index(topic) * kTopicWords + draw_zipf<kTopicWords>(rng)];
  return successors_[index(previous) * kSuccessors + draw_zipf<kSuccessors>(rng)];
}

void SynthLanguage::document(Rng& rng, std::vector<TokenId>& out) const {
  const auto topic = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(topics_)));
  const TokenId name = name_id(static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(names_))));
  out.push_back(topic_id(topic));
  out.push_back(name);
  for (TokenId previous = -1;;) {
    const double u = rng.uniform();
    if (u < kEnd) break;
    if (u < kEnd + kRefer) {
      out.push_back(reference());
      out.push_back(name);
      previous = -1;
    } else if (u < kEnd + kRefer + kPhrase) {
      out.push_back(phrase());
      for (int i = 0; i < kPhraseLength; ++i) out.push_back(previous = draw_word(rng, topic, previous));
      for (int i = 0; i < kPhraseLength * kRepeats; ++i) out.push_back(out[out.size() - kPhraseLength]);
    } else {
      out.push_back(previous = draw_word(rng, topic, previous));
    }
  }
  out.push_back(end_of_text());
}

double SynthLanguage::word_probability(std::int64_t topic, TokenId previous, TokenId word) const {
  const double q = previous < 0 ? 1 : kTopical;
  double p = 0;
  for (std::size_t i = 0; i < kTopicWords; ++i)
    if (topic_words_[index(topic) * kTopicWords + i] == word) p += q * zipf<kTopicWords>()[i];
  for (std::size_t i = 0; previous >= 0 && i < kSuccessors; ++i)
    if (successors_[index(previous) * kSuccessors + i] == word) p += (1 - q) * zipf<kSuccessors>()[i];
  return p;
}

double SynthLanguage::word_entropy(std::int64_t topic, TokenId previous) const {
  const auto* topical = &topic_words_[index(topic) * kTopicWords];
  double h = 0;
  for (std::size_t i = 0; i < kTopicWords; ++i) h += plogp(word_probability(topic, previous, topical[i]));
  for (std::size_t i = 0; previous >= 0 && i < kSuccessors; ++i) {
    const TokenId word = successors_[index(previous) * kSuccessors + i];
    if (std::find(topical, topical + kTopicWords, word) == topical + kTopicWords) h += plogp(word_probability(topic, previous, word));
  }
  return h;
}

double SynthLanguage::nats(std::span<const TokenId> d) const {
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  std::size_t at = 0;
  const auto next = [&] { return at < d.size() ? d[at++] : TokenId{-1}; };
  const std::int64_t topic = next() - words_, name = next() - words_ - topics_;
  if (topic < 0 || topic >= topics_ || name < 0 || name >= names_) return kImpossible;
  double total = std::log(static_cast<double>(topics_)) + std::log(static_cast<double>(names_));
  const auto choose = [&](double p) { total += p > 0 ? -std::log(p) : kImpossible; };
  for (TokenId previous = -1; std::isfinite(total);) {
    const TokenId t = next();
    if (t == end_of_text()) {
      choose(kEnd);
      return at == d.size() ? total : kImpossible;
    }
    if (t == reference()) {
      choose(kRefer);
      if (next() != name_id(name)) return kImpossible;
      previous = -1;
    } else if (t == phrase()) {
      choose(kPhrase);
      for (int i = 0; i < kPhraseLength; ++i) {
        const TokenId w = next();
        choose(word_probability(topic, previous, w));
        previous = w;
        if (!std::isfinite(total)) return total;
      }
      for (int i = 0; i < kPhraseLength * kRepeats; ++i)
        if (const TokenId w = next(); w < 0 || w != d[at - 1 - kPhraseLength]) return kImpossible;
    } else {
      choose(kWord * word_probability(topic, previous, t));
      previous = t;
    }
  }
  return total;
}

// ---- the entropy, exactly

// One word further: to = from · P. State words_ (the last) is "after NAME"; nothing leads there by a word.
void SynthLanguage::step(std::int64_t topic, const std::vector<double>& from, std::vector<double>& to) const {
  std::fill(to.begin(), to.end(), 0.0);
  double topical = from[index(words_)];
  for (std::size_t w = 0; w < index(words_); ++w) {
    topical += kTopical * from[w];
    for (std::size_t i = 0; i < kSuccessors; ++i)
      to[index(successors_[w * kSuccessors + i])] += (1 - kTopical) * zipf<kSuccessors>()[i] * from[w];
  }
  for (std::size_t i = 0; i < kTopicWords; ++i) to[index(topic_words_[index(topic) * kTopicWords + i])] += topical * zipf<kTopicWords>()[i];
}

// Adds what a document of this topic holds after its first two tokens. `visits` are the expected numbers of free choices made in each
// state: v = (1 + kRefer/kEnd)·δ(after NAME) + kWord·vP + kPhrase·vP^L. The total 1/kEnd is known, so the iteration starts with
// it, and what is left of the error shrinks by 1 − kTopical a round.
void SynthLanguage::add_topic(std::int64_t topic, Entropy& e) const {
  const std::size_t states = index(words_) + 1;
  const double restarts = 1 + kRefer / kEnd;
  std::vector<double> visits(states, (1 / kEnd - restarts) / static_cast<double>(words_)), walk(states), further(states), next(states);
  visits.back() = restarts;
  for (double change = 1; change > 1e-13 / kEnd;) {
    std::fill(next.begin(), next.end(), 0.0);
    next.back() = restarts;
    walk = visits;
    for (int i = 1; i <= kPhraseLength; ++i) {
      step(topic, walk, further);
      std::swap(walk, further);
      const double share = (i == 1 ? kWord : 0) + (i == kPhraseLength ? kPhrase : 0);
      for (std::size_t s = 0; share > 0 && s < states; ++s) next[s] += share * walk[s];
    }
    change = 0;
    for (std::size_t s = 0; s < states; ++s) change += std::abs(next[s] - visits[s]);
    std::swap(visits, next);
  }
  std::vector<double> entropy(states), length(states);
  for (std::int64_t w = 0; w < words_; ++w) {
    entropy[index(w)] = word_entropy(topic, static_cast<TokenId>(w));
    length[index(w)] = static_cast<double>(spelling(static_cast<TokenId>(w)).size() + 1);
  }
  entropy.back() = word_entropy(topic, -1);
  const auto dot = [&](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t s = 0; s < states; ++s) sum += a[s] * b[s];
    return sum;
  };
  walk = visits;
  for (int i = 0; i < kPhraseLength; ++i) {
    const double share = (i == 0 ? kWord : 0) + kPhrase;  // words chosen from here: outside phrases, and as the phrase's word i
    e.per_document += share * dot(walk, entropy) / static_cast<double>(topics_);
    step(topic, walk, further);
    std::swap(walk, further);
    const double written = (i == 0 ? kWord : 0) + kPhrase * (1 + kRepeats);
    e.bytes_per_document += written * dot(walk, length) / static_cast<double>(topics_);
  }
}

SynthLanguage::Entropy SynthLanguage::entropy() const {
  constexpr double choices = 1 / kEnd, references = kRefer / kEnd, phrases = kPhrase / kEnd, phrase_tokens = (1 + kRepeats) * kPhraseLength;
  Entropy e;
  const double title = std::log(static_cast<double>(topics_)) + std::log(static_cast<double>(names_));
  e.per_document = title + choices * (plogp(kEnd) + plogp(kRefer) + plogp(kPhrase) + plogp(kWord));
  e.tokens_per_document = 2 + choices + references + phrases * phrase_tokens;
  const auto mean_bytes = [&](TokenId first, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(spelling(static_cast<TokenId>(first + i)).size() + 1);
    return sum / static_cast<double>(n);
  };
  e.bytes_per_document = mean_bytes(topic_id(0), topics_) + (1 + references) * mean_bytes(name_id(0), names_) +
                         references * mean_bytes(reference(), 1) + phrases * mean_bytes(phrase(), 1);
  for (std::int64_t k = 0; k < topics_; ++k) add_topic(k, e);
  e.rate = e.per_document / e.tokens_per_document;
  // What a row that starts anywhere cannot see: topic, name, the place within a phrase, and the phrase's words.
  const double place = phrases / e.tokens_per_document, unseen = place * kRepeats * kPhraseLength * (kPhraseLength - 1);
  e.row_cut = title + phrase_tokens * plogp(place) + plogp(1 - phrase_tokens * place) + unseen * std::log(static_cast<double>(words_));
  return e;
}

// ---- text and files

// Syllables: one for the commonest 80 words, two for the next 6400, three for the rest. Topics in capitals, names capitalised.
std::string SynthLanguage::spelling(TokenId id) const {
  if (id == reference()) return "@";
  if (id == phrase()) return "&";
  const bool topic = id >= words_ && id < words_ + topics_, name = id >= words_ + topics_;
  std::int64_t n = name ? id - words_ - topics_ : topic ? id - words_ : id;
  std::string s;
  for (++n; n > 0; n = (n - 1) / 80) {
    const std::int64_t syllable = (n - 1) % 80;
    s += {"bcdfghjklmnprstv"[syllable / 5], "aeiou"[syllable % 5]};
  }
  const auto capital = [](char c) { return static_cast<char>(c - 'a' + 'A'); };
  if (topic) std::transform(s.begin(), s.end(), s.begin(), capital);
  if (name) s[0] = capital(s[0]);
  return s;
}

std::string SynthLanguage::text(std::span<const TokenId> document) const {
  std::string s;
  for (const TokenId t : document)
    if (t != end_of_text()) s.append(spelling(t)).push_back(' ');
  if (!s.empty()) s.pop_back();
  return s;
}

namespace {

struct Written {
  std::uint64_t tokens = 0, documents = 0;
};

// One split: whole documents until there are `least` tokens.
Written write_split(const SynthLanguage& language, const SynthOptions& o, const std::string& split, std::uint64_t stream,
                    std::int64_t least) {
  const std::string stem = (std::filesystem::path(o.out) / split).string();
  std::optional<TokenFileWriter> tokens;
  std::optional<OutputFile> lines;
  if (o.documents)
    lines.emplace(stem + ".jsonl");
  else
    tokens.emplace(stem + ".tok", TokenMeta{.vocab = static_cast<std::uint64_t>(language.vocab()),
                                            .end_of_text = language.end_of_text(),
                                            .fingerprint = language.fingerprint(),
                                            .kind = "synth"});
  std::optional<log::Progress> progress;
  if (o.progress) progress.emplace("synth " + split, static_cast<double>(least), "tokens");
  Rng rng(o.seed, stream);
  Written w;
  std::vector<TokenId> ids;
  std::string buffer;
  while (w.tokens < static_cast<std::uint64_t>(least)) {
    ids.clear();
    language.document(rng, ids);
    if (tokens) {
      tokens->append(ids.data(), ids.size());
      tokens->end_document();
    } else {
      buffer += nlohmann::json{{"text", language.text(ids)}}.dump() + "\n";
      if (buffer.size() > 1 << 20) {
        lines->write(buffer.data(), buffer.size());
        buffer.clear();
      }
    }
    w.tokens += ids.size();
    if (++w.documents % 256 == 0) {
      if (const int signal = o.interrupted ? o.interrupted() : 0) throw Interrupted(signal);
      if (progress) progress->update(static_cast<double>(w.tokens));
    }
  }
  if (tokens) {
    tokens->finish();
  } else {
    lines->write(buffer.data(), buffer.size());
    lines->commit();
  }
  if (progress) progress->update(static_cast<double>(w.tokens));
  return w;
}

std::string hex(std::uint64_t v) { return fmt::format("{:016x}", v); }

}  // namespace

std::vector<std::string> synth_files(const SynthOptions& o) {
  const std::string end = o.documents ? ".jsonl" : ".tok";
  std::vector<std::string> files;
  for (const std::string& name : {"train" + end, "valid" + end, std::string("info.json")})
    files.push_back((std::filesystem::path(o.out) / name).string());
  return files;
}

SynthResult synthesize(const SynthOptions& o) {
  check_usage(o.tokens > 0, "tokens must be greater than 0, got {}", o.tokens);
  using L = SynthLanguage;
  const L language(o.vocab, o.seed);
  const L::Entropy e = language.entropy();
  for (const std::string& file : synth_files(o)) (void)output_path(file);  // all of them, before the work on the first
  const Written train = write_split(language, o, "train", 2, o.tokens);
  const Written valid = write_split(language, o, "valid", 3, std::clamp<std::int64_t>(o.tokens / 10, 1, 1000000));
  const nlohmann::ordered_json info = {{"format", "bhyt-synth"},
                                       {"version", 1},
                                       {"entropy_rate", e.rate},
                                       {"entropy_rate_bytes", e.per_document / e.bytes_per_document},
                                       {"row_cut_nats", e.row_cut},
                                       {"entropy_per_document", e.per_document},
                                       {"tokens_per_document", e.tokens_per_document},
                                       {"bytes_per_document", e.bytes_per_document},
                                       {"vocab", o.vocab},
                                       {"end_of_text", language.end_of_text()},
                                       {"seed", o.seed},
                                       {"fingerprint", hex(language.fingerprint())},
                                       {"files", o.documents ? "jsonl" : "tok"},
                                       {"tokens", train.tokens},
                                       {"documents", train.documents},
                                       {"valid_tokens", valid.tokens},
                                       {"valid_documents", valid.documents},
                                       {"parameters",
                                        {{"topics", language.topics()},
                                         {"names", language.names()},
                                         {"words", language.words()},
                                         {"end", L::kEnd},
                                         {"refer", L::kRefer},
                                         {"phrase", L::kPhrase},
                                         {"topical", L::kTopical},
                                         {"phrase_length", L::kPhraseLength},
                                         {"phrase_repeats", L::kRepeats},
                                         {"successors", L::kSuccessors},
                                         {"topic_words", L::kTopicWords}}}};
  OutputFile out((std::filesystem::path(o.out) / "info.json").string());
  const std::string text = info.dump(2) + "\n";
  out.write(text.data(), text.size());
  out.commit();
  return {e, train.tokens, valid.tokens, train.documents, valid.documents};
}

std::optional<double> entropy_floor(const std::string& data_file, const std::string& tokenizer_kind) {
  std::ifstream in(std::filesystem::path(data_file).parent_path() / "info.json");
  const auto info = json_or_discarded<nlohmann::json>(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!info.is_object() || info.value("format", nlohmann::json()) != "bhyt-synth") return std::nullopt;
  const char* key = "entropy_rate_bytes";
  if (TokenFile::recognised(data_file)) {
    const TokenMeta meta = TokenFile(data_file).info().meta;
    if (meta.kind != "synth" || info.value("fingerprint", nlohmann::json()) != hex(meta.fingerprint)) return std::nullopt;
    key = "entropy_rate";
  } else if (tokenizer_kind != "bytes" || info.value("files", nlohmann::json()) != "jsonl") {
    return std::nullopt;
  }
  if (!info.contains(key) || !info[key].is_number()) return std::nullopt;
  return info[key].get<double>();
}

}  // namespace bhyt
