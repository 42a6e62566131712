#include "eval/score.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "core/check.h"

namespace bhyt {

namespace {

// What one passage asks of the engine. The first tokens of its endings stand behind the same prompt: one request scores them, and endings
// that have more ask for those behind that one.
class Asked {
 public:
  Asked(Engine& engine, const Passage& passage) : scores_(passage.endings.size()) {
    check(!passage.context.empty(), "[eval] expected a context of at least one token");
    for (const auto& ending : passage.endings) check(!ending.empty(), "[eval] expected endings of at least one token");
    std::vector<Request> requests;
    for (std::size_t i = 0; i < passage.endings.size(); ++i) {
      const bool leads = i % kTargetsOfAToken == 0;
      if (!leads && passage.endings[i].size() == 1) continue;
      requests.push_back(request(passage, i));
      endings_.emplace_back();
      if (leads)
        for (std::size_t k = i; k < std::min(i + kTargetsOfAToken, passage.endings.size()); ++k) ask(requests.back(), passage, k, 0);
      for (std::size_t k = 1; k < passage.endings[i].size(); ++k) ask(requests.back(), passage, i, k);
    }
    answers_ = engine.submit_all(std::move(requests));
  }

  std::int64_t requests() const { return std::ssize(answers_); }

  // False where the engine was interrupted.
  bool collect() {
    for (std::size_t r = 0; r < answers_.size(); ++r) {
      const Answered a = answers_[r].wait();
      if (a.finish == Finish::cancelled) return false;
      for (std::size_t k = 0; k < a.scores.size(); ++k) add(scores_[endings_[r][k]], a.scores[k]);
    }
    return true;
  }
  std::span<const EndingScore> scores() const { return scores_; }

 private:
  // Token k of an ending.
  void ask(Request& r, const Passage& p, std::size_t ending, std::size_t k) {
    r.targets.push_back({static_cast<std::int32_t>(p.context.size() + k) - 1, p.endings[ending][k]});
    endings_.back().push_back(ending);
  }
  static Request request(const Passage& p, std::size_t ending) {
    Request r{.prompt = p.context};
    r.prompt.insert(r.prompt.end(), p.endings[ending].begin(), p.endings[ending].end() - 1);
    return r;
  }
  static void add(EndingScore& to, const TokenScore& token) {
    const double x = token.logprob;
    check(std::isfinite(x), "the model gives no numbers: a token's log-probability is {}", x);
    to.sum += x;
    to.squares += x * x;
    to.greedy = to.greedy && token.greedy;
  }

  std::vector<EndingScore> scores_;
  std::vector<Answer> answers_;
  std::vector<std::vector<std::size_t>> endings_;  // of each request: which ending each target belongs to
};

}  // namespace

bool score_passages(Engine& engine, std::span<const Passage> passages,
                    const std::function<void(std::size_t, std::span<const EndingScore>)>& done) {
  constexpr std::int64_t kAhead = 1024;  // requests: enough to fill every step, few enough to be held
  std::deque<Asked> asked;
  std::int64_t waiting = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < passages.size(); ++i) {
    for (; next < passages.size() && (asked.empty() || waiting < kAhead); ++next) {
      asked.emplace_back(engine, passages[next]);
      waiting += asked.back().requests();
    }
    if (!asked.front().collect()) return false;
    done(i, asked.front().scores());
    waiting -= asked.front().requests();
    asked.pop_front();
  }
  return true;
}

}  // namespace bhyt
