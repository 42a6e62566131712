#include "generate/answer.h"

#include <utility>

#include "core/error.h"
#include "machine/machine.h"

namespace bhyt {

const char* name_of(Finish finish) {
  switch (finish) {
    case Finish::stop: return "stop";
    case Finish::length: return "length";
    case Finish::cancelled: return "cancelled";
  }
  return "?";
}

std::vector<std::int32_t> Answered::ids() const {
  std::vector<std::int32_t> ids;
  for (const AnswerToken& t : tokens) ids.push_back(t.id);
  return ids;
}

void AnswerState::waits(std::shared_ptr<std::atomic<bool>> some_ended) {
  const std::lock_guard lock(mutex_);
  some_ended_ = std::move(some_ended);
  if (over_) *some_ended_ = true;
}

void AnswerState::begin(std::int64_t shared_tokens) {
  const std::lock_guard lock(mutex_);
  some_ended_.reset();
  if (began_ > 0) return;  // computed again after an eviction
  began_ = seconds();
  all_.shared_tokens = shared_tokens;
}

bool AnswerState::push(const AnswerToken& token) {
  const std::lock_guard lock(mutex_);
  if (over_) return false;
  if (first_ == 0) first_ = seconds();
  all_.tokens.push_back(token);
  changed_.notify_all();
  return true;
}

void AnswerState::push(const TokenScore& score) {
  const std::lock_guard lock(mutex_);
  if (!over_) all_.scores.push_back(score);
}

void AnswerState::finish(Finish how) { end("", how); }
void AnswerState::fail(const std::string& reason) { end(reason, Finish::cancelled); }

void AnswerState::end(const std::string& error, Finish how) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  error_ = error;
  all_.finish = how;
  const double now = seconds(), began = began_ > 0 ? began_ : now, first = first_ > 0 ? first_ : now;
  all_.prompt_seconds = first - began;
  all_.decode_seconds = now - first;
  over_ = true;
  if (some_ended_) *some_ended_ = true;
  changed_.notify_all();
}

void AnswerState::throw_if_failed() const {
  if (!error_.empty()) throw Error(error_);
}

std::optional<AnswerToken> AnswerState::token(std::size_t i) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over_ || i < all_.tokens.size(); });
  if (i < all_.tokens.size()) return all_.tokens[i];
  throw_if_failed();
  return std::nullopt;
}

Answered AnswerState::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over_.load(); });
  throw_if_failed();
  return all_;
}

Answer& Answer::operator=(Answer&& other) noexcept {
  if (this == &other) return *this;
  cancel();
  state_ = std::move(other.state_);
  read_ = other.read_;
  return *this;
}

}  // namespace bhyt
