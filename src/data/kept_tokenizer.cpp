#include "data/kept_tokenizer.h"

#include <unistd.h>

#include "core/check.h"
#include "core/log.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

std::string folder_name(std::uint64_t fingerprint) { return fmt::format("tokenizer-{:016x}", fingerprint); }

std::unique_ptr<Tokenizer> load_kept(const fs::path& folder, std::uint64_t fingerprint) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) return nullptr;
  try {
    auto tokenizer = load_tokenizer(folder.string());
    check(tokenizer->fingerprint() == fingerprint, "{}: holds another tokenizer ({}, {:016x}) than its name says", folder.string(),
          tokenizer->kind(), tokenizer->fingerprint());
    return tokenizer;
  } catch (const Error& e) {
    log::warning("{}; passed over", e.what());
    return nullptr;
  }
}

}  // namespace

void keep_tokenizer(const Tokenizer& tokenizer, const fs::path& folder) {
  if (tokenizer.fingerprint() == make_byte_tokenizer()->fingerprint()) return;
  const fs::path to = folder / folder_name(tokenizer.fingerprint());
  std::error_code ec;
  if (load_kept(to, tokenizer.fingerprint())) return;
  const fs::path beside = fmt::format("{}.tmp.{}", to.string(), ::getpid());
  try {
    tokenizer.save(beside);
  } catch (...) {
    fs::remove_all(beside, ec);
    throw;
  }
  fs::remove_all(to, ec);  // a damaged one
  fs::rename(beside, to, ec);
  const std::string why = ec.message();
  if (ec) fs::remove_all(beside, ec);
  check(fs::is_directory(to, ec), "cannot write {}: {}", to.string(), why);  // another process may have been quicker
}

KeptTokenizer find_tokenizer(const std::string& token_file, const TokenMeta& meta) {
  if (meta.fingerprint == 0) return {};
  if (auto bytes = make_byte_tokenizer(); bytes->fingerprint() == meta.fingerprint) return {std::move(bytes), "built in"};
  const std::string name = folder_name(meta.fingerprint), cache = cache_folder();
  std::error_code ec;
  std::vector<fs::path> places{fs::path(token_file).parent_path() / name};
  if (fs::is_symlink(token_file, ec)) places.push_back(fs::canonical(token_file, ec).parent_path() / name);
  if (!cache.empty()) places.push_back(fs::path(cache) / name);
  for (const fs::path& folder : places)
    if (auto tokenizer = load_kept(folder, meta.fingerprint)) return {std::move(tokenizer), folder.string()};
  return {};
}

}  // namespace bhyt
