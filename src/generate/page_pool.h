// Who has which page of keys and values, and which pages hold the beginnings of sequences that may come again.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/attention/paged.h"

namespace bhyt {

// A page is free, in use by one or several sequences, or cached: nobody uses it, but what it holds is known, and it stays until memory is
// needed. Known pages form a tree: a page holds kPageTokens tokens behind those of its parent. Whoever uses a page uses its parents too,
// and gives them back behind it; so the page that was unused the longest has no children left when it is forgotten.
class PagePool {
 public:
  explicit PagePool(std::int64_t pages);

  std::int64_t total() const { return std::ssize(pages_); }
  std::int64_t free() const { return std::ssize(free_); }
  std::int64_t cached() const { return std::ssize(unused_); }
  std::int64_t used() const { return total() - available(); }
  std::int64_t available() const { return free() + cached(); }  // for take()

  std::int32_t take();            // a page with one user; forgets a cached one where none is free. There must be one available
  void share(std::int32_t page);  // one user more
  void drop(std::int32_t page);   // one user less
  bool in_use(std::int32_t page) const { return at(page).users > 0; }

  using Tokens = std::span<const std::int32_t, kPageTokens>;
  static constexpr std::int32_t kNone = -1;  // no page; as a parent: the start of a sequence
  std::int32_t find(std::int32_t parent, Tokens tokens) const;
  // Makes known what a page holds. The page that is known for it from now on: this one, or one that was before.
  std::int32_t add(std::int32_t parent, Tokens tokens, std::int32_t page);

 private:
  struct Content {
    std::int32_t parent;
    std::array<std::int32_t, kPageTokens> tokens;
    bool operator==(const Content&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Content& c) const;
  };
  struct Page {
    std::int64_t users = 0;
    const Content* known = nullptr;  // where it stands in known_
    std::list<std::int32_t>::iterator unused{};
  };
  static Content content(std::int32_t parent, Tokens tokens);
  Page& at(std::int32_t page) { return pages_[static_cast<std::size_t>(page)]; }
  const Page& at(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)]; }

  std::vector<Page> pages_;
  std::vector<std::int32_t> free_;
  std::list<std::int32_t> unused_;  // the cached ones, the longest unused first
  std::unordered_map<Content, std::int32_t, Hash> known_;
};

}  // namespace bhyt
