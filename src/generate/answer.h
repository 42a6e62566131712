// What an engine answers: tokens as they come, or all at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace bhyt {

enum class Finish : std::uint8_t { stop, length, cancelled };
const char* name_of(Finish finish);

struct AnswerToken {
  std::int32_t id = 0;
  float logprob = 0;  // where asked for
};

// Of a scored token: log p of what follows it, and whether that is the likeliest.
struct TokenScore {
  float logprob = 0;
  bool greedy = false;
};

struct Answered {
  std::vector<AnswerToken> tokens;
  std::vector<TokenScore> scores;  // of the scored tokens, in order
  Finish finish = Finish::length;
  std::int64_t shared_tokens = 0;  // of the prompt, that were computed before
  double prompt_seconds = 0, decode_seconds = 0;

  std::vector<std::int32_t> ids() const;
};

// Both sides of an answer: the engine writes, a reader waits. Bounded by what was asked for, so that the engine never waits for a reader.
class AnswerState {
 public:
  bool over() const { return over_; }
  void waits(std::shared_ptr<std::atomic<bool>> some_ended);  // until it begins; some_ended becomes true if it ends before
  void begin(std::int64_t shared_tokens);                     // work on the prompt begins, or begins again
  bool push(const AnswerToken& token);                        // false where it is over
  void push(const TokenScore& score);
  void finish(Finish how);
  void fail(const std::string& reason);

  std::optional<AnswerToken> token(std::size_t i);  // waits for it; none when the answer is over before. Throws when it failed
  Answered wait();

 private:
  void end(const std::string& error, Finish how);
  void throw_if_failed() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> over_ = false;
  std::string error_;
  std::shared_ptr<std::atomic<bool>> some_ended_;  // while it waits
  Answered all_;
  double began_ = 0, first_ = 0;
};

// A reader's handle. When it goes away the request is cancelled.
class Answer {
 public:
  explicit Answer(std::shared_ptr<AnswerState> state) : state_(std::move(state)) {}
  Answer(Answer&&) = default;
  Answer& operator=(Answer&& other) noexcept;
  ~Answer() { cancel(); }

  std::optional<AnswerToken> next() {  // waits; none at the end. Throws Error when the request failed
    auto token = state_->token(read_);
    read_ += token.has_value();
    return token;
  }
  Answered wait() { return state_->wait(); }  // until the end; all of it, whatever was read before
  bool over() const { return state_->over(); }
  // Ends the answer with what there is. The engine gives its pages back before its next step.
  void cancel() {
    if (state_) state_->finish(Finish::cancelled);
  }

 private:
  std::shared_ptr<AnswerState> state_;
  std::size_t read_ = 0;
};

}  // namespace bhyt
