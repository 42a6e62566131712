// Which tokens of which sequences the next step computes. Knows pages by number alone: nothing here needs a model.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "generate/answer.h"
#include "generate/page_pool.h"
#include "generate/request.h"

namespace bhyt {

// A request at work.
struct Sequence {
  Sequence(Request asked, std::shared_ptr<AnswerState> to);

  Request request;
  std::shared_ptr<AnswerState> answer;
  std::vector<std::int32_t> tokens;  // the prompt and what is known of the answer
  std::int64_t flying = 0;           // tokens more that were chosen but are not here yet
  std::int32_t feed = 0;             // the row of the last step in which the last of them was chosen
  std::int64_t computed = 0;         // tokens whose keys and values are in the pages, or will be when the steps that were given are done
  std::int64_t scored = 0;           // targets whose scores are here or on their way, kept when it is evicted
  std::vector<std::int32_t> pages;
  std::int64_t known_pages = 0;  // of those, from the start: in the pool's tree
  std::int32_t begun_by = -1;    // what the next step has to copy (Part)
  std::int32_t slot = -1;        // among those that run
  bool seen_is_fresh = true;     // the slot does not know yet which tokens the sequence has

  std::int64_t length() const { return std::ssize(tokens) + flying; }
  std::int64_t made() const { return length() - std::ssize(request.prompt); }            // new tokens
  std::int64_t most() const { return std::ssize(request.prompt) + request.max_tokens; }  // tokens in the end
  std::int64_t left() const;                                                             // to be computed now
  std::int64_t targets_before(std::int64_t token) const;                                 // how many follow tokens before this one
};

class Scheduler {
 public:
  struct Limits {
    std::int64_t tokens = 1, sequences = 1, pages = 1;  // tokens and sequences of a step
    bool copies = false;                                // whether the first positions of a page can be copied
  };
  explicit Scheduler(const Limits& limits);

  void add(std::shared_ptr<Sequence> sequence);

  // The next step: tokens [first, first + count) of sequences. Sequences that are continued come first, then what is left of prompts, then
  // requests that begin, the oldest first. Without a page for a token the youngest sequence gives its pages back and is computed again
  // later.
  struct Part {
    std::shared_ptr<Sequence> sequence;
    std::int64_t first = 0, count = 1;
    bool chooses = false;        // a token behind its last one
    std::int32_t begun_by = -1;  // its page before `first` begins as this one of another sequence does, with or before this step
  };
  std::vector<Part> plan();
  // Once a step was given to the device: pages that hold what another page holds are exchanged for that one.
  void share_pages(std::span<const Part> given);
  void learn_pages(Sequence& sequence) { know_pages(sequence, true); }  // when new tokens are known

  void remove_over();                      // answers that are over give back what they have
  void end_all(const std::string& error);  // fails all there are; "" cancels them

  bool idle() const { return running_.empty() && waiting_.empty(); }
  std::int64_t running() const { return std::ssize(running_); }
  std::int64_t waiting() const { return std::ssize(waiting_); }
  std::int64_t evictions() const { return evictions_; }
  std::int64_t shared_tokens() const { return shared_tokens_; }
  const PagePool& pool() const { return pool_; }

 private:
  void plan_single(std::vector<Part>& parts);
  void plan_prompts(std::vector<Part>& parts);
  void admit(std::vector<Part>& parts);
  bool begin(const std::shared_ptr<Sequence>& sequence);
  void put(std::vector<Part>& parts, const std::shared_ptr<Sequence>& sequence);
  bool find_page(Sequence& sequence);
  std::vector<std::int32_t> known_beginning(const Sequence& sequence) const;
  void begin_as_another(Sequence& sequence) const;
  void know_pages(Sequence& sequence, bool exchange);
  void release(Sequence& sequence);
  void evict_youngest();

  Limits limits_;
  PagePool pool_;
  std::deque<std::shared_ptr<Sequence>> waiting_;  // both by age, the oldest first
  // Of those that wait some have ended. A queue is long, and looked through only then.
  std::shared_ptr<std::atomic<bool>> some_ended_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::shared_ptr<Sequence>> running_;
  std::vector<std::int32_t> slots_;  // free ones
  std::int64_t budget_ = 0, evictions_ = 0, shared_tokens_ = 0;
};

}  // namespace bhyt
