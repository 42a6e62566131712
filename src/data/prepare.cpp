#include "data/prepare.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "core/log.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

// The token files an entry means go to `tokens`, everything else (files or folders of documents) to `documents`.
void sort_out(const std::string& entry, std::vector<std::string>& tokens, std::vector<std::string>& documents) {
  for (const std::string& path : expand_globs({entry})) {
    if (!fs::is_directory(path)) {
      check(fs::exists(path), "cannot read {}: No such file or directory", path);
      (TokenFile::recognised(path) ? tokens : documents).push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& e : fs::recursive_directory_iterator(path, fs::directory_options::follow_directory_symlink))
      if (e.is_regular_file() && TokenFile::recognised(e.path().string())) inside.push_back(e.path().string());
    std::sort(inside.begin(), inside.end());
    if (inside.empty())
      documents.push_back(path);
    else
      tokens.insert(tokens.end(), inside.begin(), inside.end());
  }
}

bool opens(const std::string& path) {
  try {
    const TokenFile f(path);
    return f.tokens() > 0;
  } catch (const Error&) {
    return false;
  }
}

std::string packed(const std::vector<std::string>& documents, const PrepareOptions& o) {
  check_usage(o.tokenizer, "{} holds documents, which need data.tokenizer", documents.front());
  Hash64 h;
  h.update("packed-1");
  h.update(o.key);
  h.add(o.tokenizer->fingerprint());
  for (const InputFile& f : find_inputs(documents)) {
    h.update(fs::weakly_canonical(f.path).string());
    h.add(f.bytes);
    h.add(static_cast<std::uint64_t>(f.modified));
  }
  const std::string path = (fs::path(o.cache) / fmt::format("packed-{:016x}.tok", h.digest())).string();
  if (opens(path)) {
    log::info("data: {} is packed already: {}", documents.front() + (documents.size() > 1 ? " …" : ""), path);
    return path;
  }
  pack(*o.tokenizer,
       {.out = path, .inputs = documents, .key = o.key, .threads = o.threads, .progress = o.progress, .interrupted = o.interrupted});
  return path;
}

}  // namespace

std::vector<DataPart> prepare_data(const PrepareOptions& o) {
  std::vector<DataPart> parts;
  for (const DataPart& entry : o.parts) {
    std::vector<std::string> tokens, documents;
    sort_out(entry.path, tokens, documents);
    if (!documents.empty()) tokens.push_back(packed(documents, o));
    double total = 0;
    std::vector<double> size;
    for (const std::string& t : tokens) total += size.emplace_back(static_cast<double>(TokenFile(t).tokens()));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      parts.push_back({tokens[i], tokens.size() == 1 ? entry.weight : entry.weight * size[i] / std::max(total, 1.0)});
  }
  return parts;
}

}  // namespace bhyt
