#include "generate/page_pool.h"

#include <algorithm>

#include "core/check.h"

namespace bhyt {

PagePool::PagePool(std::int64_t pages) : pages_(static_cast<std::size_t>(pages)), free_(static_cast<std::size_t>(pages)) {
  for (std::size_t i = 0; i < free_.size(); ++i) free_[i] = static_cast<std::int32_t>(free_.size() - 1 - i);  // the first ones first
}

std::int32_t PagePool::take() {
  check(available() > 0, "[pages] expected a page that is not in use, all {} are", total());
  if (free_.empty()) {
    const std::int32_t forgotten = unused_.front();
    unused_.pop_front();
    const Content key = *at(forgotten).known;
    known_.erase(key);
    at(forgotten).known = nullptr;
    free_.push_back(forgotten);
  }
  const std::int32_t page = free_.back();
  free_.pop_back();
  at(page).users = 1;
  return page;
}

void PagePool::share(std::int32_t page) {
  Page& p = at(page);
  if (p.users++ == 0) unused_.erase(p.unused);
}

void PagePool::drop(std::int32_t page) {
  Page& p = at(page);
  check(p.users > 0, "[pages] expected page {} to be in use", page);
  if (--p.users > 0) return;
  if (p.known)
    p.unused = unused_.insert(unused_.end(), page);
  else
    free_.push_back(page);
}

std::size_t PagePool::Hash::operator()(const Content& c) const {
  std::uint64_t h = static_cast<std::uint32_t>(c.parent);
  for (const std::int32_t t : c.tokens) {
    h = (h ^ static_cast<std::uint32_t>(t)) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  }
  return h;
}

PagePool::Content PagePool::content(std::int32_t parent, Tokens tokens) {
  Content c{parent, {}};
  std::copy(tokens.begin(), tokens.end(), c.tokens.begin());
  return c;
}

std::int32_t PagePool::find(std::int32_t parent, Tokens tokens) const {
  const auto found = known_.find(content(parent, tokens));
  return found == known_.end() ? kNone : found->second;
}

std::int32_t PagePool::add(std::int32_t parent, Tokens tokens, std::int32_t page) {
  const auto [place, fresh] = known_.try_emplace(content(parent, tokens), page);
  if (fresh) at(page).known = &place->first;
  return place->second;
}

}  // namespace bhyt
