#include "eval/perplexity.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <numbers>

#include "core/check.h"
#include "core/log.h"
#include "data/pipeline.h"
#include "data/text_chunks.h"
#include "eval/windows.h"
#include "io/format.h"

namespace bhyt {

namespace {

constexpr int kEncoders = 2;  // threads: no model keeps up with them

struct EncodedText {
  std::int64_t line = 0;
  std::vector<TokenId> ids;
};

struct EncodedChunk : TextChunk {
  std::vector<EncodedText> texts;
  std::exception_ptr error;  // behind the texts: nobody hears of it where a limit ends before
};

// Texts as ids, read ahead of the model.
class Source {
 public:
  Source(const std::vector<InputFile>& files, const Tokenizer& tokenizer, const PerplexityOptions& options)
      : chunks_(files), tokenizer_(tokenizer), key_(options.key), adds_(options.bos) {
    if (options.mode != PerplexityMode::packed) return;
    adds_ = false;
    end_ = tokenizer.end_of_text();
    check_usage(end_.has_value(), "packed texts are kept apart by the end-of-text token, and the tokenizer has none");
  }

  void stop() { stopped_ = true; }
  bool next(EncodedChunk& chunk) {
    chunk.error = nullptr;
    if (stopped_) return false;
    try {
      return chunks_.next(chunk);
    } catch (...) {
      stop();
      chunk.error = std::current_exception();
      return true;
    }
  }
  void encode(EncodedChunk& chunk) const {
    chunk.texts.clear();
    if (chunk.error) return;
    try {
      for_each_text(chunk, key_, [&](std::string_view text, std::int64_t line) {
        std::vector<TokenId>& ids = chunk.texts.emplace_back(EncodedText{.line = line}).ids;
        tokenizer_.encode(text, ids, {.special = true, .adds = adds_});
        if (end_) ids.push_back(*end_);
      });
    } catch (...) {
      chunk.error = std::current_exception();
    }
  }

 private:
  TextChunkReader chunks_;
  const Tokenizer& tokenizer_;
  std::string key_;
  bool adds_;
  std::optional<TokenId> end_;
  std::atomic<bool> stopped_ = false;
};

// A part of all there is to do, for the progress line.
struct Stretch {
  double from = 0, to = 0;
  double at(std::int64_t done, std::size_t of) const { return from + (to - from) * static_cast<double>(done) / static_cast<double>(of); }
};

class Job {
 public:
  Job(Engine& engine, const Tokenizer& tokenizer, const PerplexityOptions& options, const std::function<void(const ScoredText&)>& each,
      double bytes)
      : tokenizer_(tokenizer),
        options_(options),
        each_(each),
        scorer_(engine, options.ranks),
        total_(options.limit > 0 ? static_cast<double>(options.limit) : bytes) {
    if (options.progress) progress_.emplace("scored", total_, options.limit > 0 ? "texts" : "B");
  }

  // False when nothing more is wanted.
  bool take(const EncodedChunk& chunk) {
    if (!wanted()) return false;  // how many were read ahead by then is another matter on every rank
    for (std::size_t i = 0; i < chunk.texts.size() && wanted(); ++i) add(chunk, chunk.texts[i], stretch_of(chunk, i));
    options_.ranks.together([&] {
      if (wanted() && chunk.error) std::rethrow_exception(chunk.error);
    });
    return wanted();
  }

  void finish() {
    if (!result.interrupted) result.interrupted = !scorer_.finish();
    if (!progress_ || result.costs.scored == 0) return;
    if (!result.interrupted) progress_->update(options_.limit > 0 ? static_cast<double>(result.documents) : total_);
    progress_->finish(ppl_so_far());
  }

  Perplexity result;

 private:
  bool wanted() const { return !result.interrupted && (options_.limit == 0 || result.documents < options_.limit); }

  Stretch stretch_of(const EncodedChunk& chunk, std::size_t text) const {
    if (options_.limit > 0) return {static_cast<double>(result.documents), static_cast<double>(result.documents + 1)};
    const Stretch whole{static_cast<double>(chunk.begun), static_cast<double>(chunk.consumed)};
    const auto i = static_cast<std::int64_t>(text);
    return {whole.at(i, chunk.texts.size()), whole.at(i + 1, chunk.texts.size())};
  }
  std::string ppl_so_far() const { return fmt::format("ppl {:.6g}", result.costs.ppl()); }

  void add(const EncodedChunk& chunk, const EncodedText& text, const Stretch& stretch) {
    ++result.documents;
    result.tokens += std::ssize(text.ids);
    if (options_.mode == PerplexityMode::windows)
      score(text.ids, {.number = number_++, .file = chunk.file->path, .line = text.line}, stretch);
    else
      join(text.ids, stretch);
  }

  void join(const std::vector<TokenId>& ids, const Stretch& stretch) {
    const std::int64_t block = options_.window, before = std::ssize(joined_);
    joined_.insert(joined_.end(), ids.begin(), ids.end());
    std::int64_t at = 0;
    for (double from = stretch.from; std::ssize(joined_) - at >= block && !result.interrupted; at += block) {
      const double to = stretch.at(at + block - before, ids.size());
      score(std::span(joined_).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(block)), {.number = number_++}, {from, to});
      from = to;
    }
    joined_.erase(joined_.begin(), joined_.begin() + at);
  }

  void score(std::span<const TokenId> ids, ScoredText text, const Stretch& stretch) {
    const std::vector<Window> windows = sliding_windows(std::ssize(ids), options_.window, options_.stride);
    text.tokens = std::ssize(ids);
    for (const Window& w : windows) {
      ++text.costs.windows;
      text.costs.scored += w.scored();
      for (std::int64_t i = w.first; i < w.end; ++i)
        text.costs.bytes += std::ssize(tokenizer_.piece(ids[static_cast<std::size_t>(i)], false));
    }
    const auto step = [this, stretch, size = ids.size()](const Window& w, const EndingScore& s) {
      result.costs.add({.windows = 1, .scored = w.scored(), .sum = -s.sum, .squares = s.squares});
      if (progress_) progress_->update(stretch.at(w.end, size), ppl_so_far());
    };
    const auto done = [this, text = std::move(text)](const EndingScore& all) mutable {
      text.costs.sum = -all.sum;
      text.costs.squares = all.squares;
      result.costs.bytes += text.costs.bytes;
      if (each_) each_(text);
    };
    result.interrupted = !scorer_.add(ids, windows, done, step);
  }

  const Tokenizer& tokenizer_;
  const PerplexityOptions& options_;
  const std::function<void(const ScoredText&)>& each_;
  WindowScorer scorer_;
  double total_;  // of the progress: texts where they are limited, else bytes of the files
  std::optional<log::Progress> progress_;
  std::vector<TokenId> joined_;  // what is not yet a block
  std::int64_t number_ = 0;
};

}  // namespace

void TokenCosts::add(const TokenCosts& more) {
  windows += more.windows;
  scored += more.scored;
  bytes += more.bytes;
  sum += more.sum;
  squares += more.squares;
}

double TokenCosts::nll() const { return sum / static_cast<double>(scored); }
double TokenCosts::ppl() const { return std::exp(nll()); }
std::optional<double> TokenCosts::nll_stderr() const {
  if (scored < 2) return std::nullopt;
  const auto n = static_cast<double>(scored);
  return std::sqrt(std::max(0.0, squares / n - nll() * nll()) / (n - 1));
}
std::optional<double> TokenCosts::ppl_stderr() const {
  const std::optional<double> e = nll_stderr();
  return e ? std::optional(*e * ppl()) : std::nullopt;
}
std::optional<double> TokenCosts::bits_per_byte() const {
  return bytes > 0 ? std::optional(sum / (static_cast<double>(bytes) * std::numbers::ln2)) : std::nullopt;
}

void check_perplexity(const PerplexityOptions& o) {
  check_usage(!o.inputs.empty(), "nothing to score: name files, folders or globs");
  check_usage(o.window >= 2, "a window must hold at least 2 tokens, of which the first is not scored; got {}", o.window);
  check_usage(o.stride >= 1 && o.stride <= o.window, "the stride must be from 1 to the window, {}, got {}", o.window, o.stride);
  check_usage(o.mode != PerplexityMode::packed || o.stride == o.window,
              "packed blocks do not overlap: expected a stride of {} like the window, got {}", o.window, o.stride);
  check_usage(o.limit >= 0, "the limit must be at least 0 (0 = all texts), got {}", o.limit);
}

Perplexity score_files(Engine& engine, const Tokenizer& tokenizer, const PerplexityOptions& options,
                       const std::function<void(const ScoredText&)>& each) {
  std::vector<InputFile> files;
  std::optional<Source> source;
  options.ranks.together([&] {
    check_perplexity(options);
    files = find_inputs(options.inputs);
    source.emplace(files, tokenizer, options);
  });
  double bytes = 0;
  for (const InputFile& f : files) bytes += static_cast<double>(f.bytes);
  Job job(engine, tokenizer, options, each, bytes);
  ordered_pipeline<EncodedChunk>(
      kEncoders, [&](EncodedChunk& c) { return source->next(c); }, [&](EncodedChunk& c) { source->encode(c); },
      [&](const EncodedChunk& c) {
        if (!job.take(c)) source->stop();
      });
  job.finish();
  const Perplexity& r = job.result;
  options.ranks.together([&] {
    check(r.interrupted || r.costs.scored > 0, "no token can be scored: {} texts with {} tokens in all {}", grouped(r.documents),
          grouped(r.tokens),
          options.mode == PerplexityMode::packed ? fmt::format("do not fill a block of {}", grouped(options.window))
                                                 : "hold nothing but first ones, which nothing stands before");
  });
  return r;
}

}  // namespace bhyt
