#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/log.h"
#include "core/threads.h"
#include "text/parse.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  check(!in.bad() && fs::is_regular_file(path), "[tokenizer] cannot read {}", path.string());
  return text;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

TokenizerSpec read_pair(const fs::path& vocab, const fs::path& merges) {
  for (const fs::path& p : {vocab, merges})
    check(is_file(p), "[tokenizer] expected {} beside {}", p.filename().string(), (p == vocab ? merges : vocab).string());
  return read_vocab_merges(read_file(vocab), read_file(merges));
}

// tokenizer.model is tiktoken's text or sentencepiece's protocol buffer, which begins with the tag of its first piece.
TokenizerSpec read_model(const fs::path& path, const std::string& text) {
  check(!text.starts_with('\x0A'), "[tokenizer] {} is a sentencepiece model, which only tokenizer.json beside it can stand in for",
        path.string());
  return read_tiktoken(text);
}

TokenizerSpec read_any(const fs::path& path) {
  if (path.filename() == "vocab.json") return read_pair(path, path.parent_path() / "merges.txt");
  if (path.filename() == "merges.txt") return read_pair(path.parent_path() / "vocab.json", path);
  const std::string text = read_file(path);
  const std::string extension = path.extension().string();
  if (extension == ".json") return read_tokenizer_json(text);
  if (extension == ".model" || extension == ".tiktoken") return read_model(path, text);
  if (extension == ".bin") return read_llama2c(text);
  fail(fmt::format("[tokenizer] {}: expected tokenizer.json, tokenizer.model (tiktoken), vocab.json with merges.txt, or a llama2.c .bin",
                   path.string()));
}

// "" where there is none.
fs::path find_in(const fs::path& dir) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer.bin"})
    if (is_file(dir / name)) return dir / name;
  return {};
}

// What is wrong with the tokenizer's files by the manifest of the checkpoint that they lie in; "" where nothing is, or there is none.
std::string damage(const fs::path& dir, Verify verify) {
  const auto of_tokenizer = [](const std::string& file) {
    return std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), file) != std::end(kTokenizerFiles);
  };
  return verify == Verify::yes && is_file(dir / kManifest) ? verify_manifest(dir, of_tokenizer) : "";
}

// In the newest checkpoint of a run whose tokenizer is whole; "" where there is none.
fs::path find_in_run(const fs::path& run, Verify verify, bool tell) {
  for (const std::int64_t step : checkpoint_steps(run)) {
    const fs::path dir = checkpoint_folder(run, step), file = find_in(dir);
    const std::string wrong = file.empty() ? "it holds no tokenizer" : damage(dir, verify);
    if (wrong.empty()) {
      if (tell) log::info("{}: taking the tokenizer of its newest checkpoint, {}", run.string(), dir.filename().string());
      return file;
    }
    if (tell) log::warning("passing over {}: {}", dir.string(), wrong);
  }
  return {};
}

// The file that a user means.
fs::path named_file(const std::string& what, Verify verify) {
  std::error_code error;
  const bool folder = fs::is_directory(what, error);
  check(folder || is_file(what), "[tokenizer] expected {}, got {}", kTokenizerHelp, what);
  fs::path file = folder ? find_in(what) : fs::path(what);
  if (file.empty() && !checkpoint_steps(what).empty()) {
    file = find_in_run(what, verify, true);
    check(!file.empty(), "[tokenizer] {}: no checkpoint of this run has a tokenizer that can be used", what);
    return file;
  }
  check(!file.empty(),
        "[tokenizer] expected tokenizer.json, tokenizer.model, vocab.json with merges.txt or tokenizer.bin in {}, found none", what);
  const std::string wrong = damage(file.parent_path(), verify);
  check(wrong.empty(), "[tokenizer] {}: {}. After a change that was meant, remove its {}", file.parent_path().string(), wrong, kManifest);
  return file;
}

}  // namespace

bool holds_tokenizer(const fs::path& folder) { return !find_in(folder).empty(); }

fs::path tokenizer_folder(const fs::path& what, Verify verify) {
  std::error_code error;
  if (!fs::is_directory(what, error)) return what.parent_path();
  if (!holds_tokenizer(what))
    if (const fs::path file = find_in_run(what, verify, false); !file.empty()) return file.parent_path();
  return what;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, Verify verify) {
  if (what == "bytes") return make_byte_tokenizer();
  const fs::path file = named_file(what, verify);
  try {
    TokenizerSpec spec = read_any(file);
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"})
      if (is_file(file.parent_path() / name)) spec.companions[name] = read_file(file.parent_path() / name);
    return finish_tokenizer(std::move(spec));
  } catch (const Error& e) {
    fail(fmt::format("{}: {}", file.string(), e.what()));
  }
}

std::vector<std::vector<TokenId>> encode_all(Threads& threads, const Tokenizer& tokenizer, const std::vector<std::string_view>& texts,
                                             const EncodeOptions& options) {
  std::vector<std::vector<TokenId>> ids(texts.size());
  parallel_for(threads, std::ssize(texts), 8, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) tokenizer.encode(texts[i], ids[i], options);
  });
  return ids;
}

}  // namespace bhyt
