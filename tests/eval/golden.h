// The golden runs of lm-evaluation-harness: what was asked, what the models gave, what the harness made of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/input.h"

namespace bhyt::test {

namespace fs = std::filesystem;

// The folder of golden cases; "" where there is no BHYT_DATA, and the test skips.
inline fs::path golden_folder() {
  const char* data = std::getenv("BHYT_DATA");
  return data ? fs::path(data).parent_path() / "fixtures" / "eval" / "cases" : fs::path();
}

struct GoldenCase {
  std::string name;
  nlohmann::json head;
  std::vector<nlohmann::json> documents;
};

inline GoldenCase read_golden(const fs::path& file) {
  const auto stream = open_input(find_inputs({file.string()}).at(0));
  std::string text, part(1 << 16, '\0');
  while (const std::size_t n = stream->read(part.data(), part.size())) text.append(part, 0, n);
  GoldenCase golden{.name = file.filename().string(), .head = {}, .documents = {}};
  for (std::size_t from = 0, to; (to = text.find('\n', from)) != std::string::npos; from = to + 1) {
    nlohmann::json line = nlohmann::json::parse(text.substr(from, to - from));
    if (golden.head.is_null())
      golden.head = std::move(line);
    else
      golden.documents.push_back(std::move(line));
  }
  return golden;
}

inline std::vector<GoldenCase> read_golden_cases(const std::string& kind) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(golden_folder())) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<GoldenCase> cases;
  for (const fs::path& file : files) {
    GoldenCase golden = read_golden(file);
    if (golden.head.at("kind") == kind) cases.push_back(std::move(golden));
  }
  return cases;
}

}  // namespace bhyt::test
