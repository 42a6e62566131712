#include "eval/rolling.h"

#include "core/check.h"
#include "eval/detokenize.h"
#include "eval/windows.h"

namespace bhyt {

namespace {

TokenId first_token(const Tokenizer& tokenizer) {
  const auto id = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
  check_usage(id.has_value(), "the tokenizer has no token that starts a text");
  return *id;
}

}  // namespace

bool score_rolling(Engine& engine, const Tokenizer& tokenizer, std::span<const std::string> pages, const Reading& reading,
                   const std::function<void(std::size_t, const RollingDocument&)>& done, const Sharing& ranks) {
  TokenId first = 0;
  ranks.together([&] {
    check_usage(reading.length >= 1, "expected at least 1 token to be read at a time, got {}", reading.length);
    first = first_token(tokenizer);
  });
  WindowScorer scorer(engine, ranks);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    RollingDocument document{.text = detokenize(pages[i]), .words = count_words(pages[i]), .bytes = std::ssize(pages[i])};
    std::vector<TokenId> ids{first};
    tokenizer.encode(document.text, ids, {.special = true, .adds = reading.bos});
    document.tokens = std::ssize(ids) - 1;
    const auto take = [&done, i, document = std::move(document)](const EndingScore& all) mutable {
      document.loglikelihood = all.sum;
      done(i, document);
    };
    if (!scorer.add(ids, rolling_windows(std::ssize(ids), reading.length), take)) return false;
  }
  return scorer.finish();
}

}  // namespace bhyt
