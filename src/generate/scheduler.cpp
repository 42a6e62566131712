#include "generate/scheduler.h"

#include <algorithm>
#include <utility>

#include "model/kv_pages.h"

namespace bhyt {

Sequence::Sequence(Request asked, std::shared_ptr<AnswerState> to)
    : request(std::move(asked)), answer(std::move(to)), tokens(request.prompt) {}

std::int64_t Sequence::left() const {
  if (request.max_tokens == 0) return length() - computed;       // only scored
  return made() < request.max_tokens ? length() - computed : 0;  // nothing follows the last token
}

std::int64_t Sequence::targets_before(std::int64_t token) const {
  return std::ranges::lower_bound(request.targets, token, {}, &Target::behind) - request.targets.begin();
}

Scheduler::Scheduler(const Limits& limits) : limits_(limits), pool_(limits.pages) {
  for (std::int64_t slot = limits.sequences; slot-- > 0;) slots_.push_back(static_cast<std::int32_t>(slot));
}

void Scheduler::add(std::shared_ptr<Sequence> sequence) {
  sequence->answer->waits(some_ended_);
  waiting_.push_back(std::move(sequence));
}

std::vector<Scheduler::Part> Scheduler::plan() {
  remove_over();
  budget_ = limits_.tokens;
  std::vector<Part> parts;
  plan_single(parts);
  plan_prompts(parts);
  admit(parts);
  return parts;
}

void Scheduler::put(std::vector<Part>& parts, const std::shared_ptr<Sequence>& s) {
  const std::int64_t count = std::min(s->left(), budget_);
  if (count == 0) return;
  parts.push_back({s, s->computed, count, s->request.max_tokens > 0 && count == s->left(), std::exchange(s->begun_by, -1)});
  budget_ -= count;
  s->computed += count;
  know_pages(*s, false);
}

// Sequences with one token to compute. Running ones are in the order of their age: whoever is evicted comes behind.
void Scheduler::plan_single(std::vector<Part>& parts) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const std::shared_ptr<Sequence> s = running_[i];
    if (s->left() != 1) continue;
    while (s->slot >= 0 && !find_page(*s)) evict_youngest();
    if (s->slot >= 0) put(parts, s);
  }
}

void Scheduler::plan_prompts(std::vector<Part>& parts) {
  for (const auto& s : running_)
    if (s->left() > 1) put(parts, s);  // it has its pages since it began
}

void Scheduler::admit(std::vector<Part>& parts) {
  while (!waiting_.empty() && budget_ > 0) {
    const std::shared_ptr<Sequence> s = waiting_.front();
    if (!s->answer->over()) {
      if (!begin(s)) return;
      put(parts, s);
    }
    waiting_.pop_front();
  }
}

// False where there is no room yet. One that was evicted waits for the token that is on its way.
bool Scheduler::begin(const std::shared_ptr<Sequence>& s) {
  if (slots_.empty() || s->flying > 0) return false;
  const std::vector<std::int32_t> shared = known_beginning(*s);
  const std::int64_t pages = KvPages::pages_for(std::min(s->length() + 1, s->most()));
  const auto cached = std::count_if(shared.begin(), shared.end(), [&](std::int32_t page) { return !pool_.in_use(page); });
  if (pages - std::ssize(shared) > pool_.available() - cached) return false;
  for (const std::int32_t page : shared) pool_.share(page);
  s->pages = shared;
  while (std::ssize(s->pages) < pages) s->pages.push_back(pool_.take());
  s->known_pages = std::ssize(shared);
  s->computed = s->known_pages * kPageTokens;
  if (limits_.copies) begin_as_another(*s);
  s->slot = slots_.back();
  s->seen_is_fresh = true;
  slots_.pop_back();
  running_.push_back(s);
  shared_tokens_ += s->computed;
  s->answer->begin(s->computed);
  return true;
}

namespace {

// How many of its tokens need not be computed where others have them: not the last, nor what has to be scored.
std::int64_t shareable(const Sequence& s) {
  const std::int64_t most = s.length() - 1;
  const auto& targets = s.request.targets;
  return s.scored < std::ssize(targets) ? std::min<std::int64_t>(most, targets[static_cast<std::size_t>(s.scored)].behind) : most;
}

}  // namespace

// Pages that hold the sequence's first tokens already.
std::vector<std::int32_t> Scheduler::known_beginning(const Sequence& s) const {
  const std::int64_t most = shareable(s);
  std::vector<std::int32_t> pages;
  std::int32_t parent = PagePool::kNone;
  for (std::int64_t at = 0; at + kPageTokens <= most; at += kPageTokens) {
    parent = pool_.find(parent, PagePool::Tokens(s.tokens.data() + at, kPageTokens));
    if (parent == PagePool::kNone) break;
    pages.push_back(parent);
  }
  return pages;
}

// A sequence that runs may have some tokens more in common with this one than whole pages: those of them that it has, or will have with
// this step, need not be computed again.
void Scheduler::begin_as_another(Sequence& s) const {
  const std::int64_t from = s.computed, most = std::min(shareable(s), from + kPageTokens - 1);
  for (const auto& other : running_) {
    const std::int64_t end = std::min({most, other->computed, std::ssize(other->tokens)});
    if (end <= s.computed) continue;
    const std::int64_t same = std::mismatch(s.tokens.begin(), s.tokens.begin() + end, other->tokens.begin()).first - s.tokens.begin();
    if (same <= s.computed) continue;
    s.computed = same;
    s.begun_by = other->pages[static_cast<std::size_t>(from / kPageTokens)];
  }
}

bool Scheduler::find_page(Sequence& s) {
  if (s.computed < std::ssize(s.pages) * kPageTokens) return true;
  if (pool_.available() == 0) return false;
  s.pages.push_back(pool_.take());
  return true;
}

// Full pages whose tokens are known go into the tree. Where the tree has such a page already, this one is given back for it; not while it
// is still to be written (exchange = false), for then another sequence's step would write the shared one.
void Scheduler::know_pages(Sequence& s, bool exchange) {
  const std::int64_t full = std::min(s.computed, std::ssize(s.tokens)) / kPageTokens;
  while (s.known_pages < full) {
    const auto i = static_cast<std::size_t>(s.known_pages);
    const std::int32_t parent = i == 0 ? PagePool::kNone : s.pages[i - 1];
    const std::int32_t known = pool_.add(parent, PagePool::Tokens(s.tokens.data() + s.known_pages * kPageTokens, kPageTokens), s.pages[i]);
    if (known != s.pages[i]) {
      if (!exchange) return;
      pool_.share(known);
      pool_.drop(std::exchange(s.pages[i], known));
    }
    ++s.known_pages;
  }
}

void Scheduler::share_pages(std::span<const Part> given) {
  for (const Part& part : given)
    if (part.sequence->slot >= 0) know_pages(*part.sequence, true);
}

void Scheduler::release(Sequence& s) {
  while (!s.pages.empty()) {
    pool_.drop(s.pages.back());
    s.pages.pop_back();
  }
  s.known_pages = 0;
  if (s.slot >= 0) slots_.push_back(std::exchange(s.slot, -1));
}

void Scheduler::evict_youngest() {
  const std::shared_ptr<Sequence> s = running_.back();
  running_.pop_back();
  release(*s);
  s->scored = std::max(s->scored, s->targets_before(s->computed));
  s->computed = 0;
  waiting_.push_front(s);
  s->answer->waits(some_ended_);
  ++evictions_;
}

void Scheduler::remove_over() {
  std::erase_if(running_, [&](const auto& s) {
    if (!s->answer->over()) return false;
    release(*s);
    return true;
  });
  if (some_ended_->exchange(false)) std::erase_if(waiting_, [](const auto& s) { return s->answer->over(); });
}

void Scheduler::end_all(const std::string& error) {
  const auto end = [&](const auto& s) { error.empty() ? s->answer->finish(Finish::cancelled) : s->answer->fail(error); };
  std::for_each(running_.begin(), running_.end(), end);
  std::for_each(waiting_.begin(), waiting_.end(), end);
  remove_over();
}

}  // namespace bhyt
